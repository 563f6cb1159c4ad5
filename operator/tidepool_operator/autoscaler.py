"""Owner of the scaling loop: reads all pools, decides each, acts through the scale subresource."""

from collections import deque
from collections.abc import Collection, Mapping, Sequence
from typing import Final, Protocol

from tidepool_operator.scaling.model import Decision, ScaledPool

HISTORY: Final = 10  # decisions kept for status.scaling.history, whose bound it is


class Cluster(Protocol):
    """What the loop needs of the operator's cache and API client."""

    def scaled_pools(self) -> Sequence[ScaledPool]:
        """All pools with `scaling` that are not being deleted, with their live pods."""
        ...

    def gateways(self) -> Mapping[str, str]:
        """Address (IP) of every live gateway pod by the pod's name."""
        ...

    async def scale(self, namespace: str, name: str, replicas: int) -> None:
        """Write the pool's scale subresource. Raises OperatorError's kin when the API server refuses."""
        ...

    def mark_due(self, key: str) -> None:
        """Put the pool ("namespace/name") into the reconcile queue."""
        ...

    def leads(self) -> bool:
        """Whether this process holds the lease."""
        ...


class Board:
    """The decisions of each pool that the reconcile writes into the status; bounded by pools and by ten each."""

    def __init__(self) -> None:
        self._last: dict[str, Decision] = {}
        self._history: dict[str, deque[Decision]] = {}

    def get(self, key: str) -> Decision | None:
        """The last decision for the pool, None before the first."""
        return self._last.get(key)

    def history(self, key: str) -> tuple[Decision, ...]:
        """The last ten decisions that changed the count, the newest first."""
        return tuple(self._history.get(key, ()))

    def put(self, key: str, decision: Decision) -> bool:
        """Keep a decision; True when it says something other than the one before."""
        before = self._last.get(key)
        self._last[key] = decision
        if before is None or before.replicas != decision.replicas:
            self._history.setdefault(key, deque(maxlen=HISTORY)).appendleft(decision)
        return before is None or (before.replicas, before.reason) != (decision.replicas, decision.reason)

    def keep(self, keys: Collection[str]) -> None:
        """Forget every pool that is not among `keys`."""
        for key in self._last.keys() - set(keys):
            del self._last[key], self._history[key]
