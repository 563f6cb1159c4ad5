"""From Prometheus' answers to readings: joins series to the live pods of each pool and says what is missing."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from tidepool_api import rules
from tidepool_api.contract import LABEL_NAMESPACE, LABEL_POD, LABEL_POOL
from tidepool_operator.scaling.model import (
    Known,
    LivePod,
    Missing,
    PodReading,
    PoolReading,
    Sample,
    ScaledPool,
    Stale,
)

# Namespace, pool and pod; the pod is empty for a series of the whole pool.
Place = tuple[str, str, str]
Series = Mapping[Place, float]

# Record of each field of a PodReading.
POD_FIELDS: Final = {
    "kv_usage": rules.POD_KV_USAGE,
    "waiting": rules.POD_WAITING,
    "running": rules.POD_RUNNING,
    "prompt_tokens_rate": rules.POD_PROMPT_TOKENS,
    "cached_tokens_rate": rules.POD_CACHED_TOKENS,
    "output_tokens_rate": rules.POD_OUTPUT_TOKENS,
    "requests_rate": rules.POD_REQUESTS,
    "requests_ended": rules.POD_REQUESTS_ENDED,
}


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One tick's answers: series by record, the records that could not be asked with the reason, and the time."""

    time: float
    series: Mapping[str, Series] = field(default_factory=dict)
    failed: Mapping[str, str] = field(default_factory=dict)


def parse(result: Iterable[Any]) -> dict[str, dict[Place, float]]:
    """Series by record ("" for a raw expression) of an instant query's `result`; anything else is left out."""
    found: dict[str, dict[Place, float]] = {}
    for item in result:
        try:
            labels, value = item["metric"], float(item["value"][1])
            place = (labels[LABEL_NAMESPACE], labels[LABEL_POOL], labels.get(LABEL_POD, ""))
        except (KeyError, IndexError, TypeError, ValueError):
            continue
        found.setdefault(labels.get("__name__", ""), {})[place] = value
    return found


def readings(
    pools: Sequence[ScaledPool], snapshot: Snapshot, *, now: float, stale_after_seconds: float, trouble: str | None
) -> dict[str, PoolReading]:
    """A reading for every pool by its key, without the gateways' demand.

    With `trouble` (why Prometheus could not be asked now) the snapshot is an old one and nothing in it is known.
    """
    view = _View(snapshot, now, stale_after_seconds, trouble)
    return {pool.key: _pool(pool, view) for pool in pools}


@dataclass(frozen=True, slots=True)
class _View:
    snapshot: Snapshot
    now: float
    stale_after_seconds: float
    trouble: str | None

    def sample(self, record: str, place: Place, age_seconds: float, absent: str) -> Sample:
        value = self.snapshot.series.get(record, {}).get(place)
        if self.trouble is not None:
            return Missing(self.trouble) if value is None else Stale(value, age_seconds, self.trouble)
        if value is None:
            return Missing(self.snapshot.failed.get(record, absent))
        if not math.isfinite(value):
            return Missing("not a number: no request in the window" if place[2] == "" else "not a number")
        if age_seconds > self.stale_after_seconds:
            return Stale(value, age_seconds, "scraped too long ago")
        return Known(value, age_seconds)


def _pool(pool: ScaledPool, view: _View) -> PoolReading:
    pods = tuple(_pod(pool, pod, view) for pod in pool.pods)
    whole = (pool.namespace, pool.name, "")
    age = max(0.0, view.now - view.snapshot.time)
    absent = "not in Prometheus"
    return PoolReading(
        key=pool.key,
        pods=pods,
        time_to_first_token_seconds=view.sample(rules.POOL_TTFT_P90, whole, age, absent),
        time_per_output_token_seconds=view.sample(rules.POOL_TPOT_P90, whole, age, absent),
        trouble=view.trouble or next(iter(view.snapshot.failed.values()), None),
    )


def _pod(pool: ScaledPool, pod: LivePod, view: _View) -> PodReading:
    place = (pool.namespace, pool.name, pod.name)
    scraped_at = view.snapshot.series.get(rules.POD_SCRAPED_AT, {}).get(place)
    if scraped_at is None:
        absent = f"pod {pod.name} is not in Prometheus; is it scraped with the labels namespace, pool and pod?"
    else:
        absent = f"pod {pod.name} is scraped and has no such metric"
    age = max(0.0, view.now - (view.snapshot.time if scraped_at is None else scraped_at))
    samples = {name: view.sample(record, place, age, absent) for name, record in POD_FIELDS.items()}
    return PodReading(pod.name, pod.state, variant=pod.variant, **samples)
