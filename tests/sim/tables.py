"""The quality tables: what is run for each, and what they say."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from multiprocessing import get_context
from typing import Any, Final

from . import search
from .candidates import OURS
from .faults import FAULTS
from .runs import Run, do
from .score import Estimate, Score, estimate
from .workload import SHARING, TEST_SEEDS

TRAINING_SEEDS: Final = [1, 2, 3]
GATEWAYS: Final = 2
# Of the knee. Beyond it queues grow as long as the load lasts.
RATES: Final = (0.8, 1.0)
_NOT_RUN: Final = "-"


@dataclass(slots=True)
class Tables:
    """All figures, as they go into the JSON. Keys of inner maps are candidates, values one figure a seed."""

    seeds: list[int]
    knees: dict[str, float] = field(default_factory=dict)
    # load -> part of the knee -> candidate -> scores
    latency: dict[str, dict[float, dict[str, list[Score]]]] = field(default_factory=dict)
    throughput: dict[str, dict[str, list[float]]] = field(default_factory=dict)
    gateways: dict[str, dict[str, list[Score]]] = field(default_factory=dict)
    faults: dict[str, dict[str, dict[str, list[Score]]]] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "seeds": self.seeds,
            "knees": self.knees,
            "latency": _plain(self.latency),
            "throughput": self.throughput,
            "gateways": _plain(self.gateways),
            "faults": _plain(self.faults),
        }


def _plain(value: Any) -> Any:
    if isinstance(value, Score):
        return value.as_dict()
    if isinstance(value, dict):
        return {str(key): _plain(inner) for key, inner in value.items()}
    return [_plain(inner) for inner in value] if isinstance(value, list) else value


class Runner:
    """Does runs, by several processes where there are cores for it."""

    def __init__(self, jobs: int, tell: Callable[[str], None]) -> None:
        self._pool = get_context("fork").Pool(jobs) if jobs > 1 else None
        self.tell = tell

    def map(self, what: Callable[..., Any], items: Iterable[Any]) -> list[Any]:
        """In order."""
        if self._pool is None:
            return [what(item) for item in items]
        return self._pool.map(what, list(items), chunksize=1)

    def close(self) -> None:
        """End the processes."""
        if self._pool is not None:
            self._pool.close()
            self._pool.join()


def test_seeds(count: int) -> list[int]:
    """Seeds that nothing was tuned with."""
    return list(range(TEST_SEEDS, TEST_SEEDS + count))


def find_knees(tables: Tables, runner: Runner, loads: Sequence[str]) -> None:
    """With training seeds, so that the tables' own do not choose their rate."""
    for load, knee in zip(loads, runner.map(_knee, loads), strict=True):
        tables.knees[load] = knee
        runner.tell(f"{load}: round robin's knee at {knee:.2f} requests/s")


def measure_latency(tables: Tables, runner: Runner, names: Sequence[str], rates: Sequence[float]) -> None:
    """All candidates at parts of the knee."""
    for load, knee in tables.knees.items():
        runs = [Run(load, seed, knee * part, name) for part in rates for name in names for seed in tables.seeds]
        scores = iter(runner.map(do, runs))
        tables.latency[load] = {
            part: {name: [next(scores) for _ in tables.seeds] for name in names} for part in rates
        }
        runner.tell(f"{load}: latency of {len(names)} candidates")


def measure_throughput(tables: Tables, runner: Runner, names: Sequence[str]) -> None:
    """The highest rate within the objective, a search a seed."""
    for load, knee in tables.knees.items():
        jobs = [(load, seed, name, knee) for name in names for seed in tables.seeds]
        found = iter(runner.map(_throughput, jobs))
        tables.throughput[load] = {name: [next(found) for _ in tables.seeds] for name in names}
        runner.tell(f"{load}: throughput of {len(names)} candidates")


def measure_gateways(tables: Tables, runner: Runner, names: Sequence[str]) -> None:
    """Two gateways that share nothing, at the knee."""
    for load, knee in tables.knees.items():
        runs = [Run(load, seed, knee, name, gateways=GATEWAYS) for name in names for seed in tables.seeds]
        scores = iter(runner.map(do, runs))
        tables.gateways[load] = {name: [next(scores) for _ in tables.seeds] for name in names}
        runner.tell(f"{load}: two gateways")


def measure_faults(tables: Tables, runner: Runner, names: Sequence[str]) -> None:
    """Each fault, at the knee less what it takes of the capacity."""
    for fault in FAULTS:
        tables.faults[fault.name] = {}
        for load, knee in tables.knees.items():
            rate = knee * fault.rate_factor
            runs = [Run(load, seed, rate, name, fault.name) for name in names for seed in tables.seeds]
            scores = iter(runner.map(do, runs))
            tables.faults[fault.name][load] = {name: [next(scores) for _ in tables.seeds] for name in names}
        runner.tell(f"{fault.name}: done")


def _knee(load: str) -> float:
    return search.knee(load, TRAINING_SEEDS)


def _throughput(job: tuple[str, int, str, float]) -> float:
    return search.throughput(*job)


# Text.


def markdown(tables: Tables) -> str:
    """Every table, with what it is measured against."""
    parts = [_knees_text(tables)]
    for load, rates in tables.latency.items():
        parts += [_latency_text(load, part, scores) for part, scores in rates.items()]
    if tables.throughput:
        parts.append(_throughput_text(tables.throughput))
    if tables.gateways:
        parts.append(_gateways_text(tables))
    parts += [_fault_text(name, loads) for name, loads in tables.faults.items()]
    return "\n\n".join(parts)


def _row(*cells: object) -> str:
    return "| " + " | ".join(str(cell) for cell in cells) + " |"


def _table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    return "\n".join([_row(*head), _row(*["---"] * len(head)), *(_row(*row) for row in rows)])


def _of(scores: Sequence[Score], figure: str, factor: float = 1.0) -> Estimate:
    return estimate([factor * getattr(score, figure) for score in scores])


def _knees_text(tables: Tables) -> str:
    rows = [(load, f"{knee:.2f}") for load, knee in tables.knees.items()]
    return "**Round robin's knee**, requests/s of eight pods\n\n" + _table(("load", "rate"), rows)


def _latency_text(load: str, part: float, scores: dict[str, list[Score]]) -> str:
    base = scores.get(search.ROUND_ROBIN)
    rows = []
    for name, of in scores.items():
        ratio = _ratio([s.ttft_p90 for s in of], [s.ttft_p90 for s in base]) if base else "-"
        rows.append(
            (
                name,
                _of(of, "ttft_p50"),
                _of(of, "ttft_p90"),
                ratio,
                _of(of, "token_seconds", 1000),
                _of(of, "e2e_p90"),
                f"{_of(of, 'hit_rate').median:.3f}",
                f"{_of(of, 'preemptions').median:.0f}",
            )
        )
    head = (
        "candidate",
        "TTFT p50 s",
        "TTFT p90 s",
        "of round robin's",
        "ms a token",
        "E2E p90 s",
        "hits",
        "preempted",
    )
    return f"**{load}** at {part:g} of the knee\n\n" + _table(head, rows)


def _ratio(of: Sequence[float], base: Sequence[float]) -> Estimate:
    return estimate([a / b if b else float("inf") for a, b in zip(of, base, strict=True)])


def _throughput_text(throughput: dict[str, dict[str, list[float]]]) -> str:
    rows = [
        (name, *(estimate(found[name]) if name in found else _NOT_RUN for found in throughput.values()))
        for name in _names(throughput.values())
    ]
    head = ("candidate", *throughput)
    title = "**Throughput**, requests/s within TTFT p90 2 s and 50 ms a token"
    return f"{title}\n\n" + _table(head, rows)


def _gateways_text(tables: Tables) -> str:
    rows = []
    for load, scores in tables.gateways.items():
        for name, two in scores.items():
            one = tables.latency[load][1.0][name]
            rows.append(
                (
                    load,
                    name,
                    _ratio([s.ttft_p90 for s in two], [s.ttft_p90 for s in one]),
                    _ratio([s.e2e_p90 for s in two], [s.e2e_p90 for s in one]),
                )
            )
    title = "**Two gateways that share nothing**, against one, at the knee"
    return f"{title}\n\n" + _table(("load", "candidate", "TTFT p90", "E2E p90"), rows)


def _fault_text(fault: str, loads: dict[str, dict[str, list[Score]]]) -> str:
    rows = [
        (name, *(_fault_cell(of[name]) if name in of else _NOT_RUN for of in loads.values()))
        for name in _names(loads.values())
    ]
    return f"**{fault}**: TTFT p90 s\n\n" + _table(("candidate", *loads), rows)


def _fault_cell(scores: Sequence[Score]) -> str:
    return f"{_of(scores, 'ttft_p90')}{_failed(scores)}"


def _names(parts: Iterable[Iterable[str]]) -> list[str]:
    """Candidates of all parts: where parts were run one by one, not all have the same."""
    return list(dict.fromkeys(name for part in parts for name in part))


def _failed(scores: Sequence[Score]) -> str:
    failed = sum(score.failed + score.refused for score in scores)
    return f", {failed} failed" if failed else ""


def verdicts(tables: Tables) -> list[str]:
    """Each target of the tables: held or missed, and by how much. Medians are compared."""
    return [*_latency_verdicts(tables), *_throughput_verdicts(tables), *_other_verdicts(tables)]


def _say(good: bool, text: str) -> str:
    return f"{'held' if good else 'MISSED'}: {text}"


def _latency_verdicts(tables: Tables) -> Iterable[str]:
    for load, rates in tables.latency.items():
        scores = rates.get(1.0, {})
        if OURS not in scores or search.ROUND_ROBIN not in scores:
            continue
        base = [s.ttft_p90 for s in scores[search.ROUND_ROBIN]]
        ratios = {name: _ratio([s.ttft_p90 for s in of], base).median for name, of in scores.items()}
        limit = 0.45 if load in SHARING else 1.0
        peers = {name: ratio for name, ratio in ratios.items() if not _is_ours(name)}
        best = min(peers, key=peers.__getitem__)
        yield _say(
            ratios[OURS] <= limit,
            f"{load}: TTFT p90 at the knee {ratios[OURS]:.2f} of round robin's, at most {limit:g} asked; "
            f"best peer {best} {peers[best]:.2f}",
        )


def _throughput_verdicts(tables: Tables) -> Iterable[str]:
    gains = []
    for load, found in tables.throughput.items():
        if OURS not in found:
            return
        medians = {name: estimate(rates).median for name, rates in found.items()}
        peers = {name: rate for name, rate in medians.items() if not _is_ours(name)}
        best = max(peers, key=peers.__getitem__)
        gain = medians[OURS] / peers[best] if peers[best] else float("inf")
        gains.append(gain)
        yield _say(gain >= 0.98, f"{load}: throughput {gain:.2f} of the best peer's ({best})")
    if gains:
        yield _say(max(gains) >= 1.2, f"throughput on one load at least 1.2 of the best peer's: {max(gains):.2f}")


def _other_verdicts(tables: Tables) -> Iterable[str]:
    for load, scores in tables.gateways.items():
        if OURS in scores:
            one = tables.latency[load][1.0][OURS]
            ratio = _ratio([s.ttft_p90 for s in scores[OURS]], [s.ttft_p90 for s in one]).median
            yield _say(ratio <= 1.05, f"{load}: two gateways {ratio:.2f} of one, at most 1.05 asked")
    for fault, loads in tables.faults.items():
        for load, faulty in loads.items():
            if OURS not in faulty:
                continue
            medians = {name: _of(of, "ttft_p90").median for name, of in faulty.items()}
            peers = {name: p90 for name, p90 in medians.items() if not _is_ours(name)}
            best = min(peers, key=peers.__getitem__)
            text = f"{fault}, {load}: TTFT p90 {medians[OURS]:.2f} s, best peer {best} {peers[best]:.2f} s"
            yield _say(medians[OURS] <= peers[best], text)


def _is_ours(name: str) -> bool:
    from .candidates import PRODUCT

    return name in PRODUCT
