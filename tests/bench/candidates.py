"""Who is measured, and how each is started: with its defaults, in front of the same stub engines."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import envoy
from .programs import Programs

MODEL = "tiny"
PORTS = 12  # of one candidate, in a row

Command = list[str]


@dataclass(frozen=True)
class Place:
    """Where a candidate runs: its port (the PORTS - 1 above it are free), its engines, a folder for its files."""

    port: int
    engine_urls: Sequence[str]
    folder: Path
    model: str = MODEL


@dataclass(frozen=True)
class Candidate:
    """`commands` are started in order, and all of them are measured; the last one listens on the place's port.

    None for the run without a proxy, which shows the ceiling of the load's own core. `works` names what it takes
    part in.
    """

    name: str
    label: str
    engines: int
    commands: Callable[[Programs, Place], list[Command]] | None
    works: tuple[str, ...]


def vllm_router(policy: str) -> Callable[[Programs, Place], list[Command]]:
    """vllm-router with a policy."""

    # Its default log level writes a line for each request; "error" is the cheapest it offers.
    def commands(programs: Programs, place: Place) -> list[Command]:
        return [
            [
                *(str(programs.peers["vllm-router"]), "--host", "127.0.0.1", "--port", str(place.port)),
                *("--policy", policy, "--prometheus-port", str(place.port + 1), "--log-level", "error"),
                *("--worker-urls", *place.engine_urls),
            ]
        ]

    return commands


def sglang_router(programs: Programs, place: Place) -> list[Command]:
    """sglang-router, cache_aware."""
    return [
        [
            *(str(programs.peers["sglang-router"]), "launch", "--host", "127.0.0.1", "--port", str(place.port)),
            *("--policy", "cache_aware", "--prometheus-port", str(place.port + 1), "--log-level", "error"),
            *("--worker-urls", *place.engine_urls),
        ]
    ]


def envoy_proxy(policy: str) -> Callable[[Programs, Place], list[Command]]:
    """Envoy with a policy of its own name, one worker thread as for one core."""

    def commands(programs: Programs, place: Place) -> list[Command]:
        file = place.folder / "envoy.json"
        file.write_text(json.dumps(envoy.config(policy, place.port, place.engine_urls)))
        options = ("--concurrency", "1", "--disable-hot-restart", "--log-level", "warning")
        return [[str(programs.peers["envoy"]), "-c", str(file), *options]]

    return commands


def sidecar(programs: Programs, place: Place) -> list[Command]:
    """The product's sidecar in front of one engine."""
    return [_sidecar(programs, place.port, place.engine_urls[0])]


Commands = Callable[[Programs, Place], list[Command]]


def installed(policy: str = "") -> Commands:
    """The product as it is installed: a sidecar in front of each engine, the gateway in front of them."""

    def commands(programs: Programs, place: Place) -> list[Command]:
        ports = [place.port + 3 * number for number in range(1, len(place.engine_urls) + 1)]
        sidecars = [_sidecar(programs, port, url) for port, url in zip(ports, place.engine_urls, strict=True)]
        return [*sidecars, _gateway(programs, place, [f"http://127.0.0.1:{port}" for port in ports], policy)]

    return commands


def bare(policy: str = "") -> Commands:
    """The product's gateway in front of engines without sidecars."""
    return lambda programs, place: [_gateway(programs, place, place.engine_urls, policy)]


def _gateway(programs: Programs, place: Place, endpoints: Sequence[str], policy: str) -> Command:
    fleet = place.folder / "fleet.json"
    pool: dict[str, Any] = {"name": "default/bench", "models": [place.model], "endpoints": list(endpoints)}
    if policy:
        pool["routing"] = {"policy": policy}
    fleet.write_text(json.dumps({"pools": [pool]}))
    options = ("--fleet", str(fleet), "--host", "127.0.0.1", "--port", str(place.port))
    return [str(programs.router), "gateway", *options]


def _sidecar(programs: Programs, port: int, engine_url: str) -> Command:
    return [str(programs.router), "sidecar", "--engine", engine_url, "--host", "127.0.0.1", "--port", str(port)]


PROXY_WORKS = ("rate", "low-rate", "peak", "paced", "stream", "idle", "bodies", "late-bodies")

CANDIDATES = (
    Candidate("direct", "no proxy", 1, None, ("peak", "stream", "half")),
    Candidate("vllm-router", "vllm-router power_of_two", 2, vllm_router("power_of_two"), PROXY_WORKS),
    Candidate("envoy", "Envoy least_request", 2, envoy_proxy("LEAST_REQUEST"), PROXY_WORKS),
    Candidate("sglang-router", "sglang-router cache_aware", 2, sglang_router, PROXY_WORKS),
    Candidate("gateway", "tidepool gateway", 2, bare(), PROXY_WORKS),
    Candidate("sidecar", "tidepool sidecar", 1, sidecar, PROXY_WORKS),
    Candidate("chain", "tidepool gateway + sidecar", 2, installed(), ("peak", "half")),
)
