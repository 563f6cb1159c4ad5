"""Round robin: each pod in turn, as Kubernetes Services over IPVS or Envoy's ROUND_ROBIN do."""

from collections.abc import Collection

from sim.picker import Board, Immediate
from sim.request import Request


class RoundRobin(Immediate):
    """Looks at nothing."""

    def __init__(self, pods: int, board: Board, seed: int) -> None:
        self._pods = pods
        self._next = seed % pods

    def pick(self, request: Request, now: float, exclude: Collection[int] = ()) -> int:
        """The next one that did not just fail."""
        while True:
            pod = self._next
            self._next = (pod + 1) % self._pods
            if pod not in exclude:
                return pod
