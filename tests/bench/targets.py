"""What the router must hold beside its peers, as data; `judge` says of each whether a run held it. Pure."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from . import figures

Run = dict[str, Any]
Results = Mapping[str, Any]


@dataclass(frozen=True)
class Target:
    """`measured` at most `limit` (`least`: at least); both None where the run has no such figure."""

    name: str
    unit: str
    words: str
    measured: Callable[[Results], float | None]
    limit: Callable[[Results], float | None]
    least: bool = False
    digits: int = 1


def judge(results: Results) -> Iterator[tuple[Target, float, float, bool]]:
    """Each target that the results can be held against: the measured figure, the limit, whether it is held."""
    for target in TARGETS:
        measured, limit = target.measured(results), target.limit(results)
        if measured is not None and limit is not None:
            yield target, measured, limit, measured >= limit if target.least else measured <= limit


def _middle(candidate: str, work: str, figure: figures.Figure, factor: float = 1.0) -> Callable[..., float | None]:
    def value(results: Results) -> float | None:
        found = figures.values(results["runs"], work, candidate, figure)
        return median(found) * factor if found else None

    return value


def _added(figure: figures.Figure) -> Callable[..., float | None]:
    def value(results: Results) -> float | None:
        chain, direct = (_middle(name, "half", figure)(results) for name in ("chain", "direct"))
        return None if chain is None or direct is None else chain - direct

    return value


def _smallest(*values: Callable[..., float | None]) -> Callable[..., float | None]:
    def value(results: Results) -> float | None:
        found = [one for one in (each(results) for each in values) if one is not None]
        return min(found) if len(found) == len(values) else None

    return value


def _fixed(limit: float) -> Callable[..., float | None]:
    return lambda results: limit


def _pods(*path: str) -> Callable[..., float | None]:
    def value(results: Results) -> float | None:
        found: Any = results.get("pods", {})
        for name in path:
            found = found.get(name, {})
        if not found:
            return None
        return median(one["median"] if isinstance(one, dict) else one for one in found)

    return value


def _beside_peers(role: str) -> Sequence[Target]:
    """What holds for the gateway and for the sidecar alike."""
    cpu, chunk, stream = figures.CPU_REQUEST, figures.CPU_CHUNK, figures.CPU_STREAM
    peer = "vllm-router"
    half_of_peer = _smallest(_middle(peer, "rate", cpu, 0.5), _middle("envoy", "rate", cpu))
    return (
        Target(
            f"{role}: CPU a request",
            "us",
            "half of vllm-router's and below Envoy's",
            _middle(role, "rate", cpu),
            half_of_peer,
        ),
        Target(
            f"{role}: peak of one core",
            "requests/s",
            "twice vllm-router's",
            _middle(role, "peak", figures.PEAK_REQUESTS),
            _middle(peer, "peak", figures.PEAK_REQUESTS, 2.0),
            least=True,
            digits=0,
        ),
        Target(
            f"{role}: CPU a paced chunk",
            "us",
            "vllm-router's",
            _middle(role, "paced", chunk),
            _middle(peer, "paced", chunk),
        ),
        Target(
            f"{role}: CPU a saturated stream",
            "us",
            "0.85 of vllm-router's",
            _middle(role, "stream", stream),
            _middle(peer, "stream", stream, 0.85),
            digits=0,
        ),
        Target(
            f"{role}: memory an idle stream",
            "KiB",
            "32 KiB",
            _middle(role, "idle", figures.GROWN_KIB),
            _fixed(32.0),
        ),
        Target(
            f"{role}: memory an 8 MB body",
            "KiB",
            "1 MiB, replay included",
            _middle(role, "bodies", figures.GROWN_KIB),
            _fixed(1024.0),
            digits=0,
        ),
        Target(
            f"{role}: idle, 100 pods",
            "of a core",
            "a tenth",
            _pods("idle_core_share", role),
            _fixed(0.1),
            digits=3,
        ),
    )


TARGETS: tuple[Target, ...] = (
    *_beside_peers("gateway"),
    *_beside_peers("sidecar"),
    Target(
        "gateway and sidecar: latency added, p50", "ms", "0.5 ms", _added(figures.P50_MS), _fixed(0.5), digits=2
    ),
    Target("gateway and sidecar: latency added, p99", "ms", "3 ms", _added(figures.P99_MS), _fixed(3.0), digits=2),
    Target("a pick among 100 pods", "us", "0.2 ms", _pods("pick_us", "Predicted"), _fixed(200.0)),
)
