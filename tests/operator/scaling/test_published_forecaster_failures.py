"""Failures of others' forecasters that users reported in public, each as the behaviour that is wanted instead."""

import dataclasses
import math

import numpy as np
import pytest

from fakes.readings import pod, pool, settled
from tidepool_operator.scaling.capacity import SETTLED, Capacity
from tidepool_operator.scaling.decide import decide
from tidepool_operator.scaling.model import Forecast, Known, LivePod, Moment, PodState, ScaledPool, ScalingSpec
from tidepool_operator.scaling.record import BIN_SECONDS, Question, Rates, Record, added, forecasts
from tidepool_operator.telemetry.series import Snapshot, readings

NOW = 1_800_000_000.0
DAY = 86_400.0
SPEC = ScalingSpec(1, 8, predicts=True)
FAST = Capacity(readings=SETTLED)
AWAY = (-1.0, -1.0, -1.0)


def record(rates: list[Rates | None], begin: float = NOW) -> Record:
    """One look a bin, and none while the operator is AWAY."""
    made = Record()
    for index, each in enumerate([*rates, None]):
        if each == AWAY:
            continue
        made = added(made, begin + BIN_SECONDS * index + 1.0, each, DAY)
    return made


def foreseen(made: Record, startup_seconds: float = 200.0) -> Forecast:
    return forecasts({"team/llama": Question(made, startup_seconds, 5.0, DAY)})["team/llama"]


def test_no_demand_at_all_is_foreseen_as_none_and_not_as_a_division_by_zero() -> None:
    """ai-dynamo/dynamo PR #1420: rates of an idle interval were divided by its requests."""
    forecast = foreseen(record([(0.0, 0.0, 0.0)] * 400))

    assert [each.output_tokens for each in forecast.moments] == pytest.approx(
        [0.0] * len(forecast.moments), abs=1e-6
    )
    idle = dataclasses.replace(pod("a"), output_tokens_rate=Known(0.0))
    at = forecast.moments[0].at - 300.0
    decision, _ = decide(at, pool(idle, dataclasses.replace(idle, name="b")), SPEC, 2, settled(2, at), forecast)
    assert (decision.replicas, decision.reason) == (1, "ScaleDown")


@pytest.mark.parametrize("days", [0.3, 1.1, 1.9])
def test_less_than_two_seasons_give_a_forecast_near_the_last_value(days: float) -> None:
    """PHPA #74: below two seasons Holt-Winters raised, and nothing was scaled. Here chance leads."""
    steps = np.random.default_rng(0).normal(0.0, 0.05, int(days * DAY / BIN_SECONDS))
    rates: list[Rates | None] = [(each, each, 1.0) for each in (100.0 * np.exp(np.cumsum(steps))).tolist()]

    forecast = foreseen(record(rates))

    last = rates[-1]
    assert last is not None
    assert all(0.7 * last[1] <= each.output_tokens < 2 * last[1] for each in forecast.moments)


def test_a_forecast_moves_the_count_and_never_the_target() -> None:
    """kthena PR #1364: what was predicted was written over the target, so that a full pool seemed at ease."""
    full = dataclasses.replace(
        pod(kv=0.93, running=8), output_tokens_rate=Known(100.0), prompt_tokens_rate=Known(1.0)
    )
    nothing = Forecast(225.0, (Moment(NOW + 240, 0.0, 0.0),))

    decision, _ = decide(NOW, pool(full), SPEC, 1, settled(1, NOW, capacity=FAST), nothing)

    assert (decision.replicas, decision.binding) == (2, "kv")
    assert "of target 0.80" in decision.message


def test_a_forecast_is_of_the_right_time_after_a_pause() -> None:
    """ai-dynamo/dynamo PR #7425: points were put one after another whatever time lay between them, so that the
    cycle slid. Here demand doubles every day at the same time, and an hour without looks comes before it today."""
    step, day = 150, int(DAY / BIN_SECONDS)
    rates: list[Rates | None] = [
        (0.0, 200.0 if index % day >= step else 100.0, 1.0) for index in range(3 * day + step - 1)
    ]
    rates[-14:-2] = [AWAY] * 12

    forecast = foreseen(record(rates))

    rise = NOW + BIN_SECONDS * (3 * day + step)
    assert forecast.moments[-1].at > rise
    assert forecast.moments[-1].output_tokens > 150.0


def test_the_queue_of_a_pod_that_is_gone_holds_nobody_up() -> None:
    """llm-d-autoscaling#769: the last figures of pods that were gone went on to count, and nothing shrank."""
    figures = {
        "tidepool:pod_kv_usage_ratio": 0.05,
        "tidepool:pod_requests_running": 0.0,
        "tidepool:pod_requests_per_second": 0.0,
        "tidepool:pod_scraped_at_seconds": NOW,
    }
    series = {
        record: {("team", "llama", name): value for name in ("a", "b", "gone")}
        for record, value in figures.items()
    }
    waiting = {("team", "llama", "a"): 0.0, ("team", "llama", "b"): 0.0, ("team", "llama", "gone"): 40.0}
    snapshot = Snapshot(NOW, {**series, "tidepool:pod_requests_waiting": waiting})
    live = tuple(LivePod(name, PodState.READY) for name in "ab")
    scaled = ScaledPool("team", "llama", 2, ScalingSpec(1, 8), live)

    read = readings([scaled], snapshot, now=NOW, stale_after_seconds=120.0, trouble=None)["team/llama"]
    decision, _ = decide(NOW, dataclasses.replace(read, demand=pool().demand), scaled.spec, 2, settled(2, NOW))

    assert (decision.replicas, decision.reason) == (1, "ScaleDown")


def test_garbage_in_the_past_is_a_gap() -> None:
    """ai-dynamo/dynamo: NaN and infinity were kept as a load of zero, and the next forecast was half of it."""
    clean: list[Rates | None] = [(100.0, 100.0, 1.0)] * 100
    broken: list[Rates | None] = list(clean)
    for index, value in ((40, math.nan), (41, math.inf), (98, -5.0), (99, math.nan)):
        broken[index] = (value, value, value)

    assert foreseen(record(broken)).moments[0].output_tokens == pytest.approx(
        foreseen(record(clean)).moments[0].output_tokens, rel=0.05
    )
