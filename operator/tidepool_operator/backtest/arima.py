"""What Dynamo's planner expects of the next interval: the last value, or an ARIMA as its default does.

Its default fits an ARIMA once, to the first five points, and the orders stay. Here orders and coefficients are
chosen anew whenever the past has grown fourfold, which is kinder to it: by AIC over p and q up to 2, with one
difference where that makes the series calmer (d), by the two regressions of Hannan and Rissanen (Biometrika 69,
1982).
"""

import math
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

Values = NDArray[np.float64]

FIRST_FIT: Final = 5
GROWN: Final = 4
ORDERS: Final = tuple((p, q) for p in range(3) for q in range(3))
KEPT: Final = 4000


@dataclass(slots=True)
class Predictor:
    """Expects the last value again."""

    def expect(self, value: float) -> float:
        """The next value, after `value` was seen."""
        return value


@dataclass(frozen=True, slots=True)
class Model:
    """y = constant + sum(ar x earlier y) + sum(ma x earlier errors) of the series, or of its differences."""

    differences: bool
    constant: float
    ar: tuple[float, ...]
    ma: tuple[float, ...]


@dataclass(slots=True)
class Arima(Predictor):
    """Expects what an ARIMA says, never less than nothing; the last value before the first fit."""

    _values: list[float] = field(default_factory=list)
    _errors: list[float] = field(default_factory=list)  # of the series that the model is of
    _model: Model | None = None
    _next_fit: int = FIRST_FIT
    _said: float | None = None

    def expect(self, value: float) -> float:
        """The next value, after `value` was seen."""
        self._errors.append(0.0 if self._said is None else value - self._said)
        self._values.append(value)
        del self._values[:-KEPT], self._errors[:-KEPT]
        if len(self._values) >= self._next_fit:
            self._next_fit *= GROWN
            self._model = fitted(np.array(self._values))
            self._errors = [0.0] * len(self._values)
        if self._model is None:
            return value
        self._said = _next(self._model, self._values, self._errors)
        return max(0.0, self._said)


def _next(model: Model, values: list[float], errors: list[float]) -> float:
    base = values[-1] if model.differences else 0.0
    past = [values[-1 - i] - (values[-2 - i] if model.differences else 0.0) for i in range(len(model.ar))]
    said = base + model.constant
    said += sum(a * each for a, each in zip(model.ar, past, strict=True))
    said += sum(m * errors[-1 - i] for i, m in enumerate(model.ma))
    # What has run away from all that was ever seen is no forecast.
    return said if math.isfinite(said) and abs(said) <= 10.0 * max(values) else values[-1]


def fitted(values: Values) -> Model:
    """The model of the least AIC."""
    differences = len(values) > FIRST_FIT and float(np.diff(values).var()) < float(values.var())
    series = np.diff(values) if differences else values
    best, least = Model(differences, 0.0 if differences else float(series.mean()), (), ()), math.inf
    noise = _long_autoregression(series)
    for p, q in ORDERS:
        longest = 2 + max(p, q)
        if len(series) < 2 * longest + 2:
            continue
        columns = [np.ones(len(series) - longest)]
        columns += [series[longest - i : len(series) - i] for i in range(1, p + 1)]
        columns += [noise[longest - i : len(series) - i] for i in range(1, q + 1)]
        matrix, right = np.stack(columns, axis=1), series[longest:]
        found = np.linalg.lstsq(matrix, right, rcond=None)[0]
        error = float(((right - matrix @ found) ** 2).mean())
        aic = len(right) * math.log(max(error, 1e-300)) + 2 * (p + q + 1)
        if aic < least:
            constant, *rest = found.tolist()
            best, least = Model(differences, constant, tuple(rest[:p]), tuple(rest[p:])), aic
    return best


def _long_autoregression(series: Values) -> Values:
    """The errors of a long autoregression, which stand for the errors that nobody sees."""
    order = max(1, min(8, len(series) // 4))
    if len(series) <= 2 * order + 1:
        return np.subtract(series, float(series.mean()))
    columns = [np.ones(len(series) - order)]
    columns += [series[order - i : len(series) - i] for i in range(1, order + 1)]
    matrix, right = np.stack(columns, axis=1), series[order:]
    found = np.linalg.lstsq(matrix, right, rcond=None)[0]
    errors: Values = np.concatenate([np.zeros(order), right - matrix @ found])
    return errors
