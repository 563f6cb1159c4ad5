"""Who is measured, and how each is started: with its defaults, in front of the same stub engines."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from .programs import Programs

MODEL = "tiny"


@dataclass(frozen=True)
class Place:
    """Where a candidate runs: its port (two more above it are free), its engines, a folder for its files."""

    port: int
    engine_urls: Sequence[str]
    folder: Path


@dataclass(frozen=True)
class Candidate:
    """`command` is None for the run without a proxy, which shows the ceiling of the load's own core."""

    name: str
    label: str
    engines: int
    command: Callable[[Programs, Place], list[str]] | None


def _peer(programs: Programs, place: Place) -> list[str]:
    # Its default log level writes a line for each request; "error" is the cheapest it offers.
    return [
        *(str(programs.peer), "--host", "127.0.0.1", "--port", str(place.port), "--policy", "power_of_two"),
        *("--prometheus-port", str(place.port + 1), "--log-level", "error"),
        *("--worker-urls", *place.engine_urls),
    ]


def _gateway(programs: Programs, place: Place) -> list[str]:
    fleet = place.folder / "fleet.json"
    pool = {"name": "default/bench", "models": [MODEL], "endpoints": list(place.engine_urls)}
    fleet.write_text(json.dumps({"pools": [pool]}))
    return [
        str(programs.router),
        "gateway",
        "--fleet",
        str(fleet),
        "--host",
        "127.0.0.1",
        "--port",
        str(place.port),
    ]


def _sidecar(programs: Programs, place: Place) -> list[str]:
    return [
        *(str(programs.router), "sidecar", "--engine", place.engine_urls[0]),
        *("--host", "127.0.0.1", "--port", str(place.port)),
    ]


CANDIDATES = (
    Candidate("direct", "no proxy", 1, None),
    Candidate("vllm-router", "vllm-router power_of_two", 2, _peer),
    Candidate("gateway", "tidepool gateway", 2, _gateway),
    Candidate("sidecar", "tidepool sidecar", 1, _sidecar),
)
