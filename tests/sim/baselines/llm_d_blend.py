"""llm-d's default blend: weights queue 2, KV 2, prefix 3 (charts/routerlib/templates/_config.yaml at ebab687).

Queue scorer: (max - waiting) / (max - min), 1 for all where they are equal. KV scorer: 1 - usage. Prefix scorer:
matched blocks / all blocks, from an index of what was sent where. The pod with the highest sum; ties at random.
"""

from collections.abc import Collection, Sequence
from random import Random
from typing import Final

from sim.picker import Board, Gauges, Immediate
from sim.prefixes import LLM_D_BLOCKS, PrefixMemory
from sim.request import Request

WEIGHTS: Final = (2.0, 2.0, 3.0)


def queue_scores(gauges: Sequence[Gauges]) -> list[float]:
    """The shorter the queue, the higher; 0 to 1."""
    waiting = [gauge.waiting for gauge in gauges]
    least, most = min(waiting), max(waiting)
    if most == least:
        return [1.0] * len(waiting)
    return [(most - count) / (most - least) for count in waiting]


def kv_scores(gauges: Sequence[Gauges]) -> list[float]:
    """The emptier, the higher."""
    return [1.0 - gauge.kv_usage for gauge in gauges]


def prefix_scores(matches: Sequence[int], blocks: int) -> list[float]:
    """Share of the prompt that is known there."""
    return [match / blocks if blocks else 0.0 for match in matches]


class LlmDBlend(Immediate):
    """Reads gauges; remembers what it sent where."""

    def __init__(
        self, pods: int, board: Board, seed: int, *, weights: tuple[float, float, float] = WEIGHTS
    ) -> None:
        self._board = board
        self._dice = Random(seed)
        self._weights = weights
        self._memory = PrefixMemory(pods, LLM_D_BLOCKS)

    def pick(self, request: Request, now: float, exclude: Collection[int] = ()) -> int:
        """See the module."""
        gauges = self._board.gauges(now)
        queue, kv, prefix = self._weights
        parts = zip(
            queue_scores(gauges),
            kv_scores(gauges),
            prefix_scores(self._memory.matches(request.names), len(request.names)),
            strict=True,
        )
        scores = [queue * q + kv * k + prefix * p for q, k, p in parts]
        pods = [pod for pod in range(len(scores)) if pod not in exclude]
        best = max(scores[pod] for pod in pods)
        pod = self._dice.choice([pod for pod in pods if scores[pod] == best])
        self._memory.note(pod, request.names)
        return pod
