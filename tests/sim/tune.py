"""`python -m sim.tune`: constants of the baselines chosen on the training seeds, as ours were.

For each baseline that has constants, the set with the least geometric mean, over all loads, of its p90 TTFT at
round robin's knee and at 0.8 of it. What it finds stands in candidates.TUNED.
"""

import argparse
import math
import sys
from collections.abc import Callable
from typing import Final

from .baselines.cache_aware import CacheAware
from .baselines.kubeai import KubeAI
from .baselines.llm_d_blend import LlmDBlend
from .baselines.llm_d_sticky import LlmDSticky
from .picker import Board, SimPicker
from .runs import Run, play
from .search import KNEES
from .tables import TRAINING_SEEDS, Runner
from .world import baseline

Make = Callable[..., SimPicker]
# The published constants first.
GRID: Final[dict[str, tuple[Make, list[dict[str, object]]]]] = {
    "KubeAI": (KubeAI, [{"load_factor": factor} for factor in (1.25, 1.1, 1.5, 2.0)]),
    "llm-d 2/2/3": (
        LlmDBlend,
        [{"weights": weights} for weights in ((2.0, 2.0, 3.0), (2.0, 2.0, 1.0), (4.0, 2.0, 3.0), (2.0, 4.0, 3.0))],
    ),
    "llm-d sticky": (
        LlmDSticky,
        [{"penalty_seconds": s, "tokens_per_second": 17_400.0} for s in (18.0, 5.0, 2.0, 1.0, 0.5)],
    ),
    "cache aware": (
        CacheAware,
        [
            {"cache_threshold": cache, "abs_threshold": least, "rel_threshold": rel}
            for cache, least, rel in ((0.3, 64, 1.5), (0.5, 32, 1.1), (0.3, 8, 1.1), (0.3, 4, 1.2), (0.5, 4, 1.2))
        ],
    ),
}
_PARTS: Final = (0.8, 1.0)
_Job = tuple[str, int, str, int, float]


def _p90(job: _Job) -> float:
    name, choice, load, seed, part = job
    make, choices = GRID[name]

    def made(pods: int, board: Board, number: int) -> SimPicker:
        return make(pods, board, number, **choices[choice])

    run = Run(load, seed, KNEES[load] * part, name)
    return play(run, baseline(made)).ttft_p90


def main() -> int:
    """Prints each set with its mean; the best of each baseline is marked."""
    parser = argparse.ArgumentParser(prog="sim.tune", description=__doc__)
    parser.add_argument("--jobs", type=int, default=1)
    runner = Runner(parser.parse_args().jobs, print)
    for name, (_, choices) in GRID.items():
        jobs = [
            (name, choice, load, seed, part)
            for choice in range(len(choices))
            for load in KNEES
            for seed in TRAINING_SEEDS
            for part in _PARTS
        ]
        logs = [math.log(seconds) for seconds in runner.map(_p90, jobs)]
        each = len(jobs) // len(choices)
        means = [math.exp(sum(logs[i * each : (i + 1) * each]) / each) for i in range(len(choices))]
        for constants, mean in zip(choices, means, strict=True):
            mark = "  <- best" if mean == min(means) else ""
            print(f"{name:14s} {constants}: {mean:.3f} s{mark}", flush=True)
    runner.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
