"""Tables and verdicts of live quality. Pure."""

from collections.abc import Mapping, Sequence
from itertools import combinations
from statistics import median
from typing import Any

from .report import cell, table

Results = Mapping[str, Any]
OWN = "tidepool"
# What the simulator calls the same policies; its load and part of the knee that are nearest to the live ones.
# Envoy's least_request looks at two engines unless told otherwise (choice_count): it is the power of two as well,
# and vllm-router's stands for both: the order of two that are the same would be chance.
SIMULATED = {
    "round robin": "envoy-rr",
    "power of two": "vllm-p2c",
    "cache aware": "vllm-ca",
    "Predicted": "tidepool",
    "LeastLoad": "tidepool-ll",
    "PrefixHash": "tidepool-ph",
    "RoundRobin": "tidepool-rr",
}
_LOAD, _PART = "mooncake", "1.0"

_COLUMNS: Sequence[tuple[str, tuple[str, str], int]] = (
    ("TTFT p50 s", ("ttft", "p50"), 3),
    ("TTFT p90 s", ("ttft", "p90"), 2),
    ("TTFT p99 s", ("ttft", "p99"), 2),
    ("per token p50 ms", ("tpot", "p50"), 1),
    ("end to end p90 s", ("e2e", "p90"), 2),
)


def markdown(results: Results) -> str:
    """One line a router: medians over the rounds with their range."""
    rows = []
    for name, label in results["labels"].items():
        runs = _runs(results, name)
        figures = [cell([_figure(run, path) for run in runs], digits) for _, path, digits in _COLUMNS]
        rows.append(
            [
                label,
                *figures,
                cell([100 * run["hit_share"] for run in runs], 1),
                cell([run["preemptions"] for run in runs], 0),
                f"{sum(run['right'] for run in runs)} of {sum(run['sent'] for run in runs)}",
                cell([run["router_cores"] for run in runs], 2),
            ]
        )
    head = ["", *(title for title, _, _ in _COLUMNS), "cache hits %", "preemptions", "right", "router cores"]
    return table(head, rows)


def verdicts(results: Results) -> list[str]:
    """The product against the best of the others, and answers that were wrong."""
    lines = []
    peers = [name for name in results["labels"] if not name.startswith(OWN)]
    if OWN in results["labels"] and peers:
        for what, path in (("TTFT p90", ("ttft", "p90")), ("end to end p90", ("e2e", "p90"))):
            own = _middle(results, OWN, path)
            best = min(peers, key=lambda name: _middle(results, name, path))
            other = _middle(results, best, path)
            held = "held" if own <= other else "MISSED"
            won = sum(_wins(results, number, peers, path) for number in range(1, results["rounds"] + 1))
            lines.append(
                f"{what}: {own:.2f} s, the best of the others {other:.2f} s ({best}): {held}; "
                f"best in {won} of {results['rounds']} rounds"
            )
    wrong = [f"{run['candidate']}: {run['wrong']}" for run in results["runs"] if run["wrong"]]
    return [*lines, *(f"answers that were wrong: {line}" for line in wrong)]


def orders(results: Results, simulated: Results) -> list[str]:
    """Policies by their median p90 TTFT, best first: live, and in the simulator's results where there are any.

    Policies that both have measured; the last line says how many pairs of them stand the same way round.
    """
    path = ("ttft", "p90")
    scores = simulated.get("latency", {}).get(_LOAD, {}).get(_PART, {})
    there = {
        SIMULATED[name]: median(score["ttft_p90"] for score in found)
        for name, found in scores.items()
        if name in SIMULATED and SIMULATED[name] in results["labels"]
    }
    here = {
        name: _middle(results, name, path)
        for name in results["labels"]
        if name in there or (not there and name in SIMULATED.values())
    }
    lines = [f"live, by TTFT p90, best first: {_ranked(here)}"]
    if there:
        pairs = list(combinations(here, 2))
        same = sum((here[a] < here[b]) == (there[a] < there[b]) for a, b in pairs)
        lines.append(f"in the simulator, by TTFT p90, best first: {_ranked(there)}")
        lines.append(f"{same} of {len(pairs)} pairs of policies stand in the same order in both")
    return lines


def _ranked(figures: Mapping[str, float]) -> str:
    ranked = sorted(figures.items(), key=lambda item: item[1])
    return ", ".join(f"{name} ({seconds:.2f} s)" for name, seconds in ranked)


def page(results: Results, simulated: Results) -> str:
    """The part of docs/benchmarks.md that tells of live quality."""
    load, facts = results["load"], results["machine"]
    return (
        "Six simulated engines behind real sockets (tests/bench/native/go/engine: continuous batching, chunked\n"
        "prefill, prefix cache, preemption), each with 8,000 uncached prompt tokens a second, 12 ms and 0.15 ms\n"
        "a sequence for a step, 32 sequences, a million KV tokens. The Mooncake conversation trace in open loop;\n"
        "lengths divided by 8, times per token multiplied by 8, all of it ten times faster than modelled. Times\n"
        "are wall seconds. Engines start cold in each run; the first seconds do not count. Each round has its\n"
        "stretch of the trace and its seed, the same for all routers, and begins with another router.\n\n"
        f"`python -m bench.quality`, part of `make bench-full`: {results['rounds']} rounds of"
        f" {load['seconds']:.0f} s, of which {load['warmup']:.0f} s are warm-up, {load['speedup']} times the"
        f" trace's speed; {results['started']}, {facts['cpu']}, {facts['cores']} cores; "
        + ", ".join(f"{name} {number}" for name, number in results["versions"].items())
        + ".\n\n"
        + "".join(f"- {line}\n" for line in (*verdicts(results), *orders(results, simulated)))
        + "\n"
        + markdown(results)
    )


def _wins(results: Results, number: int, peers: Sequence[str], path: tuple[str, str]) -> bool:
    """Whether no peer was better in a round; rounds differ in their stretch of the trace."""
    found = {run["candidate"]: _figure(run, path) for run in results["runs"] if run["round"] == number}
    return all(found[OWN] <= found[name] for name in peers)


def _runs(results: Results, name: str) -> list[Mapping[str, Any]]:
    return [run for run in results["runs"] if run["candidate"] == name]


def _figure(run: Mapping[str, Any], path: tuple[str, str]) -> float:
    scale = 1e3 if path[0] == "tpot" else 1.0
    return float(run[path[0]].get(path[1], float("inf"))) * scale


def _middle(results: Results, name: str, path: tuple[str, str]) -> float:
    return median(_figure(run, path) for run in _runs(results, name))
