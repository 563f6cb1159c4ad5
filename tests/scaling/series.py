"""Demand of days, as recorded by ServeGen: rates in bins of ten minutes."""

import csv
import lzma
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from tidepool_operator.scaling.experts import Grid, Series

DATA: Final = Path(__file__).parent / "data"
BIN_SECONDS: Final = 600.0
DAY_BINS: Final = 144
GRID: Final = Grid(BIN_SECONDS, DAY_BINS)
NAMES: Final = ("m-small", "m-mid", "m-large", "deepseek-r1")


@dataclass(frozen=True, slots=True)
class Part:
    """Bins [begin, end) of a series, and what the part is."""

    what: str
    begin: int
    end: int


@dataclass(frozen=True, slots=True)
class Tokens:
    """Tokens of prompts and outputs in a quarter of a day, means and medians."""

    prompt: float
    output: float
    prompt_median: float
    output_median: float


def rates(name: str) -> Series:
    """Requests a second in each bin; NaN where nothing was recorded."""
    rate = np.array([float(row["rate_rps"]) for row in _rows(f"servegen_{name}_rate_10min.csv.xz")])
    return np.where(rate > 0, rate, np.nan)


def variations(name: str) -> Series:
    """Variation (deviation over mean) of the gaps between requests of a client, weighted by the clients' rates."""
    return np.array([float(row["rate_weighted_cv"]) for row in _rows(f"servegen_{name}_rate_10min.csv.xz")])


def tokens(name: str) -> list[Tokens]:
    """Mean lengths, one entry for six hours."""
    rows = _rows(f"servegen_{name}_tokens_6h.csv.xz")
    columns = ("in_mean", "out_mean", "in_p50", "out_p50")
    return [Tokens(*(float(row[column]) for column in columns)) for row in rows]


def parts(name: str, length: int) -> tuple[Part, ...]:
    """The whole, and what tuning never saw: days 7 to 9 of m-small (its daily cycle is in days 1 to 9), else the
    last third."""
    whole = Part("all", 0, length)
    if name == "m-small":
        return whole, Part("days 1-9", 0, 9 * DAY_BINS), Part("held out", 6 * DAY_BINS, 9 * DAY_BINS)
    return whole, Part("held out", 2 * length // 3, length)


def _rows(file: str) -> list[dict[str, str]]:
    with lzma.open(DATA / file, "rt") as opened:
        return list(csv.DictReader(opened))
