"""`make bench-page`: keeps the last results in tests/bench/results, and writes docs/benchmarks.md from them."""

import json
import shutil
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from . import quality_report, report, soak_report

BUILD = Path("build/bench")
KEPT = Path(__file__).with_name("results")
PAGE = Path("docs/benchmarks.md")

# Section: heading, who renders it from its JSON.
SECTIONS: dict[str, tuple[str, Callable[[Mapping[str, Any]], str]]] = {
    "router": ("Cost beside the peers", report.page),
    "quality": ("Live quality beside the peers", quality_report.page),
    "soak": ("Soak", soak_report.page),
}

_HEAD = """\
# Benchmarks

Written by `make bench-page` from the results that are kept in tests/bench/results. `make bench-router` (part of
`make bench`, at most 20 minutes) measures the cost, `make bench-full` the same with longer runs and live quality,
`make soak` the soak. Each prints its tables and writes JSON to build/bench; losses stand beside the rest.
"""


def render(results: Mapping[str, Mapping[str, Any]]) -> str:
    """The page from the results by section; those that are missing are left out."""
    parts = [_HEAD]
    for name, (heading, write) in SECTIONS.items():
        if name in results:
            parts.append(f"\n## {heading}\n\n{write(results[name])}")
    return "".join(parts)


def main() -> int:
    """Exit status: 0 written, 2 there is nothing to write from."""
    KEPT.mkdir(exist_ok=True)
    for name in SECTIONS:
        fresh = BUILD / f"{name}.json"
        if fresh.exists():
            shutil.copy(fresh, KEPT / fresh.name)
    results = {
        name: json.loads((KEPT / f"{name}.json").read_text())
        for name in SECTIONS
        if (KEPT / f"{name}.json").exists()
    }
    if not results:
        print("bench: there are no results yet; run `make bench-router` first", file=sys.stderr)
        return 2
    PAGE.write_text(render(results))
    print(f"wrote {PAGE} from {', '.join(results)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
