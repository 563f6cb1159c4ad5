"""Strategic merge of spec.podTemplate onto the rendered pod.

The rules are those of Kubernetes where a pod has them: lists of named things are merged by their key, other lists
are replaced, null takes a field away, `$patch: delete` takes an entry away and `$patch: replace` replaces one.
Entries that are one value under a name (env, volumes) are replaced as a whole, or two sources would meet in one.
"""

from collections.abc import Mapping, Sequence
from copy import deepcopy
from typing import Any, Final

from tidepool_api.contract import ROUTER_CONTAINER
from tidepool_operator.pool.model import Object

_PATCH: Final = "$patch"
# Merge keys as in k8s.io/api/core/v1/types.go (patchMergeKey).
_MERGED: Final[Mapping[str, str]] = {
    "containers": "name",
    "initContainers": "name",
    "volumeMounts": "mountPath",
    "volumeDevices": "devicePath",
    "ports": "containerPort",
    "imagePullSecrets": "name",
    "topologySpreadConstraints": "topologyKey",
    "hostAliases": "ip",
    "resourceClaims": "name",
}
_REPLACED: Final[Mapping[str, str]] = {"env": "name", "volumes": "name"}
# Atomic in Kubernetes, but here what the spec's own fields ask for must not vanish.
_APPENDED: Final = ("tolerations", "envFrom")


def merge_template(template: Object, patch: Mapping[str, Any]) -> Object:
    """The pod template with `patch` (metadata and spec) merged in; neither argument is changed."""
    return _merge(template, aimed(patch))


def aimed(patch: Mapping[str, Any]) -> Object:
    """A patch as it is meant: the router may be named under containers, where people look for it; it is an init
    container."""
    made = deepcopy(dict(patch))
    spec = made.get("spec")
    containers = spec.get("containers") if isinstance(spec, dict) else None
    if not isinstance(spec, dict) or not isinstance(containers, list):
        return made
    routers = [entry for entry in containers if _named(entry, ROUTER_CONTAINER)]
    if routers:
        spec["containers"] = [entry for entry in containers if not _named(entry, ROUTER_CONTAINER)]
        spec["initContainers"] = [*routers, *(spec.get("initContainers") or [])]
    return made


def _named(entry: object, name: str) -> bool:
    return isinstance(entry, Mapping) and entry.get("name") == name


def _merge(base: Mapping[str, Any], patch: Mapping[str, Any]) -> Object:
    if patch.get(_PATCH) == "replace":
        return {key: value for key, value in patch.items() if key != _PATCH}
    merged = dict(base)
    for key, value in patch.items():
        if value is None:
            merged.pop(key, None)
        elif isinstance(value, Mapping):
            found = merged.get(key)
            merged[key] = _merge(found if isinstance(found, Mapping) else {}, value)
        elif isinstance(value, list):
            merged[key] = _merge_list(key, merged.get(key) or [], value)
        else:
            merged[key] = value
    return merged


def _merge_list(field: str, base: Sequence[Any], patch: Sequence[Any]) -> list[Any]:
    if field in _APPENDED:
        return [*base, *(entry for entry in patch if entry not in base)]
    key = _MERGED.get(field) or _REPLACED.get(field)
    if key is None or not all(isinstance(entry, Mapping) and key in entry for entry in patch):
        return list(patch)
    merged = {entry[key]: entry for entry in base}
    for entry in patch:
        if entry.get(_PATCH) == "delete":
            merged.pop(entry[key], None)
        elif field in _REPLACED:
            merged[entry[key]] = entry
        else:
            merged[entry[key]] = _merge(merged.get(entry[key], {}), entry)
    return list(merged.values())
