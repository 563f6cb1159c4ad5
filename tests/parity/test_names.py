"""No part of the product may read a metric of vLLM that parity does not hold against a real engine."""

import re
from collections.abc import Iterator
from pathlib import Path

from parity.names import OLD, READ, WITH_ADAPTERS, WITH_BLOCKS

ROOT = Path(__file__).resolve().parents[2]
ROOMS = ("crds", "operator", "router", "charts", "e2e")
DOUBLE = "engine_double.py"  # says more than anybody reads
SUFFIXES = {".py", ".yaml", ".yml", ".json", ".tpl"}


def names() -> Iterator[tuple[str, Path]]:
    """Metric names in the sources, without what a histogram adds to its family's name."""
    for room in ROOMS:
        for path in (ROOT / room).rglob("*"):
            if path.suffix in SUFFIXES and path.is_file() and path.name != DOUBLE:
                for name in re.findall(r"vllm:[a-z_0-9]+", path.read_text(errors="ignore")):
                    yield re.sub(r"_(bucket|sum|count)$", "", name), path.relative_to(ROOT)


def test_every_name_that_is_read_is_held_against_a_real_engine() -> None:
    found = dict(names())
    assert "vllm:num_requests_running" in found
    known = {*READ, *OLD, *WITH_ADAPTERS, *WITH_BLOCKS}
    unknown = {name: str(path) for name, path in found.items() if name not in known}
    assert not unknown, "add these to parity/names.py: the parity test then checks that vLLM has them"
