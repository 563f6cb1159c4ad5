"""`tidepool-operator backtest`: a pool's own past against this operator and against sizes and rules of others."""

import argparse
import json
import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final

import yaml

from tidepool_api.scaling import Scaling
from tidepool_api.units import duration_seconds
from tidepool_operator.backtest import recorded
from tidepool_operator.backtest.advice import Advice, Case, advice
from tidepool_operator.backtest.arima import Arima
from tidepool_operator.backtest.peers import Dynamo, Hpa, Knative, keda
from tidepool_operator.backtest.plant import Engine
from tidepool_operator.backtest.policies import Oracle, Ours, Policy, Static
from tidepool_operator.backtest.replay import Demand, Outcome, Targets, binned, foreseen, needed, replay
from tidepool_operator.errors import ConfigurationError
from tidepool_operator.scaling.ahead import STARTUP_SECONDS
from tidepool_operator.scaling.capacity import PRIOR
from tidepool_operator.scaling.model import ScaledPool, ScalingSpec
from tidepool_operator.scaling.spec import from_api

# Where the pool names no target.
FIRST_TOKEN_SECONDS: Final = 2.0
PER_TOKEN_SECONDS: Final = 0.1


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
    given = _parser().parse_args(arguments)
    try:
        asked = _asked(given)
        plot = _plot(given.plot)
    except ConfigurationError as error:
        sys.stderr.write(f"tidepool-operator backtest: {error}\n")
        return 2
    outcomes = outcomes_of(asked)
    advised = advice_of(asked, outcomes["tidepool"]) if given.advice else []
    if given.output == "json":
        sys.stdout.write(json.dumps(as_json(outcomes, advised), indent=2) + "\n")
    else:
        sys.stdout.write(report(outcomes) + "\n")
        if given.advice:
            found = [each.told() for each in advised]
            sys.stdout.write("\n".join(["Settings that this past would change:", *(found or ["none"])]) + "\n")
    if plot is not None:
        plot(given.plot, asked.demand, asked.engine, asked.targets, asked.startup_seconds, outcomes["tidepool"])
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="tidepool-operator backtest", description="Play a pool's past demand against policies."
    )
    parser.add_argument("--pool", type=Path, required=True, help="a ModelPool, as YAML")
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--history", type=Path, help=f"CSV in even steps: {', '.join(recorded.COLUMNS)}")
    source.add_argument("--prometheus", metavar="URL", help="a Prometheus with the chart's recording rules")
    parser.add_argument("--since", default="14d", help="with --prometheus: how far back, such as 36h or 14d")
    parser.add_argument("--step", default="15s", help="with --prometheus: the step")
    parser.add_argument("--namespace", default="", help="with --prometheus: where the pool file names none")
    parser.add_argument(
        "--startup",
        default="",
        help="time from a pod's creation to ready, as in a spec: 300s; "
        "without it the P90 in the pool's status, else 120s",
    )
    parser.add_argument(
        "--engine",
        default="",
        help="seconds of a step, of a prompt token, of an output token in a step, such as "
        f"{','.join(f'{each:g}' for each in PRIOR)}; else what Prometheus tells of the last hour, else these",
    )
    parser.add_argument(
        "--advice",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="play changes of the pool's settings too, and tell those that pay",
    )
    parser.add_argument("-o", "--output", choices=("text", "json"), default="text", help="json is for machines")
    parser.add_argument("--plot", type=Path, metavar="PNG", help="draw it; needs the extra plot")
    return parser


def _asked(given: argparse.Namespace) -> Asked:
    """Raises ConfigurationError."""
    document = _document(given.pool)
    spec, targets = pool(document, given.pool)
    startup = _seconds("--startup", given.startup) if given.startup else _startup(document)
    if given.history is not None:
        figures = engine(given.engine) if given.engine else Engine()
        return Asked(recorded.history(given.history), spec, targets, figures, startup)
    metadata = document.get("metadata") or {}
    name, namespace = str(metadata.get("name", "")), given.namespace or str(metadata.get("namespace", "default"))
    since, step = _seconds("--since", given.since), _seconds("--step", given.step)
    if not 1 <= step <= since:
        raise ConfigurationError(f"--step {given.step} is not between 1s and --since {given.since}")
    demand, capacity = recorded.prometheus(given.prometheus, ScaledPool(namespace, name, 1, spec), since, step)
    learned = Engine(capacity.figures) if capacity.settled else Engine()
    return Asked(demand, spec, targets, engine(given.engine) if given.engine else learned, startup)


def _seconds(option: str, text: str) -> float:
    """A duration, in days too. Raises ConfigurationError."""
    try:
        return 86_400.0 * float(text[:-1]) if text.endswith("d") else duration_seconds(text)
    except ValueError:
        raise ConfigurationError(f"{option} {text!r} is no duration; write it like 90s, 36h or 14d") from None


def _startup(document: dict[str, Any]) -> float:
    """The P90 of start-ups that the pool's status tells."""
    try:
        return float(document["status"]["capacity"]["startupSeconds"]["p90"])
    except (KeyError, TypeError, ValueError):
        return STARTUP_SECONDS


def _plot(path: Path | None) -> Callable[..., None] | None:
    """The drawing, before the work is done. Raises ConfigurationError where matplotlib is not installed."""
    if path is None:
        return None
    try:
        from tidepool_operator.backtest.plot import plot
    except ImportError as error:
        raise ConfigurationError("--plot needs matplotlib: pip install '.[plot]' in its clone") from error
    return plot


def _document(path: Path) -> dict[str, Any]:
    try:
        document = yaml.safe_load(path.read_text())
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigurationError(f"{path} cannot be read as YAML: {_first_line(error)}") from error
    if not isinstance(document, dict):
        raise ConfigurationError(f"{path} is no ModelPool")
    return document


def pool(document: dict[str, Any], path: Path) -> tuple[ScalingSpec, Targets]:
    """The pool's scaling, with prediction on. Raises ConfigurationError."""
    try:
        plain = replace(from_api(Scaling.model_validate(document["spec"]["scaling"])), predicts=True)
    except (KeyError, TypeError, ValueError) as error:
        raise ConfigurationError(f"{path} is no ModelPool with spec.scaling: {_first_line(error)}") from error
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


def outcomes_of(asked: Asked) -> dict[str, Outcome]:
    """Each policy's outcome, this operator's first."""
    needs = needed(asked.demand, asked.engine, asked.targets)
    first = min(max(1, math.ceil(float(needs[:20].mean()))), asked.spec.max_replicas)
    return {
        name: replay(asked.demand, asked.engine, asked.targets, make(), asked.startup_seconds, first)
        for name, make in _policies(asked, needs.tolist()).items()
    }


def advice_of(asked: Asked, outcome: Outcome) -> list[Advice]:
    """Changes of the pool's settings that would have paid; `outcome` is what came of those that it has."""
    demand, startup = asked.demand, asked.startup_seconds
    needs = needed(demand, asked.engine, asked.targets)
    known = foreseen(*binned(demand), startup, demand.tick_seconds, asked.spec.season_seconds)

    def play(spec: ScalingSpec) -> Outcome:
        first = min(max(1, math.ceil(float(needs[:20].mean()))), spec.max_replicas)
        return replay(demand, asked.engine, asked.targets, Ours(spec, startup, known), startup, first)

    case = Case(demand, asked.spec, asked.targets, asked.engine, startup, needs.tolist(), outcome)
    return advice(case, play)


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
        "KEDA on 5 waiting": lambda: keda(5.0, **bound),
        "Knative on requests": lambda: Knative(max(1.0, 0.7 * (target - base) / per_output), **bound),
        "Dynamo's planner": lambda: Dynamo(share, target, predictor=Arima, **bound),
        "one that knows": lambda: Oracle(needs, demand.begin, demand.tick_seconds, startup, **bound),
    }


def as_json(outcomes: dict[str, Outcome], advised: Sequence[Advice]) -> dict[str, Any]:
    """For machines: what came of each policy, and the settings that would pay."""
    policies = {
        name: {"withinTargets": each.service_level, "gpuHours": each.gpu_hours, "changes": each.changes}
        for name, each in outcomes.items()
    }
    return {"policies": policies, "advice": [asdict(each) for each in advised]}


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
