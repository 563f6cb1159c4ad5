"""`python -m scaling`: policies against each other on recorded demand; JSON under build/bench, and tables."""

import argparse
import json
import math
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Final

import numpy as np

from tidepool_operator.backtest.arima import Arima
from tidepool_operator.backtest.peers import Dynamo, Hpa, Knative, WvaV2, keda
from tidepool_operator.backtest.plant import Plant
from tidepool_operator.backtest.policies import Oracle, Ours, Policy, Static
from tidepool_operator.backtest.replay import HOUR, Outcome, foreseen, played
from tidepool_operator.scaling.model import ScalingSpec

from . import series, tables, traces
from .loads import MOST, TICK_SECONDS, Load, servegen
from .tables import Place, Run

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
    "ours reactive",
    "ours",
    "oracle",
)


def policy(name: str, load: Load, startup: float) -> Policy:
    """A policy by its name, set up for a load."""
    needs = load.needed()
    targets = load.targets
    base, per_prompt, per_output = load.engine.figures
    limit = 1 - base / targets.per_token_seconds
    most = (
        targets.per_token_seconds - base
    ) / per_output  # requests at once that a replica runs within the target
    spec = ScalingSpec(
        1,
        MOST,
        time_to_first_token_seconds=targets.first_token_seconds,
        time_per_output_token_seconds=targets.per_token_seconds,
        predicts=name == "ours",
    )
    made: dict[str, Callable[[], Policy]] = {
        "static mean": lambda: Static(math.ceil(needs.mean())),
        "static peak": lambda: Static(math.ceil(needs.max())),
        "HPA on KV": lambda: Hpa(lambda seen: seen.kv_usage, 0.6, most=MOST),
        "KEDA on queue": lambda: keda(5.0, most=MOST),
        "Knative": lambda: Knative(0.7 * most, most=MOST),
        "WVA v2": lambda: WvaV2(load.engine, *_mean_lengths(load), most=MOST),
        "Dynamo": lambda: Dynamo(
            lambda prompt, output: (per_prompt * prompt + per_output * output) / limit,
            targets.per_token_seconds,
            most=MOST,
            predictor=Arima,
        ),
        "ours reactive": lambda: Ours(spec, startup, lambda _: None),
        "ours": lambda: Ours(
            spec, startup, foreseen(load.bins, load.first, startup, TICK_SECONDS, load.season_seconds)
        ),
        "oracle": lambda: Oracle(needs.tolist(), load.demand.begin, TICK_SECONDS, startup, most=MOST),
    }
    return made[name]()


def _mean_lengths(load: Load) -> tuple[float, float]:
    """Tokens of a prompt and of an answer."""
    arrivals = load.demand.arrivals
    requests = sum(each.requests for each in arrivals)
    return sum(a.prompt_tokens for a in arrivals) / requests, sum(a.output_tokens for a in arrivals) / requests


def load_of(name: str, part: str, seed: int) -> Load:
    """A load by its name."""
    return traces.trace(name) if name in traces.NAMES else servegen(name, part, seed)


def run(task: tuple[str, str, float, str, int]) -> Run:
    """Play one policy."""
    name, part, startup, who, seed = task
    load = load_of(name, part, seed)
    needs = load.needed()
    first = max(1, math.ceil(1.5 * float(needs[:20].mean())))
    pool = Plant(load.engine, startup, load.demand.begin, ready=first)
    outcome = played(load.demand, load.engine, load.targets, policy(who, load, startup), pool, load.settled)
    return run_of(Place(name, startup, who, seed), load, outcome)


def run_of(place: Place, load: Load, outcome: Outcome) -> Run:
    """A run's figures in blocks."""
    came = np.array([each.requests for each in load.demand.arrivals])
    hours = TICK_SECONDS / HOUR
    rows = np.stack([came, came * outcome.level, np.array(outcome.paid) / HOUR, load.needed() * hours])
    per = round(load.block_seconds / TICK_SECONDS)
    counted = rows[:, load.settled :]
    blocks = [counted[:, begin : begin + per].sum(axis=1) for begin in range(0, counted.shape[1], per)]
    return Run(**asdict(place), changes=outcome.changes, blocks=[[round(v, 3) for v in row] for row in blocks])


def tasks(args: argparse.Namespace) -> Iterator[tuple[str, str, float, str, int]]:
    """All runs, those of one load beside each other; a trace has one seed, and a fixed size no start-up."""
    for name in args.loads.split(","):
        for seed in range(1 if name in traces.NAMES else args.seeds):
            for startup in _startups(args):
                for who in args.policies.split(",") if args.policies else POLICIES:
                    yield name, args.part, startup, who, seed


def _startups(args: argparse.Namespace) -> tuple[float, ...]:
    if args.startups:
        return tuple(float(each) for each in args.startups.split(","))
    return STARTUPS if args.full else QUICK_STARTUPS


def main() -> None:
    """Run, write, print."""
    parser = argparse.ArgumentParser(prog="scaling")
    parser.add_argument("--loads", default=",".join((*series.NAMES, *traces.NAMES)))
    parser.add_argument("--part", default="held out", choices=["held out", "tuning", "all"])
    parser.add_argument("--startups", default="")
    parser.add_argument("--policies", default="")
    parser.add_argument("--full", action="store_true", help="all start-ups")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("build/bench/scaling.jsonl"))
    args = parser.parse_args()
    begin = time.monotonic()
    args.out.parent.mkdir(parents=True, exist_ok=True)
    runs: list[Run] = []
    # One load after the other: a process keeps the load that it has made. What was played is kept at once.
    with ProcessPoolExecutor(args.jobs) as pool, args.out.open("w") as out:
        for each in pool.map(run, tasks(args), chunksize=5):
            runs.append(each)
            out.write(json.dumps(asdict(each)) + "\n")
            out.flush()
    print(tables.everything(runs))
    print(f"\n{len(runs)} runs in {time.monotonic() - begin:.0f} s; {args.out}")


if __name__ == "__main__":
    main()
