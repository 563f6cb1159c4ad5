"""Who asks for the past, when forecasts are made, and that neither costs more with more pools."""

import dataclasses
from collections.abc import Sequence

import numpy as np
import pytest

from fakes.readings import NOBODY, pod, pool
from tidepool_operator.errors import Unavailable
from tidepool_operator.foresight import FORECASTS_A_LOOK, RETRY_SECONDS, Foresight
from tidepool_operator.scaling.model import Known, PoolReading, ScaledPool, ScalingSpec
from tidepool_operator.scaling.record import BIN_SECONDS
from tidepool_operator.telemetry.history import POOLS_AT_ONCE, Past, past, query, span

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


def test_one_query_asks_for_several_pools() -> None:
    text = query([ScaledPool("a", "x", 1, SPEC), ScaledPool("b", "y", 1, SPEC)])

    assert 'namespace=~"a|b"' in text
    assert 'pool=~"x|y"' in text
