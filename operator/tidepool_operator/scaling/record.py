"""A pool's demand of the past in even bins, and the forecasts that follow from it."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np

from tidepool_operator.scaling.experts import Grid, Series
from tidepool_operator.scaling.forecast import Outlook, outlook
from tidepool_operator.scaling.model import Forecast, Moment

BIN_SECONDS: Final = 300.0
# Seven days and one to forecast, for a season of a day; a longer season is seen twice.
SEASONS: Final = 8
LONGEST_SECONDS: Final = 15 * 86_400.0
SERIES: Final = ("prompt tokens", "output tokens", "requests")

Rates = tuple[float, float, float]  # of SERIES, a second


def _nothing() -> Series:
    return np.empty((len(SERIES), 0))


@dataclass(frozen=True, slots=True)
class Record:
    """Mean demand a second of SERIES in bins [series, bin]; NaN where nothing is known.

    `last` numbers the last whole bin (its begin over BIN_SECONDS, in Unix time); what came after it is summed up.
    """

    bins: Series = field(default_factory=_nothing)
    last: int = -1
    sums: Rates = (0.0, 0.0, 0.0)
    count: int = 0

    @property
    def end(self) -> float:
        """When the last whole bin ended, in Unix seconds."""
        return (self.last + 1) * BIN_SECONDS


@dataclass(frozen=True, slots=True)
class Question:
    """Whose demand is asked for, and over how long: a start-up and an interval, in a season of so many seconds."""

    record: Record
    startup_seconds: float
    interval_seconds: float
    season_seconds: float


def kept_bins(season_seconds: float) -> int:
    """Bins that are remembered for a season."""
    return math.ceil(min(LONGEST_SECONDS, max(2.2, SEASONS) * season_seconds) / BIN_SECONDS)


def added(record: Record, now: float, rates: Rates | None, season_seconds: float) -> Record:
    """The record with one more look; None where demand is not known. Looks come in order of time."""
    current = math.floor(now / BIN_SECONDS)
    if record.last < 0:
        record = replace(record, last=current - 1)
    if current > record.last + 1:
        record = _closed(record, current - 1, kept_bins(season_seconds))
    if rates is None or not all(math.isfinite(rate) and rate >= 0 for rate in rates):
        return record
    sums = (record.sums[0] + rates[0], record.sums[1] + rates[1], record.sums[2] + rates[2])
    return replace(record, sums=sums, count=record.count + 1)


def joined(record: Record, earlier: Series, last: int, season_seconds: float) -> Record:
    """The record with what was recorded before it; `last` numbers the last bin of `earlier`.

    What the record itself has seen goes before.
    """
    if earlier.shape[1] == 0:
        return record
    end = max(record.last, last)
    length = kept_bins(season_seconds)
    bins = np.full((len(SERIES), length), np.nan)
    for values, number in ((earlier, last), (record.bins, record.last)):
        begin = end - length + 1
        for column in range(values.shape[1]):
            at = number - values.shape[1] + 1 + column - begin
            if 0 <= at < length:
                bins[:, at] = np.where(np.isfinite(values[:, column]), values[:, column], bins[:, at])
    first = int(np.isfinite(bins).any(axis=0).argmax())
    return replace(record, bins=bins[:, first:], last=end)


def horizon_bins(startup_seconds: float, interval_seconds: float) -> int:
    """From the last whole bin to when a pod that is asked for before the next forecast is ready."""
    return math.ceil((startup_seconds + interval_seconds + BIN_SECONDS) / BIN_SECONDS)


def _closed(record: Record, last: int, length: int) -> Record:
    """The record with the bin under way and those up to `last` at its end; bins without a look are unknown."""
    skipped = min(last - record.last - 1, length)
    grown = np.concatenate([record.bins, _mean(record)[:, None], np.full((len(SERIES), skipped), np.nan)], axis=1)
    return Record(grown[:, -length:], last)


def forecasts(questions: Mapping[str, Question]) -> dict[str, Forecast]:
    """A forecast for each key with a past. Those alike are made together, which is most of the cost."""
    alike: dict[tuple[float, float, int], list[tuple[str, Question]]] = {}
    for key, question in questions.items():
        asked = replace(question, record=_begun(question.record))
        length = asked.record.bins.shape[1]
        if length > 0:
            alike.setdefault((_horizon_seconds(asked), asked.season_seconds, length), []).append((key, asked))
    made: dict[str, Forecast] = {}
    for (horizon, season, _), each in alike.items():
        made |= _together(each, horizon, season)
    return made


def _begun(record: Record) -> Record:
    """Before the first whole bin what was seen of it: a new pool need not wait for its end."""
    return replace(record, bins=_mean(record)[:, None]) if record.bins.shape[1] == 0 and record.count else record


def _mean(record: Record) -> Series:
    """Of the bin under way; NaN without a look."""
    return np.array(record.sums) / record.count if record.count else np.full(len(SERIES), np.nan)


def _horizon_seconds(asked: Question) -> float:
    return horizon_bins(asked.startup_seconds, asked.interval_seconds) * BIN_SECONDS


def _together(
    asked: Sequence[tuple[str, Question]], horizon_seconds: float, season_seconds: float
) -> dict[str, Forecast]:
    stacked = np.concatenate([each.record.bins for _, each in asked])
    grid = Grid(BIN_SECONDS, max(1, round(season_seconds / BIN_SECONDS)))
    seen = outlook(stacked, grid, horizon_seconds)
    return {key: _forecast(each, seen, len(SERIES) * index) for index, (key, each) in enumerate(asked)}


def _forecast(asked: Question, seen: Outlook, row: int) -> Forecast:
    moments = tuple(
        Moment(asked.record.end + ahead, float(seen.upper[index, row]), float(seen.upper[index, row + 1]))
        for index, ahead in enumerate(seen.seconds_ahead)
    )
    return Forecast(
        startup_seconds=asked.startup_seconds,
        moments=moments,
        heard=seen.heard,
        coverage=float(np.mean(seen.coverage[row : row + 2])),
        seasoned=asked.record.bins.shape[1] * BIN_SECONDS >= asked.season_seconds,
    )
