"""Tables from the results: pure, so that a page can be written again from the JSON of any run."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

PEER = "vllm-router"
FULL_CORE = 0.95  # share of its core that a proxy has when nothing else can be the limit
KEPT_RATE = 0.98  # share of the offered rate below which requests piled up
CALM_SHARE = 0.05  # of the proxy's core in other hands: above it a run is marked as disturbed

Run = dict[str, Any]


@dataclass(frozen=True)
class Column:
    """A figure of a run; `value` gives None where the run has none that counts."""

    title: str
    value: Callable[[Run], float | None]
    digits: int = 1


def _cpu(per: str, scale: float) -> Callable[[Run], float | None]:
    def value(run: Run) -> float | None:
        return run["cpu_seconds"] * scale / run[per] if run["cpu_seconds"] and run[per] else None

    return value


def _plain(name: str, scale: float = 1.0) -> Callable[[Run], float | None]:
    return lambda run: run[name] * scale


def _peak(per: str, scale: float = 1.0) -> Callable[[Run], float | None]:
    """A rate, of a proxy only where its core was the full one."""

    def value(run: Run) -> float | None:
        counts = run["candidate"] == "direct" or run["core_share"] >= FULL_CORE
        return run[per] * scale / run["seconds"] if counts else None

    return value


_COMMON = (
    Column("p50 ms", _plain("p50_ms"), 2),
    Column("p99 ms", _plain("p99_ms"), 2),
    Column("proxy core %", _plain("core_share", 100), 0),
    Column("foreign %", _plain("foreign_share", 100), 1),
    Column("RSS MiB", _plain("resident_bytes", 2**-20), 0),
)
_EVENTS = 258  # of one stream: the role, 256 tokens, [DONE]
_AT_RATE = (Column("CPU us a request", _cpu("requests", 1e6)), *_COMMON)
TABLES: dict[str, tuple[str, tuple[Column, ...]]] = {
    "rate": ("Fixed rate: 1 kB prompt, short answer, open loop", _AT_RATE),
    "low-rate": ("Low rate: the same requests, fewer of them", _AT_RATE),
    "peak": (
        "Peak: 1 kB prompt, short answer, 32 connections as fast as they are answered",
        (Column("requests/s", _peak("requests"), 0), Column("CPU us a request", _cpu("requests", 1e6)), *_COMMON),
    ),
    "paced": (
        "Paced streams: 64 streams of 256 tokens 10 ms apart",
        (Column("CPU us a chunk", _cpu("events", 1e6)), *_COMMON),
    ),
    "stream": (
        "Saturated streams: 32 streams of 256 tokens as fast as they go",
        (
            Column("streams/s", _peak("events", 1 / _EVENTS), 0),
            Column("CPU us a stream", _cpu("events", 1e6 * _EVENTS), 0),
            *_COMMON,
        ),
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


def verdicts(runs: Sequence[Run]) -> list[str]:
    """The product beside the peer at the fixed rates; the first one is what is promised."""
    return [line for work in ("rate", "low-rate") for line in _verdicts(runs, work)]


def _verdicts(runs: Sequence[Run], work: str) -> Iterator[str]:
    middle = {name: _middle(runs, work, name, _AT_RATE[0]) for name in _names(runs)}
    peer = middle.pop(PEER, None)
    for name, own in middle.items():
        if own is not None and peer is not None:
            judged = "no higher" if own <= peer else "HIGHER"
            shown = f"{own:.1f} us of CPU a request, {own / peer:.2f} of {PEER}'s {peer:.1f} us ({judged})"
            yield f"{name}, {work}: {shown}"


def markdown(results: dict[str, Any]) -> str:
    """All tables, each cell the median with its range."""
    runs, labels = results["runs"], results["labels"]
    parts = []
    for work, (title, columns) in TABLES.items():
        present = [name for name in labels if any(r["candidate"] == name and r["work"] == work for r in runs)]
        if not present:
            continue
        suffix = f" at {results['rates'][work]}/s" if work in results["rates"] else ""
        rows = [
            [labels[name], *(_cell(_values(runs, work, name, c), c.digits) for c in columns)] for name in present
        ]
        parts.append(f"### {title}{suffix}\n\n" + _table(["", *(c.title for c in columns)], rows))
    return "\n".join(parts)


def page(results: dict[str, Any]) -> str:
    """docs/benchmarks.md."""
    facts, versions = results["machine"], results["versions"]
    wrong = failures(results["runs"], results["rates"])
    found = "".join(f"- {line}\n" for line in wrong or verdicts(results["runs"]))
    marks = "".join(f"- {line}\n" for line in disturbed(results["runs"])) or "- none\n"
    return (
        "# Benchmarks\n\n"
        "`make bench` measures the router beside vllm-router on the machine that it runs on and writes the\n"
        "figures to build/bench; `make bench PAGE=build/bench/latest.json` writes this page from them.\n\n"
        "Each candidate runs alone on one core, with its defaults. The engines are stubs that cost next to\n"
        "nothing (tests/bench/native/stub.c) and share the other core with the load, so the figures tell what a\n"
        "proxy adds, not how fast a model is. Candidates take turns within a round. CPU time is user and system\n"
        "time of the proxy's process tree. Cells are the median of the rounds with the lowest and the highest. A\n"
        f"peak is shown only where the proxy had at least {FULL_CORE:.0%} of its core; otherwise the load was\n"
        "the limit. A run with one wrong answer, or that could not keep the rate, voids the whole.\n\n"
        f"{results['rounds']} rounds, {results['started']}. {facts['cpu']}, {facts['cores']} cores, Linux"
        f" {facts['kernel']}, Python {facts['python']}; "
        + ", ".join(f"{name} {number}" for name, number in versions.items())
        + ".\n\n"
        + found
        + "\n"
        + markdown(results)
        + "\nRuns in which more than 5% of the proxy's core was in other hands:\n\n"
        + marks
    )


def _names(runs: Sequence[Run]) -> list[str]:
    return list(dict.fromkeys(run["candidate"] for run in runs))


def _values(runs: Sequence[Run], work: str, name: str, column: Column) -> list[float]:
    found = (column.value(run) for run in runs if run["work"] == work and run["candidate"] == name)
    return [value for value in found if value is not None]


def _middle(runs: Sequence[Run], work: str, name: str, column: Column) -> float | None:
    values = _values(runs, work, name, column)
    return median(values) if values else None


def _cell(values: Sequence[float], digits: int) -> str:
    if not values:
        return "-"
    low, middle, high = (f"{value:,.{digits}f}" for value in (min(values), median(values), max(values)))
    return middle if low == high else f"{middle} ({low}-{high})"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    widths = [max(len(row[i]) for row in (head, *rows)) for i in range(len(head))]
    lines = [[cell.ljust(width) for cell, width in zip(row, widths, strict=True)] for row in (head, *rows)]
    lines.insert(1, ["-" * width for width in widths])
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)
