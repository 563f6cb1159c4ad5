"""What is remembered of a pool's demand, and the forecasts of many pools."""

import math
import time

import numpy as np
import pytest

from tidepool_operator.scaling.record import BIN_SECONDS, Question, Record, added, forecasts, joined, kept_bins

DAY = 86_400.0
NOW = 1_800_000_000.0


def seen(record: Record, begin: float, looks: list[float | None], every: float = 60.0) -> Record:
    for index, rate in enumerate(looks):
        rates = None if rate is None else (rate, rate, rate)
        record = added(record, begin + index * every, rates, DAY)
    return record


def test_bins_are_means_of_what_was_seen_in_them() -> None:
    record = seen(Record(), NOW, [10.0, 20.0, None, math.nan, 30.0, 99.0])

    assert record.bins[1].tolist() == [20.0]
    assert record.end == NOW + BIN_SECONDS


def test_a_bin_without_a_look_is_unknown_not_zero() -> None:
    record = seen(Record(), NOW, [10.0])
    record = seen(record, NOW + 4 * BIN_SECONDS, [40.0])

    assert record.bins[0, 0] == 10.0
    assert np.isnan(record.bins[0, 1:]).all()
    assert record.bins.shape[1] == 4


def test_what_is_kept_is_bounded() -> None:
    record = Record()
    for index in range(kept_bins(DAY) + 50):
        record = added(record, NOW + index * BIN_SECONDS, (1.0, 1.0, 1.0), DAY)

    assert record.bins.shape[1] == kept_bins(DAY) == 8 * 288
    assert kept_bins(7 * DAY) == 15 * 288


def test_the_past_is_put_before_what_was_seen() -> None:
    record = seen(Record(), NOW, [50.0] * 11)
    earlier = np.tile([1.0, 2.0, 3.0, np.nan, 7.0], (3, 1))

    whole = joined(record, earlier, record.last - 1, DAY)

    # Seen goes before recorded: the last two bins are seen, of which the first was recorded as 7.
    assert whole.bins[0].tolist()[:3] == [1.0, 2.0, 3.0]
    assert whole.bins[0, -2:].tolist() == [50.0, 50.0]
    assert whole.end == record.end


def test_the_horizon_covers_a_start_until_the_next_forecast() -> None:
    """A pod asked for just before the next forecast is ready a start-up and an interval after that."""
    record = seen(Record(), NOW, [10.0] * 41)
    forecast = forecasts({"a": Question(record, 300.0, 5.0, DAY)})["a"]

    assert forecast.moments[-1].at >= record.end + BIN_SECONDS + 305.0
    assert [moment.at for moment in forecast.moments] == sorted(moment.at for moment in forecast.moments)


def test_pools_are_forecast_alike_alone_and_together() -> None:
    chance = np.random.default_rng(0)
    records = {}
    for name, bins in (("a", 700), ("b", 700), ("c", 30)):
        wave = 100 + 50 * np.sin(2 * np.pi * np.arange(bins) / 288) + chance.normal(0, 3, bins)
        records[name] = Record(np.tile(wave, (3, 1)), 6_000_000)
    questions = {name: Question(each, 240.0, 5.0, DAY) for name, each in records.items()}

    together = forecasts(questions)

    for name, question in questions.items():
        alone = forecasts({name: question})[name]
        assert together[name].moments[-1].output_tokens == pytest.approx(alone.moments[-1].output_tokens, rel=1e-9)


@pytest.mark.parametrize(("bins", "seasoned"), [(287, False), (288, True)])
def test_a_forecast_tells_whether_it_rests_on_a_whole_season(bins: int, seasoned: bool) -> None:
    record = Record(np.ones((3, bins)), last=round(NOW / BIN_SECONDS))
    made = forecasts({"a": Question(record, 120.0, 15.0, DAY)})

    assert made["a"].seasoned is seasoned


def test_a_pool_without_a_past_has_no_forecast() -> None:
    assert forecasts({"new": Question(Record(), 240.0, 5.0, DAY)}) == {}


def test_ten_pools_of_eight_days_take_a_fraction_of_an_interval() -> None:
    wave = np.tile(100 + 50 * np.sin(2 * np.pi * np.arange(8 * 288) / 288), (3, 1))
    questions = {str(i): Question(Record(wave * (i + 1), 6_000_000), 240.0, 5.0, DAY) for i in range(10)}
    begin = time.process_time()

    made = forecasts(questions)

    assert len(made) == 10
    assert time.process_time() - begin < 1.0
