"""Bands around forecasts whose coverage is held online.

A quantile of the logarithm of outcome over forecast is moved after every outcome: up by a step when the outcome
lay above it, down by less when it did not, so that in the long run the share that it promises lies below it,
whatever the errors are like (the quantile tracker of Angelopoulos, Candes and Tibshirani, "Conformal PID Control
for Time Series Prediction", NeurIPS 2023). Steps are in units of the errors' recent size.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from tidepool_operator.scaling.experts import Series, later

# Before any outcome: errors of a quarter for one column ahead, growing with the root of the columns.
START: Final = 0.25
PACE: Final = 0.4
# The first outcomes move a quantile by more: 4 / sqrt(1 + n) errors for the n-th, until that is PACE.
EARLY_PACE: Final = 4.0
SIZE_MEMORY: Final = 0.02
# A quantile is moved by at most what an error of this much (a factor of 7) calls for.
LARGEST: Final = 2.0
# Demand of nearly nothing has no sensible ratio: both sides of it are raised by this share of the mean.
FLOOR: Final = 0.02


@dataclass(frozen=True, slots=True)
class Band:
    """Quantiles of demand [level, series, time], and whether each held what came then (NaN without an outcome)."""

    quantiles: Series
    below: Series


def band(observed: Series, forecast: Series, horizon: int, levels: Sequence[float]) -> Band:
    """The quantiles at `levels` of what comes `horizon` columns after each column.

    `observed` has NaN for gaps, which teach nothing; `forecast` is what was expected in each column.
    """
    floor = FLOOR * np.nan_to_num(np.nanmean(np.where(np.isfinite(observed), observed, 0.0), axis=1)) + 1e-9
    raised = forecast + floor[:, None]
    with np.errstate(invalid="ignore", divide="ignore"):
        errors = np.log((observed + floor[:, None]) / later(raised, horizon))
    logs, below = _tracked(np.clip(errors, -LARGEST, LARGEST), horizon, np.asarray(levels)[:, None])
    quantiles = np.maximum(0.0, raised * np.exp(logs) - floor[:, None])
    return Band(quantiles, below)


def _tracked(errors: Series, horizon: int, levels: Series) -> tuple[Series, Series]:
    """Quantiles of the errors as known in each column, and whether each outcome lay below what was said of it."""
    series, length = errors.shape
    said = np.empty((length, levels.shape[0], series))
    below = np.full((length, levels.shape[0], series), np.nan)
    quantile = np.sign(levels - 0.5) * START * np.sqrt(horizon) * np.ones((1, series))
    size, count = np.full(series, START), np.zeros(series)
    known, rows = np.isfinite(errors).T, np.nan_to_num(errors).T
    for column in range(length):
        error, has = rows[column], known[column]
        if has.any():
            size = np.where(has, size + SIZE_MEMORY * (np.abs(error) - size), size)
            over = error > (said[column - horizon] if column >= horizon else quantile)
            pace = np.maximum(PACE, EARLY_PACE / np.sqrt(1.0 + count)) * size
            quantile = np.where(has, quantile + pace * (over - (1.0 - levels)), quantile)
            below[column] = np.where(has, ~over, np.nan)
            count += has
        said[column] = quantile
    return np.moveaxis(said, 0, 2), np.moveaxis(below, 0, 2)
