"""Reading samples: which of them may be acted on, and how they are told to people."""

import math
from collections.abc import Callable, Mapping
from typing import Final

from tidepool_operator.scaling.model import (
    Counted,
    Known,
    Missing,
    PodReading,
    PoolReading,
    Sample,
    ScalingSpec,
    Stale,
)

# The ledger may say that several caches' worth of tokens is asked for. A full default queue (256 prompts of 8k
# tokens) before a small GPU's cache (100k tokens) asks for 20; a figure above that is in another unit.
KV_USAGE_CEILING: Final = 20.0


def usable(sample: Sample, ceiling: float = math.inf) -> float | None:
    """The figure of a sample that may be acted on: known, finite, not negative, not above `ceiling`."""
    if not isinstance(sample, Known) or not math.isfinite(sample.value) or not 0 <= sample.value <= ceiling:
        return None
    return sample.value


def kv_usage(pod: PodReading) -> float | None:
    """The pod's KV usage if it may be acted on."""
    return usable(pod.kv_usage, KV_USAGE_CEILING)


def waiting(pod: PodReading) -> float | None:
    """The pod's waiting requests if they may be acted on."""
    return usable(pod.waiting)


def running(pod: PodReading) -> float | None:
    """The pod's running requests if they may be acted on."""
    return usable(pod.running)


def requests(pod: PodReading) -> float | None:
    """Requests a second that the pod ends, if they may be acted on."""
    return usable(pod.requests_rate)


def total(pods: Counted, figure: Callable[[PodReading], float | None]) -> float:
    """Sum over the pods whose figure may be acted on; others count as nothing, as in a growing HPA."""
    return sum(count * value for pod, count in pods if (value := figure(pod)) is not None)


def count_of(pods: Counted, figure: Callable[[PodReading], float | None]) -> int:
    """How many pods have a figure that may be acted on."""
    return sum(count for pod, count in pods if figure(pod) is not None)


def gaps(reading: PoolReading, spec: ScalingSpec) -> list[str]:
    """What a scale-down would need to know and nobody tells: names of ready pods, the gateways, a latency."""
    serving = reading.serving
    found = [pod.name for pod, _ in serving if None in (kv_usage(pod), waiting(pod), running(pod))]
    demand = reading.demand
    unknown = [told(each) for each in (demand.held, demand.refused, demand.in_flight) if usable(each) is None]
    if unknown:
        found.append(f"the gateways ({unknown[0]})")
    pairs = (
        ("time to first token", reading.time_to_first_token_seconds, spec.time_to_first_token_seconds),
        ("time per output token", reading.time_per_output_token_seconds, spec.time_per_output_token_seconds),
    )
    # No request in the window has no latency: that is no gap.
    if any(requests(pod) != 0 for pod, _ in serving):
        found += [name for name, sample, target in pairs if target is not None and usable(sample) is None]
    return found


def told(sample: Sample) -> str:
    """A sample in words, its state included."""
    match sample:
        case Known(value=value):
            return f"{value:.4g}"
        case Stale(value=value, age_seconds=age, reason=reason):
            return f"stale ({reason}): {value:.4g}, {age:.0f} s old"
        case Missing(reason=reason):
            return f"missing: {reason}"


def samples(reading: PoolReading) -> Mapping[str, str]:
    """The figures of a reading in words: sums over the ready pods (KV usage: the mean), and the gateways'."""
    pods: dict[str, Callable[[PodReading], Sample]] = {
        "kvUtilization": lambda pod: pod.kv_usage,
        "running": lambda pod: pod.running,
        "waiting": lambda pod: pod.waiting,
        "promptTokensPerSecond": lambda pod: pod.prompt_tokens_rate,
        "cachedTokensPerSecond": lambda pod: pod.cached_tokens_rate,
        "outputTokensPerSecond": lambda pod: pod.output_tokens_rate,
        "requestsPerSecond": lambda pod: pod.requests_rate,
    }
    found = {
        name: _over_pods([(figure(pod), count) for pod, count in reading.serving], mean=name == "kvUtilization")
        for name, figure in pods.items()
    }
    return found | {
        "timeToFirstTokenSeconds": told(reading.time_to_first_token_seconds),
        "timePerOutputTokenSeconds": told(reading.time_per_output_token_seconds),
        "held": told(reading.demand.held),
        "refused": told(reading.demand.refused),
        "inFlight": told(reading.demand.in_flight),
        "announced": told(reading.demand.coming),
        "readyPods": str(reading.ready),
    }


def _over_pods(found: list[tuple[Sample, int]], *, mean: bool) -> str:
    """One line for a figure of several pods, saying how many of them are behind it."""
    known = [(value, count) for sample, count in found if (value := usable(sample)) is not None]
    if not known:
        return told(found[0][0]) if found else "missing: no pod is ready"
    pods, all_pods = sum(count for _, count in known), sum(count for _, count in found)
    figure = sum(count * value for value, count in known) / (pods if mean else 1)
    return f"{figure:.4g}" if pods == all_pods else f"{figure:.4g} ({pods} of {all_pods} pods)"
