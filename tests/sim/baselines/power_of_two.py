"""Power of two choices: two pods at random, the one with fewer requests of this gateway.

As vllm-router's and Envoy's LEAST_REQUEST with choice_count 2 (its default) do. The second is drawn among the
others, so that it is a choice; of equals the first drawn.
"""

from collections.abc import Collection
from random import Random

from sim.picker import Board, Immediate
from sim.request import Request


class PowerOfTwo(Immediate):
    """Counts its own requests."""

    def __init__(self, pods: int, board: Board, seed: int) -> None:
        self.in_flight = [0] * pods
        self._dice = Random(seed)

    def pick(self, request: Request, now: float, exclude: Collection[int] = ()) -> int:
        """The emptier of two."""
        pods = [pod for pod in range(len(self.in_flight)) if pod not in exclude]
        drawn = self._dice.sample(pods, min(2, len(pods)))
        pod = min(drawn, key=self.in_flight.__getitem__)
        self.in_flight[pod] += 1
        return pod

    def ended(self, request: Request, pod: int, now: float, *, failed: bool, cached_tokens: int) -> None:
        """One less."""
        self.in_flight[pod] -= 1
