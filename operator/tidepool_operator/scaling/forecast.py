"""What demand will be: experts that earned trust, mixed, with quantiles that were calibrated.

Everything follows from the history alone, so an operator that starts anew knows at once what the one before knew.
Last value is very hard to beat, so that it speaks alone until another has done better on what came afterwards.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np

from tidepool_operator.scaling.calibration import band
from tidepool_operator.scaling.experts import LAST_VALUE, Grid, Series, forecasts, held, later, window_sum

# Losses of this long count. Length and margin were chosen on days 1 to 6 of ServeGen's m-small and the first two
# thirds of the others, as the pair that helps most there and costs less than 2 % anywhere.
MEMORY_SECONDS: Final = 86_400.0
# An expert is heard whose loss is less than last value's by this share, over at least so many outcomes.
MARGIN: Final = 0.03
OUTCOMES: Final = 36
# Weights go with exp(-20 loss / last value's): five points better weigh e times as much.
SHARPNESS: Final = 20.0
# The quantile that is provided for, and the 90 % band that its coverage is told by.
UPPER: Final = 0.90
LEVELS: Final = (UPPER, 0.05, 0.95)
HORIZONS: Final = 3


@dataclass(frozen=True, slots=True)
class Mixed:
    """Forecasts in every column [series, time] and the weight of each expert there (last value's is the rest)."""

    point: Series
    weights: dict[str, Series]


@dataclass(frozen=True, slots=True)
class Outlook:
    """Demand per second of each series at each of `seconds_ahead` (the last is the horizon): [moment, series].

    `upper` is the 90th percentile; both are NaN for a series that was never seen. `coverage` is the share of
    recent outcomes of each series that lay in the 90 % band said of them, NaN before the first; `heard` are the
    experts that beat last value at the horizon in any series.
    """

    seconds_ahead: tuple[float, ...]
    point: Series
    upper: Series
    coverage: Series
    heard: tuple[str, ...]


def mixed(observed: Series, horizon: int, grid: Grid) -> Mixed:
    """The forecast `horizon` columns ahead that each column would have made; NaN in `observed` is a gap."""
    history = held(observed)
    memory = grid.steps(MEMORY_SECONDS)
    said = forecasts(history, horizon, grid, memory)
    judged = np.isfinite(observed) & np.isfinite(later(observed, horizon))
    outcomes = window_sum(judged.astype(np.float64), memory)
    loss = {name: _loss(history, each, horizon, judged, memory) for name, each in said.items()}
    base = np.maximum(loss.pop(LAST_VALUE), 1e-12)
    raw = {
        name: np.where(
            (each < (1 - MARGIN) * base) & (outcomes >= OUTCOMES), np.exp(-SHARPNESS * each / base), 0.0
        )
        for name, each in loss.items()
    }
    total = np.sum(list(raw.values()), axis=0)
    weights = {name: each / np.where(total > 0, total, 1.0) for name, each in raw.items()}
    mix = np.sum([weights[name] * said[name] for name in weights], axis=0)
    return Mixed(np.where(total > 0, mix, history), weights)


def _loss(history: Series, said: Series, horizon: int, judged: np.ndarray, memory: int) -> Series:
    errors = np.abs(history - np.nan_to_num(later(said, horizon)))
    return window_sum(np.where(judged, errors, 0.0), memory)


def horizons(furthest: int) -> list[int]:
    """The columns ahead that are looked at until the furthest: three at most, evenly."""
    return sorted({max(1, round(furthest * (i + 1) / HORIZONS)) for i in range(HORIZONS)})


def outlook(observed: Series, grid: Grid, horizon_seconds: float) -> Outlook:
    """Demand from now to `horizon_seconds` ahead, at three moments at most, from the history [series, time].

    The last moment is the end of the first column that does not end before the horizon.
    """
    chosen = horizons(int(np.ceil(horizon_seconds / grid.step_seconds)))
    points, uppers = [], []
    coverage = np.full(observed.shape[0], np.nan)
    weights: dict[str, Series] = {}
    unseen = ~np.isfinite(observed).any(axis=1)
    for horizon in chosen:
        mix = mixed(observed, horizon, grid)
        spread = band(observed, mix.point, horizon, LEVELS)
        point = np.where(unseen, np.nan, mix.point[:, -1])
        points.append(point)
        uppers.append(np.maximum(spread.quantiles[0, :, -1], point))
        weights = mix.weights
        coverage = _coverage(spread.below[1:, :, -grid.steps(MEMORY_SECONDS) :])
    return Outlook(
        seconds_ahead=tuple(horizon * grid.step_seconds for horizon in chosen),
        point=np.stack(points),
        upper=np.stack(uppers),
        coverage=coverage,
        heard=tuple(name for name, each in weights.items() if each[:, -1].any()),
    )


def _coverage(below: Series) -> Series:
    """Share of outcomes between two quantiles, for each series."""
    inside = below[1] - below[0]
    known = np.isfinite(inside)
    count = known.sum(axis=1)
    share: Series = np.where(count > 0, np.where(known, inside, 0.0).sum(axis=1) / np.maximum(count, 1), np.nan)
    return share
