"""`python -m sim.agents`: workflows under the router's policy and others; JSON under build/bench."""

import argparse
import json
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from sim.agents.report import POLICIES, SETTINGS, Figures, as_json, measure, table, verdicts

SEEDS = (11, 12, 13)
RUNS = 400


def main() -> int:
    """Print the tables, and say what does not hold."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=RUNS, help="workflows a seed")
    parser.add_argument("--seeds", type=int, nargs="*", default=SEEDS)
    parser.add_argument("--jobs", type=int, default=1)
    given = parser.parse_args()
    found: dict[str, dict[str, Figures]] = {}
    missed = []
    with ProcessPoolExecutor(given.jobs) as pool:
        asked = {
            (setting.name, policy): pool.submit(measure, setting, policy, given.seeds, given.runs)
            for setting in SETTINGS
            for policy in POLICIES
        }
        for setting in SETTINGS:
            rows = found[setting.name] = {policy: asked[setting.name, policy].result() for policy in POLICIES}
            print(f"\n{setting.name}: {setting.rate:g} runs a second\n{table(rows)}")
            if not setting.saturated:
                continue
            for line in verdicts(rows):
                print(f"  {line}")
                missed += [line] if line.endswith("MISSED") else []
    target = Path("build/bench/workflows-sim.json")
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(json.dumps(as_json(found, given.seeds, given.runs), indent=1))
    print(f"\n{len(missed)} missed" if missed else "\nall held")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
