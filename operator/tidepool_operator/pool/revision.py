"""What makes two engines differ makes two revisions; what the operator makes around an engine does not.

A pod template is two parts. The engine's part is what its engine would have to be restarted for. The router's part
each release of the operator makes anew: the containers `router` and `loader`, the volumes that no other container
mounts, where metrics are scraped. Of that a revision's name has what was asked for, not what came of it.

So an upgrade restarts no engine: what makes a revision's pods keeps the router's part that it was made with. That
stands in an annotation, since the live template alone would not tell a foreign edit from an earlier release.
"""

import hashlib
import json
from collections.abc import Callable, Mapping, Set
from dataclasses import asdict, dataclass
from typing import Any, Final

from pydantic import TypeAdapter, ValidationError

from tidepool_api.contract import (
    GROUP,
    LOADER_CONTAINER,
    REVISION_LABEL,
    ROUTER_CONTAINER,
    SCRAPE_ANNOTATIONS,
)
from tidepool_api.modelpool import ModelPool
from tidepool_operator.pool import cache, groups, loader
from tidepool_operator.pool.model import Object, SidecarTLS
from tidepool_operator.pool.podtemplate import aimed

# On what makes a revision's pods: the router's part that they have.
ROUTER_ANNOTATION: Final = f"{GROUP}/router"
_LENGTH: Final = 10
_OURS: Final = (ROUTER_CONTAINER, LOADER_CONTAINER)


@dataclass(frozen=True, slots=True)
class RouterPart:
    """What a release makes around an engine, in one piece: no container without the volumes that are its own."""

    containers: list[Object]
    volumes: list[Object]
    annotations: dict[str, str]

    @property
    def image(self) -> str | None:
        """The router's."""
        return next((one.get("image") for one in self.containers if one.get("name") == ROUTER_CONTAINER), None)

    def encode(self) -> str:
        """JSON for ROUTER_ANNOTATION."""
        return _PART.dump_json(self).decode()


_PART: Final = TypeAdapter(RouterPart)


def apart(template: Object) -> tuple[Object, RouterPart]:
    """The engine's part and the router's of a pod template, which is not changed."""
    metadata, spec = template.get("metadata") or {}, template["spec"]
    before: list[Object] = spec.get("initContainers") or []
    volumes: list[Object] = spec.get("volumes") or []
    annotations: dict[str, str] = metadata.get("annotations") or {}
    mounted = _mounted(template)
    engine = {
        "metadata": {**metadata, "annotations": _without(annotations, SCRAPE_ANNOTATIONS)},
        "spec": {
            **spec,
            "initContainers": [one for one in before if not _is_ours(one)],
            "volumes": [one for one in volumes if one.get("name") in mounted],
        },
    }
    router = RouterPart(
        [one for one in before if _is_ours(one)],
        [one for one in volumes if one.get("name") not in mounted],
        _scrapes(annotations),
    )
    return engine, router


def together(engine: Object, router: RouterPart) -> Object:
    """A pod template of two parts."""
    metadata, spec = engine["metadata"], engine["spec"]
    return {
        "metadata": {**metadata, "annotations": router.annotations | metadata["annotations"]},
        "spec": {
            **spec,
            # The router first: it is up while models are loaded.
            "initContainers": [*router.containers, *spec["initContainers"]],
            "volumes": [*spec["volumes"], *router.volumes],
        },
    }


def made_with(workload: Mapping[str, Any]) -> RouterPart:
    """The router's part that a Deployment or LeaderWorkerSet was made with; the one that it has where somebody has
    taken the record away."""
    text = (workload["metadata"].get("annotations") or {}).get(ROUTER_ANNOTATION)
    try:
        return _PART.validate_json(text or "")
    except ValidationError:
        return apart(groups.template_of(workload))[1]


def revision_of(template: Object, pool: ModelPool, tls: SidecarTLS | None) -> str:
    """Ten hexadecimal digits: of the engine's part of a pod template and of what is asked of the router's.

    What is not asked for has no key, so that the hash stays when there is more to ask for. Settings, replicas,
    scaling, routing and drain are no part of a template in the first place.
    """
    asked = {
        "podTemplate": _said(pool.spec.pod_template, _mounted(template)),
        # Its variables are the engine's too.
        "loader": loader.asked(pool, cache.files(pool)) if cache.way(pool) is cache.Way.POD else None,
        "tls": None if tls is None else asdict(tls),
        # Derived from the template, and not to be derived otherwise while its pods are up.
        "worker": _hashed(groups.worker_of(template)) if pool.spec.parallelism.hosts > 1 else None,
    }
    plain = [_hashed(template), {name: what for name, what in asked.items() if what}]
    text = json.dumps(plain, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:_LENGTH]


def _hashed(template: Object) -> Object:
    """The engine's part without the label that carries the revision itself."""
    engine, _ = apart(template)
    metadata = engine["metadata"]
    labels = _without(metadata.get("labels") or {}, {REVISION_LABEL})
    return {**engine, "metadata": {**metadata, "labels": labels}}


def _said(patch: Mapping[str, Any], mounted: Set[str]) -> Object:
    """What of podTemplate is about the router's part; also what it takes away leaves its trace."""
    meant = aimed(patch)
    metadata, spec = meant.get("metadata") or {}, meant.get("spec") or {}
    said: Object = {}
    if "initContainers" in spec:
        said["initContainers"] = _named(spec["initContainers"], lambda name: name in _OURS)
    if "volumes" in spec:
        said["volumes"] = _named(spec["volumes"], lambda name: name not in mounted)
    if "annotations" in metadata:
        found = metadata["annotations"]
        said["annotations"] = _scrapes(found) if isinstance(found, Mapping) else found
    return {field: what for field, what in said.items() if what not in ([], {})}


def _named(entries: object, wanted: Callable[[str], bool]) -> object:
    """Entries of a list by their names; all that is said where it is no list of named things."""
    if isinstance(entries, list) and all(isinstance(one, Mapping) and "name" in one for one in entries):
        return [one for one in entries if wanted(one["name"])]
    return entries


def _mounted(template: Object) -> Set[str]:
    """Volumes of the containers that are not ours."""
    spec = template["spec"]
    before = (one for one in spec.get("initContainers") or [] if not _is_ours(one))
    return {
        mount.get("name", "")
        for one in (*before, *(spec.get("containers") or []))
        for field in ("volumeMounts", "volumeDevices")
        for mount in one.get(field) or []
    }


def _scrapes(annotations: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in annotations.items() if name in SCRAPE_ANNOTATIONS}


def _is_ours(container: Object) -> bool:
    return container.get("name") in _OURS


def _without(entries: Mapping[str, str], names: Set[str] | Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in entries.items() if name not in names}
