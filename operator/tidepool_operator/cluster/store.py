"""What the watches have told: the newest known state of every object that the operator cares for."""

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from tidepool_api.contract import POOL_LABEL
from tidepool_operator.cluster.kinds import MODEL_POOL, POD, Kind, Object


@dataclass(frozen=True, slots=True, order=True)
class Key:
    """Name of a namespaced object, without its kind."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


# Told after the store has changed: kind, state before (None: new), state after (None: gone).
Listener = Callable[[Kind, Object | None, Object | None], None]

# With thousands of pods the store is most of the operator's memory: a pod's volumes, mounts and environment are
# of no use here, they follow from its revision, nor is what the kubelet says of its images.
_POD_METADATA: Final = (
    "name",
    "namespace",
    "uid",
    "resourceVersion",
    "labels",
    "annotations",
    "creationTimestamp",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
)
_POD_STATUS: Final = (
    "phase",
    "reason",
    "message",
    "podIP",
    "startTime",
)
_POD_CONDITION: Final = ("type", "status", "reason", "message", "lastTransitionTime")
_POD_CONTAINER: Final = ("name", "ready", "started", "restartCount", "state", "lastState", "containerID")
_POD_LISTS: Final[Mapping[str, Sequence[str]]] = {
    "conditions": _POD_CONDITION,
    "containerStatuses": _POD_CONTAINER,
    "initContainerStatuses": _POD_CONTAINER,
}
# Longer texts are seldom said twice.
_SHARED_CHARACTERS: Final = 64


def key_of(item: Mapping[str, Any]) -> Key:
    """Key of any namespaced object."""
    return Key(item["metadata"].get("namespace", ""), item["metadata"]["name"])


def version_of(item: Mapping[str, Any] | None) -> int:
    """resourceVersion as a number (KEP-5504: comparable within a kind); -1 for no object."""
    return -1 if item is None else int(item["metadata"].get("resourceVersion", -1))


def pool_of(kind: Kind, item: Mapping[str, Any]) -> Key | None:
    """The pool that an object belongs to, by its label; a ModelPool belongs to itself."""
    metadata = item["metadata"]
    name = metadata["name"] if kind == MODEL_POOL else (metadata.get("labels") or {}).get(POOL_LABEL)
    return Key(metadata.get("namespace", ""), name) if name else None


class Store:
    """Objects by kind and name, and by pool. Fed by watches and by the answers to own writes; newest wins."""

    def __init__(self) -> None:
        self._items: dict[Kind, dict[Key, Object]] = {}
        self._pools: dict[tuple[Kind, Key], dict[str, Object]] = {}
        self._listeners: list[Listener] = []
        # Counts all that was told, news or not: who waits for the watches sees whether they still speak.
        self.heard = 0

    def listen(self, listener: Listener) -> None:
        """Have `listener` told of every change."""
        self._listeners.append(listener)

    def put(self, kind: Kind, item: Object) -> bool:
        """Take in a state; False when the store knows a newer one (or this one)."""
        return self.put_slim(kind, slim(kind, item))

    def put_slim(self, kind: Kind, item: Object) -> bool:
        """As `put`, of an object that is slim already."""
        self.heard += 1
        known = self._items.get(kind, {}).get(key_of(item))
        if known is not None and version_of(known) >= version_of(item):
            return False
        self._keep(kind, known, item)
        return True

    def amend(self, kind: Kind, key: Key, version: int, spec: Mapping[str, Any]) -> None:
        """An own write made this of an object's spec, at `version`: known before the watch tells it.

        It is kept as of just before: what the watch tells of that version has the rest of the object, too.
        """
        known = self._items.get(kind, {}).get(key)
        if known is not None and version_of(known) < version:
            metadata = {**known["metadata"], "resourceVersion": str(version - 1)}
            self._keep(kind, known, {**known, "metadata": metadata, "spec": {**known["spec"], **spec}})

    def _keep(self, kind: Kind, known: Object | None, item: Object) -> None:
        key = key_of(item)
        if known is not None:
            self._unindex(kind, key, known)
        self._items.setdefault(kind, {})[key] = item
        pool = pool_of(kind, item)
        if pool is not None:
            self._pools.setdefault((kind, pool), {})[key.name] = item
        self._tell(kind, known, item)

    def forget(self, kind: Kind, key: Key, *, uid: str = "") -> bool:
        """The object is gone; with `uid` only when the store still holds that very object."""
        known = self._items.get(kind, {}).get(key)
        if known is None or (uid and known["metadata"].get("uid") != uid):
            return False
        del self._items[kind][key]
        self._unindex(kind, key, known)
        self._tell(kind, known, None)
        return True

    def get(self, kind: Kind, key: Key) -> Object | None:
        """The newest known state, or None."""
        return self._items.get(kind, {}).get(key)

    def of_pool(self, kind: Kind, pool: Key) -> Iterable[Object]:
        """All objects of one kind that carry the pool's label."""
        return list(self._pools.get((kind, pool), {}).values())

    def all(self, kind: Kind) -> Iterator[Object]:
        """Every object of a kind."""
        yield from list(self._items.get(kind, {}).values())

    def keys(self, kind: Kind) -> list[Key]:
        """Keys of a kind."""
        return list(self._items.get(kind, {}))

    def _unindex(self, kind: Kind, key: Key, item: Object) -> None:
        pool = pool_of(kind, item)
        if pool is None:
            return
        members = self._pools.get((kind, pool), {})
        members.pop(key.name, None)
        if not members:
            self._pools.pop((kind, pool), None)

    def _tell(self, kind: Kind, before: Object | None, after: Object | None) -> None:
        for listener in self._listeners:
            listener(kind, before, after)


def slim(kind: Kind, item: Object) -> Object:
    """An object without what nobody reads here. Slimming it again changes nothing."""
    metadata = item["metadata"]
    made = {**item, "metadata": {field: metadata[field] for field in metadata if field != "managedFields"}}
    if kind == POD:
        made = _slim_pod(metadata, item.get("spec") or {}, item.get("status") or {})
    found: Object = shared(made)
    return found


def _slim_pod(metadata: Object, spec: Object, status: Object) -> Object:
    asks = [{"name": one.get("name"), "resources": one.get("resources")} for one in spec.get("containers") or []]
    lists = {
        name: [{field: one[field] for field in fields if one.get(field) not in (None, "", {})} for one in found]
        for name, fields in _POD_LISTS.items()
        if (found := status.get(name))
    }
    return {
        "metadata": {field: metadata[field] for field in _POD_METADATA if field in metadata},
        "spec": {"nodeName": spec.get("nodeName"), "containers": asks},
        "status": {field: status[field] for field in _POD_STATUS if field in status} | lists,
    }


def shared(value: Any) -> Any:  # noqa: ANN401 - any JSON value
    """The same value with every short text kept once: thousands of objects say the same words, and as decoded each
    has its own copy of them."""
    if isinstance(value, dict):
        return {sys.intern(key): shared(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [shared(inner) for inner in value]
    return sys.intern(value) if isinstance(value, str) and len(value) <= _SHARED_CHARACTERS else value
