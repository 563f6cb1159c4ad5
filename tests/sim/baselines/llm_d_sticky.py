"""llm-d's "sticky until saturated" (guides of 2026-08; plugins at ebab687).

prefix-cache-affinity-filter: pods that know at least 0.80 of the prompt are kept alone, unless the best of them
has a TTFT more than 18 s worse than the best other one; TTFT = uncached prompt tokens in flight / peak prefill
throughput. token-load-scorer: of those kept, the one with the fewest tokens in flight, this request's uncached
ones among them; ties at random. Tokens in flight are released at the first chunk (inflight-load-producer).

The throughput is to be calibrated to the deployment, as that of one unloaded chunk of max_num_batched_tokens.
15,928 tokens/s is Qwen3-32B on two H100; the engine of the tables has 17,400.
"""

from collections.abc import Collection, Sequence
from random import Random
from typing import Final

from sim.picker import Board, Immediate
from sim.prefixes import LLM_D_BLOCKS, PrefixMemory
from sim.request import NAME_TOKENS, Request

AFFINITY_THRESHOLD: Final = 0.80
MAX_TTFT_PENALTY_SECONDS: Final = 18.0
PEAK_PREFILL_TOKENS_PER_SECOND: Final = 15_928.0
QUEUE_THRESHOLD_TOKENS: Final = 4_194_304


def sticky_pods(
    scores: Sequence[float],
    tokens_in_flight: Sequence[int],
    *,
    threshold: float = AFFINITY_THRESHOLD,
    penalty_seconds: float = MAX_TTFT_PENALTY_SECONDS,
    tokens_per_second: float = PEAK_PREFILL_TOKENS_PER_SECOND,
) -> list[int]:
    """The filter: numbers of the pods that stay."""
    everyone = list(range(len(scores)))
    sticky = [pod for pod in everyone if scores[pod] >= threshold]
    others = [pod for pod in everyone if scores[pod] < threshold]
    if not sticky or threshold <= 0 or len(everyone) <= 1:
        return everyone
    if penalty_seconds > 0 and others:
        best_sticky = min(tokens_in_flight[pod] for pod in sticky) / tokens_per_second
        best_other = min(tokens_in_flight[pod] for pod in others) / tokens_per_second
        if best_sticky - best_other > penalty_seconds:
            return everyone
    return sticky


def token_load_score(tokens: int, threshold: int = QUEUE_THRESHOLD_TOKENS) -> float:
    """1 with none, 0 at the threshold and beyond."""
    return 1.0 - min(max(tokens, 0), threshold) / threshold


class LlmDSticky(Immediate):
    """Counts its own uncached tokens in flight; remembers what it sent where."""

    def __init__(
        self,
        pods: int,
        board: Board,
        seed: int,
        *,
        penalty_seconds: float = MAX_TTFT_PENALTY_SECONDS,
        tokens_per_second: float = PEAK_PREFILL_TOKENS_PER_SECOND,
    ) -> None:
        self.tokens_in_flight = [0] * pods
        self._penalty_seconds = penalty_seconds
        self._tokens_per_second = tokens_per_second
        self._dice = Random(seed)
        self._memory = PrefixMemory(pods, LLM_D_BLOCKS)
        self._counted: dict[int, int] = {}

    def pick(self, request: Request, now: float, exclude: Collection[int] = ()) -> int:
        """See the module."""
        matches = self._memory.matches(request.names)
        blocks = len(request.names)
        kept = sticky_pods(
            [match / blocks if blocks else 0.0 for match in matches],
            self.tokens_in_flight,
            penalty_seconds=self._penalty_seconds,
            tokens_per_second=self._tokens_per_second,
        )
        pods = [pod for pod in kept if pod not in exclude]
        if not pods:
            pods = [pod for pod in range(len(matches)) if pod not in exclude]
        uncached = [max(0, request.prompt_tokens - match * NAME_TOKENS) for match in matches]
        scores = {pod: token_load_score(self.tokens_in_flight[pod] + uncached[pod]) for pod in pods}
        best = max(scores.values())
        pod = self._dice.choice([pod for pod in pods if scores[pod] == best])
        self._memory.note(pod, request.names)
        self.tokens_in_flight[pod] += uncached[pod]
        self._counted[request.number] = uncached[pod]
        return pod

    def first_token(self, request: Request, pod: int, now: float) -> None:
        """The prefill is done."""
        self.tokens_in_flight[pod] -= self._counted.pop(request.number, 0)

    def ended(self, request: Request, pod: int, now: float, *, failed: bool, cached_tokens: int) -> None:
        """Released at the first chunk, or here where none came."""
        self.tokens_in_flight[pod] -= self._counted.pop(request.number, 0)
