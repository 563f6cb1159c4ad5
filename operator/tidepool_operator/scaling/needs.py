"""How many replicas each resource asks for. A resource asks for a real number: its load over what one may carry.

Only ready pods carry load. Pods that are still coming bring none, so they are counted once, in the replicas that
the need is compared with: while they start, the same load asks for the same number.
"""

import math
from dataclasses import dataclass
from typing import Final

from tidepool_api.scaling import MAX_REPLICAS
from tidepool_operator.scaling import figures
from tidepool_operator.scaling.model import Counted, Memory, PoolReading, ScalingSpec

# The HPA's: a need within a tenth of what is there changes nothing.
# https://kubernetes.io/docs/tasks/run-application/horizontal-pod-autoscale/#algorithm-details
TOLERANCE: Final = 0.1
# Fewer waiting requests per ready pod than this may be arrivals caught in passing by a scrape: they count only
# once they have been there for WAITING_SECONDS, which is two scrapes of 15 s.
WAITING_AT_ONCE: Final = 2.0
WAITING_SECONDS: Final = 30.0
# What waits is watched over so long to see how fast it grows, from looks that are so old at least.
GROWTH_SECONDS: Final = 60.0
GROWTH_LEAST_SECONDS: Final = 10.0
# A pool's flags and prompts change; what it could run at once an hour ago says little.
SATURATION_SECONDS: Final = 3600.0
# The percentiles look back over a minute: sooner after a pod came they still speak of the time before.
LATENCY_SECONDS: Final = 60.0


@dataclass(frozen=True, slots=True)
class Need:
    """Replicas that one resource asks for, as a real number, with the figures in words."""

    resource: str
    replicas: float
    words: str
    beside: str = ""  # what else is to be said, after what binds


def step(need: float, current: int) -> int:
    """Whole replicas for a need: more beyond the tolerance, fewer only if one replica fewer would hold it."""
    if need > current * (1 + TOLERANCE) or need <= current - 1:
        return math.ceil(min(need, MAX_REPLICAS) - 1e-9)
    return current


def one_more(count: int) -> float:
    """The least need that takes `count` replicas beyond the tolerance: one more, of ten or more a tenth."""
    return max(count + 1.0, count * (1 + TOLERANCE) + 1e-6)


def whole(need: float, current: int) -> int:
    """Whole replicas for a need that is expected: as `step`, and more beyond the smallest excess.

    What is measured swings about what is; an upper quantile does not, and a tenth of a large pool is much.
    """
    if need > current or need <= current - 1:
        return math.ceil(min(need, MAX_REPLICAS) - 1e-9)
    return current


def needs(now: float, reading: PoolReading, spec: ScalingSpec, current: int, memory: Memory) -> list[Need]:
    """What every resource asks for by what is now; empty when no ready pod has figures."""
    waits = waiting(now, reading, current, memory)
    found = [kv(reading, spec), waits, latency(now, reading, spec, current, memory)]
    measured = [need for need in found if need is not None]
    told = announced(reading, spec, memory, waits if crowded(now, reading, memory) else None)
    # Where nothing is measured what comes may grow the pool, and says nothing of fewer.
    if told is not None and (measured or step(told.replicas, current) > current):
        measured.append(told)
    return measured


def kv(reading: PoolReading, spec: ScalingSpec) -> Need | None:
    """KV cache in use over all ready pods, in replicas filled to the target.

    With every pod measured this is the HPA's ratio, current x (mean / target).
    """
    known = figures.count_of(reading.serving, figures.kv_usage)
    if not known:
        return None
    used = figures.total(reading.serving, figures.kv_usage)
    words = f"KV use {used / known:.2f} of target {spec.kv_utilization:.2f} on {pods_in_words(known)}"
    return Need("kv", used / spec.kv_utilization, words)


def queued(reading: PoolReading) -> float:
    """Requests without a place: in the engines' and sidecars' queues, held or refused by the gateways."""
    demand = reading.demand
    return (
        figures.total(reading.serving, figures.waiting)
        + (figures.usable(demand.held) or 0.0)
        + (figures.usable(demand.refused) or 0.0)
    )


def remember_queued(now: float, reading: PoolReading, memory: Memory) -> tuple[tuple[float, float], ...]:
    """The looks of the last minute at what has no place, this one included."""
    kept = (entry for entry in memory.queued if now - GROWTH_SECONDS <= entry[0] < now)
    return (*kept, (now, queued(reading)))


def crowded(now: float, reading: PoolReading, memory: Memory) -> bool:
    """Whether requests wait, and not only in passing."""
    lasting = memory.waiting_since is not None and now - memory.waiting_since >= WAITING_SECONDS
    without = queued(reading)
    return without >= WAITING_AT_ONCE * reading.ready or (without > 0 and lasting)


def waiting(now: float, reading: PoolReading, current: int, memory: Memory) -> Need | None:
    """Requests that run and wait, in replicas that run as many each as the ready ones do now.

    What waits is a backlog and not a rate: where it is known how many requests end, so many replicas are asked for
    as keep up with what comes (what ends and what the queue grows by), and work the queue off while one starts.
    While nothing waits, what one replica can run is what it ran when requests last waited: it holds the pool at
    a size from which one replica fewer would make them wait again, and asks for no more.
    """
    measured = tuple(each for each in reading.serving if figures.waiting(each[0]) is not None)
    if not measured:
        return None
    runs, waits, count = figures.total(measured, figures.running), queued(reading), sum(n for _, n in measured)
    words = f"{waits:.0f} requests waiting beside {runs:.0f} running on {pods_in_words(count)}"
    if crowded(now, reading, memory):
        more = _more(now, measured, waits, runs, memory)
        return Need("waiting", count * (1 + more) if runs > 0 else one_more(min(count, current)), words)
    if memory.saturated_running is None:
        return Need("waiting", 0.0, words)
    room = f"; requests had to wait at {memory.saturated_running:.1f} running a pod"
    return Need("waiting", min(runs / memory.saturated_running, float(count)), words + room)


def _more(now: float, pods: Counted, waits: float, runs: float, memory: Memory) -> float:
    """Share of the ready replicas that is lacking because of what waits; at most all of it at once."""
    at_once = waits / runs if runs > 0 else 0.0
    ends, ready = figures.total(pods, figures.requests), sum(count for _, count in pods)
    before = [(now - time, count) for time, count in memory.queued if now - time >= GROWTH_LEAST_SECONDS]
    if ends <= 0 or not before:
        return at_once
    grows = max(0.0, *((waits - count) / age for age, count in before))
    startup_seconds = max((seconds for _, seconds in memory.startups), default=0.0)
    more = grows / ends + waits / max(runs, ends * startup_seconds)
    # A queue that stands needs one more at least, or it stands for ever.
    least = one_more(ready) / ready - 1.0 if at_once > TOLERANCE else 0.0
    return min(at_once, max(more, least))


def announced(reading: PoolReading, spec: ScalingSpec, memory: Memory, waits: Need | None = None) -> Need | None:
    """Calls that runs of workflows will make soon, beside what runs now, in replicas as full as they may be.

    What waits by now (`waits`) is judged as ever, and what comes is added to it. What runs is taken from the
    report that tells of what comes: pods' figures are older, and a run between two calls would count twice. None
    where nobody tells of any, or nobody knows what a replica runs at once.
    """
    coming = figures.usable(reading.demand.coming)
    each = _at_once(spec, memory)
    if not coming or each is None:
        return None
    flying = figures.usable(reading.demand.in_flight)
    runs = figures.total(reading.serving, figures.running) if flying is None else flying
    present = min(runs / each, float(reading.ready)) if waits is None else waits.replicas
    calls = f"{coming:.0f} call{'' if coming == 1 else 's'} that workflow runs will make soon"
    return Need("announced", present + coming / each, f"{calls}, beside {runs:.0f} now; a replica runs {each:.1f}")


def _at_once(spec: ScalingSpec, memory: Memory) -> float | None:
    """Requests that a replica runs at once within its targets: when others last had to wait, or as learned."""
    capacity, demand = memory.capacity, memory.demand
    target = spec.time_per_output_token_seconds
    learned = None if demand is None or not capacity.settled else capacity.at_once(*demand[1:], target)
    known = [each for each in (memory.saturated_running, learned) if each is not None]
    return max(1.0, min(known)) if known else None


def latency(now: float, reading: PoolReading, spec: ScalingSpec, current: int, memory: Memory) -> Need | None:
    """One replica more while a latency target is missed by pods that share their time among several requests.

    One fewer only if the latency times n / (n - 1) would still meet the target, as in Dynamo's load planner.
    """
    ready = reading.ready
    pairs = (
        ("time to first token", reading.time_to_first_token_seconds, spec.time_to_first_token_seconds),
        ("time per output token", reading.time_per_output_token_seconds, spec.time_per_output_token_seconds),
    )
    measured = [
        (value / target, f"{name} {value:.3g} s (P90) of target {target:.3g} s on {pods_in_words(ready)}")
        for name, sample, target in pairs
        if target is not None and (value := figures.usable(sample)) is not None
    ]
    if not measured or not ready:
        return None
    ratio, words = max(measured)
    shared = figures.total(reading.serving, figures.running) > ready
    settled = memory.ready_pods_since is not None and now - memory.ready_pods_since >= LATENCY_SECONDS
    if ratio > 1 + TOLERANCE and shared and settled:
        # During a rollout there are more ready pods than replicas; while others start there are fewer.
        return Need("latency", max(one_more(min(ready, current)), float(current)), words)
    if ratio * current > current - 1:
        return Need("latency", float(current), words)
    return Need("latency", ratio * current, words)


def pods_in_words(count: int) -> str:
    """A count of ready pods in words."""
    return f"{count} ready pod{'' if count == 1 else 's'}"
