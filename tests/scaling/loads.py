"""Loads of the bench: requests drawn from recorded rates and lengths, and the engine that they are sized for.

Inside a bin of ten minutes the rate is interpolated between the bins' middles. Arrivals of a tick are a Poisson
number whose mean is drawn from a gamma distribution, so that their variance over their mean is the square of the
recorded variation of the gaps between requests (weighted over the clients, at most 3). Lengths are log-normal with
the recorded mean and median of the six hours.
"""

import math
from dataclasses import dataclass
from functools import cache
from typing import Final

import numpy as np

from tidepool_operator.backtest.plant import Arrivals, Engine
from tidepool_operator.backtest.replay import Demand, Targets, needed
from tidepool_operator.scaling.experts import Series, held
from tidepool_operator.scaling.record import BIN_SECONDS as HISTORY_SECONDS

from . import series

TICK_SECONDS: Final = 15.0
TARGETS: Final = Targets(5.0, 0.1)
# A model some ten times as large as the prior's: ten times the work a token, on a step of 20 ms.
ENGINE: Final = Engine((0.02, 5e-4, 2.8e-3))
PEAK_REPLICAS: Final = 24.0
LONGEST_PROMPT: Final = 8_000.0  # longer ones would miss the target alone
MOST: Final = 60
_SAMPLE: Final = 24  # requests of a tick that are judged one by one
_BINS: Final = round(series.BIN_SECONDS / HISTORY_SECONDS)


@dataclass(frozen=True, slots=True)
class Load:
    """Demand of a part of a series, the engine that it is sized for, and what was known before it began.

    `bins` are prompt and output tokens a second in the operator's bins, up to the end; `first` numbers the
    first of them.
    """

    name: str
    demand: Demand
    engine: Engine
    bins: Series
    first: int
    season_seconds: float = 86_400.0

    def needed(self) -> Series:
        """Replicas by tick that hold the targets."""
        return needed(self.demand, self.engine, TARGETS)


@cache
def servegen(name: str, part: str, seed: int) -> Load:
    """A part of a ServeGen series: "held out" (what tuning never sees), "tuning" or "all"."""
    rates = held(series.rates(name)[None, :])[0]
    begin, end = _span(name, part, len(rates))
    rates = rates * _share(name, rates, begin, end)
    chance = np.random.default_rng([seed, len(name), begin])
    ticks = round(series.BIN_SECONDS / TICK_SECONDS)
    middles = (np.arange(len(rates)) + 0.5) * series.BIN_SECONDS
    times = (np.arange(begin * ticks, end * ticks) + 0.5) * TICK_SECONDS
    mean = np.interp(times, middles, rates) * TICK_SECONDS
    counts = _counts(chance, mean, np.interp(times, middles, series.variations(name)))
    arrivals, prompts = _lengths(chance, name, counts, times)
    demand = Demand(begin * series.BIN_SECONDS, TICK_SECONDS, arrivals, prompts)
    return Load(name, demand, ENGINE, _known(name, rates, demand, begin), 0)


def _span(name: str, part: str, length: int) -> tuple[int, int]:
    parts = {each.what: each for each in series.parts(name, length)}
    if part == "tuning":
        return 0, parts["held out"].begin
    return parts[part].begin, parts[part].end


def _share(name: str, rates: Series, begin: int, end: int) -> float:
    """What the rates are thinned by: the part's busiest bin needs PEAK_REPLICAS."""
    base, per_prompt, per_output = ENGINE.figures
    six_hours = round(21_600 / series.BIN_SECONDS)
    lengths = series.tokens(name)
    work = [
        rate * (per_prompt * each.prompt + per_output * each.output)
        for index, rate in enumerate(rates[begin:end], begin)
        for each in [lengths[min(index // six_hours, len(lengths) - 1)]]
    ]
    return PEAK_REPLICAS * (1 - base / TARGETS.per_token_seconds) / max(work)


def _counts(chance: np.random.Generator, mean: Series, variation: Series) -> Series:
    over = np.clip(variation, 1.0, 3.0) ** 2 - 1.0
    even = chance.poisson(mean)
    shape = np.maximum(mean, 1e-9) / np.maximum(over, 1e-6)
    uneven = chance.poisson(chance.gamma(shape) * np.maximum(over, 1e-6))
    return np.where(over > 1e-3, uneven, even).astype(np.float64)


def _lengths(
    chance: np.random.Generator, name: str, counts: Series, times: Series
) -> tuple[list[Arrivals], list[list[float]]]:
    found, prompts = [], []
    lengths = series.tokens(name)
    for count, time in zip(counts.astype(int), times, strict=True):
        now = lengths[min(int(time // 21_600), len(lengths) - 1)]
        prompt = _log_normal(chance, now.prompt, now.prompt_median, count)
        output = _log_normal(chance, now.output, now.output_median, count)
        found.append(Arrivals(float(count), float(prompt.sum()), float(output.sum())))
        prompts.append(sorted(prompt[:_SAMPLE].tolist()))
    return found, prompts


def _log_normal(chance: np.random.Generator, mean: float, median: float, count: int) -> Series:
    spread = math.sqrt(2 * math.log(max(mean / max(median, 1.0), 1.05)))
    spread = min(spread, 1.5)
    drawn: Series = chance.lognormal(math.log(mean) - spread**2 / 2, spread, count)
    return np.clip(drawn, 1.0, LONGEST_PROMPT)


def _known(name: str, rates: Series, demand: Demand, begin: int) -> Series:
    """What was before the part, as it is recorded, and the part as it is drawn."""
    lengths = series.tokens(name)
    six_hours = round(21_600 / series.BIN_SECONDS)
    before = np.array(
        [
            [rate * each.prompt, rate * each.output]
            for index, rate in enumerate(rates[:begin])
            for each in [lengths[min(index // six_hours, len(lengths) - 1)]]
            for _ in range(_BINS)
        ]
    ).reshape(-1, 2)
    per = round(HISTORY_SECONDS / TICK_SECONDS)
    drawn = np.array([[each.prompt_tokens, each.output_tokens] for each in demand.arrivals])
    during = drawn.reshape(-1, per, 2).sum(axis=1) / HISTORY_SECONDS
    return np.concatenate([before, during]).T
