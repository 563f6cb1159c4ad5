"""What must hold for every reading, spec and past."""

import dataclasses
import math
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fakes.readings import Pool
from scripted.examples import examples
from tidepool_api.scaling import Mode, SelectPolicy
from tidepool_operator.scaling.decide import decide
from tidepool_operator.scaling.model import (
    Behavior,
    Demand,
    Forecast,
    Known,
    Memory,
    Missing,
    Moment,
    PodReading,
    PodState,
    PoolReading,
    RatePolicy,
    Sample,
    ScalingSpec,
    Stale,
)

pytestmark = pytest.mark.traffic  # hours of decisions, many times

NOW = 1_800_000_000.0

garbage = st.sampled_from([math.nan, math.inf, -math.inf, -1.0, 1e300])
gaps: st.SearchStrategy[Sample] = st.one_of(
    st.builds(Missing),
    st.builds(Stale, st.floats(0, 1), st.floats(0, 1e6), st.just("old")),
    st.builds(Known, st.sampled_from([math.nan, math.inf, -math.inf, -1.0])),
)


def known(top: float) -> st.SearchStrategy[Sample]:
    return st.builds(Known, st.one_of(st.just(0.0), st.floats(0, top)))


def anything(top: float) -> st.SearchStrategy[Sample]:
    return st.one_of(known(top), gaps, st.builds(Known, garbage))


def pods(sample: Any) -> st.SearchStrategy[PodReading]:
    return st.builds(
        PodReading,
        name=st.sampled_from(["a", "b", "c"]),
        state=st.sampled_from(list(PodState)),
        kv_usage=sample(1.0),
        waiting=sample(300.0),
        running=sample(300.0),
        prompt_tokens_rate=sample(1e5),
        output_tokens_rate=sample(1e5),
        requests_rate=sample(100.0),
    )


def readings(sample: Any) -> st.SearchStrategy[PoolReading]:
    return st.builds(
        PoolReading,
        key=st.just("n/p"),
        pods=st.lists(pods(sample), max_size=6).map(tuple),
        demand=st.builds(
            Demand,
            held=sample(300.0),
            refused=sample(300.0),
            in_flight=sample(300.0),
            gateways=st.integers(0, 3),
            coming=sample(300.0),
        ),
        time_to_first_token_seconds=sample(100.0),
        time_per_output_token_seconds=sample(10.0),
    )


rates = st.one_of(st.floats(0, 1e5), garbage)
# Some ran out, some are garbage, some never came.
forecasts = st.one_of(
    st.none(),
    st.builds(
        Forecast,
        st.floats(0, 900),
        st.lists(st.builds(Moment, st.floats(NOW - 600, NOW + 5000), rates, rates), max_size=3).map(tuple),
    ),
)

behaviors = st.builds(
    Behavior,
    st.sampled_from([0.0, 15.0, 300.0]),
    st.lists(
        st.one_of(
            st.builds(RatePolicy, st.sampled_from([15.0, 60.0]), pods=st.integers(1, 8)),
            st.builds(RatePolicy, st.sampled_from([15.0, 60.0]), percent=st.sampled_from([10.0, 50.0, 100.0])),
        ),
        max_size=3,
    ).map(tuple),
    st.sampled_from(list(SelectPolicy)),
)


@st.composite
def specs(draw: st.DrawFn) -> ScalingSpec:
    low = draw(st.integers(0, 5))
    return ScalingSpec(
        min_replicas=low,
        max_replicas=draw(st.integers(max(1, low), 12)),
        mode=draw(st.sampled_from(list(Mode))),
        kv_utilization=draw(st.floats(0.05, 1.0)),
        time_to_first_token_seconds=draw(st.sampled_from([None, 0.5, 5.0])),
        time_per_output_token_seconds=draw(st.sampled_from([None, 0.05])),
        idle_after_seconds=draw(st.sampled_from([0.0, 60.0, 600.0])),
        predicts=draw(st.booleans()),
        scale_up=draw(behaviors),
        scale_down=draw(behaviors),
    )


def clamped(replicas: int, spec: ScalingSpec) -> int:
    return min(max(replicas, spec.min_replicas), spec.max_replicas)


@given(
    specs(),
    st.lists(readings(anything), min_size=1, max_size=8),
    st.integers(0, 20),
    st.floats(1, 900),
    forecasts,
)
def test_bounds_hold_always(
    spec: ScalingSpec, past: list[PoolReading], replicas: int, seconds: float, forecast: Forecast | None
) -> None:
    memory = Memory()
    for tick, reading in enumerate(past):
        decision, memory = decide(NOW + tick * seconds, reading, spec, replicas, memory, forecast)
        assert spec.min_replicas <= decision.replicas <= spec.max_replicas
        assert decision.reason
        assert decision.message.startswith(("recommended: ", str(replicas)))
        replicas = decision.replicas


@given(st.data(), specs(), st.lists(readings(known), max_size=2), st.integers(1, 12))
def test_a_gap_never_shrinks(
    data: st.DataObject, spec: ScalingSpec, past: list[PoolReading], current: int
) -> None:
    """Whatever was seen before: a reading with one figure of one ready pod missing keeps what is there."""
    memory = Memory()
    for tick, reading in enumerate(past):
        _, memory = decide(NOW + tick * 400, reading, spec, current, memory)
    serving = data.draw(st.lists(pods(known), min_size=1, max_size=5))
    hole = data.draw(st.sampled_from(["kv_usage", "waiting", "running"]))
    serving[0] = dataclasses.replace(serving[0], state=PodState.READY, **{hole: data.draw(gaps)})
    reading = dataclasses.replace(data.draw(readings(known)), pods=tuple(serving))

    decision, _ = decide(NOW + 4000, reading, spec, current, memory, data.draw(forecasts))

    # An idle pool may go to zero although nobody knows its KV use: no request has any.
    assert decision.replicas >= clamped(current, spec) or (hole == "kv_usage" and decision.reason == "Idle")


@given(st.data(), specs(), st.integers(1, 12), readings(known))
def test_silent_gateways_never_shrink(
    data: st.DataObject, spec: ScalingSpec, current: int, reading: PoolReading
) -> None:
    demand = dataclasses.replace(reading.demand, in_flight=data.draw(gaps))
    memory = Memory(since=NOW - 9000, replicas=current, decided=current, idle_since=NOW - 9000)

    silent = dataclasses.replace(reading, demand=demand)
    decision, _ = decide(NOW, silent, spec, current, memory, data.draw(forecasts))

    assert decision.replicas >= clamped(current, spec)


@given(specs(), st.integers(1, 12), st.lists(pods(known), max_size=6), st.data())
def test_more_demand_never_yields_fewer(
    spec: ScalingSpec, current: int, serving: list[PodReading], data: st.DataObject
) -> None:
    """More KV in use, more requests waiting, held and refused, slower answers: never fewer replicas."""
    less = dataclasses.replace(data.draw(readings(known)), pods=tuple(serving))
    more = dataclasses.replace(
        less,
        pods=tuple(
            dataclasses.replace(
                pod,
                kv_usage=_raised(data, pod.kv_usage, 1.0),
                waiting=_raised(data, pod.waiting, 400.0),
                requests_rate=_raised(data, pod.requests_rate, 200.0),
            )
            for pod in serving
        ),
        demand=dataclasses.replace(
            less.demand,
            held=_raised(data, less.demand.held, 400.0),
            refused=_raised(data, less.demand.refused, 400.0),
            in_flight=_raised(data, less.demand.in_flight, 400.0),
            coming=_raised(data, less.demand.coming, 400.0),
        ),
        time_to_first_token_seconds=_raised(data, less.time_to_first_token_seconds, 200.0),
        time_per_output_token_seconds=_raised(data, less.time_per_output_token_seconds, 20.0),
    )
    memory = Memory(
        since=NOW - 9000,
        replicas=current,
        decided=current,
        idle_since=NOW - 9000,
        ready_pods=less.ready,
        ready_pods_since=NOW - 9000,
    )

    few, _ = decide(NOW, less, spec, current, memory)
    many, _ = decide(NOW, more, spec, current, memory)

    assert many.replicas >= few.replicas


def _raised(data: st.DataObject, sample: Sample, top: float) -> Sample:
    assert isinstance(sample, Known)
    return Known(data.draw(st.floats(sample.value, max(top, sample.value))))


@examples(10)
@given(
    demand=st.floats(0.5, 80.0),
    slots=st.integers(1, 64),
    kv_each=st.floats(0.002, 0.5),
    startup_seconds=st.sampled_from([5.0, 60.0, 180.0]),
    window_seconds=st.sampled_from([0.0, 120.0]),
    replicas=st.integers(1, 12),
)
def test_constant_demand_never_swings(
    demand: float, slots: int, kv_each: float, startup_seconds: float, window_seconds: float, replicas: int
) -> None:
    """From any size, the pool goes up for a while or down for a while, and then stays."""
    spec = dataclasses.replace(
        ScalingSpec(1, 200), scale_down=Behavior(window_seconds, (RatePolicy(15.0, percent=100.0),))
    )
    pool = Pool(
        spec, demand=demand, slots=slots, kv_each=kv_each, startup_seconds=startup_seconds, replicas=replicas
    )

    seen = [replicas, *pool.run(1800)]

    ways = [after > before for before, after in pairwise(seen) if after != before]
    # Down until requests wait, then up to where they do not: one turn, while nothing is known of the slots yet.
    assert sum(way != next_way for way, next_way in pairwise(ways)) <= 1, seen
    assert len(set(seen[-100:])) == 1, seen


@pytest.mark.parametrize("pools", [500])
def test_five_hundred_pools_are_decided_with_bounded_memory(pools: int) -> None:
    spec = ScalingSpec(1, 50)
    each = Pool(spec, demand=40.0)
    each.run(120)
    memories = [each.memory] * pools
    for tick in range(5):
        reading = each.reading()
        memories = [decide(each.now + tick * 5, reading, spec, each.replicas, memory)[1] for memory in memories]

    assert max(len(memory.wanted_high) + len(memory.wanted_low) + len(memory.changes) for memory in memories) < 20
