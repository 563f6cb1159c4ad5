"""`python -m scaling.forecasts`: forecasts against last value and their bands against what came, on ServeGen."""

from dataclasses import dataclass
from typing import Final

import numpy as np

from tidepool_operator.scaling.calibration import band
from tidepool_operator.scaling.experts import LAST_VALUE, Series, forecasts, held
from tidepool_operator.scaling.forecast import LEVELS, MEMORY_SECONDS, mixed

from .series import DAY_BINS, GRID, NAMES, Part, parts, rates

HORIZONS: Final = (1, 3, 6)
_RESAMPLES: Final = 400


@dataclass(frozen=True, slots=True)
class Result:
    """Errors as shares of all demand (WAPE), percent against last value, and coverage with its 95 % interval."""

    series: str
    part: str
    minutes: int
    last_value: float
    ours: float
    experts: dict[str, float]
    coverage: float
    interval: tuple[float, float]

    @property
    def against_last(self) -> float:
        """Percent; negative is better."""
        return 100 * (self.ours / self.last_value - 1)


def results() -> list[Result]:
    """Every series, part and horizon."""
    found = []
    for name in NAMES:
        observed = rates(name)
        for part in parts(name, len(observed)):
            found += [result(name, observed, part, horizon) for horizon in HORIZONS]
    return found


def result(name: str, observed: Series, part: Part, horizon: int) -> Result:
    """One series' part, forecast `horizon` bins ahead."""
    one = observed[None, :]
    said = forecasts(held(one), horizon, GRID, GRID.steps(MEMORY_SECONDS))
    mix = mixed(one, horizon, GRID).point
    below = band(one, mix, horizon, LEVELS).below[:, 0]
    inside = (below[2] - below[1])[part.begin : part.end]
    inside = inside[np.isfinite(inside)]
    return Result(
        series=name,
        part=part.what,
        minutes=horizon * 10,
        last_value=_wape(observed, said[LAST_VALUE][0], horizon, part),
        ours=_wape(observed, mix[0], horizon, part),
        experts={key: _wape(observed, each[0], horizon, part) for key, each in said.items() if key != LAST_VALUE},
        coverage=float(inside.mean()),
        interval=_interval(inside),
    )


def _wape(observed: Series, said: Series, horizon: int, part: Part) -> float:
    at = np.arange(max(0, part.begin - horizon), part.end - horizon)
    # A forecast from a gap, or of one, is judged by nobody.
    at = at[np.isfinite(observed[at]) & np.isfinite(observed[at + horizon])]
    came = observed[at + horizon]
    return float(np.abs(came - said[at]).sum() / came.sum())


def _interval(inside: Series) -> tuple[float, float]:
    """95 % interval of the mean by block bootstrap: blocks of a day, a quarter of the part where that is less."""
    block = max(1, min(DAY_BINS, len(inside) // 4))
    chance = np.random.default_rng(0)
    starts = chance.integers(0, len(inside) - block + 1, (_RESAMPLES, -(-len(inside) // block)))
    picked = (starts[:, :, None] + np.arange(block)).reshape(_RESAMPLES, -1)[:, : len(inside)]
    low, high = np.percentile(inside[picked].mean(axis=1), [2.5, 97.5])
    return float(low), float(high)


def table(found: list[Result]) -> str:
    """Markdown."""
    lines = [
        "| series | part | minutes ahead | last value | ours | against it | experts | in the 90 % band |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for each in found:
        experts = ", ".join(f"{key} {100 * (v / each.last_value - 1):+.0f} %" for key, v in each.experts.items())
        low, high = each.interval
        lines.append(
            f"| {each.series} | {each.part} | {each.minutes} | {100 * each.last_value:.1f} % | "
            f"{100 * each.ours:.1f} % | {each.against_last:+.1f} % | {experts} | "
            f"{100 * each.coverage:.1f} % ({100 * low:.1f} to {100 * high:.1f}) |"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    print(table(results()))
