"""To zero and back: when a pool counts as idle, and what wakes it."""

from typing import Final

from tidepool_operator.scaling import figures
from tidepool_operator.scaling.model import PodReading, PodState, PoolReading

# A start that takes longer than a rollout may (the default of rollout.progressDeadline) is not waited for.
START_SECONDS: Final = 3600.0


def is_starting(reading: PoolReading) -> bool:
    """Whether an engine is on its way up. One without a node is not: it costs nothing and may never come."""
    return any(pod.state is PodState.STARTING for pod, _ in reading.counted)


def ended(reading: PoolReading) -> tuple[tuple[str, float], ...]:
    """(pod, requests that it has ended), of the pods that tell; for the next look to compare with."""
    counts = ((pod.name, figures.usable(pod.requests_ended)) for pod, _ in reading.counted)
    return tuple((name, count) for name, count in counts if count is not None)


def is_idle(
    now: float, reading: PoolReading, starting_since: float | None, before: tuple[tuple[str, float], ...] = ()
) -> bool:
    """Whether every figure that could show a request is known and shows none; `before`: `ended` of the last look.

    Pods that have not started cannot have any; one that had started and is not ready may. Being idle begins when
    the pool could serve: a pool whose engines take long to start must get through its first start.
    """
    if starting_since is not None and now - starting_since < START_SECONDS:
        return False
    if not _nobody_asks(reading):
        return False
    started = [pod for pod, _ in reading.counted if pod.state in (PodState.READY, PodState.UNREADY)]
    counts = dict(before)
    return all(_has_no_requests(pod, counts.get(pod.name)) for pod in started)


def why_awake(reading: PoolReading) -> str | None:
    """What lacks for the pool to count as idle, apart from requests that are known; None when nothing does."""
    demand = reading.demand
    if all(pod.state not in (PodState.READY, PodState.UNREADY) for pod in reading.pods):
        return "no pod has started yet"
    if not demand.gateways:
        return "no gateway runs that could wake it"
    for sample in (demand.held, demand.refused, demand.in_flight):
        if figures.usable(sample) is None:
            return f"demand at the gateways is {figures.told(sample)}"
    for pod in reading.pods:
        if pod.state in (PodState.READY, PodState.UNREADY):
            counted = figures.usable(pod.requests_ended) is not None
            for name, sample in (
                ("running", pod.running),
                ("waiting", pod.waiting),
                ("request", pod.requests_ended if counted else pod.requests_rate),
            ):
                if figures.usable(sample) is None:
                    return f"{name} figure of pod {pod.name} is {figures.told(sample)}"
    return None


def wakes(reading: PoolReading) -> tuple[float, float] | None:
    """Requests (held, refused) by the gateways, None when there are none or nobody can tell."""
    held, refused = figures.usable(reading.demand.held) or 0.0, figures.usable(reading.demand.refused) or 0.0
    return (held, refused) if held + refused > 0 else None


def _nobody_asks(reading: PoolReading) -> bool:
    demand = reading.demand
    # Without a gateway nobody could wake the pool.
    return demand.gateways > 0 and all(
        figures.usable(sample) == 0 for sample in (demand.held, demand.refused, demand.in_flight)
    )


def _has_no_requests(pod: PodReading, ended_before: float | None) -> bool:
    # What came and went between two scrapes moved the count of ended requests. Where that is not known, the rate
    # shows it, but for the whole of its window: a minute more until the pool counts as idle. Token rates may lack
    # on an engine without generation, so they only count when they are known.
    count = figures.usable(pod.requests_ended)
    if count is not None and ended_before is not None:
        return count == ended_before and all(figures.usable(sample) == 0 for sample in (pod.running, pod.waiting))
    must = (pod.running, pod.waiting, pod.requests_rate)
    may = (pod.prompt_tokens_rate, pod.output_tokens_rate)
    return all(figures.usable(sample) == 0 for sample in must) and not any(
        figures.usable(sample) for sample in may
    )
