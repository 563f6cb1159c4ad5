"""Least in-flight: the pod with the fewest requests of this gateway, as nginx' least_conn.

Ties go around, so that an idle pool is used evenly.
"""

from collections.abc import Collection

from sim.picker import Board, Immediate
from sim.request import Request


class LeastInFlight(Immediate):
    """Counts its own requests."""

    def __init__(self, pods: int, board: Board, seed: int) -> None:
        self.in_flight = [0] * pods
        self._turn = seed % pods

    def pick(self, request: Request, now: float, exclude: Collection[int] = ()) -> int:
        """The least loaded; among equals the next in turn."""
        count = len(self.in_flight)
        order = [(self._turn + i) % count for i in range(count)]
        pod = min((p for p in order if p not in exclude), key=self.in_flight.__getitem__)
        self._turn = (pod + 1) % count
        self.in_flight[pod] += 1
        return pod

    def ended(self, request: Request, pod: int, now: float, *, failed: bool, cached_tokens: int) -> None:
        """One less."""
        self.in_flight[pod] -= 1
