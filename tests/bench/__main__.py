"""`make bench-router`: the router beside its peers on this machine; tables and JSON under build/bench."""

import argparse
import json
import os
import resource
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

from . import machine, many_pods, report
from .candidates import CANDIDATES, Candidate
from .load import Work, half, works
from .processes import end_as_asked
from .programs import BenchError, Programs, install
from .rounds import Setting, measure, prove

RESULTS = Path("build/bench")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="bench", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="one short round: does everything work?")
    parser.add_argument("--full", action="store_true", help="also the works that take more time, and longer runs")
    parser.add_argument("--rate", type=int, default=3000, help="requests a second of the fixed rate")
    parser.add_argument("--low-rate", type=int, default=1000, help="and of a second, low one")
    parser.add_argument("--only", default="", help="candidates, comma between them")
    parser.add_argument(
        "--work",
        default="",
        help="works, comma between them: rate, low-rate, peak, paced, stream, half, idle, bodies, late-bodies, "
        "pods",
    )
    parser.add_argument("--proxy-core", type=int, default=0)
    parser.add_argument("--load-core", type=int, default=1)
    return parser.parse_args()


def main() -> int:
    """Exit status: 0 measured, 1 the figures mean nothing, 2 it cannot run."""
    arguments = _arguments()
    end_as_asked()
    try:
        results = _measure_all(arguments)
    except BenchError as error:
        print(f"bench: {error}", file=sys.stderr)
        return 2
    return _tell(results)


def _measure_all(arguments: argparse.Namespace) -> dict[str, Any]:
    _check_cores(arguments.proxy_core, arguments.load_core)
    _allow_many_sockets()
    chosen = [c for c in CANDIDATES if not arguments.only or c.name in arguments.only.split(",")]
    programs = install()
    os.sched_setaffinity(0, {arguments.load_core})
    planned = _planned(arguments)
    rounds = 1 if arguments.quick else arguments.rounds
    long = 2 if arguments.full else 1
    setting = Setting(
        proxy_core=arguments.proxy_core,
        load_core=arguments.load_core,
        rate_seconds=2 if arguments.quick else 4 * long,
        closed_seconds=2 if arguments.quick else 3 * long,
        patience=machine.Patience(0 if arguments.quick else 60 * long),
    )
    prove(programs, setting)
    wanted = arguments.work.split(",") if arguments.work else []
    if not wanted or "half" in wanted:
        planned.append(half(_half_of_capacity(programs, setting)))
    results: dict[str, Any] = {
        "started": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
        "command": "make bench-full" if arguments.full else "make bench-router",
        "rounds": rounds,
        "rates": {work.name: work.rate_per_second for work in planned if work.rate_per_second},
        "machine": machine.facts(),
        "versions": programs.versions,
        "labels": {candidate.name: candidate.label for candidate in chosen},
        "runs": [],
    }
    for number in range(rounds):
        for candidate in _turn(chosen, number):
            fitting = [work for work in planned if work.name in candidate.works]
            for run in measure(candidate, programs, fitting, setting):
                results["runs"].append(run | {"round": number + 1})
                print(f"round {number + 1} of {rounds}: {_line(run)}", flush=True)
    if not wanted or "pods" in wanted:
        results["pods"] = many_pods.measure(programs, setting, rounds)
    return results


def _check_cores(proxy: int, load: int) -> None:
    cores = os.sched_getaffinity(0)
    if not {proxy, load} <= cores or proxy == load:
        raise BenchError(
            f"two cores are needed, one for the proxy and one for the load; this process may use {cores}"
        )


def _planned(arguments: argparse.Namespace) -> list[Work]:
    wanted = arguments.work.split(",") if arguments.work else []
    every = works(arguments.rate, arguments.low_rate)
    if wanted:
        return [work for work in every if work.name in wanted]
    return [work for work in every if arguments.full or work.name not in ("low-rate", "late-bodies")]


def _half_of_capacity(programs: Programs, setting: Setting) -> int:
    """Half of what gateway and sidecar together answer on one core, requests a second, rounded down to 50."""
    chain = next(candidate for candidate in CANDIDATES if candidate.name == "chain")
    peak = next(work for work in works(1, 1) if work.name == "peak")
    runs = [run for _ in range(3) for run in measure(chain, programs, [peak], setting)]
    return max(50, int(median(run["requests"] / run["seconds"] for run in runs) / 2) // 50 * 50)


def _allow_many_sockets() -> None:
    """Inherited by the candidates: with 1,024 files none of them could hold the idle streams."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 65_536)), hard))


def _turn(candidates: Sequence[Candidate], number: int) -> list[Candidate]:
    """Each round begins with another candidate, so that a drift of the machine hits none alone."""
    start = number % len(candidates) if candidates else 0
    return [*candidates[start:], *candidates[:start]]


def _line(run: dict[str, Any]) -> str:
    count = run["events"] or run["requests"]
    cost = f"{run['cpu_seconds'] * 1e6 / count:.1f} us of CPU each" if count else "nothing"
    return (
        f"{run['candidate']} {run['work']}: {count / run['seconds']:,.0f}/s, {cost}, errors {run['errors']}, "
        f"core {run['core_share']:.0%}, foreign {run['foreign_share']:.0%}, "
        f"grown {run['grown_bytes'] / 2**20:.1f} MiB"
    )


def _tell(results: dict[str, Any]) -> int:
    RESULTS.mkdir(parents=True, exist_ok=True)
    text = json.dumps(results, indent=1)
    stamp = results["started"].replace(":", "").replace(" ", "-").removesuffix("-UTC")
    for name in (f"router-{stamp}.json", "router.json"):
        (RESULTS / name).write_text(text)
    print(f"\n{report.markdown(results)}")
    wrong = report.failures(results["runs"], results["rates"])
    for line in (*report.disturbed(results["runs"]), *(wrong or report.verdicts(results))):
        print(line)
    print(f"written: {RESULTS / 'router.json'}")
    if wrong:
        print("bench: these figures mean nothing, see above: run it on a calm machine", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
