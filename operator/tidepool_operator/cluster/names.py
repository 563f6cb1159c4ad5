"""Which pools answer to which model name: two that share one get in each other's way at the gateways."""

from collections.abc import Iterator, Mapping
from typing import Any

from tidepool_operator.cluster.kinds import Object
from tidepool_operator.cluster.store import Key, key_of


class Names:
    """An index of served names, kept by changes of pools; a pool that is being deleted serves none."""

    def __init__(self) -> None:
        self._pools: dict[str, set[Key]] = {}

    def changed(self, before: Object | None, after: Object | None) -> set[Key]:
        """Take a change of a pool in; the other pools that it touches."""
        old, new = set(_served(before)), set(_served(after))
        touched: set[Key] = set()
        item = after or before
        if item is None or old == new:
            return touched
        key = key_of(item)
        for name in old - new:
            self._pools.get(name, set()).discard(key)
            touched |= self._pools.get(name, set())
            if not self._pools.get(name):
                self._pools.pop(name, None)
        for name in new - old:
            touched |= self._pools.setdefault(name, set())
            self._pools[name].add(key)
        return touched - {key}

    def namesakes(self, raw: Object) -> dict[str, tuple[str, ...]]:
        """Names of a pool that others have too, each with the others."""
        key = key_of(raw)
        shared = {name: self._pools.get(name, set()) - {key} for name in _served(raw)}
        return {name: tuple(sorted(map(str, others))) for name, others in sorted(shared.items()) if others}


def _served(raw: Object | None) -> Iterator[str]:
    """As ModelPool.served_names, from what may be no sound spec."""
    if raw is None or raw["metadata"].get("deletionTimestamp"):
        return
    spec = raw.get("spec")
    model = spec.get("model") if isinstance(spec, Mapping) else None
    if not isinstance(model, Mapping):
        return
    aliases: Any = model.get("aliases")
    listed = aliases if isinstance(aliases, list) else []
    yield from (name for name in (model.get("name") or raw["metadata"]["name"], *listed) if isinstance(name, str))
