"""`python -m scaling`: policies against each other on recorded demand. JSON and a table, under build/bench."""

import argparse
import json
import math
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

import numpy as np

from tidepool_operator.backtest.policies import Dynamo, Hpa, Knative, Oracle, Ours, Policy, Static, WvaV2
from tidepool_operator.backtest.replay import HOUR, foreseen, replay
from tidepool_operator.scaling.model import ScalingSpec

from .loads import MOST, TARGETS, TICK_SECONDS, Load, servegen

STARTUPS: Final = (0.0, 60.0, 120.0, 300.0, 600.0)
QUICK_STARTUPS: Final = (0.0, 120.0, 300.0)
POLICIES: Final = (
    "static mean",
    "static peak",
    "HPA on KV",
    "KEDA on queue",
    "Knative",
    "WVA v2",
    "Dynamo",
    "ours, reactive",
    "ours",
    "oracle",
)


@dataclass(frozen=True, slots=True)
class Run:
    """One policy on one load."""

    load: str
    startup_seconds: float
    policy: str
    seed: int
    service_level: float
    gpu_hours: float
    changes: int
    used: float  # share of the paid time that demand needed


def policy(name: str, load: Load, startup: float) -> Policy:
    """A policy by its name, set up for a load."""
    needs = load.needed()
    base, per_prompt, per_output = load.engine.figures
    limit = 1 - base / TARGETS.per_token_seconds
    most = (
        TARGETS.per_token_seconds - base
    ) / per_output  # requests at once that a replica runs within the target
    spec = ScalingSpec(
        1,
        MOST,
        time_to_first_token_seconds=TARGETS.first_token_seconds,
        time_per_output_token_seconds=TARGETS.per_token_seconds,
        predicts=name == "ours",
    )
    made: dict[str, Callable[[], Policy]] = {
        "static mean": lambda: Static(math.ceil(needs.mean())),
        "static peak": lambda: Static(math.ceil(needs.max())),
        "HPA on KV": lambda: Hpa(lambda seen: seen.kv_usage, 0.6, most=MOST),
        "KEDA on queue": lambda: Hpa(lambda seen: seen.waiting / max(seen.ready, 1), 5.0, most=MOST),
        "Knative": lambda: Knative(0.7 * most, most=MOST),
        "WVA v2": lambda: WvaV2(load.engine, _mean_prompt(load), most=MOST),
        "Dynamo": lambda: Dynamo(
            lambda prompt, output: (per_prompt * prompt + per_output * output) / limit,
            TARGETS.per_token_seconds,
            most=MOST,
        ),
        "ours, reactive": lambda: Ours(spec, startup, lambda _: None),
        "ours": lambda: Ours(
            spec, startup, foreseen(load.bins, load.first, startup, TICK_SECONDS, load.season_seconds)
        ),
        "oracle": lambda: Oracle(needs.tolist(), load.demand.begin, TICK_SECONDS, startup, most=MOST),
    }
    return made[name]()


def _mean_prompt(load: Load) -> float:
    return sum(a.prompt_tokens for a in load.demand.arrivals) / sum(a.requests for a in load.demand.arrivals)


def run(task: tuple[str, str, float, str, int]) -> Run:
    """Play one policy."""
    name, part, startup, who, seed = task
    load = servegen(name, part, seed)
    needs = load.needed()
    first = max(1, math.ceil(1.5 * float(needs[:20].mean())))
    outcome = replay(load.demand, load.engine, TARGETS, policy(who, load, startup), startup, first)
    work = float(needs[round(HOUR / TICK_SECONDS) :].sum()) * TICK_SECONDS / 3600
    return Run(
        name,
        startup,
        who,
        seed,
        round(outcome.service_level, 5),
        round(outcome.gpu_hours, 1),
        outcome.changes,
        round(work / outcome.gpu_hours, 4),
    )


def tasks(args: argparse.Namespace) -> Iterator[tuple[str, str, float, str, int]]:
    """All runs, those of one load beside each other."""
    for name in args.loads.split(","):
        for seed in range(args.seeds):
            for startup in _startups(args):
                for who in args.policies.split(",") if args.policies else POLICIES:
                    yield name, args.part, startup, who, seed


def _startups(args: argparse.Namespace) -> tuple[float, ...]:
    if args.startups:
        return tuple(float(each) for each in args.startups.split(","))
    return STARTUPS if args.full else QUICK_STARTUPS


def table(runs: list[Run]) -> str:
    """Markdown: means over the seeds, with the spread of the service level."""
    lines = [
        "| load | start-up | policy | service level | GPU hours | changes | used |",
        "|---|---|---|---|---|---|---|",
    ]
    groups: dict[tuple[str, float, str], list[Run]] = {}
    for each in runs:
        groups.setdefault((each.load, each.startup_seconds, each.policy), []).append(each)
    for (load, startup, who), found in groups.items():
        level = np.array([each.service_level for each in found])
        wide = f" ± {100 * 1.96 * level.std(ddof=1) / math.sqrt(len(level)):.2f}" if len(level) > 1 else ""
        hours = np.mean([each.gpu_hours for each in found])
        changes = np.mean([each.changes for each in found])
        used = np.mean([each.used for each in found])
        lines.append(
            f"| {load} | {startup:.0f} s | {who} | {100 * level.mean():.2f} %{wide} | {hours:.0f} | "
            f"{changes:.0f} | {100 * used:.0f} % |"
        )
    return "\n".join(lines)


def main() -> None:
    """Run, write, print."""
    parser = argparse.ArgumentParser(prog="scaling")
    parser.add_argument("--loads", default="m-small,m-mid,m-large,deepseek-r1")
    parser.add_argument("--part", default="held out", choices=["held out", "tuning", "all"])
    parser.add_argument("--startups", default="")
    parser.add_argument("--policies", default="")
    parser.add_argument("--full", action="store_true", help="all start-ups")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("build/bench/scaling.json"))
    args = parser.parse_args()
    begin = time.monotonic()
    with ProcessPoolExecutor(args.jobs) as pool:
        runs = list(pool.map(run, tasks(args)))
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text(json.dumps([asdict(each) for each in runs], indent=1) + "\n")
    print(table(runs))
    print(f"\n{len(runs)} runs in {time.monotonic() - begin:.0f} s; {args.out}")


if __name__ == "__main__":
    main()
