"""`make sim`: routing quality in the simulator; tables on the screen, JSON under build/bench/sim.json."""

import argparse
import json
import sys
import time
from pathlib import Path

from . import tables as quality
from .candidates import BASELINES, CANDIDATES, OURS, TUNED
from .search import KNEES, ROUND_ROBIN
from .workload import LOADS

RESULTS = Path("build/bench/sim.json")
_TABLES = ("latency", "throughput", "gateways", "faults")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="sim", description=__doc__)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--training", action="store_true", help="use the training seeds: for tuning")
    parser.add_argument("--loads", default=",".join(LOADS), help="comma between them")
    parser.add_argument("--only", default="", help="candidates, comma between them; round robin is always there")
    parser.add_argument("--tables", default=",".join(_TABLES), help=f"of {', '.join(_TABLES)}")
    parser.add_argument("--rates", default="", help="parts of the knee for the latency table")
    parser.add_argument("--find-knees", action="store_true", help="search them anew: after a change of the model")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--out", type=Path, default=RESULTS)
    return parser.parse_args()


def main() -> int:
    """Exit status: 0 done, whatever the figures; 2 for names that nobody knows."""
    arguments = _arguments()
    loads = arguments.loads.split(",")
    names = arguments.only.split(",") if arguments.only else [OURS, "LeastLoad", *BASELINES, *TUNED]
    unknown = [*(set(loads) - set(LOADS)), *(set(names) - set(CANDIDATES))]
    if unknown:
        print(f"sim: unknown: {', '.join(unknown)}; candidates: {', '.join(CANDIDATES)}", file=sys.stderr)
        return 2
    if ROUND_ROBIN not in names:
        names.append(ROUND_ROBIN)
    started = time.monotonic()

    seeds = quality.TRAINING_SEEDS if arguments.training else quality.test_seeds(arguments.seeds)
    tables = quality.Tables(seeds)
    arguments.out.parent.mkdir(parents=True, exist_ok=True)

    def tell(line: str) -> None:
        """A part is done: what there is goes to the file, so that a run that is ended was not for nothing."""
        arguments.out.write_text(json.dumps(tables.as_dict(), indent=1))
        print(f"[{time.monotonic() - started:5.0f} s] {line}", file=sys.stderr, flush=True)

    runner = quality.Runner(arguments.jobs, tell)
    wanted = arguments.tables.split(",")
    if arguments.find_knees:
        quality.find_knees(tables, runner, loads)
    else:
        tables.knees = {load: KNEES[load] for load in loads}
    rates = [float(part) for part in arguments.rates.split(",") if part] or list(quality.RATES)
    if "latency" in wanted or "gateways" in wanted:
        quality.measure_latency(tables, runner, names, rates)
    if "throughput" in wanted:
        quality.measure_throughput(tables, runner, names)
    if "gateways" in wanted:
        quality.measure_gateways(tables, runner, names)
    if "faults" in wanted:
        quality.measure_faults(tables, runner, names)
    runner.close()
    print(quality.markdown(tables))
    print()
    print("\n".join(quality.verdicts(tables)))
    print(f"written: {arguments.out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
