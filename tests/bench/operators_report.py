"""What the operator must hold with hundreds of pools, and the table of a run. Pure."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from .report import table

Results = Mapping[str, Any]
# How each candidate calls itself to the API server: its own client, the official one, kopf.
AGENTS: Final[Mapping[str, Sequence[str]]] = {
    "tidepool": ("tidepool-operator", "kopf/"),
    "plain": ("OpenAPI-Generator", "kopf/"),
}
LABELS: Final = {"tidepool": "Tidepool's operator", "plain": "kopf, a handler a field"}
# What may be written at rest: the Lease, and live figures of pools that are scaled, once a minute each.
_LEASE: Final = "patch leases"
_FIGURES: Final = "patch modelpools/status"


@dataclass(frozen=True)
class Target:
    """A figure of one candidate, and the most that it may be; `part` of the figures must be there to tell it."""

    name: str
    unit: str
    measured: Callable[[Mapping[str, Any]], float]
    limit: float
    digits: int = 1
    part: str = "idle"


def stray(idle: Mapping[str, Any], scaled: int) -> int:
    """Writes at rest beyond those that are allowed."""
    writes, minutes = idle["writes"], idle["seconds"] / 60.0
    # A stretch may begin just before one write of a pool and end just after another.
    figures = max(0, writes.get(_FIGURES, 0) - int(scaled * (minutes + 1)))
    return sum(count for what, count in writes.items() if what not in (_LEASE, _FIGURES)) + figures


def quantile(values: Sequence[float], share: float) -> float:
    """The smallest value that at least `share` of all do not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, max(0, -(-int(share * 1000) * len(ordered) // 1000) - 1))]


def targets(scaled: int) -> tuple[Target, ...]:
    """All that must hold."""
    return (
        Target("writes at rest but the Lease and live figures", "", lambda one: stray(one["idle"], scaled), 0, 0),
        Target("CPU at rest", "% of a core", lambda one: 100 * one["idle"]["cpu_share"], 5.0),
        Target("memory at rest", "MB", lambda one: one["idle"]["memory_bytes"] / 1e6, 400.0, 0),
        Target("one change until applied, p99", "s", lambda one: quantile(one["changes_seconds"], 0.99), 1.0, 2),
        Target("100 changes at once, all applied", "s", lambda one: one["burst_seconds"], 15.0),
        Target("restart until converged and idle", "s", lambda one: one["restart_seconds"], 30.0),
        Target("pods touched by a restart", "", lambda one: one["pods_touched"], 0, 0),
    )


_CONSOLE: Final = (
    Target(
        "console that nobody looks at, more than without",
        "% of a core",
        lambda one: 100 * (one["console"]["cpu_share_nobody"] - one["idle"]["cpu_share"]),
        1.0,
        part="console",
    ),
    Target(
        "the page of all pools, of use (worst visit)",
        "s",
        lambda one: max(one["console"]["ready_seconds"]),
        1.0,
        2,
        "console",
    ),
    Target("the page, all that it loads", "kB", lambda one: one["console"]["bytes"] / 1e3, 300.0, 0, "console"),
)


def judge(results: Results) -> Iterator[tuple[Target, float, bool]]:
    """Each target of Tidepool's operator: the figure, and whether it is held."""
    one = results["candidates"].get("tidepool")
    if one is None:
        return
    for target in (*targets(results["scaled"]), *_CONSOLE):
        if target.part in one:
            measured = target.measured(one)
            yield target, measured, measured <= target.limit


def page(results: Results) -> str:
    """Targets, what they were held against, and the other candidates beside them."""
    names = [name for name in LABELS if name in results["candidates"]]
    candidates = [results["candidates"][name] for name in names]
    parts = {part for one in candidates for part in one}
    held = {target.name: is_held for target, _, is_held in judge(results)}
    rows = [
        [
            target.name,
            f"{target.limit:g} {target.unit}".strip(),
            *(f"{target.measured(one):.{target.digits}f}" if target.part in one else "none" for one in candidates),
            {True: "held", False: "MISSED", None: ""}[held.get(target.name)],
        ]
        for target in (*targets(results["scaled"]), *_CONSOLE)
        if target.part in parts
    ]
    rows += [
        [what, "", *(figure(one) if part in one else "none" for one in candidates), ""]
        for part, extras in _EXTRAS.items()
        for what, figure in extras.items()
        if part in parts
    ]
    machine = results["machine"]
    minutes = results["candidates"][names[0]]["idle"]["seconds"] / 60.0
    return (
        f"`make bench-operator`: {results['pools']} pools with {results['pods']:,} pods, all Ready, on a real API "
        f"server with its controllers and scheduler; nodes and kubelets are kwok's, sidecars and Prometheus are "
        f"doubles. {results['scaled']} of the pools are scaled by a Prometheus whose figures move all the time. "
        f"Rest is {minutes:.0f} minutes; writes are counted in the audit log. A change is of a pool's "
        f"queue: Tidepool's has arrived when the status says so and every sidecar of the pool has its settings, "
        f"the other one's when the status says so. The other one is a kopf operator of the usual shape, with the "
        f"official client: it makes the same objects and counts, and does nothing else."
        f"{_CONSOLE_WORDS if 'console' in parts else ''}\n\n"
        f"{machine['cores']} cores of {machine['cpu']}, shared with the API server and all else, load average "
        f"{machine['load_average']:.1f} at the start.\n\n"
        + table(["", "at most", *(LABELS[name] for name in names), ""], rows)
        + "\n"
    )


# By the part of a candidate's figures that they need.
_EXTRAS: Final[Mapping[str, Mapping[str, Callable[[Mapping[str, Any]], str]]]] = {
    "idle": {
        "one change until applied, p50 (s)": lambda one: f"{quantile(one['changes_seconds'], 0.5):.2f}",
        "CPU of a restart (s)": lambda one: f"{one['restart_cpu_seconds']:.1f}",
        "peak memory (MB)": lambda one: f"{one['memory_bytes']['peak'] / 1e6:.0f}",
        "writes at rest": lambda one: _listed(one["idle"]["writes"]),
        "writes of a restart": lambda one: _listed(one["restart_writes"]),
    },
    "console": {
        "CPU with the console: nobody looks, one page is open, it has gone (% of a core)": lambda one: ", ".join(
            f"{100 * one['console'][f'cpu_share_{who}']:.1f}" for who in ("nobody", "one_page", "gone")
        ),
        "the page, of use, median (s)": lambda one: f"{quantile(one['console']['ready_seconds'], 0.5):.2f}",
    },
}
_CONSOLE_WORDS: Final = (
    " After its restart Tidepool's serves its console, which a Chromium on the same machine visits with nothing "
    "kept from visits before."
)


def _listed(writes: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {what}" for what, count in sorted(writes.items())) or "none"
