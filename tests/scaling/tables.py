"""What the runs say: levels and hours with intervals, who dominates whom, and the targets that were set."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

_RESAMPLES: Final = 1000
OURS: Final = "ours"
ORACLE: Final = "oracle"
DIURNAL: Final = ("m-small",)
MULTI_DAY: Final = ("m-small", "m-mid", "m-large", "deepseek-r1")

Figures = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Place:
    """Which load, start-up, policy and seed."""

    load: str
    startup_seconds: float
    policy: str
    seed: int


@dataclass(frozen=True, slots=True)
class Run(Place):
    """One policy on one load. Each block has requests, those within the targets, GPU hours paid and needed."""

    changes: int
    blocks: Sequence[Sequence[float]]


@dataclass(frozen=True, slots=True)
class Result:
    """All seeds of a policy on a load: figures of the whole, and of each resample (blocks of time, all seeds)."""

    level: float
    hours: float
    used: float
    changes: float
    levels: Figures
    hours_: Figures

    def level_told(self) -> str:
        """The level in per cent with its 95 % interval."""
        low, high = np.percentile(self.levels, [2.5, 97.5])
        return f"{100 * self.level:.2f} % ({100 * low:.2f} to {100 * high:.2f})"


Key = tuple[str, float, str]


def results(runs: Iterable[Run]) -> dict[Key, Result]:
    """By load, start-up and policy. All policies of a load are resampled alike, so that differences are paired."""
    groups: dict[Key, list[Run]] = {}
    for each in runs:
        groups.setdefault((each.load, each.startup_seconds, each.policy), []).append(each)
    return {key: _result(found) for key, found in groups.items()}


def _result(found: list[Run]) -> Result:
    blocks = np.array([each.blocks for each in found]).mean(axis=0)
    chance = np.random.default_rng(0)
    picked = blocks[chance.integers(0, len(blocks), (_RESAMPLES, len(blocks)))].sum(axis=1)
    whole = blocks.sum(axis=0)
    return Result(
        level=float(whole[1] / whole[0]),
        hours=float(whole[2]),
        used=float(whole[3] / whole[2]),
        changes=float(np.mean([each.changes for each in found])),
        levels=picked[:, 1] / picked[:, 0],
        hours_=picked[:, 2],
    )


def everything(runs: Sequence[Run]) -> str:
    """All tables as Markdown."""
    found = results(runs)
    return "\n\n".join([levels(found), pareto(found), aims(found), regret(found)])


def levels(found: dict[Key, Result]) -> str:
    """Every run."""
    lines = [
        "| load | start-up | policy | service level (95 % interval) | GPU hours | changes | used |",
        "|---|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {load} | {startup:.0f} s | {who} | {each.level_told()} | {_hours(each.hours)} | {each.changes:.0f} | "
        f"{100 * each.used:.0f} % |"
        for (load, startup, who), each in found.items()
    ]
    return "\n".join(lines)


def _hours(hours: float) -> str:
    return f"{hours:.0f}" if hours >= 30 else f"{hours:.1f}"


def pareto(found: dict[Key, Result]) -> str:
    """Whether another policy has a level as high for as few hours, beyond the intervals of the differences."""
    lines = ["| load | start-up | on the front | dominated by | not told apart from |", "|---|---|---|---|---|"]
    for (load, startup, who), ours in found.items():
        if who != OURS:
            continue
        others = [(k[2], v) for k, v in found.items() if k[:2] == (load, startup) and k[2] not in (OURS, ORACLE)]
        worse = [name for name, each in others if each.level >= ours.level and each.hours <= ours.hours]
        unclear = [name for name, each in others if name not in worse and not _apart(ours, each)]
        verdict = "no" if worse else "yes" if not unclear else "yes, within the intervals"
        lines.append(
            f"| {load} | {startup:.0f} s | {verdict} | {', '.join(worse) or '-'} | {', '.join(unclear) or '-'} |"
        )
    return "\n".join(lines)


def _apart(ours: Result, other: Result) -> bool:
    """Whether ours is better in level, or cheaper, in 97.5 of 100 resamples."""
    better = float(np.percentile(ours.levels - other.levels, 2.5)) > 0
    cheaper = float(np.percentile(other.hours_ - ours.hours_, 2.5)) > 0
    return better or cheaper


def aims(found: dict[Key, Result]) -> str:
    """What was aimed at, and what came of it: a start-up against none, paid time used, against one that knows."""
    lines = [
        "| load | start-up | level | points lost | hours over none | used | over peak's | hours over oracle's |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for (load, startup, who), ours in found.items():
        if who != OURS or load not in MULTI_DAY:
            continue
        at_once = found.get((load, 0.0, OURS), ours)
        peak, knows = found.get((load, startup, "static peak")), found.get((load, startup, ORACLE))
        of_peak = "-" if peak is None else f"{ours.used / peak.used:.2f}"
        of_knows = "-" if knows is None else f"{ours.hours / knows.hours:.2f}"
        lines.append(
            f"| {load} | {startup:.0f} s | {100 * ours.level:.2f} % | {100 * (at_once.level - ours.level):.2f} | "
            f"{ours.hours / at_once.hours:.3f} | {100 * ours.used:.0f} % | {of_peak} | {of_knows} |"
        )
    return "\n".join(lines)


def regret(found: dict[Key, Result]) -> str:
    """On traces of an hour: hours and requests late beyond those of one that knows."""
    lines = ["| trace | start-up | policy | points late beyond | GPU hours beyond |", "|---|---|---|---|---|"]
    for (load, startup, who), each in found.items():
        knows = found.get((load, startup, ORACLE))
        if load in MULTI_DAY or knows is None or who == ORACLE:
            continue
        lines.append(
            f"| {load} | {startup:.0f} s | {who} | {100 * (knows.level - each.level):.1f} | "
            f"{each.hours - knows.hours:+.1f} |"
        )
    return "\n".join(lines)
