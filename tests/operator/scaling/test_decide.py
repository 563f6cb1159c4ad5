"""Decisions in tables; the last column of each is the reason why this is the right answer."""

import dataclasses

import pytest

from fakes.readings import GONE, NOBODY, OLD, asked, blind, pod, pool, settled
from tidepool_api.scaling import Mode
from tidepool_operator.scaling.decide import decide
from tidepool_operator.scaling.model import (
    Demand,
    Known,
    Memory,
    Missing,
    PodReading,
    PodState,
    PoolReading,
    ScalingSpec,
    Stale,
)

NOW = 1_800_000_000.0
SPEC = ScalingSpec(1, 8)
TO_ZERO = ScalingSpec(0, 8, idle_after_seconds=600.0)
LATENCY = ScalingSpec(1, 8, time_to_first_token_seconds=1.5)
BUSY = asked(in_flight=9)


def pods(count: int, **figures: float) -> tuple[PodReading, ...]:
    return tuple(pod(f"pod-{index}", **figures) for index in range(count))


@pytest.mark.parametrize(
    ("reading", "current", "replicas", "reason", "binding", "why"),
    [
        (pool(*pods(1, kv=0.93)), 1, 2, "ScaleUp", "kv", "0.93 of 0.8 is beyond the tolerance"),
        (pool(*pods(1, kv=0.88)), 1, 1, "WithinTargets", "kv", "0.88 of 0.8 is just the tolerance of a tenth"),
        (pool(*pods(2, kv=0.8)), 2, 2, "WithinTargets", "kv", "exactly on target"),
        (pool(*pods(4, kv=0.95)), 4, 5, "ScaleUp", "kv", "4 x 0.95 / 0.8 = 4.75"),
        (pool(*pods(2, kv=0.39)), 2, 1, "ScaleDown", "kv", "one pod would hold 0.78 of 0.8"),
        (pool(*pods(2, kv=0.41)), 2, 2, "WithinTargets", "kv", "one pod would hold 0.82 of 0.8"),
        (pool(*pods(8, kv=0.1)), 8, 7, "ScaleDown", "kv", "one would do, but only one goes at a time"),
        (pool(*pods(1, running=8, waiting=8)), 1, 2, "ScaleUp", "waiting", "twice as many as run"),
        (pool(*pods(1, running=8, waiting=1)), 1, 1, "WithinTargets", "kv", "one may be an arrival in passing"),
        (pool(*pods(1, running=80, waiting=5)), 1, 1, "WithinTargets", "waiting", "within the tolerance"),
        (
            pool(*pods(1, running=0, waiting=6)),
            1,
            2,
            "ScaleUp",
            "waiting",
            "nothing runs to compare with: one more",
        ),
        (pool(*pods(1, running=4), demand=asked(held=8)), 1, 3, "ScaleUp", "waiting", "held ones wait too"),
        (pool(*pods(1, running=4), demand=asked(refused=4)), 1, 2, "ScaleUp", "waiting", "refused ones had to go"),
        (
            pool(*pods(1, kv=0.32, running=9, waiting=18)),
            1,
            3,
            "ScaleUp",
            "waiting",
            "prefill-bound: KV says nothing",
        ),
        (pool(*pods(1, kv=1.0, running=9)), 1, 2, "ScaleUp", "kv", "no queue, but the cache is full"),
        (pool(*pods(1, running=1e-308, waiting=4)), 1, 5, "ScaleUp", "waiting", "no number is too odd"),
        (pool(*pods(1, kv=2.4)), 1, 3, "ScaleUp", "kv", "by the ledger, tokens for three caches are asked for"),
        (pool(*pods(8, kv=1.0)), 8, 8, "AtMaximum", "kv", "ten wanted, eight allowed"),
    ],
    ids=lambda value: value if isinstance(value, str) and " " in value else "",
)
def test_load(reading: PoolReading, current: int, replicas: int, reason: str, binding: str, why: str) -> None:
    decision, _ = decide(NOW, reading, SPEC, current, settled(current, NOW))

    assert (decision.replicas, decision.reason) == (replicas, reason), why
    assert decision.binding == binding, why


@pytest.mark.parametrize(
    ("reading", "current", "replicas", "reason", "why"),
    [
        (pool(pod(kv=0.93), blind("b")), 2, 2, "Starting", "the second was asked for by this very load"),
        (pool(pod(kv=0.93), blind("b", PodState.PENDING)), 2, 2, "Starting", "no GPU for it: no third one"),
        (pool(pod(kv=0.8, running=8, waiting=16), blind("b")), 2, 3, "ScaleUp", "the demand grew meanwhile"),
        (pool(blind("a"), demand=asked(held=16)), 1, 1, "Starting", "sixteen wait for the first pod: it comes"),
        (pool(blind("a"), blind("b")), 2, 2, "Starting", "no figures yet: hold"),
        (pool(blind("a", PodState.UNREADY)), 1, 1, "NoReadyPods", "more of a pod that fails help nobody"),
        (pool(*pods(2, kv=0.3), blind("c")), 3, 2, "ScaleDown", "the one that does not start is not needed"),
        (pool(*pods(2, kv=0.3), blind("c", PodState.PENDING)), 3, 2, "ScaleDown", "unschedulable: goes first"),
        (pool(*pods(2, kv=0.3), blind("c", PodState.UNREADY)), 3, 2, "ScaleDown", "nor is the one that fell ill"),
    ],
    ids=lambda value: value if isinstance(value, str) and " " in value else "",
)
def test_pods_that_come(reading: PoolReading, current: int, replicas: int, reason: str, why: str) -> None:
    memory = dataclasses.replace(settled(current, NOW), ready_pods=reading.ready)

    decision, _ = decide(NOW, reading, SPEC, current, memory)

    assert (decision.replicas, decision.reason) == (replicas, reason), why


@pytest.mark.parametrize(
    ("reading", "current", "replicas", "reason", "why"),
    [
        (
            pool(*pods(3, kv=GONE, running=GONE, waiting=GONE)),
            3,
            3,
            "MetricsMissing",
            "Prometheus lost is no load lost",
        ),
        (
            pool(*pods(3, kv=OLD, running=OLD, waiting=OLD)),
            3,
            3,
            "MetricsMissing",
            "yesterday's zero is not today's",
        ),
        (pool(*pods(2, kv=0.1), pod("c", kv=GONE)), 3, 3, "MetricsMissing", "the third may be full"),
        (pool(*pods(2, kv=0.1), pod("c", kv=0.1, waiting=GONE)), 3, 3, "MetricsMissing", "or have a queue"),
        (pool(*pods(3, kv=0.1), demand=asked(held=GONE)), 3, 3, "MetricsMissing", "the gateways may hold more"),
        (pool(*pods(3, kv=0.1), demand=asked(in_flight=OLD)), 3, 3, "MetricsMissing", "one gateway is silent"),
        (
            pool(pod("a", kv=1.0), pod("b", kv=1.0), pod("c", kv=GONE)),
            3,
            3,
            "WithinTargets",
            "2.5 of 3: no more either",
        ),
        (
            pool(*pods(3, kv=1.0), pod("d", kv=GONE)),
            4,
            4,
            "WithinTargets",
            "its share unknown, three are no reason",
        ),
        (
            pool(*pods(4, kv=1.0, running=4, waiting=4), pod("e", kv=GONE, waiting=GONE)),
            5,
            8,
            "ScaleUp",
            "one pod's error blocks no growth",
        ),
        (pool(*pods(3, kv=float("nan"))), 3, 3, "MetricsMissing", "idle gives 0/0 in some queries"),
        (pool(*pods(3, kv=-1.0)), 3, 3, "MetricsMissing", "no such thing as negative use"),
        (pool(*pods(3, kv=40.0)), 3, 3, "MetricsMissing", "a gauge that was renamed into per cent"),
        (pool(*pods(3, kv=0.1, waiting=float("inf"))), 3, 3, "MetricsMissing", "no queue is endless"),
        (pool(*pods(3, kv=0.1, running=GONE)), 3, 3, "MetricsMissing", "running is needed to go down"),
    ],
    ids=lambda value: value if isinstance(value, str) and " " in value else "",
)
def test_gaps_never_shrink(reading: PoolReading, current: int, replicas: int, reason: str, why: str) -> None:
    decision, _ = decide(NOW, reading, SPEC, current, settled(current, NOW))

    assert (decision.replicas, decision.reason) == (replicas, reason), why


@pytest.mark.parametrize(
    ("spec", "reading", "current", "replicas", "reason", "why"),
    [
        (ScalingSpec(2, 4), pool(), 1, 2, "BelowMinimum", "a manual scale below the bounds, without any data"),
        (ScalingSpec(2, 4), pool(), 9, 4, "AboveMaximum", "a manual scale above, or a maximum lowered"),
        (ScalingSpec(2, 4), pool(), 0, 2, "BelowMinimum", "zero is below two"),
        (ScalingSpec(0, 4), pool(*pods(9, kv=1.0)), 9, 4, "AboveMaximum", "bounds hold under any load"),
        (ScalingSpec(2, 4), pool(*pods(2, kv=0.0)), 2, 2, "WithinTargets", "no load, but two are the least"),
        (
            ScalingSpec(0, 4),
            pool(*pods(1, kv=0.0), demand=BUSY),
            1,
            1,
            "WithinTargets",
            "load alone never gives zero",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) and " " in value else "",
)
def test_bounds(
    spec: ScalingSpec, reading: PoolReading, current: int, replicas: int, reason: str, why: str
) -> None:
    decision, _ = decide(NOW, reading, spec, current, settled(current, NOW))

    assert (decision.replicas, decision.reason) == (replicas, reason), why


@pytest.mark.parametrize(
    ("reading", "idle_seconds", "replicas", "why"),
    [
        (pool(pod()), 600, 0, "ten minutes without a request"),
        (pool(pod()), 599, 1, "not yet"),
        (pool(pod(running=1)), 3600, 1, "a request runs"),
        (pool(pod(waiting=1)), 3600, 1, "a request waits"),
        (pool(pod(requests=0.02)), 3600, 1, "one came and went between two scrapes"),
        (pool(pod(requests=0.02, ended=7)), 600, 0, "its rate still tells of the one that ended a minute ago"),
        (pool(pod(ended=8)), 3600, 1, "one has ended since the last look"),
        (pool(pod(ended=0)), 3600, 1, "the engine is a new process: who knows what the old one did last"),
        (pool(pod(ended=7, running=1)), 3600, 1, "a request runs, and none has ended"),
        (pool(dataclasses.replace(pod(), output_tokens_rate=Known(3.0))), 3600, 1, "somebody got tokens"),
        (pool(dataclasses.replace(pod(), output_tokens_rate=GONE)), 600, 0, "an embedding engine makes none"),
        (pool(pod(), demand=asked(held=1)), 3600, 1, "a gateway holds one"),
        (pool(pod(), demand=asked(in_flight=1)), 3600, 1, "a gateway has one under way"),
        (pool(pod(), demand=asked(refused=1)), 3600, 1, "a gateway refused one just now"),
        (pool(pod(running=GONE)), 3600, 1, "a pod that is not scraped may be busy"),
        (pool(pod(requests=GONE)), 3600, 1, "requests that nobody counts may come"),
        (pool(pod(kv=GONE, running=GONE, waiting=GONE)), 3600, 1, "Prometheus is away"),
        (pool(pod(), demand=asked(in_flight=OLD)), 3600, 1, "a gateway is silent"),
        (pool(pod(), demand=Demand(Known(0), Known(0), Known(0))), 3600, 1, "no gateway could wake it"),
        (pool(pod(), blind("b", PodState.UNREADY)), 3600, 1, "a hung engine may have requests"),
        (pool(pod(), blind("b", PodState.PENDING)), 600, 0, "a pod that never ran has none"),
    ],
    ids=lambda value: value if isinstance(value, str) and " " in value else "",
)
def test_to_zero(reading: PoolReading, idle_seconds: float, replicas: int, why: str) -> None:
    """The pool was idle for so long until this reading."""
    memory = settled(1, NOW, idle_since=NOW - idle_seconds, requests_ended=(("pod-0", 7.0),))

    decision, _ = decide(NOW, reading, TO_ZERO, 1, memory)

    assert decision.replicas == replicas, why


def test_an_idle_pool_keeps_its_minimum() -> None:
    decision, _ = decide(NOW, pool(pod()), SPEC, 1, settled(1, NOW, idle_since=NOW - 7200))

    assert (decision.replicas, decision.reason) == (1, "WithinTargets")


@pytest.mark.parametrize(
    ("demand", "replicas", "reason", "why"),
    [
        (asked(held=1), 1, "WokenByDemand", "the first held request wakes"),
        (asked(refused=3), 1, "WokenByDemand", "so does one that could not be held"),
        (Demand(Known(2), GONE, OLD, gateways=2), 1, "WokenByDemand", "one gateway that asks is enough"),
        (NOBODY, 0, "AtZero", "nobody asks"),
        (asked(held=OLD), 0, "DemandUnknown", "silence asks for nothing"),
        (asked(in_flight=2), 0, "AtZero", "streams on a pod that drains need no new one"),
    ],
    ids=lambda value: value if isinstance(value, str) and " " in value else "",
)
def test_from_zero(demand: Demand, replicas: int, reason: str, why: str) -> None:
    decision, _ = decide(NOW, pool(demand=demand), TO_ZERO, 0, Memory())

    assert (decision.replicas, decision.reason) == (replicas, reason), why


@pytest.mark.parametrize(
    ("seconds", "running", "requests", "current", "replicas", "why"),
    [
        (2.0, 4, 1.0, 1, 2, "2.0 of 1.5 s, and the pod shares its time"),
        (9.0, 4, 1.0, 1, 2, "however bad: one more, for queues do not grow in proportion"),
        (1.6, 4, 1.0, 1, 1, "within the tolerance"),
        (9.0, 1, 1.0, 1, 1, "a request that has a pod to itself gains nothing by another"),
        (0.7, 4, 1.0, 2, 1, "1.4 s are expected on one pod"),
        (0.8, 4, 1.0, 2, 2, "1.6 s are expected on one pod"),
        (GONE, 4, 1.0, 2, 2, "the latency of requests that come is not known"),
        (GONE, 0, 0.0, 2, 1, "no request, no latency"),
    ],
    ids=lambda value: value if isinstance(value, str) and " " in value else "",
)
def test_latency(
    seconds: float | Missing, running: float, requests: float, current: int, replicas: int, why: str
) -> None:
    measured = Known(seconds) if isinstance(seconds, float) else seconds
    reading = pool(
        *pods(current, running=running, requests=requests), time_to_first_token_seconds=measured, demand=BUSY
    )

    decision, _ = decide(NOW, reading, LATENCY, current, settled(current, NOW))

    assert decision.replicas == replicas, why


def test_one_more_is_one_more_than_asked_for_while_a_rollout_runs_more_pods() -> None:
    slow = pool(*pods(2, running=4, requests=1.0), time_to_first_token_seconds=Known(9.0), demand=BUSY)
    stuck = pool(*pods(2, running=0, waiting=6))
    memory = dataclasses.replace(settled(1, NOW), ready_pods=2)

    by_latency, _ = decide(NOW, slow, LATENCY, 1, memory)
    by_queue, _ = decide(NOW, stuck, SPEC, 1, memory)

    assert (by_latency.replicas, by_queue.replicas) == (2, 2)


def test_slow_answers_neither_add_to_nor_take_from_pods_that_are_coming() -> None:
    slow = pool(
        *pods(2, running=4, requests=1.0),
        blind("c"),
        blind("d"),
        time_to_first_token_seconds=Known(9.0),
        demand=BUSY,
    )
    memory = dataclasses.replace(settled(4, NOW), ready_pods=2)

    decision, _ = decide(NOW, slow, LATENCY, 4, memory)

    assert decision.replicas == 4


def test_latency_waits_for_a_new_pod_to_show_in_the_percentile() -> None:
    slow = pool(*pods(2, running=4, requests=1.0), time_to_first_token_seconds=Known(9.0), demand=BUSY)
    memory = dataclasses.replace(settled(2, NOW), ready_pods_since=NOW - 59)

    early, memory = decide(NOW, slow, LATENCY, 2, memory)
    later, _ = decide(NOW + 5, slow, LATENCY, 2, memory)

    assert (early.replicas, later.replicas) == (2, 3)


def test_one_waiting_request_that_stays_counts() -> None:
    reading = pool(pod(running=2, waiting=1))
    memory = settled(1, NOW, waiting_since=NOW - 25)

    early, memory = decide(NOW, reading, SPEC, 1, memory)
    later, _ = decide(NOW + 5, reading, SPEC, 1, memory)

    assert (early.replicas, later.replicas) == (1, 2)


def test_recommend_says_so_and_decides_the_same() -> None:
    reading = pool(pod(kv=0.93))
    spec = dataclasses.replace(SPEC, mode=Mode.RECOMMEND)

    auto, _ = decide(NOW, reading, SPEC, 1, settled(1, NOW))
    advice, _ = decide(NOW, reading, spec, 1, settled(1, NOW))

    assert advice.replicas == auto.replicas == 2
    assert advice.message == f"recommended: {auto.message}"


def test_message_says_what_why_and_from_which_figures() -> None:
    decision, _ = decide(NOW, pool(pod(kv=0.93, running=4, waiting=1)), SPEC, 1, settled(1, NOW))

    assert decision.message == "1 -> 2: KV use 0.93 of target 0.80 on 1 ready pod; binding: kv"
    assert decision.samples["kvUtilization"] == "0.93"
    assert decision.samples["waiting"] == "1"
    assert decision.samples["held"] == "0"
    assert decision.time == NOW


def test_message_names_what_is_missing_and_why() -> None:
    trouble = "Prometheus at prometheus:9090 cannot be reached"
    reading = pool(*pods(2, kv=OLD, running=OLD, waiting=OLD), trouble=trouble)

    decision, _ = decide(NOW, reading, SPEC, 2, settled(2, NOW))

    assert decision.message == f"2: no figures of pod-0, pod-1 ({trouble}); held until there are"
    assert decision.samples["kvUtilization"] == "stale (Prometheus does not answer): 0, 240 s old"


def test_message_names_the_gateway_that_is_silent() -> None:
    silent = asked(in_flight=Stale(2.0, 7.0, "gateway gateway-1 is silent"))

    decision, _ = decide(NOW, pool(*pods(2, kv=0.1), demand=silent), SPEC, 2, settled(2, NOW))

    assert decision.message == (
        "2: KV use 0.10 of target 0.80 on 2 ready pods; not fewer while figures of "
        "the gateways (stale (gateway gateway-1 is silent): 2, 7 s old) are missing"
    )


def test_message_says_why_an_idle_pool_stays() -> None:
    reading = pool(pod(running=0, requests=GONE), demand=NOBODY)

    decision, _ = decide(NOW, reading, TO_ZERO, 1, settled(1, NOW))

    assert "not to zero: request figure of pod pod-0 is missing: target is down" in decision.message


@pytest.mark.parametrize(
    ("queued", "startups", "wanted", "why"),
    [
        (((NOW - 60, 0.0), (NOW - 30, 30.0)), 300.0, 6, "one more comes a second than the four that end"),
        (((NOW - 60, 60.0), (NOW - 30, 60.0)), 300.0, 5, "as many come as end; the pile is worked off meanwhile"),
        (((NOW - 60, 60.0), (NOW - 30, 60.0)), 15.0, 8, "a pod that is there at once works it off at once"),
        ((), 300.0, 8, "nobody looked before, so all may have come now: ten, of which behavior allows four"),
    ],
)
def test_a_pile_that_took_minutes_is_no_rate(
    queued: tuple[tuple[float, float], ...], startups: float, wanted: int, why: str
) -> None:
    """While pods start for minutes the queue grows, and the same lack would be counted again and again."""
    full = pool(*(pod(f"p{i}", kv=0.5, running=10, waiting=15, requests=1.0) for i in range(4)))
    memory = settled(4, NOW, queued=queued, startups=(("p0", startups),))

    decision, _ = decide(NOW, full, ScalingSpec(1, 20), 4, memory)

    assert decision.replicas == wanted, why
