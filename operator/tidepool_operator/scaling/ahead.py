"""What demand asks for until a new pod could be ready: the worst moment, by every resource."""

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Final

from tidepool_operator.scaling import capacity as learning
from tidepool_operator.scaling import figures, variants
from tidepool_operator.scaling.capacity import Capacity, Load
from tidepool_operator.scaling.model import (
    Forecast,
    Learned,
    LivePod,
    Memory,
    Missing,
    Moment,
    PodReading,
    PodState,
    PoolReading,
    ScalingSpec,
)
from tidepool_operator.scaling.needs import GROWTH_LEAST_SECONDS, Need

# Scrapes come every 15 s: what is read more often is the same reading again.
READING_SECONDS: Final = 15.0
# Without a start-up measured: what an engine of 8 billion parameters takes from a warm disk, doubled.
STARTUP_SECONDS: Final = 120.0
STARTUPS_KEPT: Final = 20
# Demand of a quarter of a minute is chance; a forecast is of means of minutes, and so is what stands beside it. A
# mean that forgets with this time constant is as old as the mean over the last bin.
SMOOTHING_SECONDS: Final = 150.0
# Requests that the gateways refuse are counted over so long.
REFUSED_SECONDS: Final = 30.0
# No more than this many times what is worked on is believed to come, and no less than its part.
MOST_PILED: Final = 3.0
# KV in use says nothing of KV per token while so few tokens are made.
LEAST_TOKENS: Final = 1.0
# Share of an engine's time that demand may take at most while no whole season of the pool's past is known: nobody
# knows its cycle then. Chosen on the tuning part of ServeGen's series of one day (docs/autoscaling.md).
UNSEASONED_LIMIT: Final = 0.70


@dataclass(frozen=True, slots=True)
class Ahead:
    """The need of the worst moment, and the moment.

    `grows` is whether it may ask for more: not while all that is known of a replica's speed is a prior.
    """

    need: Need
    moment: Moment
    grows: bool = True


def demand_now(now: float, reading: PoolReading) -> Moment | None:
    """What all ready pods work on now; None while a figure of one is missing."""
    prompts = outputs = 0.0
    for pod, count in reading.serving:
        load = _tokens(pod)
        if load is None:
            return None
        prompts, outputs = prompts + count * load[0], outputs + count * load[1]
    return Moment(now, prompts, outputs) if reading.serving else None


def arriving(reading: PoolReading, memory: Memory, present: Moment) -> Moment:
    """What comes, from what is worked on: more than that while the queue grows, less while it is worked off.

    What was refused came too.
    """
    ends = requests_now(reading)
    if ends <= 0 or not memory.queued:
        return present
    (then, before), (now, after) = memory.queued[0], memory.queued[-1]
    grows = (after - before) / (now - then) if now - then >= GROWTH_LEAST_SECONDS else 0.0
    refused = (figures.usable(reading.demand.refused) or 0.0) / REFUSED_SECONDS
    share = min(max(1.0 + (grows + refused) / ends, 1 / MOST_PILED), MOST_PILED)
    return Moment(present.at, share * present.prompt_tokens, share * present.output_tokens)


def requests_now(reading: PoolReading) -> float:
    """Requests a second that all ready pods end; of those that tell it."""
    return figures.total(reading.serving, figures.requests)


def ahead(
    now: float, reading: PoolReading, spec: ScalingSpec, memory: Memory, forecast: Forecast | None
) -> Ahead | None:
    """What the worst moment from now to the horizon asks for; None without a forecast."""
    if forecast is None:
        return None
    present = demand_now(now, reading)
    if present is not None and memory.demand is not None:
        present = replace(present, prompt_tokens=memory.demand[1], output_tokens=memory.demand[2])
    coming = [moment for moment in forecast.moments if _sound(moment) and moment.at > now]
    if not coming:
        # A forecast that ran out says nothing of what comes.
        return None
    moments = coming if present is None else [present, *coming]
    asked = [
        Ahead(need, moment)
        for moment in moments
        for need in (
            _time(moment, spec, memory.capacity, seasoned=forecast.seasoned),
            _kv(moment, present, reading, spec),
        )
        if need is not None
    ]
    if not asked:
        return None
    worst = max(asked, key=lambda each: each.need.replicas)
    grows = memory.capacity.settled or worst.need.resource == "kv"
    return Ahead(replace(worst.need, words=_words(now, worst, forecast)), worst.moment, grows)


def smoothed(now: float, reading: PoolReading, memory: Memory) -> Memory:
    """Memory with the mean of demand moved towards this reading's; kept where that has gaps."""
    served = demand_now(now, reading)
    if served is None or not _sound(served):
        return memory
    present = arriving(reading, memory, served)
    if memory.demand is None:
        return replace(memory, demand=(now, present.prompt_tokens, present.output_tokens))
    then, prompt, output = memory.demand
    share = 1.0 - math.exp(-max(0.0, now - then) / SMOOTHING_SECONDS)
    mean = (prompt + share * (present.prompt_tokens - prompt), output + share * (present.output_tokens - output))
    return replace(memory, demand=(now, *mean))


def untold(reading: PoolReading) -> bool:
    """Whether no ready pod has a figure of prompts, or none of answers, as engines that make no text."""
    serving = reading.serving
    return bool(serving) and (
        all(isinstance(pod.prompt_tokens_rate, Missing) for pod, _ in serving)
        or all(isinstance(pod.output_tokens_rate, Missing) for pod, _ in serving)
    )


def observed(now: float, reading: PoolReading, spec: ScalingSpec, memory: Memory) -> Memory:
    """Memory with what this reading teaches of capacity; learning begins anew for another model or other flags."""
    capacity, kinds = memory.capacity, memory.variants
    if reading.identity != capacity.identity:
        capacity = Capacity(identity=reading.identity)
    elif memory.capacity_read_at is not None and now - memory.capacity_read_at < READING_SECONDS:
        return memory
    loads = [(load, count) for pod, count in reading.serving if (load := _load(pod)) is not None]
    if loads:
        telling = sum(count for _, count in loads)
        mean = Load(*(sum(count * load[index] for load, count in loads) / telling for index in range(3)))
        limit = capacity.limit(spec.time_per_output_token_seconds)
        if spec.variants:
            kinds = variants.learned(kinds, _by_variant(reading), reading.identity, spec.variants)
            serving = Counter(pod.variant for pod in reading.pods if pod.state is PodState.READY)
            capacity = variants.composite(capacity, kinds, serving, spec.variants)
        else:
            capacity = learning.learned(capacity, mean)
        if _settled(now, memory) and memory.demand is not None:
            share = capacity.load(*memory.demand[1:]) / telling
            capacity = learning.judged(capacity, share, limit, _worst_latency(reading, spec))
    return replace(memory, capacity=capacity, variants=kinds, capacity_read_at=now)


def started(memory: Memory, pods: Iterable[LivePod]) -> Memory:
    """Memory with the start-ups of pods that it does not know yet."""
    known = dict(memory.startups)
    new = tuple(
        (pod.name, pod.startup_seconds)
        for pod in pods
        if pod.startup_seconds is not None and pod.startup_seconds > 0 and pod.name not in known
    )
    return replace(memory, startups=(*memory.startups, *new)[-STARTUPS_KEPT:]) if new else memory


def recalled(memory: Memory, capacity: Capacity) -> Memory:
    """Memory with what the past taught, where it knows more of the same model and flags than this process saw."""
    known = memory.capacity
    if capacity.readings <= known.readings or (known.readings > 0 and known.identity != capacity.identity):
        return memory
    return replace(memory, capacity=replace(capacity, load_limit=known.load_limit))


def startup_p90(memory: Memory) -> float:
    """Seconds from a pod's creation to its being ready, 90th percentile of the last ones."""
    measured = _startup(memory, 0.9)
    return STARTUP_SECONDS if measured is None else measured


def learned(spec: ScalingSpec, memory: Memory) -> Learned:
    """What is known of a replica, for the status."""
    capacity = memory.capacity
    limit, (_, prefill, output) = capacity.limit(spec.time_per_output_token_seconds), capacity.figures
    return Learned(
        prefill_tokens_per_second=limit / prefill,
        output_tokens_per_second=limit / output,
        source=capacity.told(),
        startup_p50_seconds=_startup(memory, 0.5),
        startup_p90_seconds=_startup(memory, 0.9),
    )


def _startup(memory: Memory, share: float) -> float | None:
    """Nearest rank among the start-ups that were seen."""
    seconds = sorted(took for _, took in memory.startups)
    return seconds[math.ceil(share * len(seconds)) - 1] if seconds else None


def _time(moment: Moment, spec: ScalingSpec, capacity: Capacity, *, seasoned: bool) -> Need:
    load = capacity.load(moment.prompt_tokens, moment.output_tokens)
    limit = min(capacity.limit(spec.time_per_output_token_seconds), 1.0 if seasoned else UNSEASONED_LIMIT)
    return Need(capacity.binding(moment.prompt_tokens, moment.output_tokens), load / limit, "")


def _kv(moment: Moment, present: Moment | None, reading: PoolReading, spec: ScalingSpec) -> Need | None:
    """KV cache, taken to grow as the output does."""
    if present is None or present.output_tokens < LEAST_TOKENS or moment is present:
        return None
    used = figures.total(reading.serving, figures.kv_usage)
    return Need("kv", used * moment.output_tokens / present.output_tokens / spec.kv_utilization, "")


def _words(now: float, worst: Ahead, forecast: Forecast) -> str:
    moment, resource = worst.moment, worst.need.resource
    what = ("prompt", moment.prompt_tokens) if resource == "prefill" else ("output", moment.output_tokens)
    rate = f"{what[0]} tokens {what[1]:,.0f}/s"
    if moment.at <= now:
        return f"{rate} now"
    when = datetime.fromtimestamp(moment.at, UTC).strftime("%H:%M")
    return (
        f"P90 of {rate} at {when}, {moment.at - now:.0f} s ahead (start-up P90 {forecast.startup_seconds:.0f} s)"
    )


def _sound(moment: Moment) -> bool:
    return all(math.isfinite(each) and each >= 0 for each in (moment.prompt_tokens, moment.output_tokens))


def _tokens(pod: PodReading) -> tuple[float, float] | None:
    """Prompt tokens to compute and output tokens, a second."""
    prompt, output = figures.usable(pod.prompt_tokens_rate), figures.usable(pod.output_tokens_rate)
    if prompt is None or output is None:
        return None
    # An engine without a prefix cache has no such figure.
    return max(0.0, prompt - (figures.usable(pod.cached_tokens_rate) or 0.0)), output


def _load(pod: PodReading) -> tuple[float, float, float] | None:
    running, tokens = figures.running(pod), _tokens(pod)
    return None if running is None or tokens is None else (running, *tokens)


def _by_variant(reading: PoolReading) -> list[tuple[str, tuple[float, float, float]]]:
    found = ((pod, count, _load(pod)) for pod, count in reading.serving)
    return [(pod.variant, load) for pod, count, load in found if load is not None for _ in range(count)]


def _settled(now: float, memory: Memory) -> bool:
    """Percentiles look back over a minute: sooner after the pods changed they speak of other pods."""
    return memory.ready_pods_since is not None and now - memory.ready_pods_since >= 60.0


def _worst_latency(reading: PoolReading, spec: ScalingSpec) -> float | None:
    """The highest latency over its target."""
    pairs = (
        (reading.time_to_first_token_seconds, spec.time_to_first_token_seconds),
        (reading.time_per_output_token_seconds, spec.time_per_output_token_seconds),
    )
    ratios = [
        value / target
        for sample, target in pairs
        if target is not None and (value := figures.usable(sample)) is not None
    ]
    return max(ratios, default=None)
