"""Prometheus' last answers by pool and pod, as the page shows them."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from tidepool_api import rules

# Namespace, pool and pod; the pod is empty for a series of the whole pool.
Place = tuple[str, str, str]
Answers = Mapping[str, Mapping[Place, float]]

# A scrape that is older than this says nothing of now, as for the autoscaler.
STALE_SECONDS: Final = 120.0
_OF_PODS: Final = {
    rules.POD_KV_USAGE: "kv",
    rules.POD_WAITING: "waiting",
    rules.POD_RUNNING: "running",
    rules.POD_PROMPT_TOKENS: "prompt_tokens",
    rules.POD_CACHED_TOKENS: "cached_tokens",
    rules.POD_OUTPUT_TOKENS: "output_tokens",
    rules.POD_SCRAPED_AT: "scraped_at",
}
_OF_POOLS: Final = {
    rules.POOL_TTFT_P90: "first_token_seconds",
    rules.POOL_TPOT_P90: "each_token_seconds",
}


@dataclass(slots=True)
class PoolFigures:
    """Latencies are 90th percentiles in seconds; `pods` has figures by pod: KV use as a ratio, tokens a second."""

    first_token_seconds: float | None = None
    each_token_seconds: float | None = None
    pods: dict[str, dict[str, float]] = field(default_factory=dict)

    def of(self, pod: str, figure: str) -> float | None:
        """One figure of one pod; None where it is not known."""
        return self.pods.get(pod, {}).get(figure)

    def total(self, figure: str) -> float | None:
        """Sum over the pods that tell it; None where none does."""
        found = [pod[figure] for pod in self.pods.values() if figure in pod]
        return sum(found) if found else None


NOTHING: Final = PoolFigures()


def by_pool(answers: Answers, asked_at: float, now: float) -> dict[str, PoolFigures]:
    """Figures by pool ("namespace/name"); what is too old to speak of now is left out."""
    found: dict[str, PoolFigures] = {}
    if now - asked_at > STALE_SECONDS:
        return found
    _add_pods(found, answers, now)
    for record, field_name in _OF_POOLS.items():
        for (namespace, pool, _), value in answers.get(record, {}).items():
            if math.isfinite(value):
                setattr(found.setdefault(f"{namespace}/{pool}", PoolFigures()), field_name, value)
    return found


def _add_pods(found: dict[str, PoolFigures], answers: Answers, now: float) -> None:
    for record, figure in _OF_PODS.items():
        for (namespace, pool, pod), value in answers.get(record, {}).items():
            if pod and math.isfinite(value):
                pools = found.setdefault(f"{namespace}/{pool}", PoolFigures())
                pools.pods.setdefault(pod, {})[figure] = value
    for one in found.values():
        for pod in [pod for pod, figures in one.pods.items() if _too_old(figures, now)]:
            del one.pods[pod]


def _too_old(figures: Mapping[str, float], now: float) -> bool:
    return "scraped_at" in figures and now - figures["scraped_at"] > STALE_SECONDS
