"""Tables and verdicts of workflows: what their engine costs, how it grows, and policies live and simulated."""

from collections.abc import Mapping
from typing import Any

Figures = Mapping[str, float]
# What an allocator moves about within an hour is no growth of what is kept.
_NO_GROWTH = 0.05


def verdicts(found: Mapping[str, Figures]) -> list[str]:
    """Each target, held or missed."""
    lines = []
    for store, figures in found.items():
        for what, value, most in (
            ("ms of CPU a step", figures["cpu_ms_a_step"], 2.0),
            ("ms added a step at p99 beyond the store's commits", figures["beyond_commits_ms_p99"], 10.0),
            ("MB with 1,000 runs at once", figures["peak_mb"], 300.0),
        ):
            held = "held" if value <= most else "MISSED"
            lines.append(f"{store}: {value:.2f} {what}, at most {most:g}: {held}")
    return lines


def cost(found: Mapping[str, Figures]) -> str:
    """The section of docs/benchmarks.md."""
    lines = [
        "`make bench-workflow`; runs of eight steps, 200 steps a second, answers after 50 ms by nobody. Added to "
        "a step: from the answer that it waited for to its own call.",
        "",
        *(f"- {line}" for line in verdicts(found)),
        "",
        *_table(found),
    ]
    return "\n".join(lines) + "\n"


def growth(found: Mapping[str, Figures]) -> str:
    """The section of docs/benchmarks.md."""
    lines = [
        "`make soak`; a thousand runs of eight steps at once, all the time; memory from a quarter of it on, and "
        f"no growth is less than {_NO_GROWTH:.0%} of it an hour.",
        "",
        *(f"- {line}" for line in growth_verdicts(found)),
        "",
        *_table(found),
    ]
    return "\n".join(lines) + "\n"


def growth_verdicts(found: Mapping[str, Figures]) -> list[str]:
    """Whether memory stays where it is, for each store."""
    lines = []
    for store, figures in found.items():
        for what, value, most in (
            ("MB at the end", figures["last_mb"], 300.0),
            ("MB more an hour", figures["mb_a_minute"] * 60, _NO_GROWTH * figures["first_mb"]),
        ):
            lines.append(
                f"{store}: {value:.2f} {what}, at most {most:.1f}: {'held' if value <= most else 'MISSED'}"
            )
    return lines


def _table(found: Mapping[str, Figures]) -> list[str]:
    names = list(next(iter(found.values())))
    rows = (
        f"| {name.replace('_', ' ')} | {' | '.join(f'{one[name]:.2f}' for one in found.values())} |"
        for name in names
    )
    return [f"| figure | {' | '.join(found)} |", f"|---|{'---|' * len(found)}", *rows]


def live(found: Mapping[str, Any]) -> str:
    """The section of docs/benchmarks.md."""
    lines = [
        f"`make bench-full`; {found['runs']} runs at {found['rate']:g} a second on two engines: mean / p95 / "
        "longest seconds of a run, runs later than their deadline, mean quality of answers.",
        "",
        *(f"- {line}" for line in live_verdicts(found)),
        "",
        "| policy | live | simulated |",
        "|---|---|---|",
    ]
    rows = found["live"]
    lines += [f"| {policy} | {told(rows[policy])} | {told(found['simulated'][policy])} |" for policy in rows]
    return "\n".join(lines) + "\n"


def live_verdicts(found: Mapping[str, Any]) -> list[str]:
    """Whether the policies stand in the same order live as simulated."""
    lines = []
    for name in ("mean", "late"):
        orders = [
            sorted(
                found[where], key=lambda policy: (found[where][policy][name], list(found["live"]).index(policy))
            )
            for where in ("live", "simulated")
        ]
        held = "held" if orders[0] == orders[1] else f"MISSED, live {' < '.join(orders[0])}"
        lines.append(f"order of policies by {name}, live as simulated ({' < '.join(orders[1])}): {held}")
    return lines


def told(row: Figures) -> str:
    """One policy's figures."""
    seconds = f"{row['mean']:.1f} / {row['p95']:.0f} / {row['worst']:.0f}"
    return f"{seconds}, {row['late']:.0%}, {row['quality']:.3f}"
