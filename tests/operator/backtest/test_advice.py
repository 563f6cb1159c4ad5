"""Settings that a past would change: told where playing them pays, with what it brings."""

from collections.abc import Callable

import pytest

from tidepool_operator.backtest.advice import Advice, Case, advice
from tidepool_operator.backtest.plant import Arrivals, Engine
from tidepool_operator.backtest.replay import Demand, Outcome, Targets
from tidepool_operator.scaling.model import ScalingSpec

TICK = 60.0
BUSY = Arrivals(60.0, 12_000.0, 6_000.0)
NONE = Arrivals(0.0, 0.0, 0.0)
ENGINE = Engine((0.01, 1e-4, 1e-3))


def outcome(level: float, hours: float, replicas: list[int] | None = None) -> Outcome:
    return Outcome(requests=1000.0, held=1000.0 * level, gpu_hours=hours, replicas=replicas or [2] * 60)


def case(
    spec: ScalingSpec, found: Outcome, *, needed: list[float] | None = None, arrivals: list[Arrivals] | None = None
) -> Case:
    demand = Demand(0.0, TICK, arrivals or [BUSY] * 60)
    return Case(demand, spec, Targets(2.0, 0.05), ENGINE, 120.0, needed or [1.5] * 60, found)


def told(asked: Case, play: Callable[[ScalingSpec], Outcome]) -> dict[str, Advice]:
    return {each.field: each for each in advice(asked, play)}


def same(found: Outcome) -> Callable[[ScalingSpec], Outcome]:
    return lambda _: found


def test_nothing_is_told_where_no_change_pays() -> None:
    found = outcome(0.99, 10.0)

    assert advice(case(ScalingSpec(1, 4), found), same(found)) == []


def test_a_maximum_that_was_reached_is_raised_where_that_holds_more_requests() -> None:
    found = outcome(0.90, 10.0, [4] * 30 + [2] * 30)
    asked = case(ScalingSpec(1, 4), found, needed=[6.0] * 30 + [1.0] * 30)

    better = told(asked, lambda spec: outcome(0.99, 11.0) if spec.max_replicas == 8 else found)["maxReplicas"]

    assert (better.now, better.better) == ("4", "8")
    assert better.told() == (
        "scaling.maxReplicas: 4 -> 8: 50.0 % of the time the pool was at its maximum; 99.00 % within targets "
        "instead of 90.00 %, 11.0 GPU hours instead of 10.0"
    )


@pytest.mark.parametrize(
    ("level", "hours", "pays", "why"),
    [
        (0.990, 9.0, True, "a tenth cheaper at the same level"),
        (0.980, 5.0, False, "cheaper, and a point of requests late"),
        (0.990, 9.9, False, "a hundredth is chance"),
        (0.993, 10.1, True, "better at the same cost"),
        (0.993, 15.0, False, "a little better at half as much again"),
    ],
)
def test_what_pays(level: float, hours: float, pays: bool, why: str) -> None:
    found = outcome(0.99, 10.0)
    asked = case(ScalingSpec(3, 4), found)

    changed = told(asked, lambda spec: outcome(level, hours) if spec.min_replicas == 2 else found)

    assert ("minReplicas" in changed) == pays, why


def test_a_pool_that_nobody_asks_for_at_night_may_go_to_zero() -> None:
    found = outcome(0.99, 10.0, [1] * 120)
    asked = case(ScalingSpec(1, 2), found, arrivals=[BUSY] * 60 + [NONE] * 60, needed=[1.0] * 120)

    better = told(asked, lambda spec: outcome(0.99, 5.5) if spec.min_replicas == 0 else found)["minReplicas"]

    assert (better.now, better.better) == ("1", "0")
    assert better.why.startswith("nobody asked for 1.0 h on end")


def test_a_time_before_idling_is_played_both_ways() -> None:
    found = outcome(0.95, 10.0, [1] * 120)
    spec = ScalingSpec(0, 2, idle_after_seconds=600.0)
    asked = case(spec, found, arrivals=[*[BUSY] * 10, *[NONE] * 20] * 4, needed=[1.0] * 120)

    better = told(asked, lambda spec: outcome(0.99, 10.1) if spec.idle_after_seconds == 1800 else found)

    assert (better["idleAfter"].now, better["idleAfter"].better) == ("600s", "1800s")


def test_what_no_setting_can_hold_is_told_without_playing() -> None:
    found = outcome(0.2, 10.0)
    asked = Case(Demand(0.0, TICK, [BUSY] * 60), ScalingSpec(1, 4), Targets(2.0, 0.008), ENGINE, 1.0, [1.0], found)

    target = told(asked, same(found))["targets.timePerOutputToken"]

    assert (target.now, target.better) == ("8ms", "20ms")
    assert "10.0 ms with nothing beside it" in target.why


def test_a_maximum_that_bounds_nothing_is_told() -> None:
    found = outcome(0.99, 10.0, [2, 3, 2])

    better = told(case(ScalingSpec(1, 40), found), same(found))["maxReplicas"]

    assert (better.now, better.better) == ("40", "4")
