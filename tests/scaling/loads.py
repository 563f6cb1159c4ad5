"""Loads of the bench: requests drawn from recorded rates and lengths, and the engine that they are sized for.

Inside a bin of ten minutes the rate is interpolated between the bins' middles. Arrivals of a tick are a Poisson
number whose mean is drawn from a gamma distribution, so that their variance over their mean is the square of the
recorded variation of the gaps between requests (weighted over the clients, at most 3). Lengths are log-normal with
the recorded mean and median of the six hours. Up to 24 requests of each tick are judged.
"""

from dataclasses import dataclass
from functools import cache
from typing import Final

import numpy as np
from numpy.typing import NDArray

from tidepool_operator.backtest.plant import Arrivals, Engine
from tidepool_operator.backtest.replay import Demand, Requests, Targets, needed, settling
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
SAMPLE: Final = 24  # requests of a tick that are judged one by one
_BINS: Final = round(series.BIN_SECONDS / HISTORY_SECONDS)
_TICKS: Final = round(series.BIN_SECONDS / TICK_SECONDS)
_SIX_HOURS: Final = 21_600.0
_AT_ONCE: Final = 2_000  # ticks whose requests are drawn together, which bounds the memory


@dataclass(frozen=True, slots=True)
class Load:
    """Demand of a part of a series, the engine that it is sized for, and what was known before it began.

    `bins` are prompt and output tokens a second in the operator's bins, up to the end; `first` numbers the
    first of them. The first `settled` ticks are not counted. Blocks are what is resampled for intervals.
    """

    name: str
    demand: Demand
    engine: Engine
    bins: Series
    first: int
    settled: int
    block_seconds: float = _SIX_HOURS
    targets: Targets = TARGETS
    season_seconds: float = 86_400.0

    def needed(self) -> Series:
        """Replicas by tick that hold the targets."""
        return needed(self.demand, self.engine, self.targets)


@cache
def servegen(name: str, part: str, seed: int, sample: int = SAMPLE) -> Load:
    """A part of a ServeGen series: "held out" (what tuning never sees), "tuning" or "all".

    `sample` is how many requests of a tick are judged at most.
    """
    rates = held(series.rates(name)[None, :])[0]
    begin, end = _span(name, part, len(rates))
    rates = rates * _share(name, rates, begin, end)
    chance = np.random.default_rng([seed, len(name), begin])
    middles = (np.arange(len(rates)) + 0.5) * series.BIN_SECONDS
    times = (np.arange(begin * _TICKS, end * _TICKS) + 0.5) * TICK_SECONDS
    mean = np.interp(times, middles, rates) * TICK_SECONDS
    counts = _counts(chance, mean, np.interp(times, middles, series.variations(name)))
    tokens, requests = _lengths(chance, name, counts, times, sample)
    arrivals = [Arrivals(*row) for row in np.stack([counts, *tokens], axis=1).tolist()]
    demand = Demand(begin * series.BIN_SECONDS, TICK_SECONDS, arrivals, requests)
    bins = np.concatenate([_before(name, rates[:begin]), binned_rates(tokens)], axis=1)
    return Load(name, demand, ENGINE, bins, 0, settling(demand))


def binned_rates(tokens: Series) -> Series:
    """Tokens a second in the operator's bins, from tokens by tick."""
    per = round(HISTORY_SECONDS / TICK_SECONDS)
    whole = tokens[:, : tokens.shape[1] // per * per]
    rates: Series = whole.reshape(2, -1, per).sum(axis=2) / HISTORY_SECONDS
    return rates


def _span(name: str, part: str, length: int) -> tuple[int, int]:
    parts = {each.what: each for each in series.parts(name, length)}
    if part == "tuning":
        return 0, parts["held out"].begin
    return parts[part].begin, parts[part].end


def _slot(times: Series, length: int) -> NDArray[np.int64]:
    """Which six hours a time is in."""
    return np.minimum(times // _SIX_HOURS, length - 1).astype(np.int64)


def _share(name: str, rates: Series, begin: int, end: int) -> float:
    """What the rates are thinned by: the part's busiest bin needs PEAK_REPLICAS."""
    base, per_prompt, per_output = ENGINE.figures
    lengths = series.tokens(name)
    each = np.array([per_prompt * length.prompt + per_output * length.output for length in lengths])
    work = rates * each[_slot(np.arange(len(rates)) * series.BIN_SECONDS, len(lengths))]
    return float(PEAK_REPLICAS * (1 - base / TARGETS.per_token_seconds) / work[begin:end].max())


def _counts(chance: np.random.Generator, mean: Series, variation: Series) -> Series:
    over = np.clip(variation, 1.0, 3.0) ** 2 - 1.0
    even = chance.poisson(mean)
    shape = np.maximum(mean, 1e-9) / np.maximum(over, 1e-6)
    uneven = chance.poisson(chance.gamma(shape) * np.maximum(over, 1e-6))
    return np.where(over > 1e-3, uneven, even).astype(np.float64)


def _lengths(
    chance: np.random.Generator, name: str, counts: Series, times: Series, sample: int
) -> tuple[Series, Requests]:
    """Tokens of all prompts and of all answers by tick, and some requests of each."""
    lengths = series.tokens(name)
    slots = _slot(times, len(lengths))
    tokens = np.zeros((2, len(counts)))
    kept: list[tuple[NDArray[np.int64], Series, Series]] = []
    for begin in range(0, len(counts), _AT_ONCE):
        count = counts[begin : begin + _AT_ONCE].astype(np.int64)
        tick = np.repeat(np.arange(len(count)), count)
        now = slots[begin : begin + _AT_ONCE][tick]
        prompt = _log_normal(chance, np.array([[each.prompt, each.prompt_median] for each in lengths])[now])
        output = _log_normal(chance, np.array([[each.output, each.output_median] for each in lengths])[now])
        for row, drawn in enumerate((prompt, output)):
            tokens[row, begin : begin + len(count)] = np.bincount(tick, drawn, minlength=len(count))
        place = np.arange(len(tick)) - np.repeat(np.cumsum(count) - count, count)
        some = place < sample
        kept.append((tick[some] + begin, prompt[some], output[some]))
    return tokens, Requests(*(np.concatenate(each) for each in zip(*kept, strict=True)))


def _log_normal(chance: np.random.Generator, lengths: Series) -> Series:
    """One length for each row of mean and median."""
    mean, median = lengths[:, 0], lengths[:, 1]
    spread = np.minimum(np.sqrt(2 * np.log(np.maximum(mean / np.maximum(median, 1.0), 1.05))), 1.5)
    drawn: Series = chance.lognormal(np.log(mean) - spread**2 / 2, spread)
    return np.clip(drawn, 1.0, LONGEST_PROMPT)


def _before(name: str, rates: Series) -> Series:
    """Tokens a second before the part, as they are recorded."""
    lengths = series.tokens(name)
    each = np.array([[length.prompt, length.output] for length in lengths])
    slots = _slot(np.arange(len(rates)) * series.BIN_SECONDS, len(lengths))
    return np.repeat((rates[:, None] * each[slots]).T, _BINS, axis=1)
