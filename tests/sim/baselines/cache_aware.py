"""vllm-router's cache_aware (0.1.17, after sglang's): a tree of the texts sent to each worker, and a load valve.

Where (max - min) of requests in flight is above 64 and max above 1.5 times min, the least loaded worker. Else the
worker that knows most of the prompt, if that is more than 0.3 of it; else the least loaded. The tree holds
characters there and blocks here, for a budget of 33,554,432 characters a worker at four characters a token.
"""

from collections.abc import Collection, Sequence
from typing import Final

from sim.picker import Board, Immediate
from sim.prefixes import PrefixMemory
from sim.request import NAME_TOKENS, Request

# `vllm-router --help`, 0.1.17.
CACHE_THRESHOLD: Final = 0.3
BALANCE_ABS_THRESHOLD: Final = 64
BALANCE_REL_THRESHOLD: Final = 1.5
TREE_BLOCKS: Final = 33_554_432 // (4 * NAME_TOKENS)


def imbalanced(
    loads: Sequence[int],
    abs_threshold: int = BALANCE_ABS_THRESHOLD,
    rel_threshold: float = BALANCE_REL_THRESHOLD,
) -> bool:
    """Both conditions must hold."""
    least, most = min(loads), max(loads)
    return most - least > abs_threshold and most > least * rel_threshold


class CacheAware(Immediate):
    """Counts its own requests; remembers what it sent where."""

    def __init__(
        self,
        pods: int,
        board: Board,
        seed: int,
        *,
        cache_threshold: float = CACHE_THRESHOLD,
        abs_threshold: int = BALANCE_ABS_THRESHOLD,
        rel_threshold: float = BALANCE_REL_THRESHOLD,
    ) -> None:
        self.in_flight = [0] * pods
        self._thresholds = (cache_threshold, abs_threshold, rel_threshold)
        self._memory = PrefixMemory(pods, TREE_BLOCKS)
        self._turn = seed % pods

    def pick(self, request: Request, now: float, exclude: Collection[int] = ()) -> int:
        """See the module."""
        cache_threshold, abs_threshold, rel_threshold = self._thresholds
        pods = [pod for pod in range(len(self.in_flight)) if pod not in exclude]
        pod = self._least(pods)
        if not imbalanced([self.in_flight[p] for p in pods], abs_threshold, rel_threshold) and request.names:
            matches = self._memory.matches(request.names)
            known = max(pods, key=matches.__getitem__)
            if matches[known] / len(request.names) > cache_threshold:
                pod = known
        self._memory.note(pod, request.names)
        self.in_flight[pod] += 1
        return pod

    def ended(self, request: Request, pod: int, now: float, *, failed: bool, cached_tokens: int) -> None:
        """One less."""
        self.in_flight[pod] -= 1

    def _least(self, pods: Sequence[int]) -> int:
        self._turn += 1
        count = len(self.in_flight)
        return min(pods, key=lambda pod: (self.in_flight[pod], (pod - self._turn) % count))
