"""Decisions by what is expected until a new pod could be ready."""

import dataclasses
import math
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fakes.readings import GONE, NOBODY, pod, pool
from fakes.readings import settled as looked_for
from tidepool_api.scaling import Mode
from tidepool_operator.scaling.ahead import (
    READING_SECONDS,
    STARTUP_SECONDS,
    UNSEASONED_LIMIT,
    arriving,
    started,
    startup_p90,
)
from tidepool_operator.scaling.capacity import PRIOR, SETTLED, Capacity
from tidepool_operator.scaling.decide import decide
from tidepool_operator.scaling.model import (
    Forecast,
    Known,
    LivePod,
    Memory,
    Missing,
    Moment,
    PodReading,
    PodState,
    PoolReading,
    ScalingSpec,
)

NOW = 1_800_000_000.0  # 08:00 UTC
SPEC = ScalingSpec(1, 20, predicts=True)
# One replica makes so many tokens a second at the limit of 0.85, if it has no prompts.
ONE = 0.85 / PRIOR[2]


def settled(current: int, now: float, **rest: Any) -> Memory:
    """Memory of an operator that knows how fast the engines are, besides."""
    return looked_for(current, now, **({"capacity": Capacity(readings=SETTLED)} | rest))


def working(output: float, prompt: float = 0.0, kv: float = 0.7) -> PodReading:
    """A pod whose engine is as fast as the prior says, so that nothing is to be learned."""
    base, per_prompt, per_output = PRIOR
    step = base / (1 - per_prompt * prompt - per_output * output)
    return dataclasses.replace(
        pod(running=output * step, kv=kv, requests=1.0),
        prompt_tokens_rate=Known(prompt),
        cached_tokens_rate=Known(0.0),
        output_tokens_rate=Known(output),
    )


def ready(count: int, output: float, **rest: Any) -> PoolReading:
    pods = [dataclasses.replace(working(output, **rest), name=f"pod-{i}") for i in range(count)]
    return pool(*pods, demand=NOBODY)


def expected(output: float, prompt: float = 0.0, seconds: float = 240.0, startup: float = 225.0) -> Forecast:
    return Forecast(startup, (Moment(NOW + seconds, prompt, output),), ("seasonal difference",), 0.9)


def test_a_pool_grows_before_the_load_comes_and_says_so() -> None:
    decision, _ = decide(NOW, ready(5, 0.93 * ONE), SPEC, 5, settled(5, NOW), expected(6.5 * ONE))

    assert (decision.replicas, decision.reason, decision.binding) == (7, "ScaleUp", "decode")
    assert decision.message == (
        "5 -> 7: P90 of output tokens 19,732/s at 08:04, 240 s ahead (start-up P90 225 s); binding: decode; "
        "reactive alone: 5"
    )
    assert "asks for 6.5 replicas" in decision.forecast
    assert decision.learned is not None


def test_a_pool_whose_first_season_is_not_over_is_given_more_room() -> None:
    """A forecast of less than a season's past knows no cycle: nearly a third of the engines' time is left."""
    early = dataclasses.replace(expected(6.0 * ONE), seasoned=False)
    seasoned, _ = decide(NOW, ready(5, 0.93 * ONE), SPEC, 5, settled(5, NOW), expected(6.0 * ONE))
    first, _ = decide(NOW, ready(5, 0.93 * ONE), SPEC, 5, settled(5, NOW), early)

    assert (seasoned.replicas, first.replicas) == (6, math.ceil(6.0 * 0.85 / UNSEASONED_LIMIT))


def test_what_is_learned_to_be_less_holds_in_the_first_season_too() -> None:
    low = Capacity(readings=SETTLED, load_limit=0.5)
    both = [
        decide(NOW, ready(5, 0.4 * ONE, kv=0.1), SPEC, 5, settled(5, NOW, capacity=low), forecast)[0].replicas
        for forecast in (expected(4.0 * ONE), dataclasses.replace(expected(4.0 * ONE), seasoned=False))
    ]

    assert both == [7, 7]


def test_prompts_bind_where_they_take_more_of_the_time() -> None:
    decision, _ = decide(
        NOW, ready(2, 100.0), SPEC, 2, settled(2, NOW), expected(100.0, prompt=3.2 * 0.85 / PRIOR[1])
    )

    assert (decision.replicas, decision.binding) == (4, "prefill")
    assert "prompt tokens" in decision.message


def test_kv_binds_where_contexts_are_long() -> None:
    """Half of the cache is used on each of two pods; three times the output takes three times the cache."""
    decision, _ = decide(NOW, ready(2, 500.0, kv=0.5), SPEC, 2, settled(2, NOW), expected(3000.0))

    assert (decision.replicas, decision.binding) == (4, "kv")


def test_what_is_now_counts_where_it_is_the_worst_moment() -> None:
    decision, _ = decide(NOW, ready(2, 1.1 * ONE), SPEC, 2, settled(2, NOW), expected(ONE))

    assert decision.replicas == 3
    assert "output tokens" in decision.message
    assert "now" in decision.message


def test_a_pool_does_not_shrink_below_what_is_expected() -> None:
    """KV use alone would let four replicas go; three are needed in four minutes."""
    reading = ready(5, 100.0, kv=0.01)
    memory = settled(5, NOW)
    seen = []
    current = 5
    for tick in range(200):
        now = NOW + 15 * tick
        ahead = Forecast(225.0, (Moment(now + 240, 0.0, 2.5 * ONE),))
        decision, memory = decide(
            now, dataclasses.replace(reading, pods=reading.pods[:current]), SPEC, current, memory, ahead
        )
        current = decision.replicas
        seen.append(current)

    assert seen[-1] == 3
    assert all(after <= before for before, after in pairwise(seen))


def test_without_its_forecast_a_pool_that_predicts_does_not_shrink() -> None:
    memory = settled(5, NOW, wanted_high=((NOW - 400, 1),))
    decision, _ = decide(NOW, ready(5, 10.0, kv=0.01), SPEC, 5, memory, None)

    assert decision.replicas == 5

    blind_once = ready(5, 10.0, kv=0.01)
    holed = dataclasses.replace(blind_once.pods[0], output_tokens_rate=GONE, name="hole")
    gap = dataclasses.replace(blind_once, pods=(holed, *blind_once.pods[1:]))
    decision, _ = decide(NOW, gap, SPEC, 5, memory, Forecast(225.0, ()))
    assert (decision.replicas, decision.reason) == (5, "MetricsMissing")
    assert "the forecast" in decision.message


def test_a_forecast_is_not_heard_where_the_spec_does_not_ask() -> None:
    spec = dataclasses.replace(SPEC, predicts=False)

    decision, _ = decide(NOW, ready(2, 100.0), spec, 2, settled(2, NOW), expected(9 * ONE))

    assert (decision.replicas, decision.forecast, decision.learned) == (2, "", None)


def test_pods_that_wait_for_a_gpu_do_not_lead_to_more() -> None:
    pending = tuple(PodReading(f"pending-{i}", PodState.PENDING) for i in range(4))
    reading = ready(3, 0.8 * ONE, kv=0.5)
    reading = dataclasses.replace(reading, pods=(*reading.pods, *pending))
    memory = settled(7, NOW)

    seen = set()
    for tick in range(40):
        now = NOW + 15 * tick
        ahead = Forecast(225.0, (Moment(now + 240, 0.0, 6.5 * ONE),))
        decision, memory = decide(now, reading, SPEC, 7, memory, ahead)
        seen.add(decision.replicas)

    assert seen == {7}


@pytest.mark.parametrize(
    ("before", "waits", "refused", "share"),
    [
        (0.0, 0.0, 0.0, 1.0),
        (0.0, 60.0, 0.0, 1.5),  # one more a second comes than the two that end
        (60.0, 0.0, 0.0, 0.5),  # a queue is worked off
        (0.0, 0.0, 30.0, 1.5),  # refused within half a minute
        (0.0, 6000.0, 0.0, 3.0),  # bounded
    ],
)
def test_what_comes_is_what_is_worked_on_and_what_piles_up(
    before: float, waits: float, refused: float, share: float
) -> None:
    read = ready(2, 100.0)
    read = dataclasses.replace(read, demand=dataclasses.replace(NOBODY, refused=Known(refused)))
    memory = settled(2, NOW, queued=((NOW - 60, before), (NOW, waits)))

    come = arriving(read, memory, Moment(NOW, 10.0, 200.0))

    assert (come.prompt_tokens, come.output_tokens) == (pytest.approx(10.0 * share), pytest.approx(200.0 * share))


def test_a_forecast_that_ran_out_is_none() -> None:
    """Nobody made a new one: what is now says nothing of what comes, so that the pool holds."""
    memory = settled(5, NOW, wanted_high=((NOW - 400, 1),))

    decision, _ = decide(NOW, ready(5, 10.0, kv=0.01), SPEC, 5, memory, expected(10.0, seconds=-1.0))

    assert (decision.replicas, decision.reason) == (5, "MetricsMissing")


def test_a_prior_alone_holds_a_pool_and_does_not_grow_it() -> None:
    """Of a model ten times as small as the prior's, it would ask for ten times too many at the first request."""
    few = settled(5, NOW, capacity=Capacity(readings=SETTLED - 1))
    decision, _ = decide(NOW, ready(5, 0.93 * ONE), SPEC, 5, few, expected(6.5 * ONE))
    assert decision.replicas == 5
    assert "by a prior" in decision.message

    few = settled(5, NOW, capacity=Capacity(), wanted_high=((NOW - 400, 1),))
    decision, _ = decide(NOW, ready(5, 10.0, kv=0.0), SPEC, 5, few, expected(4.5 * ONE))
    assert decision.replicas == 5


def test_engines_that_make_no_text_are_held_by_what_is_measured() -> None:
    """Embeddings have no output tokens: nothing can be foreseen of them, which is no gap."""
    reading = ready(5, 10.0, kv=0.01)
    silent = tuple(
        dataclasses.replace(each, output_tokens_rate=Missing("no such metric")) for each in reading.pods
    )
    memory = settled(5, NOW, wanted_high=((NOW - 400, 1),))

    decision, _ = decide(NOW, dataclasses.replace(reading, pods=silent), SPEC, 5, memory, None)
    assert (decision.replicas, decision.reason) == (4, "ScaleDown")

    decision, _ = decide(NOW, dataclasses.replace(reading, pods=silent), SPEC, 5, memory, Forecast(225.0, ()))
    assert (decision.replicas, decision.reason) == (5, "MetricsMissing")


def test_recommend_shows_what_is_ahead() -> None:
    spec = dataclasses.replace(SPEC, mode=Mode.RECOMMEND)

    decision, _ = decide(NOW, ready(5, 0.93 * ONE), spec, 5, settled(5, NOW), expected(6.5 * ONE))

    assert decision.message.startswith("recommended: 5 -> 7: P90 of output tokens")


def test_another_revision_is_learned_anew() -> None:
    memory = settled(1, NOW)
    for tick in range(10):
        reading = dataclasses.replace(ready(1, 1000.0), identity="a")
        _, memory = decide(NOW + READING_SECONDS * tick, reading, SPEC, 1, memory, None)
    assert memory.capacity.readings >= 8

    _, memory = decide(NOW + 600, dataclasses.replace(ready(1, 1000.0), identity="b"), SPEC, 1, memory, None)

    assert (memory.capacity.identity, memory.capacity.readings) == ("b", 1)


def test_the_lead_is_the_pools_own_start_up() -> None:
    memory = Memory()
    assert startup_p90(memory) == STARTUP_SECONDS
    for index, seconds in enumerate([60.0] * 8 + [300.0, 310.0]):
        memory = started(memory, [LivePod(f"pod-{index}", PodState.READY, seconds)])
        memory = started(memory, [LivePod(f"pod-{index}", PodState.READY, seconds)])

    assert startup_p90(memory) == 300.0
    assert len(memory.startups) == 10


@settings(max_examples=15, deadline=None)
@given(
    st.integers(1, 10),
    st.floats(0, 1e5),
    st.floats(0, 1e5),
    st.floats(1.0, 3.0),
    st.floats(0.2, 3.0),
)
def test_more_expected_never_yields_fewer(
    current: int, output: float, prompt: float, more: float, speed: float
) -> None:
    base, per_prompt, per_output = (speed * each for each in PRIOR)
    capacity = Capacity(figures=(base, per_prompt, per_output), readings=SETTLED)
    memory = settled(current, NOW, capacity=capacity)
    reading = ready(current, 100.0)

    few, _ = decide(NOW, reading, SPEC, current, memory, expected(output, prompt))
    many, _ = decide(NOW, reading, SPEC, current, memory, expected(more * output, more * prompt))

    assert SPEC.min_replicas <= few.replicas <= many.replicas <= SPEC.max_replicas


@pytest.mark.parametrize("load", [0.3, 2.5, 7.01])
@pytest.mark.parametrize("start", [1, 12])
def test_a_constant_forecast_moves_a_pool_one_way_only(load: float, start: int) -> None:
    memory, current, seen = Memory(), start, [start]
    for tick in range(200):
        now = NOW + 15 * tick
        ahead = Forecast(225.0, (Moment(now + 240, 0.0, load * ONE),))
        each = min(load / current, 0.9) * ONE
        reading = ready(current, each, kv=0.1)
        decision, memory = decide(now, reading, SPEC, current, memory, ahead)
        current = decision.replicas
        seen.append(current)

    ways = {after > before for before, after in pairwise(seen) if after != before}
    assert len(ways) <= 1, seen
    assert len(set(seen[-60:])) == 1
