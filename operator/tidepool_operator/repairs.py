"""How often each object was applied for one and the same spec: whoever changes it back is met at a pace."""

from collections.abc import Iterable
from typing import Final

from tidepool_operator.cluster.store import Key

_MOST: Final = 5
_WITHIN_SECONDS: Final = 60.0
# When to try again what is contested.
AGAIN_SECONDS: Final = _WITHIN_SECONDS / _MOST


class Repairs:
    """Counts by pool; a new generation of its spec begins anew. Bounded by the pools and their objects."""

    def __init__(self) -> None:
        self._pools: dict[Key, tuple[int, dict[str, list[float]]]] = {}

    def count(self, pool: Key, generation: int, names: Iterable[str], now: float) -> list[str]:
        """Take note that these are to be applied at `now` (seconds); those that have been too often of late."""
        known, counts = self._pools.get(pool, (generation, {}))
        if known != generation:
            counts = {}
        self._pools[pool] = (generation, counts)
        fought = []
        for name in names:
            recent = [applied for applied in counts.get(name, []) if 0.0 <= now - applied < _WITHIN_SECONDS]
            if len(recent) >= _MOST:
                fought.append(name)
            else:
                recent.append(now)
            counts[name] = recent
        return fought

    def forget(self, pool: Key) -> None:
        """The pool is gone."""
        self._pools.pop(pool, None)
