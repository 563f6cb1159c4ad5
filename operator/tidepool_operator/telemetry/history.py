"""The past of a few pools from Prometheus: their demand of days, and how their engines worked of late.

Each is one range query over recorded sums, however many pods the pools had.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

import numpy as np

from tidepool_api import rules
from tidepool_api.contract import LABEL_NAMESPACE, LABEL_POOL
from tidepool_operator.scaling.capacity import Load
from tidepool_operator.scaling.experts import Series
from tidepool_operator.scaling.model import ScaledPool
from tidepool_operator.scaling.record import BIN_SECONDS, SERIES, kept_bins

# Pools of one query, in an answer of some 3 MB for eight days.
POOLS_AT_ONCE: Final = 10
RECORDS: Final = (
    rules.POOL_PROMPT_TOKENS,
    rules.POOL_CACHED_TOKENS,
    rules.POOL_OUTPUT_TOKENS,
    rules.POOL_REQUESTS,
)

# How far back engines' work is asked for, and the steps: what they did an hour ago says how fast they are now.
WORK_SECONDS: Final = 3600.0
WORK_STEP_SECONDS: Final = 60.0
WORK_RECORDS: Final = (
    rules.POOL_RUNNING,
    rules.POOL_PROMPT_TOKENS,
    rules.POOL_CACHED_TOKENS,
    rules.POOL_OUTPUT_TOKENS,
)
_BUSY: Final = "busy pods"

# Times in Unix seconds and what was counted then, in order.
Counts = tuple[tuple[float, float], ...]
# By the pool's key: SERIES in bins, and the number of the last one.
Past = Mapping[str, tuple[Series, int]]
# By the pool's key: means over its pods that worked, with their times in Unix seconds, in order.
Work = Mapping[str, tuple[tuple[float, Load], ...]]


def query(pools: Sequence[ScaledPool]) -> str:
    """The mean of each record over the bin before a moment, for these pools."""
    # avg_over_time drops the name; the label keeps it.
    return f"avg_over_time({_recorded(RECORDS, pools)}[{BIN_SECONDS:.0f}s:60s])"


def work_query(pools: Sequence[ScaledPool]) -> str:
    """What all pods of a pool did together, and how many of them did any: one that starts works on nothing."""
    busy = f"count by ({LABEL_NAMESPACE}, {LABEL_POOL}) ({rules.POD_OUTPUT_TOKENS}{{{_of(pools)}}} > 0)"
    counted = f'label_replace({busy}, "record", "{_BUSY}", "", "")'
    return f"{_recorded(WORK_RECORDS, pools)} or {counted}"


def _recorded(records: Sequence[str], pools: Sequence[ScaledPool]) -> str:
    chosen = f'{{__name__=~"{"|".join(records)}",{_of(pools)}}}'
    return f'label_replace({chosen}, "record", "$1", "__name__", "(.*)")'


def _of(pools: Sequence[ScaledPool]) -> str:
    # Names of objects: a dot in one matches more than itself, and the answer is sorted by key.
    names = "|".join(sorted({pool.name for pool in pools}))
    spaces = "|".join(sorted({pool.namespace for pool in pools}))
    return f'{LABEL_NAMESPACE}=~"{spaces}",{LABEL_POOL}=~"{names}"'


def span(now: float, season_seconds: float) -> tuple[datetime, datetime]:
    """Ends of the first and the last whole bin to ask for."""
    end = math.floor(now / BIN_SECONDS) * BIN_SECONDS
    begin = end - (kept_bins(season_seconds) - 1) * BIN_SECONDS
    return datetime.fromtimestamp(begin, UTC), datetime.fromtimestamp(end, UTC)


def demand_query(pool: ScaledPool) -> str:
    """The records of one pool as they are."""
    return _recorded(RECORDS, [pool])


def demand(result: Iterable[Any], key: str, begin: datetime, end: datetime, step_seconds: float) -> Series:
    """SERIES at each step of one pool, from a range query's `result`; NaN for gaps."""
    found = _rows(result, begin, end, step_seconds).get(key)
    return np.full((len(SERIES), _length(begin, end, step_seconds)), np.nan) if found is None else _series(found)


def pods_query(key: str) -> str:
    """The pods of one pool that were scraped."""
    namespace, _, name = key.partition("/")
    return f'{rules.POOL_PODS}{{{LABEL_NAMESPACE}="{namespace}",{LABEL_POOL}="{name}"}}'


def counts(result: Iterable[Any]) -> Counts:
    """The first series of a range query's `result`; what is no figure is left out."""
    for item in result:
        try:
            found = tuple((float(time), float(value)) for time, value in item["values"])
        except (KeyError, TypeError, ValueError):
            continue
        return tuple((time, value) for time, value in found if math.isfinite(value))
    return ()


def work_span(now: float) -> tuple[datetime, datetime]:
    """The first and the last moment to ask for."""
    end = math.floor(now / WORK_STEP_SECONDS) * WORK_STEP_SECONDS
    return datetime.fromtimestamp(end - WORK_SECONDS, UTC), datetime.fromtimestamp(end, UTC)


def past(result: Iterable[Any], begin: datetime, end: datetime) -> Past:
    """Demand by pool of a range query's `result`; anything that is no such series is left out."""
    found = _rows(result, begin, end, BIN_SECONDS)
    first = round(begin.timestamp() / BIN_SECONDS)
    # The value at a moment is the bin's that ends there.
    return {key: (_series(rows), first + _length(begin, end, BIN_SECONDS) - 2) for key, rows in found.items()}


def work(result: Iterable[Any], begin: datetime, end: datetime) -> Work:
    """Work by pool of a range query's `result`; moments with a gap are left out."""
    found = _rows(result, begin, end, WORK_STEP_SECONDS)
    steps = np.arange(_length(begin, end, WORK_STEP_SECONDS), dtype=np.float64)
    times: Series = begin.timestamp() + WORK_STEP_SECONDS * steps
    return {key: tuple(_loads(rows, times)) for key, rows in found.items()}


def _length(begin: datetime, end: datetime, step_seconds: float) -> int:
    return round((end - begin).total_seconds() / step_seconds) + 1


def _rows(
    result: Iterable[Any], begin: datetime, end: datetime, step_seconds: float
) -> dict[str, dict[str, Series]]:
    """By pool and record the values at each step; NaN for what is not there or no figure."""
    length = _length(begin, end, step_seconds)
    records: dict[str, dict[str, Series]] = {}
    for item in result:
        try:
            labels, values = item["metric"], item["values"]
            key, record = f"{labels[LABEL_NAMESPACE]}/{labels[LABEL_POOL]}", labels["record"]
            row = _row(values, begin.timestamp(), step_seconds, length)
        except (KeyError, IndexError, TypeError, ValueError):
            continue
        records.setdefault(key, {})[record] = row
    return records


def _row(values: Iterable[Any], begin: float, step_seconds: float, length: int) -> Series:
    row = np.full(length, np.nan)
    for time, value in values:
        at, figure = round((float(time) - begin) / step_seconds), float(value)
        if 0 <= at < length and math.isfinite(figure) and figure >= 0:
            row[at] = figure
    return row


def _loads(found: Mapping[str, Series], times: Series) -> Iterable[tuple[float, Load]]:
    unknown = np.full(len(times), np.nan)
    busy = found.get(_BUSY, unknown)
    running, output = found.get(rules.POOL_RUNNING, unknown), found.get(rules.POOL_OUTPUT_TOKENS, unknown)
    for at, pods, *load in zip(times, busy, running, _prompts(found, len(times)), output, strict=True):
        if pods > 0 and all(math.isfinite(each) for each in load):
            yield float(at), Load(*(float(each / pods) for each in load))


def _prompts(found: Mapping[str, Series], length: int) -> Series:
    """Prompt tokens without cached ones.

    Before the first figure of cached ones the engines had no prefix cache; after it a gap is a gap.
    """
    unknown = np.full(length, np.nan)
    cached = found.get(rules.POOL_CACHED_TOKENS, unknown)
    known = np.isfinite(cached)
    before = ~np.logical_or.accumulate(known)
    prompts: Series = found.get(rules.POOL_PROMPT_TOKENS, unknown) - np.where(before, 0.0, cached)
    return np.maximum(0.0, prompts)


def _series(found: Mapping[str, Series]) -> Series:
    length = len(next(iter(found.values())))
    unknown = np.full(length, np.nan)
    rows = {
        "prompt tokens": _prompts(found, length),
        "output tokens": found.get(rules.POOL_OUTPUT_TOKENS, unknown),
        "requests": found.get(rules.POOL_REQUESTS, unknown),
    }
    return np.stack([rows[name] for name in SERIES])
