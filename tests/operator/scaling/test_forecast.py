"""Forecasts: who is heard, what a gap is, and whether bands hold what they promise."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scaling.forecasts import result
from scaling.series import DAY_BINS, Part, rates
from tidepool_operator.scaling.calibration import band
from tidepool_operator.scaling.experts import GROWTH_CAP, Grid, Series, forecasts, held
from tidepool_operator.scaling.forecast import LEVELS, mixed, outlook

GRID = Grid(600.0, DAY_BINS)


def daily(days: int, noise: float = 0.0, seed: int = 0) -> Series:
    """A day's wave between 40 and 160 a second, with a share of noise."""
    time = np.arange(days * DAY_BINS)
    wave = 100 + 60 * np.sin(2 * np.pi * time / DAY_BINS)
    return wave * (1 + noise * np.random.default_rng(seed).standard_normal(len(time)))


def wandering(length: int, seed: int = 0) -> Series:
    """What nobody can foresee: each step is up or down by a few percent."""
    return 100 * np.exp(np.cumsum(0.05 * np.random.default_rng(seed).standard_normal(length)))


def test_a_daily_cycle_is_foreseen_once_a_day_was_seen() -> None:
    observed = daily(6, noise=0.02)
    rising = observed[: 5 * DAY_BINS + 3]

    seen = outlook(rising[None, :], GRID, horizon_seconds=3600.0)

    assert seen.seconds_ahead[-1] == 3600.0
    assert "seasonal difference" in seen.heard
    came = daily(6)[5 * DAY_BINS + 8]
    assert came > 1.1 * rising[-1]
    assert seen.point[-1, 0] == pytest.approx(came, rel=0.05)


def test_last_value_speaks_alone_where_nothing_can_be_foreseen() -> None:
    observed = wandering(8 * DAY_BINS)[None, :]

    mix = mixed(observed, 3, GRID)

    alone = np.mean(mix.point == observed)
    assert alone > 0.9


def test_a_gap_is_the_last_value_and_teaches_nothing() -> None:
    observed = daily(4)[None, :].copy()
    observed[0, -30:] = np.nan
    before = observed[0, -31]

    assert held(observed)[0, -1] == before
    below = band(observed, held(observed), 1, LEVELS).below
    assert np.isnan(below[:, 0, -30:]).all()


def test_a_recording_that_stopped_is_not_read_as_no_load() -> None:
    """ServeGen's m-small has 37 bins without a record: read as zero they would halve what follows."""
    observed = rates("m-small")
    after = int(np.flatnonzero(np.isnan(observed))[-1]) + 1

    seen = outlook(observed[None, :after], GRID, horizon_seconds=600.0)

    known = observed[:after]
    assert seen.point[0, 0] > 0.5 * known[np.isfinite(known)][-1]


def test_a_series_never_seen_has_no_forecast() -> None:
    observed = np.stack([daily(2), np.full(2 * DAY_BINS, np.nan)])

    seen = outlook(observed, GRID, horizon_seconds=600.0)

    assert math.isfinite(seen.upper[0, 0])
    assert np.isnan(seen.upper[0, 1])


@settings(max_examples=10, deadline=None)
@given(
    st.lists(st.one_of(st.just(math.nan), st.just(math.inf), st.floats(0, 1e9)), min_size=8, max_size=40),
    st.integers(1, 4),
)
def test_forecasts_are_never_negative_nor_beyond_the_cap(values: list[float], horizon: int) -> None:
    observed = np.array([values])
    grid = Grid(600.0, 12)

    history = held(observed)
    for said in forecasts(history, horizon, grid, 24).values():
        assert (said >= 0).all()
        assert (said <= GROWTH_CAP * history + 1e-9).all()
    seen = outlook(observed, grid, horizon * 600.0)
    finite = np.isfinite(seen.point)
    assert (seen.upper[finite] >= seen.point[finite]).all()


@settings(max_examples=4, deadline=None)
@given(st.integers(DAY_BINS + 40, 3 * DAY_BINS - 1), st.integers(1, 20))
def test_no_forecast_knows_what_came_after_it(cut: int, horizon: int) -> None:
    whole = (daily(3, noise=0.1) * wandering(3 * DAY_BINS) / 100)[None, :]

    said, then = mixed(whole, horizon, GRID).point, mixed(whole[:, :cut], horizon, GRID).point

    np.testing.assert_allclose(said[:, :cut], then)


@pytest.mark.parametrize("factor", [1000.0])
def test_the_unit_of_demand_does_not_matter(factor: float) -> None:
    observed = daily(3, noise=0.05)[None, :]

    one, other = outlook(observed, GRID, 1800.0), outlook(factor * observed, GRID, 1800.0)

    np.testing.assert_allclose(other.upper, factor * one.upper, rtol=1e-6)


def test_a_band_holds_what_it_promises_of_errors_that_change() -> None:
    """Errors with heavy tails, four times as large in every second week."""
    chance = np.random.default_rng(1)
    length = 14 * DAY_BINS
    size = np.where(np.arange(length) // (7 * DAY_BINS) % 2, 0.2, 0.05)
    observed = (100 * np.exp(size * chance.standard_t(4, length)))[None, :]

    below = band(observed, np.full_like(observed, 100.0), 1, LEVELS).below

    assert np.nanmean(below[0]) == pytest.approx(0.90, abs=0.02)
    assert np.nanmean(below[2] - below[1]) == pytest.approx(0.90, abs=0.03)


@pytest.mark.parametrize(
    ("series", "part", "horizon", "against_last"),
    [
        ("m-small", Part("daily", 0, 9 * DAY_BINS), 1, -8.0),
        ("m-small", Part("daily", 0, 9 * DAY_BINS), 6, -30.0),
        ("m-mid", Part("no cycle", 0, 2016), 6, 2.0),
        ("deepseek-r1", Part("a day", 0, 144), 3, 2.0),
    ],
)
def test_recorded_demand_is_foreseen(series: str, part: Part, horizon: int, against_last: float) -> None:
    """Percent of error against last value, at most; and a 90 % band that holds 86 to 94 %."""
    found = result(series, rates(series), part, horizon)

    assert found.against_last <= against_last
    assert 0.86 <= found.coverage <= 0.94
    assert found.interval[0] <= 0.90 <= found.interval[1]
