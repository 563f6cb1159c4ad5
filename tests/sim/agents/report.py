"""Policies over the same runs: the table of figures, and whether the router's holds what it must."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean
from typing import Any

from sim.agents.policies import Ours, OursInTurn, RoundRobin, ShortestFirst, ShortestOnOurPools
from sim.agents.shapes import MOST_STAGES, arrivals
from sim.agents.world import Done, Policy, PoolSpec, World
from sim.steptime import StepTime

# A 7B, a 14B and a 32B model on one accelerator each: a step alone, what a sequence, a token of context and a
# prompt token add, in seconds. Sized after the A100 of tests/sim/data, by the models' weights.
SMALL = StepTime(0.010, 0.00020, 2.0e-8, 7.0e-5)
MIDDLE = StepTime(0.016, 0.00030, 3.0e-8, 1.3e-4)
LARGE = StepTime(0.028, 0.00045, 5.0e-8, 2.6e-4)
TWO = (PoolSpec("small", 0.62, SMALL), PoolSpec("large", 0.86, LARGE))
THREE = (PoolSpec("small", 0.62, SMALL), PoolSpec("middle", 0.75, MIDDLE), PoolSpec("large", 0.86, LARGE))


@dataclass(frozen=True, slots=True)
class Setting:
    """Engines and an arrival rate in runs a second; `saturated`: first come, first served falls behind there."""

    name: str
    pools: tuple[PoolSpec, ...]
    rate: float
    saturated: bool


SETTINGS = (
    Setting("two engines, light", TWO, 0.35, saturated=False),
    Setting("two engines, full", TWO, 0.6, saturated=True),
    Setting("two engines, over", TWO, 0.75, saturated=True),
    Setting("three engines, full", THREE, 0.95, saturated=True),
)
POLICIES: Mapping[str, type[Policy]] = {
    policy.name: policy for policy in (RoundRobin, ShortestFirst, OursInTurn, ShortestOnOurPools, Ours)
}


@dataclass(frozen=True, slots=True)
class Figures:
    """Of all runs of a policy in a setting; seconds from a run's beginning to its end."""

    mean: float
    p50: float
    p95: float
    worst: float
    ms_a_token: float
    late: float
    quality: float


def figures(done: Sequence[Done]) -> Figures:
    """Their figures."""
    seconds = sorted(one.seconds for one in done)
    stages = sum(one.stages for one in done)
    return Figures(
        mean=fmean(seconds),
        p50=seconds[len(seconds) // 2],
        p95=seconds[int(len(seconds) * 0.95)],
        worst=seconds[-1],
        ms_a_token=fmean(1e3 * one.seconds / max(1, one.output_tokens) for one in done),
        late=fmean(one.late for one in done),
        quality=sum(one.quality for one in done) / max(1, stages),
    )


def measure(setting: Setting, policy: str, seeds: Sequence[int], runs: int) -> Figures:
    """One row, over all seeds together."""
    done: list[Done] = []
    for seed in seeds:
        done += World(setting.pools, POLICIES[policy]()).simulate(arrivals(seed, runs, setting.rate))
    return figures(done)


def held(rows: Mapping[str, Figures]) -> dict[str, tuple[float, float, bool]]:
    """What must hold where engines are saturated: measured, wanted, and whether it does."""
    ours, fcfs, shortest = rows[Ours.name], rows[RoundRobin.name], rows[ShortestFirst.name]
    return {
        "mean of FCFS over ours, at least": (fcfs.mean / ours.mean, 1.5, fcfs.mean >= 1.5 * ours.mean),
        "mean of shortest request over ours, above": (shortest.mean / ours.mean, 1.0, shortest.mean > ours.mean),
        "p95 of ours over FCFS, at most": (ours.p95 / fcfs.p95, 1.0, ours.p95 <= fcfs.p95),
        "late of ours over FCFS, at most": (ours.late / max(1e-9, fcfs.late), 0.5, ours.late <= 0.5 * fcfs.late),
        "quality of ours less FCFS, at least": (ours.quality - fcfs.quality, 0.0, ours.quality >= fcfs.quality),
    }


def table(rows: Mapping[str, Figures]) -> str:
    """For people."""
    lines = [f"{'policy':36}" + "".join(f"{name:>11}" for name in Figures.__dataclass_fields__)]
    for name, row in rows.items():
        shown = (f"{value:11.3f}" if value < 100 else f"{value:11.1f}" for value in asdict(row).values())
        lines.append(f"{name:36}{''.join(shown)}")
    return "\n".join(lines)


def as_json(found: Mapping[str, Mapping[str, Figures]], seeds: Sequence[int], runs: int) -> dict[str, Any]:
    """For build/bench; `runs` a seed."""
    rows = {setting: {policy: asdict(row) for policy, row in rows.items()} for setting, rows in found.items()}
    return {"seeds": list(seeds), "runs": runs, "settings": rows}


def verdicts(rows: Mapping[str, Figures]) -> list[str]:
    """Each target of a setting in which engines are saturated, held or missed."""
    return [
        f"{name} {wanted:g}: {measured:.3f}: {'held' if holds else 'MISSED'}"
        for name, (measured, wanted, holds) in held(rows).items()
    ]


def page(results: Mapping[str, Any]) -> str:
    """The section of docs/benchmarks.md, from the JSON."""
    seeds = ", ".join(map(str, results["seeds"]))
    lines = [
        f"`make sim-workflow`; {results['runs']} runs of at most {MOST_STAGES} calls for each of the seeds "
        f"{seeds}; tests/sim/agents models the engines, whose speeds are made up after their sizes.",
    ]
    for setting in SETTINGS:
        rows = {policy: Figures(**row) for policy, row in results["settings"].get(setting.name, {}).items()}
        if not rows:
            continue
        lines += ["", f"**{setting.name}**, {setting.rate:g} runs a second", ""]
        if setting.saturated:
            lines += [*(f"- {line}" for line in verdicts(rows)), ""]
        lines += [
            "| policy | mean s | p50 s | p95 s | longest s | ms a token | late | quality |",
            "|---|---|---|---|---|---|---|---|",
            *(
                f"| {policy} | {row.mean:.1f} | {row.p50:.1f} | {row.p95:.1f} | {row.worst:.1f} "
                f"| {row.ms_a_token:.1f} | {row.late:.1%} | {row.quality:.3f} |"
                for policy, row in rows.items()
            ),
        ]
    return "\n".join(lines) + "\n"
