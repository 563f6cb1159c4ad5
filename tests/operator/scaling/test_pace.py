"""Decisions over time: windows, rates, steps, restarts, hands of others; on a pool whose figures follow demand."""

import dataclasses
from itertools import pairwise

import pytest

from fakes.readings import GONE, Pool, asked, blind, pod, pool, settled
from tidepool_api.scaling import SelectPolicy
from tidepool_operator.scaling import behavior
from tidepool_operator.scaling.decide import decide
from tidepool_operator.scaling.model import Behavior, Memory, Missing, RatePolicy, ScalingSpec

NOW = 1_800_000_000.0
QUICK_DOWN = Behavior(0.0, (RatePolicy(15.0, percent=100.0),))


def paced(**changes: Behavior) -> ScalingSpec:
    return dataclasses.replace(ScalingSpec(1, 100), **changes)


def test_a_burst_is_answered_at_once_and_once() -> None:
    pool = Pool(ScalingSpec(1, 8), demand=20.0, startup_seconds=120.0)

    seen = pool.run(60)

    assert seen[0] == 3
    assert set(seen) == {3}  # while the two start, the same load asks for no more


def test_demand_that_grows_while_pods_start_is_answered() -> None:
    pool = Pool(ScalingSpec(1, 8), demand=20.0, startup_seconds=120.0)
    pool.run(30)
    pool.demand = 40.0

    seen = pool.run(30)

    assert set(seen) == {5}


def test_falling_load_is_followed_one_by_one_after_the_window() -> None:
    pool = Pool(ScalingSpec(1, 8), demand=30.0)
    pool.run(600)
    assert pool.replicas == 4
    pool.demand = 4.0

    seen = pool.run(600)

    assert seen[: 290 // 5] == [4] * (290 // 5)  # 300 s of window
    assert [count for count in (4, 3, 2, 1) if count in seen] == [4, 3, 2, 1]
    changes = [index * 5 for index in range(1, len(seen)) if seen[index] != seen[index - 1]]
    assert all(late - early >= behavior.STEP_SECONDS for early, late in pairwise(changes))
    assert seen[-1] == 1


def test_a_short_dip_shrinks_nothing() -> None:
    pool = Pool(ScalingSpec(1, 8), demand=30.0)
    pool.run(600)

    for _ in range(4):
        pool.demand = 2.0
        dip = pool.run(250)
        pool.demand = 30.0
        rest = pool.run(60)
        assert set(dip + rest) == {4}


@pytest.mark.parametrize(
    "lost", [{"kv": GONE}, {"kv": GONE, "running": GONE, "waiting": GONE}], ids=["one", "all"]
)
def test_a_gap_begins_the_window_anew(lost: dict[str, Missing]) -> None:
    spec = ScalingSpec(1, 8)
    low = pool(pod("a", kv=0.1), pod("b", kv=0.1))
    blind = pool(pod("a", **lost), pod("b", **lost))
    _, memory = decide(NOW, low, spec, 2, settled(2, NOW - 3600))
    memory = dataclasses.replace(memory, since=NOW - 7200)

    _, memory = decide(NOW + 295, blind, spec, 2, memory)
    after_gap, memory = decide(NOW + 310, low, spec, 2, memory)
    much_later, _ = decide(NOW + 595, low, spec, 2, memory)

    assert after_gap.reason == "Stabilizing"
    assert much_later.reason == "ScaleDown"


def test_a_restarted_operator_shrinks_nothing_before_a_whole_window() -> None:
    memory = Memory()
    low = pool(pod("a", kv=0.1), pod("b", kv=0.1))
    reasons = []
    for tick in range(61):
        decision, memory = decide(NOW + tick * 5, low, ScalingSpec(1, 8), 2, memory)
        reasons.append(decision.reason)

    assert set(reasons[:60]) == {"Stabilizing"}
    assert reasons[60] == "ScaleDown"


def test_a_restarted_operator_counts_idleness_from_its_restart() -> None:
    memory = Memory()
    seen = []
    for tick in range(122):
        decision, memory = decide(NOW + tick * 5, pool(pod()), ScalingSpec(0, 8), 1, memory)
        seen.append(decision.replicas)

    assert seen.index(0) == 120


def test_growth_does_not_wait_for_a_restarted_operator() -> None:
    decision, _ = decide(NOW, pool(pod(kv=0.95)), ScalingSpec(1, 8), 1, Memory())

    assert decision.replicas == 2


def test_a_manual_scale_within_the_bounds_stands_for_a_window() -> None:
    """Otherwise a person's change would be undone by the windows of the time before."""
    pool = Pool(ScalingSpec(1, 8), demand=4.0)
    pool.run(900)
    assert pool.replicas == 1
    pool.replicas = 4

    seen = pool.run(600)

    assert seen[: 290 // 5] == [4] * (290 // 5)
    assert seen[-1] == 1


def test_a_write_that_failed_is_decided_again() -> None:
    hot = pool(pod(kv=0.95))
    first, memory = decide(NOW, hot, ScalingSpec(1, 8), 1, settled(1, NOW))
    again, memory = decide(NOW + 5, hot, ScalingSpec(1, 8), 1, memory)

    assert (first.replicas, again.replicas) == (2, 2)
    assert memory.changes == ()


@pytest.mark.parametrize(
    ("policies", "select", "allowed", "why"),
    [
        ((RatePolicy(15.0, pods=4),), SelectPolicy.MAX, 14, "four in any 15 s"),
        ((RatePolicy(15.0, percent=50.0),), SelectPolicy.MAX, 15, "half of ten"),
        ((RatePolicy(15.0, percent=5.0),), SelectPolicy.MAX, 11, "rounded up, as the HPA does"),
        ((RatePolicy(15.0, pods=4), RatePolicy(15.0, percent=50.0)), SelectPolicy.MAX, 15, "the wider one"),
        ((RatePolicy(15.0, pods=4), RatePolicy(15.0, percent=50.0)), SelectPolicy.MIN, 14, "the narrower one"),
        ((RatePolicy(15.0, pods=4),), SelectPolicy.DISABLED, 10, "never up"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_rate_of_growth(policies: tuple[RatePolicy, ...], select: SelectPolicy, allowed: int, why: str) -> None:
    spec = paced(scale_up=Behavior(0.0, policies, select))

    assert behavior.limited(NOW, 10, 100, spec, Memory()) == allowed, why


@pytest.mark.parametrize(
    ("policies", "select", "allowed", "why"),
    [
        ((RatePolicy(60.0, pods=1),), SelectPolicy.MAX, 9, "one a minute"),
        ((RatePolicy(60.0, percent=25.0),), SelectPolicy.MAX, 7, "rounded down, as the HPA does"),
        ((RatePolicy(60.0, pods=1), RatePolicy(60.0, percent=50.0)), SelectPolicy.MAX, 5, "the wider one"),
        ((RatePolicy(60.0, pods=1), RatePolicy(60.0, percent=50.0)), SelectPolicy.MIN, 9, "the narrower one"),
        ((RatePolicy(60.0, percent=100.0),), SelectPolicy.DISABLED, 10, "never down"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_rate_of_shrinking(policies: tuple[RatePolicy, ...], select: SelectPolicy, allowed: int, why: str) -> None:
    spec = paced(scale_down=Behavior(0.0, policies, select))

    assert behavior.limited(NOW, 10, 0, spec, Memory()) == allowed, why


def test_rates_count_what_was_added_within_their_period() -> None:
    spec = paced(scale_up=Behavior(0.0, (RatePolicy(60.0, pods=4),)))
    memory = Memory(changes=((NOW - 61, 4), (NOW - 30, 3)))

    assert behavior.limited(NOW, 10, 100, spec, memory) == 11


def test_a_pool_grows_no_faster_than_its_policies() -> None:
    spec = paced(scale_up=Behavior(0.0, (RatePolicy(60.0, pods=2),)))
    pool = Pool(spec, demand=400.0, startup_seconds=5.0)

    seen = [1, *pool.run(300)]

    assert all(seen[index] - seen[max(0, index - 12)] <= 2 for index in range(len(seen)))
    assert seen[-1] >= 9


def test_a_window_on_growth_takes_the_lowest_of_it() -> None:
    spec = paced(scale_up=Behavior(60.0, (RatePolicy(15.0, percent=1000.0),)))
    pool = Pool(spec, demand=2.0)
    pool.run(120)
    pool.demand = 20.0

    seen = pool.run(80)

    assert set(seen[:11]) == {1}
    assert seen[-1] == 3


def test_a_window_on_growth_begins_with_the_operator() -> None:
    spec = paced(scale_up=Behavior(60.0, (RatePolicy(15.0, percent=100.0),)))
    hot = pool(pod(kv=0.95))

    first, memory = decide(NOW, hot, spec, 1, Memory())
    later, _ = decide(NOW + 60, hot, spec, 1, memory)

    assert (first.reason, later.reason) == ("Stabilizing", "ScaleUp")


def test_a_pool_that_runs_more_at_once_than_it_seemed_able_to_is_believed() -> None:
    remembered = settled(2, NOW, saturated_running=4.0, saturated_at=NOW - 60)
    more = pool(pod("a", running=8), pod("b", running=8))
    less = pool(pod("a", running=3), pod("b", running=3))

    before, _ = decide(NOW, less, ScalingSpec(1, 8), 2, remembered)
    _, memory = decide(NOW, more, ScalingSpec(1, 8), 2, remembered)
    memory = dataclasses.replace(memory, wanted_high=())
    after, _ = decide(NOW + 5, less, ScalingSpec(1, 8), 2, memory)

    assert (before.replicas, after.replicas) == (2, 1)


def test_idle_pools_go_to_zero_and_the_first_request_brings_one_back() -> None:
    pool = Pool(ScalingSpec(0, 8, idle_after_seconds=120.0), demand=3.0)
    pool.run(60)
    pool.demand = 0.0
    idle = pool.run(200)
    pool.demand = 16.0
    woken = pool.tick()

    assert idle.index(0) * 5 == 120
    assert (woken.replicas, woken.reason) == (1, "WokenByDemand")
    assert woken.message == ("0 -> 1: requests wait for the first pod; 16 held and 0 refused at the gateways")


def test_an_engine_that_starts_is_let_through_before_the_pool_counts_as_idle() -> None:
    spec = ScalingSpec(0, 8, idle_after_seconds=20.0)
    pool = Pool(spec, demand=0.0, startup_seconds=300.0, replicas=0)
    pool.tick()
    pool.replicas = 1  # as when the resource is created

    seen = pool.run(400)

    assert set(seen[: 310 // 5]) == {1}
    assert seen[-1] == 0


def test_an_engine_that_never_starts_holds_no_pool_up_for_ever() -> None:
    spec = ScalingSpec(0, 8, idle_after_seconds=60.0)
    crashing = pool(blind())
    memory = settled(1, NOW)
    seen = {}
    for now in range(0, 4000, 20):
        decision, memory = decide(NOW + now, crashing, spec, 1, memory)
        seen[now] = decision.replicas

    assert {seen[now] for now in range(0, 3600, 20)} == {1}
    assert seen[3660] == 0


def test_a_pod_that_has_just_restarted_says_nothing_of_what_one_can_run() -> None:
    """Of two pods one is full with a queue and the other empty: four at once is what one can run, not two."""
    spec = dataclasses.replace(ScalingSpec(1, 2), scale_down=Behavior(0.0, (RatePolicy(15.0, percent=100.0),)))
    crowded = pool(pod("full", running=4, waiting=12), pod("restarted", running=0))
    calm = pool(pod("full", running=2), pod("restarted", running=1))

    _, memory = decide(NOW, crowded, spec, 2, settled(2, NOW))
    decision, _ = decide(NOW + 600, calm, spec, 2, memory)

    assert decision.replicas == 1, "three requests fit on a pod that ran four"


def test_scale_down_forbidden_holds_for_zero_too() -> None:
    never = Behavior(0.0, (RatePolicy(15.0, percent=100.0),), SelectPolicy.DISABLED)
    spec = dataclasses.replace(ScalingSpec(0, 8, idle_after_seconds=60.0), scale_down=never)
    idle = settled(1, NOW, idle_since=NOW - 3600)

    decision, _ = decide(NOW, pool(pod(), demand=asked()), spec, 1, idle)

    assert decision.replicas == 1


def test_a_pool_bound_by_its_slots_does_not_swing() -> None:
    """KV would allow one fewer, but at that size requests waited: the pool remembers."""
    spec = dataclasses.replace(ScalingSpec(1, 8), scale_down=QUICK_DOWN)
    pool = Pool(spec, demand=20.0, slots=8, kv_each=0.01, startup_seconds=30.0)

    seen = pool.run(1800)

    assert set(seen) == {3}


def test_what_a_pool_could_run_at_once_is_forgotten_after_an_hour() -> None:
    spec = dataclasses.replace(ScalingSpec(1, 8), scale_down=QUICK_DOWN)
    pool = Pool(spec, demand=20.0, slots=8, kv_each=0.01, startup_seconds=30.0)
    pool.run(1800)
    pool.slots = 64  # the engine's flags were changed

    seen = pool.run(3600)

    assert seen[-1] == 1
