"""Demand of past days from Prometheus: recorded sums of a few pools in one range query."""

import math
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

import numpy as np

from tidepool_api import rules
from tidepool_api.contract import LABEL_NAMESPACE, LABEL_POOL
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

# By the pool's key: SERIES in bins, and the number of the last one.
Past = Mapping[str, tuple[Series, int]]


def query(pools: Sequence[ScaledPool]) -> str:
    """The mean of each record over the bin before a moment, for these pools."""
    # Names of objects: a dot in one matches more than itself, and the answer is sorted by key.
    names = "|".join(sorted({pool.name for pool in pools}))
    spaces = "|".join(sorted({pool.namespace for pool in pools}))
    records = "|".join(RECORDS)
    chosen = f'{{__name__=~"{records}",{LABEL_NAMESPACE}=~"{spaces}",{LABEL_POOL}=~"{names}"}}'
    # avg_over_time drops the name; the label keeps it.
    kept = f'label_replace({chosen}, "record", "$1", "__name__", "(.*)")'
    return f"avg_over_time({kept}[{BIN_SECONDS:.0f}s:60s])"


def span(now: float, season_seconds: float) -> tuple[datetime, datetime]:
    """Ends of the first and the last whole bin to ask for."""
    end = math.floor(now / BIN_SECONDS) * BIN_SECONDS
    begin = end - (kept_bins(season_seconds) - 1) * BIN_SECONDS
    return datetime.fromtimestamp(begin, UTC), datetime.fromtimestamp(end, UTC)


def past(result: Iterable[Any], begin: datetime, end: datetime) -> Past:
    """Demand by pool of a range query's `result`; anything that is no such series is left out."""
    first = round(begin.timestamp() / BIN_SECONDS)
    length = round(end.timestamp() / BIN_SECONDS) - first + 1
    records: dict[str, dict[str, Series]] = {}
    for item in result:
        try:
            labels, values = item["metric"], item["values"]
            key, record = f"{labels[LABEL_NAMESPACE]}/{labels[LABEL_POOL]}", labels["record"]
            row = _row(values, first, length)
        except (KeyError, IndexError, TypeError, ValueError):
            continue
        records.setdefault(key, {})[record] = row
    # The value at a moment is the bin's that ends there.
    return {key: (_series(found, length), first + length - 2) for key, found in records.items()}


def _row(values: Iterable[Any], first: int, length: int) -> Series:
    row = np.full(length, np.nan)
    for time, value in values:
        at, figure = round(float(time) / BIN_SECONDS) - first, float(value)
        if 0 <= at < length and math.isfinite(figure) and figure >= 0:
            row[at] = figure
    return row


def _series(found: Mapping[str, Series], length: int) -> Series:
    unknown = np.full(length, np.nan)
    prompt = found.get(rules.POOL_PROMPT_TOKENS, unknown)
    cached = np.nan_to_num(found.get(rules.POOL_CACHED_TOKENS, unknown))
    rows = {
        "prompt tokens": np.maximum(0.0, prompt - cached),
        "output tokens": found.get(rules.POOL_OUTPUT_TOKENS, unknown),
        "requests": found.get(rules.POOL_REQUESTS, unknown),
    }
    return np.stack([rows[name] for name in SERIES])
