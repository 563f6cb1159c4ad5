"""Figures of a run, and of runs over seeds: medians with 95 % confidence intervals."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from math import ceil
from random import Random
from statistics import median
from typing import Any, Final

from .engine import Engine
from .world import Life

# The objective of the throughput table.
TTFT_P90_SECONDS: Final = 2.0
TOKEN_SECONDS: Final = 0.050
_RESAMPLES: Final = 2000


@dataclass(frozen=True, slots=True)
class Score:
    """Of the requests after the warm-up; one that failed or was refused has waited for ever.

    `token_seconds` is the mean over requests of the time per output token after the first.
    """

    ttft_p50: float
    ttft_p90: float
    ttft_p99: float
    token_seconds: float
    token_p90: float
    e2e_p90: float
    hit_rate: float
    preemptions: int
    failed: int
    refused: int
    share_max: float  # of the requests, the busiest pod's

    @property
    def within(self) -> bool:
        """Whether the run met the objective."""
        return self.ttft_p90 <= TTFT_P90_SECONDS and self.token_seconds <= TOKEN_SECONDS

    def as_dict(self) -> dict[str, Any]:
        """For the JSON."""
        return asdict(self)


def score(lives: Sequence[Life], engines: Sequence[Engine], warm_up: int) -> Score:
    """Figures of one run."""
    counted = lives[warm_up:]
    never = float("inf")
    ttft = [life.first_at - life.arrived_at if life.first_at is not None else never for life in counted]
    whole = [life for life in counted if life.first_at is not None]
    e2e = [
        life.ended_at - life.arrived_at if life.first_at is not None and life.ended_at is not None else never
        for life in counted
    ]
    per_token = [
        (life.ended_at - life.first_at) / (life.request.output_tokens - 1)
        for life in whole
        if life.request.output_tokens > 1 and life.ended_at is not None and life.first_at is not None
    ]
    cached = sum(life.sequence.cached_tokens for life in whole if life.sequence is not None)
    prompts = sum(life.request.prompt_tokens for life in whole)
    pods = [0] * len(engines)
    for life in counted:
        pods[life.pod] += 1
    refused = sum(life.refused for life in counted)
    return Score(
        ttft_p50=quantile(ttft, 0.5),
        ttft_p90=quantile(ttft, 0.9),
        ttft_p99=quantile(ttft, 0.99),
        token_seconds=sum(per_token) / len(per_token) if per_token else 0.0,
        token_p90=quantile(per_token, 0.9) if per_token else 0.0,
        e2e_p90=quantile(e2e, 0.9),
        hit_rate=cached / prompts if prompts else 0.0,
        preemptions=sum(engine.counts.preemptions for engine in engines),
        failed=sum(life.first_at is None for life in counted) - refused,
        refused=refused,
        share_max=max(pods) / len(counted),
    )


def quantile(values: Sequence[float], q: float) -> float:
    """The smallest value that at least a share `q` of all does not exceed."""
    ordered = sorted(values)
    return ordered[max(0, ceil(q * len(ordered)) - 1)]


@dataclass(frozen=True, slots=True)
class Estimate:
    """A median over seeds, and the bounds of its 95 % confidence interval by bootstrap."""

    median: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.median:.3g} ({self.low:.3g} to {self.high:.3g})"


def estimate(values: Sequence[float]) -> Estimate:
    """Resamples the seeds; with five of them the interval is close to the range, as it should be."""
    dice = Random(5)
    medians = sorted(median(dice.choices(values, k=len(values))) for _ in range(_RESAMPLES))
    return Estimate(median(values), medians[round(0.025 * _RESAMPLES)], medians[round(0.975 * _RESAMPLES) - 1])
