"""A pool's demand over the last day: what came, the band that was said of it before, and what is said of now.

Nothing is remembered for it: each band follows from the history up to when it was said, by the forecaster itself.
"""

import math
from collections.abc import Sequence
from typing import Final

import numpy as np

from tidepool_operator.console.views.words import JSON, number
from tidepool_operator.scaling.calibration import band
from tidepool_operator.scaling.experts import Grid, Series
from tidepool_operator.scaling.forecast import LEVELS, horizons, mixed
from tidepool_operator.scaling.record import BIN_SECONDS, SERIES, Record

SHOWN_SECONDS: Final = 86_400.0
_NAMES: Final = {"prompt tokens": "prompt", "output tokens": "output", "requests": "requests"}


def told(record: Record, season_seconds: float, horizon_seconds: float, *, predicts: bool) -> JSON | None:
    """Times (Unix seconds, the end of each bin) and for each series what came and the 90 % band; None without any.

    `horizon_seconds`: how long before a moment its band was said. `ahead` has the same of moments to come.
    """
    length = record.bins.shape[1]
    if length == 0:
        return None
    shown = min(length, round(SHOWN_SECONDS / BIN_SECONDS))
    first = record.last - shown + 2
    found: JSON = {
        "at": [round((first + step) * BIN_SECONDS) for step in range(shown)],
        "series": {_NAMES[name]: {"came": _row(record.bins[i, -shown:])} for i, name in enumerate(SERIES)},
    }
    if not predicts or not np.isfinite(record.bins).any():
        return found
    grid = Grid(BIN_SECONDS, max(1, round(season_seconds / BIN_SECONDS)))
    found["horizon"] = round(horizon_seconds)
    found["ahead"] = []
    for steps in horizons(math.ceil(horizon_seconds / BIN_SECONDS)):
        found["ahead"].append(round(record.end + steps * BIN_SECONDS))
        _foretold(found["series"], record.bins, steps, grid, shown)
    return found


def _foretold(series: JSON, bins: Series, steps: int, grid: Grid, shown: int) -> None:
    """Adds what is said of the moment so many bins ahead; the furthest one leaves its band over the past."""
    mix = mixed(bins, steps, grid)
    _, low, high = band(bins, mix.point, steps, LEVELS).quantiles
    for i, name in enumerate(SERIES):
        one = series[_NAMES[name]]
        one.setdefault("aheadLow", []).append(number(float(low[i, -1])))
        one.setdefault("aheadHigh", []).append(number(float(high[i, -1])))
        one.setdefault("aheadPoint", []).append(number(float(mix.point[i, -1])))
        one["low"], one["high"] = _earlier(low[i], steps, shown), _earlier(high[i], steps, shown)


def _earlier(said: Series, steps: int, shown: int) -> list[float | None]:
    """What was said `steps` columns before each of the last columns."""
    moved = np.concatenate([np.full(min(steps, len(said)), np.nan), said[: max(0, len(said) - steps)]])
    return _row(moved[-shown:])


def _row(values: Sequence[float] | Series) -> list[float | None]:
    return [number(float(value)) for value in values]
