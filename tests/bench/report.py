"""Tables from the results: pure, so that a page can be written again from the JSON of any run."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from . import figures, targets
from .figures import FULL_CORE, Figure, Run

KEPT_RATE = 0.98  # share of the offered rate below which requests piled up
CALM_SHARE = 0.05  # of the proxy's core in other hands: above it a run is marked as disturbed


@dataclass(frozen=True)
class Column:
    """A figure with its title."""

    title: str
    value: Figure
    digits: int = 1


_LATENCY = (Column("p50 ms", figures.P50_MS, 2), Column("p99 ms", figures.P99_MS, 2))
_CORE = (
    Column("proxy core %", figures.plain("core_share", 100), 0),
    Column("foreign %", figures.plain("foreign_share", 100), 1),
    Column("RSS MiB", figures.plain("resident_bytes", 2**-20), 0),
)
_COMMON = (*_LATENCY, *_CORE)
_AT_RATE = (Column("CPU us a request", figures.CPU_REQUEST), *_COMMON)
_BODIES = (
    Column("KiB a request", figures.GROWN_KIB, 0),
    Column("RSS MiB", figures.plain("resident_bytes", 2**-20), 0),
)
TABLES: dict[str, tuple[str, tuple[Column, ...]]] = {
    "rate": ("Fixed rate: 1 kB prompt, short answer, open loop", _AT_RATE),
    "low-rate": ("Low rate: the same requests, fewer of them", _AT_RATE),
    "peak": (
        "Peak: 1 kB prompt, short answer, 32 connections as fast as they are answered",
        (
            Column("requests/s", figures.PEAK_REQUESTS, 0),
            Column("CPU us a request", figures.CPU_REQUEST),
            *_COMMON,
        ),
    ),
    "paced": (
        "Paced streams: 64 streams of 256 tokens 10 ms apart",
        (Column("CPU us a chunk", figures.CPU_CHUNK), *_COMMON),
    ),
    "stream": (
        "Saturated streams: 32 streams of 256 tokens as fast as they go",
        (
            Column("streams/s", figures.PEAK_STREAMS, 0),
            Column("CPU us a stream", figures.CPU_STREAM, 0),
            *_COMMON,
        ),
    ),
    "half": (
        "Latency at half of capacity: gateway and sidecar in a row on one core, open loop",
        (*_LATENCY, Column("CPU us a request", figures.CPU_REQUEST), *_CORE),
    ),
    "idle": (
        "Idle streams: 2,000 held open, their first event passed on",
        (Column("KiB a stream", figures.GROWN_KIB), Column("RSS MiB", figures.plain("resident_bytes", 2**-20), 0)),
    ),
    "bodies": (
        "Large bodies: 64 of 8 MB, all but their last kilobyte sent",
        _BODIES,
    ),
    "late-bodies": (
        "Large bodies that name their model last: 64 of 8 MB, all but their last kilobyte sent",
        _BODIES,
    ),
}


def failures(runs: Sequence[Run], rates: Mapping[str, float]) -> list[str]:
    """What makes the results worthless: a wrong answer, or a rate (by work) that was not the one offered."""
    wrong = [
        f"{run['candidate']}, {run['work']}: {run['errors']} of {run['requests']} answers were wrong"
        for run in runs
        if run["errors"] or not run["requests"]
    ]
    late = [
        f"{run['candidate']}, {run['work']}: {run['requests'] / run['seconds']:.0f}/s of {rate}/s were answered"
        for run in runs
        if (rate := rates.get(run["work"])) and run["requests"] / run["seconds"] < KEPT_RATE * rate
    ]
    return wrong + late


def disturbed(runs: Iterable[Run]) -> list[str]:
    """Runs that somebody else's work on the proxy's core may have changed."""
    return [
        f"{run['candidate']}, {run['work']}: {run['foreign_share']:.0%} of the proxy's core was in other hands"
        for run in runs
        if run["candidate"] != "direct" and run["foreign_share"] > CALM_SHARE
    ]


def verdicts(results: Mapping[str, Any]) -> list[str]:
    """Each target with what was measured, those that were missed in capitals."""
    return [
        f"{target.name}: {measured:,.{target.digits}f} {target.unit}, target at "
        f"{'least' if target.least else 'most'} {limit:,.{target.digits}f} ({target.words}): "
        f"{'held' if held else 'MISSED'}"
        for target, measured, limit, held in targets.judge(results)
    ]


def markdown(results: Mapping[str, Any]) -> str:
    """All tables, each cell the median with its range."""
    runs, labels = results["runs"], results["labels"]
    parts = []
    for work, (title, columns) in TABLES.items():
        present = [name for name in labels if any(r["candidate"] == name and r["work"] == work for r in runs)]
        if not present:
            continue
        suffix = f" at {results['rates'][work]}/s" if work in results["rates"] else ""
        rows = [
            [labels[name], *(cell(figures.values(runs, work, name, c.value), c.digits) for c in columns)]
            for name in present
        ]
        parts.append(f"### {title}{suffix}\n\n" + table(["", *(c.title for c in columns)], rows))
    return "\n".join([*parts, *_pods(results.get("pods", {}))])


def _pods(pods: Mapping[str, Any]) -> list[str]:
    if not pods:
        return []
    picks = [
        [policy, *(cell([one[key] for one in found], 1) for key in ("median", "p99"))]
        for policy, found in pods["pick_us"].items()
    ]
    idle = [[role, cell([100 * share for share in found], 2)] for role, found in pods["idle_core_share"].items()]
    return [
        f"### A pick among {pods['pods']} pods, with its reservation, in the process\n\n"
        + table(["policy", "median us", "p99 us"], picks),
        f"### Nobody asks: the gateway hears {pods['pods']} load streams, the sidecar watches its engine\n\n"
        + table(["", "% of a core"], idle),
    ]


def page(results: Mapping[str, Any]) -> str:
    """The part of docs/benchmarks.md that tells of cost."""
    facts, versions = results["machine"], results["versions"]
    wrong = failures(results["runs"], results["rates"])
    found = "".join(f"- {line}\n" for line in wrong or verdicts(results))
    spoilt = disturbed(results["runs"])
    counts = {line: spoilt.count(line) for line in spoilt}
    marks = "".join(f"- {line}\n" for line in sorted(counts)) or "- none\n"
    return (
        "Each candidate runs alone on one core, with its defaults. The engines are stubs that cost next to\n"
        "nothing (tests/bench/native/stub.c) and share the other core with the load, so the figures tell what a\n"
        "proxy adds, not how fast a model is. Candidates take turns within a round, and each round begins with\n"
        "another one. CPU time is user and system time of the proxy's process tree. Cells are the median of the\n"
        "rounds with the lowest and the highest. A peak is shown only where the proxy had at least\n"
        f"{FULL_CORE:.0%} of its core; otherwise the load was the limit. A run with one wrong answer, or that\n"
        "could not keep the rate, voids the whole. Fixed rates are kept by vegeta; latency at half of capacity\n"
        "is measured from the moment a request was due. Memory is the growth of resident memory between a look\n"
        "before and a look while all are held, in a process that has served nothing else.\n\n"
        f"`{results.get('command', 'make bench-router')}`, {results['rounds']} rounds, {results['started']}."
        f" {facts['cpu']}, {facts['cores']} cores, Linux {facts['kernel']}, Python {facts['python']}; "
        + ", ".join(f"{name} {number}" for name, number in versions.items())
        + ".\n\n### Targets\n\n"
        + found
        + "\n"
        + markdown(results)
        + "\nRuns in which more than 5% of the proxy's core was in other hands:\n\n"
        + marks
    )


def cell(found: Sequence[float], digits: int) -> str:
    """Median with the range."""
    if not found:
        return "-"
    low, middle, high = (f"{value:,.{digits}f}" for value in (min(found), median(found), max(found)))
    return middle if low == high else f"{middle} ({low}-{high})"


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table in markdown."""
    widths = [max(len(row[i]) for row in (head, *rows)) for i in range(len(head))]
    lines = [[text.ljust(width) for text, width in zip(row, widths, strict=True)] for row in (head, *rows)]
    lines.insert(1, ["-" * width for width in widths])
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)
