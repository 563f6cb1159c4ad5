"""A pool's past demand, from a CSV file or from Prometheus."""

import asyncio
import csv
import math
import time
from collections.abc import Sequence
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Final

import numpy as np

from tidepool_operator.backtest.plant import Arrivals
from tidepool_operator.backtest.replay import Demand
from tidepool_operator.errors import ConfigurationError, OperatorError
from tidepool_operator.scaling.capacity import Capacity, taught
from tidepool_operator.scaling.experts import Series
from tidepool_operator.scaling.model import ScaledPool
from tidepool_operator.telemetry.prometheus import Prometheus, PrometheusSettings

COLUMNS: Final = ("time", "requests_per_second", "prompt_tokens_per_second", "output_tokens_per_second")
# A query of many days takes longer than the operator may wait at a tick.
TIMEOUT_SECONDS: Final = 60.0


def history(path: Path) -> Demand:
    """Demand from a CSV file; a step that says nothing keeps the last demand. Raises ConfigurationError."""
    try:
        with path.open() as file:
            rows = list(csv.DictReader(file))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{path} cannot be read: {_first_line(error)}") from error
    if len(rows) < 2:
        raise ConfigurationError(f"{path} needs a line of names ({', '.join(COLUMNS)}) and two steps at least")
    if lacking := [name for name in COLUMNS if name not in rows[0]]:
        raise ConfigurationError(f"{path} lacks the column {lacking[0]}; it needs {', '.join(COLUMNS)}")
    times = [_time(path, number, row) for number, row in enumerate(rows, 2)]
    step = times[1] - times[0]
    if step <= 0 or any(abs(after - before - step) > 0.5 for before, after in pairwise(times)):
        raise ConfigurationError(f"{path}: times are not in even steps; export with a fixed step, such as 15s")
    arrivals: list[Arrivals] = []
    for number, row in enumerate(rows, 2):
        rates = [_rate(path, number, row, name) for name in COLUMNS[1:]]
        known = [rate for rate in rates if rate is not None]
        if len(known) == len(rates):
            arrivals.append(Arrivals(*(rate * step for rate in known)))
        else:
            arrivals.append(arrivals[-1] if arrivals else Arrivals(0.0, 0.0, 0.0))
    return Demand(times[0], step, arrivals)


def _time(path: Path, number: int, row: dict[str, str]) -> float:
    text = (row.get("time") or "").strip()
    try:
        return float(text)
    except ValueError:
        pass
    try:
        return datetime.fromisoformat(text).timestamp()
    except ValueError:
        what = f"{path}, line {number}: time {text!r}"
        raise ConfigurationError(f"{what} is neither Unix seconds nor an RFC 3339 time") from None


def _rate(path: Path, number: int, row: dict[str, str], name: str) -> float | None:
    text = (row.get(name) or "").strip()
    if text.lower() in ("", "nan"):
        return None
    try:
        rate = float(text)
    except ValueError:
        rate = -1.0
    if not 0 <= rate < math.inf:
        raise ConfigurationError(f"{path}, line {number}: {name} {text!r} is no rate; leave a gap empty")
    return rate


def prometheus(url: str, pool: ScaledPool, since_seconds: float, step_seconds: float) -> tuple[Demand, Capacity]:
    """A pool's demand as it was recorded, and what its work of the last hour tells of one replica.

    Raises ConfigurationError: Prometheus does not answer, or knows nothing of the pool.
    """
    try:
        return asyncio.run(_prometheus(url, pool, since_seconds, step_seconds))
    except OperatorError as error:
        raise ConfigurationError(str(error)) from error


async def _prometheus(
    url: str, pool: ScaledPool, since_seconds: float, step_seconds: float
) -> tuple[Demand, Capacity]:
    client = Prometheus(PrometheusSettings(url, timeout_seconds=TIMEOUT_SECONDS))
    now = time.time()
    try:
        begin, rows = await client.demand(now, pool, since_seconds, step_seconds)
        work = await client.work(now, [pool])
    finally:
        await client.close()
    known = np.isfinite(rows).all(axis=0)
    if known.sum() < 2:
        raise ConfigurationError(
            f"Prometheus knows no demand of pool {pool.key}; are the chart's recording rules installed "
            "(tidepool:pool_requests_per_second), and are namespace and name those of the pool?"
        )
    first = int(known.argmax())
    demand = Demand(begin + first * step_seconds, step_seconds, _arrivals(rows[:, first:], step_seconds))
    return demand, taught("", (load for _, load in work.get(pool.key, ())))


def _arrivals(rows: Series, step_seconds: float) -> Sequence[Arrivals]:
    """From prompt tokens, output tokens and requests a second; a step with a gap keeps the last demand."""
    found: list[Arrivals] = []
    for prompt, output, requests in rows.T.tolist():
        if math.isfinite(prompt + output + requests):
            found.append(Arrivals(requests * step_seconds, prompt * step_seconds, output * step_seconds))
        else:
            found.append(found[-1] if found else Arrivals(0.0, 0.0, 0.0))
    return found


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
