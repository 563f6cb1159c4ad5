"""Rates: where round robin has its knee, and what a candidate can take within the objective."""

from collections.abc import Callable
from statistics import median
from typing import Final

from .runs import Run, do

# The knee is where waiting has made p90 TTFT five times what it is without a load to speak of.
KNEE_FACTOR: Final = 5.0
# A fortieth of the rate at which a search begins: nobody waits.
_LIGHT: Final = 0.025
# What `knee` finds for the training seeds, requests a second of eight pods (`python -m sim --find-knees`).
KNEES: Final = {"mooncake": 4.36, "agents": 8.65, "azure-code": 33.85, "decode": 21.93, "tenants": 22.6}
ROUND_ROBIN: Final = "round robin"


def knee(load: str, seeds: list[int]) -> float:
    """Round robin's, as the median over these (training) seeds."""
    return median(_knee_of(load, seed) for seed in seeds)


def _knee_of(load: str, seed: int) -> float:
    light = do(Run(load, seed, KNEES[load] * _LIGHT, ROUND_ROBIN)).ttft_p90
    return highest(
        lambda rate: do(Run(load, seed, rate, ROUND_ROBIN)).ttft_p90 <= KNEE_FACTOR * light, KNEES[load]
    )


def throughput(load: str, seed: int, candidate: str, start: float) -> float:
    """The highest rate within the objective."""
    return highest(lambda rate: do(Run(load, seed, rate, candidate)).within, start)


def highest(
    holds: Callable[[float], bool], start: float, *, step: float = 1.15, tolerance: float = 0.015
) -> float:
    """The highest rate at which it holds, to the tolerance: strides from `start`, then halving."""
    low = high = start
    if holds(start):
        while holds(high := high * step):
            low = high
            step *= step
    else:
        while not holds(low := low / step):
            high = low
            step *= step
            if low < start / 1e4:
                return 0.0
    while high / low > 1 + tolerance:
        middle = (low * high) ** 0.5
        if holds(middle):
            low = middle
        else:
            high = middle
    return low
