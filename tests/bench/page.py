"""`make bench-page`: keeps the last results in tests/bench/results, and writes docs/benchmarks.md from them."""

import json
import shutil
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from sim import tables as sim_tables
from sim.agents import report as agents_report
from sim.score import Score
from sim.validate import Comparison
from sim.validate import markdown as validation_markdown

from . import operators_report, quality_report, report, soak_report, workflow_report

BUILD = Path("build/bench")
KEPT = Path(__file__).with_name("results")
PAGE = Path("docs/benchmarks.md")

Results = Mapping[str, Any]


def _sim(results: Results, command: str) -> str:
    """The simulator's tables from its JSON, and what printed them."""
    scores = {name: _scored(results.get(name, {})) for name in ("latency", "gateways", "faults")}
    by_part = {
        load: {float(part): found for part, found in parts.items()} for load, parts in scores["latency"].items()
    }
    tables = sim_tables.Tables(
        results["seeds"],
        results["knees"],
        by_part,
        results.get("throughput", {}),
        scores["gateways"],
        scores["faults"],
    )
    held = "".join(f"- {line}\n" for line in sim_tables.verdicts(tables))
    return f"{command}; tests/sim models engines and loads.\n\n{held}\n{sim_tables.markdown(tables)}\n"


def _validation(results: Results) -> str:
    """How far the simulator is from a real engine, from the JSON of `python -m sim.validate`."""
    compared = [Comparison(**figure) for figure in results["figures"]]
    held = sum(one.holds for one in compared)
    return (
        f"`python -m sim.validate`, {results['date']}: a real vLLM on the CPU, and the simulator with step times "
        "that were calibrated on it. A figure holds within 20 % of the median run, or within the engine's own "
        f"spread from run to run where that is larger: {held} of {len(compared)} do.\n\n"
        f"{validation_markdown(compared)}\n"
    )


def _scored(value: Any) -> Any:
    if isinstance(value, dict):
        return Score(**value) if "ttft_p90" in value else {key: _scored(inner) for key, inner in value.items()}
    return [_scored(inner) for inner in value]


# Section: heading, who renders it from its JSON and the simulator's.
SECTIONS: dict[str, tuple[str, Callable[[Results, Results], str]]] = {
    "router": ("Cost beside the peers", lambda results, _: report.page(results)),
    "quality": ("Live quality beside the peers", quality_report.page),
    "sim-validation": ("Does the simulator predict a real engine?", lambda results, _: _validation(results)),
    "sim": ("Routing quality in the simulator", lambda results, _: _sim(results, "`make sim`")),
    "sim-gateways": (
        "Two gateways, with more seeds",
        lambda results, _: _sim(results, "`python -m sim --tables gateways --rates 1 --seeds 20`"),
    ),
    "workflows": ("Workflows", lambda results, _: workflow_report.cost(results)),
    "workflows-sim": ("Policies for workflows, in the simulator", lambda results, _: agents_report.page(results)),
    "workflows-live": ("Policies for workflows, live", lambda results, _: workflow_report.live(results)),
    "workflows-growth": ("Workflows for longer", lambda results, _: workflow_report.growth(results)),
    "operator": ("The operator with 500 pools", lambda results, _: operators_report.page(results)),
    "soak": ("Soak", lambda results, _: soak_report.page(results)),
}

_HEAD = """\
# Benchmarks

Written by `make bench-page` from the results that are kept in tests/bench/results. `make bench-router` (part of
`make bench`, at most 20 minutes) measures the cost, `make bench-full` the same with longer runs and live quality,
`make sim` routing quality in the simulator, `make bench-operator` the operator, `make soak` the soak;
`make bench-tables` all that is told of the router here, one after the other, in an hour and a half. Each prints
its tables and writes JSON to build/bench; losses stand beside the rest.
"""


def render(results: Mapping[str, Results]) -> str:
    """The page from the results by section; those that are missing are left out."""
    parts = [_HEAD]
    for name, (heading, write) in SECTIONS.items():
        if name in results:
            parts.append(f"\n## {heading}\n\n{write(results[name], results.get('sim', {}))}")
    return "".join(parts)


def main() -> int:
    """Exit status: 0 written, 2 there is nothing to write from."""
    KEPT.mkdir(exist_ok=True)
    for name in SECTIONS:
        fresh = BUILD / f"{name}.json"
        if fresh.exists():
            shutil.copy(fresh, KEPT / fresh.name)
    results = {
        name: json.loads((KEPT / f"{name}.json").read_text())
        for name in SECTIONS
        if (KEPT / f"{name}.json").exists()
    }
    if not results:
        print("bench: there are no results yet; run `make bench-router` first", file=sys.stderr)
        return 2
    PAGE.write_text(render(results))
    print(f"wrote {PAGE} from {', '.join(results)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
