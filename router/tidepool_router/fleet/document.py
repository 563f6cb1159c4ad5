"""Reads a fleet document, YAML or JSON, and says where it is wrong. Pure."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import yaml
from pydantic import BaseModel, ValidationError
from pydantic.alias_generators import to_snake

from tidepool_api.routing import Fleet, FleetPool, Queue, Routing
from tidepool_router.errors import SettingsError
from tidepool_router.fleet.endpoint import parse_source

# A thousand pools take about 300 kB.
_MAX_BYTES: Final = 32 * 1024 * 1024
Path = tuple[str | int, ...]


class FleetError(SettingsError):
    """A fleet document that cannot be used; `line` counts from 1, None when it has none."""

    def __init__(self, reason: str, line: int | None = None) -> None:
        super().__init__(f"line {line}: {reason}" if line is not None else reason)
        self.reason = reason
        self.line = line


@dataclass(frozen=True, slots=True)
class FleetDocument:
    """A good document, and what its writer may want to know."""

    fleet: Fleet
    warnings: tuple[str, ...] = ()


def read_fleet(text: str) -> FleetDocument:
    """Parse and check a document; raises FleetError for what cannot be used.

    Unknown fields are warned of, for a later release may have written them.
    """
    if len(text) > _MAX_BYTES:
        raise FleetError(f"the document is longer than {_MAX_BYTES} characters")
    data = _load(text)
    if not isinstance(data, dict):
        raise FleetError("a fleet is a mapping with the key 'pools'", 1)
    try:
        fleet = Fleet.model_validate(data)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        path: Path = first["loc"]
        raise FleetError(f"{_dotted(path)}: {first['msg']}", _line_of(text, path)) from error
    _check(fleet, text)
    return FleetDocument(fleet, tuple(_unknown(data, Fleet, ())) + tuple(_doubled_models(fleet)))


def _load(text: str) -> object:
    if text.lstrip().startswith("{"):
        try:
            return json.loads(text)
        except json.JSONDecodeError:
            pass  # YAML in flow style, or broken: YAML's message has the line
    try:
        return yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))  # noqa: S506 - both are safe
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark is not None else None
        raise FleetError(str(error.problem or error.context), line) from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise FleetError(str(error).splitlines()[0] if str(error) else "cannot be parsed") from error


def _check(fleet: Fleet, text: str) -> None:
    """What a schema cannot say."""
    seen: set[str] = set()
    for index, pool in enumerate(fleet.pools):
        if pool.name in seen:
            raise FleetError(f"the pool {pool.name!r} is there twice", _line_of(text, ("pools", index, "name")))
        seen.add(pool.name)
        for number, url in enumerate(pool.endpoints):
            try:
                parse_source(url)
            except SettingsError as error:
                path = ("pools", index, "endpoints", number)
                raise FleetError(f"{_dotted(path)}: {error}", _line_of(text, path)) from error


def _doubled_models(fleet: Fleet) -> list[str]:
    owners: dict[str, str] = {}
    doubled = []
    for pool in fleet.pools:
        for model in pool.models:
            owner = owners.setdefault(model, pool.name)
            if owner != pool.name:
                doubled.append(
                    f"the model {model!r} belongs to {owner!r}; {pool.name!r} gets none of its requests"
                )
    return doubled


_NESTED: Final[dict[tuple[type[BaseModel], str], type[BaseModel]]] = {
    (Fleet, "pools"): FleetPool,
    (FleetPool, "routing"): Routing,
    (Routing, "queue"): Queue,
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
            found.append(f"{_dotted((*path, str(key)))} is no known field and has no effect")
        elif (nested := _NESTED.get((model, name))) is not None:
            found += _unknown(item, nested, (*path, str(key)))
    return found


def _dotted(path: Sequence[str | int]) -> str:
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path)
    return text.lstrip(".") or "document"


def _line_of(text: str, path: Path) -> int | None:
    """Line of the deepest node on the path that is there."""
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
    except (yaml.YAMLError, RecursionError):
        return None
    line = node.start_mark.line + 1 if node is not None else 1
    for part in path:
        child: yaml.Node | None = None
        if isinstance(node, yaml.MappingNode):
            named = {to_snake(str(key.value)): value for key, value in node.value}
            child = named.get(to_snake(str(part)))
        elif isinstance(node, yaml.SequenceNode) and isinstance(part, int) and part < len(node.value):
            child = node.value[part]
        if child is None:
            break
        node = child
        line = node.start_mark.line + 1
    return line
