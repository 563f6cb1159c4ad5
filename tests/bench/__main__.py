"""`make bench`: the router beside its peer on this machine; tables on the screen, JSON under build/bench."""

import argparse
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from . import machine, report
from .candidates import CANDIDATES, Candidate
from .load import works
from .programs import BenchError, install
from .rounds import Setting, measure, prove

RESULTS = Path("build/bench")
CEILINGS = ("peak", "stream")  # what the run without a proxy is for


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="bench", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="one short round: does everything work?")
    parser.add_argument("--rate", type=int, default=3000, help="requests a second of the fixed rate")
    parser.add_argument("--low-rate", type=int, default=1000, help="and of a second, low one")
    parser.add_argument("--only", default="", help="candidates, comma between them")
    parser.add_argument(
        "--work", default="", help="works, comma between them: rate, low-rate, peak, paced, stream"
    )
    parser.add_argument("--proxy-core", type=int, default=0)
    parser.add_argument("--load-core", type=int, default=1)
    parser.add_argument("--page", type=Path, help="write docs/benchmarks.md from this JSON and measure nothing")
    return parser.parse_args()


def main() -> int:
    """Exit status: 0 measured, 1 the figures mean nothing, 2 it cannot run."""
    arguments = _arguments()
    if arguments.page:
        target = Path("docs/benchmarks.md")
        target.write_text(report.page(json.loads(arguments.page.read_text())))
        print(f"wrote {target}")
        return 0
    try:
        results = _measure_all(arguments)
    except BenchError as error:
        print(f"bench: {error}", file=sys.stderr)
        return 2
    return _tell(results)


def _measure_all(arguments: argparse.Namespace) -> dict[str, Any]:
    cores = os.sched_getaffinity(0)
    if not {arguments.proxy_core, arguments.load_core} <= cores or arguments.proxy_core == arguments.load_core:
        raise BenchError(
            f"two cores are needed, one for the proxy and one for the load; this process may use {cores}"
        )
    programs = install()
    os.sched_setaffinity(0, {arguments.load_core})
    chosen = [c for c in CANDIDATES if not arguments.only or c.name in arguments.only.split(",")]
    planned = [
        w
        for w in works(arguments.rate, arguments.low_rate)
        if not arguments.work or w.name in arguments.work.split(",")
    ]
    rounds = 1 if arguments.quick else arguments.rounds
    setting = Setting(
        proxy_core=arguments.proxy_core,
        load_core=arguments.load_core,
        rate_seconds=3 if arguments.quick else 5,
        closed_seconds=3 if arguments.quick else 4,
        patience=machine.Patience(0 if arguments.quick else 120),
    )
    results: dict[str, Any] = {
        "started": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
        "rounds": rounds,
        "rates": {work.name: work.rate_per_second for work in planned if work.rate_per_second},
        "machine": machine.facts(),
        "versions": programs.versions,
        "labels": {candidate.name: candidate.label for candidate in chosen},
        "runs": [],
    }
    prove(programs, setting)
    for number in range(rounds):
        for candidate in _turn(chosen, number):
            fitting = tuple(work for work in planned if candidate.command or work.name in CEILINGS)
            runs = measure(candidate, programs, fitting, setting)
            results["runs"] += [run | {"round": number + 1} for run in runs]
            for run in runs:
                print(f"round {number + 1} of {rounds}: {_line(run)}", flush=True)
    return results


def _turn(candidates: list[Candidate], number: int) -> list[Candidate]:
    """Each round begins with another candidate, so that a drift of the machine hits none alone."""
    start = number % len(candidates) if candidates else 0
    return candidates[start:] + candidates[:start]


def _line(run: dict[str, Any]) -> str:
    count = run["events"] or run["requests"]
    cost = f"{run['cpu_seconds'] * 1e6 / count:.1f} us of CPU each" if count else "nothing"
    return (
        f"{run['candidate']} {run['work']}: {count / run['seconds']:,.0f}/s, {cost}, errors {run['errors']}, "
        f"core {run['core_share']:.0%}, foreign {run['foreign_share']:.0%}"
    )


def _tell(results: dict[str, Any]) -> int:
    RESULTS.mkdir(parents=True, exist_ok=True)
    text = json.dumps(results, indent=1)
    stamp = results["started"].replace(":", "").replace(" ", "-").removesuffix("-UTC")
    for name in (f"{stamp}.json", "latest.json"):
        (RESULTS / name).write_text(text)
    print(f"\n{report.markdown(results)}")
    wrong = report.failures(results["runs"], results["rates"])
    for line in (*report.disturbed(results["runs"]), *(wrong or report.verdicts(results["runs"]))):
        print(line)
    print(f"written: {RESULTS / 'latest.json'}")
    if wrong:
        print("bench: these figures mean nothing, see above: run it on a calm machine", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
