"""Who asks for the past, when forecasts are made, and that neither costs more with more pools."""

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np
import pytest

from fakes.readings import NOBODY, pod, pool
from tidepool_operator.errors import Unavailable
from tidepool_operator.foresight import FORECASTS_A_LOOK, RETRY_SECONDS, Foresight
from tidepool_operator.scaling import record
from tidepool_operator.scaling.capacity import Load
from tidepool_operator.scaling.model import (
    Forecast,
    Known,
    LivePod,
    PodState,
    PoolReading,
    ScaledPool,
    ScalingSpec,
)
from tidepool_operator.scaling.record import BIN_SECONDS, Question
from tidepool_operator.telemetry.history import POOLS_AT_ONCE, Past, Work, past, query, span, work, work_span

NOW = 1_800_000_000.0
SPEC = ScalingSpec(1, 8, predicts=True)


class Archive:
    """Prometheus' memory: eight days of a wave for every pool."""

    def __init__(self) -> None:
        self.asked: list[list[str]] = []
        self.away = False

    async def past(self, now: float, pools: Sequence[ScaledPool]) -> Past:
        self.asked.append([each.key for each in pools])
        if self.away:
            raise Unavailable("Prometheus is away", status=503)
        last = int(now // BIN_SECONDS) - 1
        wave = 100 + 50 * np.sin(2 * np.pi * (last - np.arange(2303, -1, -1)) / 288)
        return {each.key: (np.tile(wave, (3, 1)), last) for each in pools}

    async def work(self, now: float, pools: Sequence[ScaledPool]) -> Work:
        load = Load(20.0, 1000.0, 500.0)
        return {each.key: tuple((now - 60.0 * (60 - minute), load) for minute in range(60)) for each in pools}


def pools(count: int, spec: ScalingSpec = SPEC) -> list[tuple[ScaledPool, PoolReading]]:
    busy = dataclasses.replace(pod(requests=1.0), output_tokens_rate=Known(90.0), prompt_tokens_rate=Known(90.0))
    found = [ScaledPool("team", f"pool-{index}", 1, spec) for index in range(count)]
    return [(each, dataclasses.replace(pool(busy, demand=NOBODY), key=each.key)) for each in found]


async def test_an_operator_that_starts_anew_knows_the_past_at_once() -> None:
    foresight = Foresight(Archive(), 5.0)

    await foresight.look(NOW, pools(1), {})

    forecast = foresight.get("team/pool-0")
    assert forecast is not None
    assert "seasonal difference" in forecast.heard


@pytest.mark.parametrize(
    ("age", "readings"),
    [
        (86_400.0, 60),
        (1800.0, 29),  # the engines before these may have had another model
        (None, 0),
    ],
)
async def test_what_replicas_serve_is_known_from_the_work_of_pods_that_live(
    age: float | None, readings: int
) -> None:
    foresight = Foresight(Archive(), 5.0)
    live = (
        LivePod("old", PodState.READY, 60.0, None if age is None else NOW - age),
        LivePod("new", PodState.PENDING, created_at=None if age is None else NOW - 1.0),
    )
    read = [(dataclasses.replace(each, pods=live, identity="r"), reading) for each, reading in pools(1)]

    await foresight.look(NOW, read, {})

    capacity = foresight.recalled("team/pool-0")
    assert capacity is not None
    assert (capacity.identity, capacity.readings) == ("r", readings)
    assert foresight.recalled("team/pool-0") is None


async def test_a_new_pool_is_foreseen_from_its_first_look_on() -> None:
    """Else nothing could shrink before its first five minutes are over."""

    class Nothing(Archive):
        async def past(self, now: float, pools: Sequence[ScaledPool]) -> Past:
            return {}

    foresight = Foresight(Nothing(), 5.0)

    await foresight.look(NOW + 10.0, pools(1), {})

    forecast = foresight.get("team/pool-0")
    assert forecast is not None
    assert 90.0 <= forecast.moments[0].output_tokens < 180.0
    assert forecast.moments[-1].at > NOW + 120.0


@pytest.mark.traffic  # eight days of many pools
async def test_many_pools_are_asked_for_and_forecast_in_turn() -> None:
    archive = Archive()
    foresight = Foresight(archive, 5.0)
    read = pools(3 * POOLS_AT_ONCE)
    known = []
    for tick in range(3):
        await foresight.look(NOW + 5 * tick, read, {})
        known.append(sum(foresight.get(each.key) is not None for each, _ in read))

    assert [len(keys) for keys in archive.asked] == [POOLS_AT_ONCE] * 3
    assert known == [FORECASTS_A_LOOK, 2 * FORECASTS_A_LOOK, 3 * FORECASTS_A_LOOK]
    await foresight.look(NOW + 20, read, {})
    assert len(archive.asked) == 3


async def test_forecasts_are_made_anew_when_a_bin_is_over() -> None:
    foresight = Foresight(Archive(), 5.0)
    read = pools(1)
    await foresight.look(NOW, read, {})
    before = foresight.get("team/pool-0")
    await foresight.look(NOW + 100, read, {})
    assert foresight.get("team/pool-0") is before

    await foresight.look(NOW + BIN_SECONDS + 1, read, {})

    after = foresight.get("team/pool-0")
    assert before is not None
    assert after is not None
    assert after.moments[0].at == before.moments[0].at + BIN_SECONDS


async def test_prometheus_away_is_asked_again_later_and_demand_is_known_from_now_on() -> None:
    archive = Archive()
    archive.away = True
    foresight = Foresight(archive, 5.0)
    for tick in range(70):
        await foresight.look(NOW + 5 * tick, pools(1), {})

    assert len(archive.asked) == pytest.approx(350 / RETRY_SECONDS, abs=1)
    forecast = foresight.get("team/pool-0")
    assert forecast is not None
    assert forecast.heard == ()


async def test_a_predictor_that_raises_is_no_forecast_and_harms_no_other_pool(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """ai-dynamo/dynamo#14513: a predictor that raised was scored as if it had said the last value."""
    made = record.forecasts

    def raising(questions: Mapping[str, Question]) -> dict[str, Forecast]:
        if "team/pool-0" in questions:
            raise ValueError("a defect")
        return made(questions)

    foresight = Foresight(Archive(), 5.0)
    read = pools(2)
    await foresight.look(NOW, read, {})
    monkeypatch.setattr(record, "forecasts", raising)

    await foresight.look(NOW + BIN_SECONDS, read, {})

    assert foresight.get("team/pool-0") is None
    assert foresight.get("team/pool-1") is not None
    monkeypatch.undo()
    await foresight.look(NOW + 2 * BIN_SECONDS, read, {})
    assert foresight.get("team/pool-0") is not None


async def test_pools_that_do_not_predict_cost_nothing_and_gone_ones_are_forgotten() -> None:
    archive = Archive()
    foresight = Foresight(archive, 5.0)
    await foresight.look(NOW, pools(2, dataclasses.replace(SPEC, predicts=False)), {})
    assert archive.asked == []
    await foresight.look(NOW, pools(1), {})

    await foresight.look(NOW + 5, [], {})

    assert foresight.get("team/pool-0") is None


def test_an_answer_of_prometheus_is_demand_without_cached_tokens() -> None:
    begin, end = span(NOW, 86_400.0)
    at = end.timestamp()

    def series(record: str, *values: tuple[float, str]) -> dict[str, object]:
        labels = {"namespace": "team", "pool": "llama", "record": f"tidepool:pool_{record}_per_second"}
        return {"metric": labels, "values": [list(each) for each in values]}

    found = past(
        [
            series("prompt_tokens", (at, "100"), (at - BIN_SECONDS, "NaN")),
            series("cached_prompt_tokens", (at, "30")),
            series("output_tokens", (at, "7")),
            {"metric": {}, "values": "nonsense"},
        ],
        begin,
        end,
    )

    bins, last = found["team/llama"]
    assert bins[:, -1].tolist()[:2] == [70.0, 7.0]
    assert np.isnan(bins[2, -1])
    assert np.isnan(bins[:, -2]).all()
    assert (last + 1) * BIN_SECONDS == at


def test_cached_tokens_that_go_missing_leave_a_gap_and_those_never_told_are_none() -> None:
    begin, end = span(NOW, 86_400.0)
    at = end.timestamp()
    steps = [at - BIN_SECONDS * ago for ago in (3, 2, 1, 0)]

    def series(record: str, *values: tuple[float, str]) -> dict[str, object]:
        labels = {"namespace": "team", "pool": "llama", "record": f"tidepool:pool_{record}_per_second"}
        return {"metric": labels, "values": [list(each) for each in values]}

    found = past(
        [
            series("prompt_tokens", *((step, "100") for step in steps)),
            series("cached_prompt_tokens", (steps[2], "30")),
        ],
        begin,
        end,
    )

    np.testing.assert_equal(found["team/llama"][0][0, -4:], [100.0, 100.0, 70.0, np.nan])


def test_work_is_by_pod_that_worked() -> None:
    begin, end = work_span(NOW)
    at = end.timestamp()

    def series(record: str, *values: tuple[float, str]) -> dict[str, object]:
        return {"metric": {"namespace": "team", "pool": "llama", "record": record}, "values": values}

    found = work(
        [
            series("busy pods", (at, "4"), (at - 60, "4"), (at - 120, "0")),
            series("tidepool:pool_requests_running", (at, "40"), (at - 60, "NaN"), (at - 120, "0")),
            series("tidepool:pool_prompt_tokens_per_second", (at, "100"), (at - 60, "100"), (at - 120, "0")),
            series("tidepool:pool_output_tokens_per_second", (at, "80"), (at - 60, "80"), (at - 120, "0")),
        ],
        begin,
        end,
    )

    assert found == {"team/llama": ((at, Load(10.0, 25.0, 20.0)),)}


def test_one_query_asks_for_several_pools() -> None:
    text = query([ScaledPool("a", "x", 1, SPEC), ScaledPool("b", "y", 1, SPEC)])

    assert 'namespace=~"a|b"' in text
    assert 'pool=~"x|y"' in text
