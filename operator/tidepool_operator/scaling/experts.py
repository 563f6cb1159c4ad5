"""What each expert would have said at every moment of a history, and says now.

Arrays are [series, time] of demand per second (tokens or requests) on an even grid; the last column is now. A gap
is NaN in what is observed; experts work on the history with gaps held at the last value seen, never at zero. What
stands in column t rests on columns up to t alone.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

Series = NDArray[np.float64]

LAST_VALUE: Final = "last value"
TREND_SECONDS: Final = 3600.0
# Half of the slope of the last hour goes on: of 0.1 to 0.5 the best on days 1 to 6 of ServeGen's m-small.
TREND_DAMPING: Final = 0.5
# Same time of earlier seasons, at most so many, each weighing a tenth less than the one after it.
SEASONS: Final = 7
SEASON_DECAY: Final = 0.9
# Days are not alike to the minute: the profile is a mean over this much to either side (a triangle).
SMOOTHING_SECONDS: Final = 1800.0
# Of the difference that the profile makes from now to then. 0.6 to 1 differ little.
SEASONAL_SHARE: Final = 0.8
# No forecast beyond this many times the last value.
GROWTH_CAP: Final = 3.0


@dataclass(frozen=True, slots=True)
class Grid:
    """The clock of a history: seconds between columns, and the columns of one season."""

    step_seconds: float
    season_steps: int

    def steps(self, seconds: float) -> int:
        """Columns that a duration takes, at least one."""
        return max(1, round(seconds / self.step_seconds))


def held(observed: Series) -> Series:
    """The history with every gap held at the last value before it, and at the first after it where none is."""
    known = np.isfinite(observed)
    at = np.where(known, np.arange(observed.shape[1]), 0)
    np.maximum.accumulate(at, axis=1, out=at)
    filled = np.take_along_axis(observed, at, axis=1)
    first = np.take_along_axis(observed, known.argmax(axis=1)[:, None], axis=1)
    return np.nan_to_num(np.where(np.isfinite(filled), filled, first), nan=0.0, posinf=0.0, neginf=0.0)


def later(series: Series, steps: int) -> Series:
    """The series moved by `steps` columns to the right; NaN where nothing was said yet."""
    moved = np.full_like(series, np.nan)
    moved[:, steps:] = series[:, : series.shape[1] - steps]
    return moved


def window_sum(series: Series, steps: int) -> Series:
    """Sum over the last `steps` columns, this one included."""
    total = np.cumsum(np.pad(series, ((0, 0), (1, 0))), axis=1)
    end = np.arange(1, series.shape[1] + 1)
    difference: Series = total[:, end] - total[:, np.maximum(0, end - steps)]
    return difference


def forecasts(history: Series, horizon: int, grid: Grid, memory_steps: int) -> dict[str, Series]:
    """Each expert's forecast of the value `horizon` columns ahead, in every column; never negative, capped.

    `history` is without gaps (`held`). Last value comes first; where an expert cannot speak yet it says that too.
    """
    trend = TREND_DAMPING * horizon * _slope(history, grid.steps(TREND_SECONDS))
    said = {LAST_VALUE: history, "local trend": history + trend}
    profile = _profile(history, horizon, grid)
    if profile is not None:
        then, now = profile
        share = _persistence(history, then, now, horizon, memory_steps)
        said["damped seasonal"] = then + share * (history - now)
        said["seasonal difference"] = history + SEASONAL_SHARE * (then - now)
    cap = GROWTH_CAP * history
    return {name: np.clip(np.where(np.isfinite(each), each, history), 0.0, cap) for name, each in said.items()}


def _slope(history: Series, steps: int) -> Series:
    """Change per column over the last `steps` columns."""
    slope = np.zeros_like(history)
    slope[:, steps:] = (history[:, steps:] - history[:, :-steps]) / steps
    return slope


def _profile(history: Series, horizon: int, grid: Grid) -> tuple[Series, Series] | None:
    """What the same time of earlier seasons was, `horizon` columns ahead and now; None without a whole season."""
    smoothing, season = grid.steps(SMOOTHING_SECONDS), grid.season_steps
    length = history.shape[1]
    # The mean around then must not reach beyond now.
    if length <= season or horizon + smoothing > season:
        return None
    smooth = _smoothed(history, smoothing)
    then, now, weight = np.zeros_like(history), np.zeros_like(history), np.zeros(length)
    for ago in range(1, SEASONS + 1):
        begin = season * ago
        if begin >= length:
            break
        then[:, begin:] += SEASON_DECAY**ago * smooth[:, horizon : length - begin + horizon]
        now[:, begin:] += SEASON_DECAY**ago * smooth[:, : length - begin]
        weight[begin:] += SEASON_DECAY**ago
    weight[weight == 0.0] = np.nan
    return then / weight, now / weight


def _smoothed(history: Series, steps: int) -> Series:
    kernel = np.concatenate([np.arange(1, steps + 2), np.arange(steps, 0, -1)]).astype(np.float64)
    kernel /= kernel.sum()
    padded = np.pad(history, ((0, 0), (steps, steps)), mode="edge")
    return np.stack([np.convolve(row, kernel, "valid") for row in padded])


def _persistence(history: Series, then: Series, now: Series, horizon: int, memory_steps: int) -> Series:
    """Share of a deviation from the profile that is left after `horizon` columns, by least squares."""
    before = np.nan_to_num(later(history - now, horizon))
    after = np.nan_to_num(history - later(then, horizon))
    both = window_sum(before * after, memory_steps)
    share: Series = np.clip(both / np.maximum(window_sum(before**2, memory_steps), 1e-12), 0.0, 1.0)
    return share
