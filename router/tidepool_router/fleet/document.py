"""Reads a fleet document, YAML or JSON, and says where it is wrong. Pure."""

from dataclasses import dataclass
from typing import Final

from pydantic import BaseModel, ValidationError
from pydantic.alias_generators import to_snake

from tidepool_api.routing import STRICT, Fleet, FleetPool, FleetPrefill, FleetWorkflow, Queue, Routing
from tidepool_api.traffic import Classifier, Mirror, Share, Traffic, TrafficRule, When
from tidepool_router.documents import DocumentError, Path, dotted, line_of, load
from tidepool_router.errors import SettingsError
from tidepool_router.fleet.endpoint import parse_source


class FleetError(DocumentError):
    """A fleet document that cannot be used."""


@dataclass(frozen=True, slots=True)
class FleetDocument:
    """A good document, and what its writer may want to know."""

    fleet: Fleet
    warnings: tuple[str, ...] = ()


def read_fleet(text: str) -> FleetDocument:
    """Parse and check a document; raises FleetError for what cannot be used.

    Unknown fields are warned of, for a later release may have written them.
    """
    data = load(text, FleetError)
    if not isinstance(data, dict):
        raise FleetError("a fleet is a mapping with the key 'pools'", 1)
    try:
        # The operator's documents have a time, and may be those of a later release.
        fleet = Fleet.model_validate(data, context=None if data.get("issuedAt") else STRICT)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        path: Path = first["loc"]
        raise FleetError(f"{dotted(path)}: {first['msg']}", line_of(text, path)) from error
    _check(fleet, text)
    warnings = [*_unknown(data, Fleet, ()), *_doubled_models(fleet), *_missing_targets(fleet)]
    return FleetDocument(fleet, tuple(warnings))


def _check(fleet: Fleet, text: str) -> None:
    """What a schema cannot say."""
    seen: set[str] = set()
    for index, pool in enumerate(fleet.pools):
        if pool.name in seen:
            raise FleetError(f"the pool {pool.name!r} is there twice", line_of(text, ("pools", index, "name")))
        seen.add(pool.name)
        _check_endpoints(pool.endpoints, ("pools", index, "endpoints"), text)
        if pool.prefill is not None:
            _check_endpoints(pool.prefill.endpoints, ("pools", index, "prefill", "endpoints"), text)


def _check_endpoints(urls: tuple[str, ...], where: Path, text: str) -> None:
    for number, url in enumerate(urls):
        try:
            parse_source(url)
        except SettingsError as error:
            path = (*where, number)
            raise FleetError(f"{dotted(path)}: {error}", line_of(text, path)) from error


def _doubled_models(fleet: Fleet) -> list[str]:
    owners: dict[str, str] = {}
    doubled = []
    targets = {(pool.name, target) for pool in fleet.pools if pool.traffic for target in pool.traffic.targets}
    for pool in sorted(fleet.pools, key=lambda pool: pool.traffic is None):
        for model in pool.models:
            owner = owners.setdefault(model, pool.name)
            if owner != pool.name and (owner, pool.name) not in targets:
                doubled.append(
                    f"the model {model!r} belongs to {owner!r}; {pool.name!r} gets none of its requests"
                )
    return doubled


def _missing_targets(fleet: Fleet) -> list[str]:
    names = {pool.name for pool in fleet.pools}
    return [
        f"the traffic of {pool.name!r} names the pool {target!r}, which is not there: it gets nothing until it is"
        for pool in fleet.pools
        if pool.traffic is not None
        for target in pool.traffic.targets
        if target not in names
    ]


_NESTED: Final[dict[tuple[type[BaseModel], str], type[BaseModel]]] = {
    (Fleet, "pools"): FleetPool,
    (Fleet, "workflows"): FleetWorkflow,
    (FleetPool, "routing"): Routing,
    (Routing, "queue"): Queue,
    (FleetPool, "prefill"): FleetPrefill,
    (FleetPool, "traffic"): Traffic,
    (Traffic, "rules"): TrafficRule,
    (Traffic, "split"): Share,
    (Traffic, "mirror"): Mirror,
    (TrafficRule, "when"): When,
    (TrafficRule, "classifier"): Classifier,
}


def _unknown(value: object, model: type[BaseModel], path: Path) -> list[str]:
    if isinstance(value, list):
        return [text for index, item in enumerate(value) for text in _unknown(item, model, (*path, index))]
    if not isinstance(value, dict):
        return []
    found: list[str] = []
    for key, item in value.items():
        name = to_snake(str(key))
        if name not in model.model_fields:
            found.append(f"{dotted((*path, str(key)))} is no known field and has no effect")
        elif (nested := _NESTED.get((model, name))) is not None:
            found += _unknown(item, nested, (*path, str(key)))
    return found
