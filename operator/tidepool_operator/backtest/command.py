"""`tidepool-operator backtest`: a pool's own past against this operator and against sizes and rules of others."""

import argparse
import csv
import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import yaml
from pydantic import ValidationError

from tidepool_api.scaling import Scaling
from tidepool_api.units import duration_seconds
from tidepool_operator.backtest.plant import Arrivals, Engine
from tidepool_operator.backtest.policies import Dynamo, Hpa, Knative, Oracle, Ours, Policy, Static
from tidepool_operator.backtest.replay import Demand, Outcome, Targets, binned, foreseen, needed, replay
from tidepool_operator.errors import ConfigurationError
from tidepool_operator.scaling.capacity import PRIOR
from tidepool_operator.scaling.model import ScalingSpec
from tidepool_operator.scaling.spec import from_api

# Where the pool names no target.
FIRST_TOKEN_SECONDS: Final = 2.0
PER_TOKEN_SECONDS: Final = 0.1
COLUMNS: Final = ("time", "requests_per_second", "prompt_tokens_per_second", "output_tokens_per_second")


@dataclass(frozen=True, slots=True)
class Asked:
    """What the command line asks for."""

    demand: Demand
    spec: ScalingSpec
    targets: Targets
    engine: Engine
    startup_seconds: float


def main(arguments: Sequence[str]) -> int:
    """Run the command; 2 for input that cannot be used, with what is wrong and what to do."""
    parser = argparse.ArgumentParser(
        prog="tidepool-operator backtest", description="Play a pool's past demand against policies."
    )
    parser.add_argument("--pool", type=Path, required=True, help="a ModelPool, as YAML")
    parser.add_argument("--history", type=Path, required=True, help=f"CSV in even steps: {', '.join(COLUMNS)}")
    parser.add_argument(
        "--startup", default="120s", help="time from a pod's creation to ready, as in a spec: 300s"
    )
    parser.add_argument(
        "--engine",
        default=",".join(f"{each:g}" for each in PRIOR),
        help="seconds of a step, of a prompt token, of an output token in a step (status.capacity has them)",
    )
    given = parser.parse_args(arguments)
    try:
        asked = Asked(
            history(given.history), *pool(given.pool), engine(given.engine), duration_seconds(given.startup)
        )
    except ConfigurationError as error:
        sys.stderr.write(f"tidepool-operator backtest: {error}\n")
        return 2
    outcomes = outcomes_of(asked)
    sys.stdout.write(report(outcomes) + "\n")
    return 0


def pool(path: Path) -> tuple[ScalingSpec, Targets]:
    """The pool's scaling, with prediction on. Raises ConfigurationError."""
    try:
        scaling = Scaling.model_validate(yaml.safe_load(path.read_text())["spec"]["scaling"])
    except (OSError, yaml.YAMLError, KeyError, TypeError, ValidationError) as error:
        raise ConfigurationError(f"{path} is no ModelPool with spec.scaling: {_first_line(error)}") from error
    plain = from_api(
        scaling.model_copy(update={"prediction": scaling.prediction.model_copy(update={"enabled": True})})
    )
    targets = Targets(
        plain.time_to_first_token_seconds or FIRST_TOKEN_SECONDS,
        plain.time_per_output_token_seconds or PER_TOKEN_SECONDS,
    )
    return plain, targets


def engine(text: str) -> Engine:
    """An engine by its three figures. Raises ConfigurationError."""
    try:
        base, prompt, output = (float(each) for each in text.split(","))
    except ValueError:
        raise ConfigurationError(
            f"--engine {text!r} is not three numbers of seconds, as 0.008,5e-5,3e-4"
        ) from None
    if not all(0 < each < 10 for each in (base, prompt, output)):
        raise ConfigurationError(f"--engine {text!r}: each figure is between 0 and 10 seconds")
    return Engine((base, prompt, output))


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


def outcomes_of(asked: Asked) -> dict[str, Outcome]:
    """Each policy's outcome, this operator's first."""
    needs = needed(asked.demand, asked.engine, asked.targets)
    first = min(max(1, math.ceil(float(needs[:20].mean()))), asked.spec.max_replicas)
    return {
        name: replay(asked.demand, asked.engine, asked.targets, make(), asked.startup_seconds, first)
        for name, make in _policies(asked, needs.tolist()).items()
    }


def _policies(asked: Asked, needs: list[float]) -> dict[str, Callable[[], Policy]]:
    base, per_prompt, per_output = asked.engine.figures
    target, demand, spec = asked.targets.per_token_seconds, asked.demand, asked.spec
    least, most, startup = max(1, spec.min_replicas), spec.max_replicas, asked.startup_seconds
    limit = max(0.1, 1 - base / target)
    bound: dict[str, Any] = {"least": least, "most": most}

    def ours() -> Policy:
        bins, first = binned(demand)
        known = foreseen(bins, first, startup, demand.tick_seconds, spec.season_seconds)
        return Ours(spec, startup, known)

    def share(prompt: float, output: float) -> float:
        return (per_prompt * prompt + per_output * output) / limit

    mean = min(max(least, math.ceil(sum(needs) / len(needs))), most)
    peak = min(max(least, math.ceil(max(needs))), most)
    return {
        "tidepool": ours,
        f"always {mean} (the mean)": lambda: Static(mean),
        f"always {peak} (the peak)": lambda: Static(peak),
        "HPA on KV use 0.6": lambda: Hpa(lambda seen: seen.kv_usage, 0.6, **bound),
        "KEDA on 5 waiting": lambda: Hpa(lambda seen: seen.waiting / max(seen.ready, 1), 5.0, **bound),
        "Knative on requests": lambda: Knative(max(1.0, 0.7 * (target - base) / per_output), **bound),
        "Dynamo's planner": lambda: Dynamo(share, target, **bound),
        "one that knows": lambda: Oracle(needs, demand.begin, demand.tick_seconds, startup, **bound),
    }


def report(outcomes: dict[str, Outcome]) -> str:
    """A table, and what it says."""
    lines = [f"{'policy':24} {'within targets':>14} {'GPU hours':>10} {'changes':>8}"]
    for name, each in outcomes.items():
        lines.append(f"{name:24} {100 * each.service_level:12.2f} % {each.gpu_hours:10.1f} {each.changes:8d}")
    ours = outcomes["tidepool"]
    cheaper = [
        name
        for name, each in outcomes.items()
        if name not in ("tidepool", "one that knows")
        and each.service_level >= ours.service_level
        and each.gpu_hours < ours.gpu_hours
    ]
    if cheaper:
        lines.append(f"Better and cheaper on this past: {', '.join(cheaper)}.")
    return "\n".join(lines)


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
