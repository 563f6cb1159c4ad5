"""`python -m scaling.page`: keep the last results, and put tables and pictures into the docs."""

import argparse
import json
import math
from pathlib import Path
from typing import Final

from tidepool_operator.backtest.plant import Plant
from tidepool_operator.backtest.plot import plot
from tidepool_operator.backtest.replay import played

from . import tables
from .__main__ import policy
from .loads import servegen
from .tables import Run

ROOT: Final = Path(__file__).parent.parent.parent
RESULTS: Final = Path(__file__).parent / "results" / "scaling.jsonl"
PAGE: Final = ROOT / "docs" / "autoscaling.md"
PICTURES: Final = ROOT / "docs" / "images"
BEGIN: Final = "<!-- tables of the bench -->"
END: Final = "<!-- end of the tables -->"
STARTUP_SECONDS: Final = 300.0


def written(page: str, text: str) -> str:
    """The page with the text between its marks."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n\n{text}\n\n{END}{after}"


def text_of(runs: list[Run]) -> str:
    """The tables under their headings."""
    found = tables.results(runs)
    parts = {
        "What was aimed at": tables.aims(found),
        "Better and cheaper than others": tables.pareto(found),
        "Traces of an hour": tables.regret(found),
        "All runs": tables.levels(found),
    }
    return "\n\n".join(f"### {head}\n\n{table}" for head, table in parts.items())


def pictures() -> None:
    """A picture of this operator on each series of days."""
    PICTURES.mkdir(exist_ok=True)
    for name in ("m-small", "m-mid"):
        load = servegen(name, "held out", 0)
        first = max(1, math.ceil(1.5 * float(load.needed()[:20].mean())))
        pool = Plant(load.engine, STARTUP_SECONDS, load.demand.begin, ready=first)
        outcome = played(
            load.demand, load.engine, load.targets, policy("ours", load, STARTUP_SECONDS), pool, load.settled
        )
        file = PICTURES / f"autoscaling-{name}.png"
        plot(file, load.demand, load.engine, load.targets, STARTUP_SECONDS, outcome)


def main() -> None:
    """Write."""
    parser = argparse.ArgumentParser(prog="scaling.page")
    parser.add_argument("--results", type=Path, default=ROOT / "build/bench/scaling.jsonl")
    given = parser.parse_args()
    kept = given.results.read_text()
    RESULTS.write_text(kept)
    runs = [Run(**json.loads(line)) for line in kept.splitlines()]
    PAGE.write_text(written(PAGE.read_text(), text_of(runs)))
    pictures()


if __name__ == "__main__":
    main()
