"""Fields that this release knows and the cluster's CRD does not: the API server drops them in silence."""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from tidepool_api.crd import MODELPOOL

_MOST: Final = 20
_FREE: Final = "x-kubernetes-preserve-unknown-fields"


def dropped(served: Mapping[str, Any]) -> tuple[str, ...]:
    """Up to 20 paths of fields that `served`, a ModelPool's schema as the API server publishes it, lacks."""
    (version,) = MODELPOOL.crd()["spec"]["versions"]
    ours = version["schema"]["openAPIV3Schema"]
    theirs = served.get("properties") or {}
    lacking = (
        path for part in ("spec", "status") for path in _lacking(ours["properties"][part], theirs.get(part), part)
    )
    return tuple(path for path, _ in zip(lacking, range(_MOST), strict=False))


def _lacking(ours: Mapping[str, Any], theirs: Mapping[str, Any] | None, path: str) -> Iterator[str]:
    if theirs is None:
        yield path
        return
    if theirs.get(_FREE):
        return
    for name, inner in (ours.get("properties") or {}).items():
        yield from _lacking(inner, (theirs.get("properties") or {}).get(name), f"{path}.{name}")
    if isinstance(ours.get("items"), Mapping):
        yield from _lacking(ours["items"], theirs.get("items"), f"{path}[]")
