"""Figures of a run. Pure. A figure is None where the run has none that counts."""

from collections.abc import Callable, Sequence
from typing import Any

FULL_CORE = 0.95  # share of its core that a proxy has when nothing else can be the limit
EVENTS = 258  # of one stream: the role, 256 tokens, [DONE]

Run = dict[str, Any]
Figure = Callable[[Run], float | None]


def _cpu(per: str, scale: float) -> Figure:
    def value(run: Run) -> float | None:
        return run["cpu_seconds"] * scale / run[per] if run["cpu_seconds"] and run[per] else None

    return value


def plain(name: str, scale: float = 1.0) -> Figure:
    """A field of the run as it is."""
    return lambda run: run[name] * scale


def _peak(per: str, scale: float = 1.0) -> Figure:
    """A rate, of a proxy only where its core was the full one."""

    def value(run: Run) -> float | None:
        counts = run["candidate"] == "direct" or run["core_share"] >= FULL_CORE
        return run[per] * scale / run["seconds"] if counts else None

    return value


def _grown(run: Run) -> float | None:
    held = run["requests"] - run["errors"]
    return run["grown_bytes"] / held / 1024 if held else None


CPU_REQUEST = _cpu("requests", 1e6)
CPU_CHUNK = _cpu("events", 1e6)
CPU_STREAM = _cpu("events", 1e6 * EVENTS)
PEAK_REQUESTS = _peak("requests")
PEAK_STREAMS = _peak("events", 1 / EVENTS)
GROWN_KIB = _grown
P50_MS = plain("p50_ms")
P99_MS = plain("p99_ms")


def values(runs: Sequence[Run], work: str, candidate: str, figure: Figure) -> list[float]:
    """A figure of every run of a candidate at a work, those without it left out."""
    found = (figure(run) for run in runs if run["work"] == work and run["candidate"] == candidate)
    return [value for value in found if value is not None]
