"""The works and the tools that send them: vegeta at a fixed rate, the driver as fast as answers come.

Latency at half of capacity is the driver's too, in its open loop: vegeta's own scheduling shows in a p99.
"""

import json
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .candidates import MODEL
from .programs import BenchError, Programs

PATH = "/v1/chat/completions"
STREAM_TOKENS = 256
STREAM_EVENTS = STREAM_TOKENS + 2  # the role before them, [DONE] after them
PACE_MILLISECONDS = 10
IDLE_STREAMS = 2000
LARGE_BODIES = 64


def prompt() -> str:
    """1 kB of words."""
    return "hello world " * 85


def body(*, stream: bool = False, paced: bool = False) -> dict[str, Any]:
    """The request of a work; `top_k` tells the stub how many milliseconds lie between tokens."""
    request: dict[str, Any] = {"model": MODEL, "messages": [{"role": "user", "content": prompt()}]}
    request["max_tokens"] = STREAM_TOKENS if stream else 16
    if stream:
        request["stream"] = True
    if paced:
        request["top_k"] = PACE_MILLISECONDS
    return request


@dataclass(frozen=True)
class Work:
    """`rate_per_second` None: closed loop with `connections`. `by` names the tool: vegeta, drive or held."""

    name: str
    request: dict[str, Any]
    connections: int
    events: int = 0
    rate_per_second: int | None = None
    by: str = "drive"


def works(rate_per_second: int, low_rate_per_second: int) -> tuple[Work, ...]:
    """All works but "half", in the order in which a candidate meets them.

    Two rates, because a proxy that wakes for each single request pays more for it than one that finds several.
    "idle" and those with bodies come last: what they make a candidate keep in memory must not stand in the others'
    figures.
    """
    return (
        Work("rate", body(), 0, rate_per_second=rate_per_second, by="vegeta"),
        Work("low-rate", body(), 0, rate_per_second=low_rate_per_second, by="vegeta"),
        Work("peak", body(), 32),
        Work("paced", body(stream=True, paced=True), 64, events=STREAM_EVENTS),
        Work("stream", body(stream=True), 32, events=STREAM_EVENTS),
        Work("idle", body(stream=True) | {"top_k": 600_000}, IDLE_STREAMS, by="held"),
        Work("bodies", {}, LARGE_BODIES, by="held"),
        Work("late-bodies", {"late": True}, LARGE_BODIES, by="held"),
    )


def half(rate_per_second: int) -> Work:
    """The work whose latency is held against the direct run's."""
    return Work("half", body(), 0, rate_per_second=rate_per_second)


@dataclass(frozen=True)
class Sent:
    """What a load tool saw; `errors` counts every answer that was not the right one."""

    requests: int
    events: int
    errors: int
    seconds: float
    p50_ms: float
    p99_ms: float


Pin = Callable[[list[str]], list[str]]


def at_rate(
    programs: Programs, pin: Pin, url: str, work: Work, expected: bytes, seconds: float, folder: Path
) -> Sent:
    """vegeta, open loop: it sends at the rate whatever the answers do."""
    file, targets, results = folder / "rate.json", folder / "targets", folder / "rate.bin"
    file.write_text(json.dumps(work.request))
    targets.write_text(f"POST {url}{PATH}\nContent-Type: application/json\n@{file}\n")
    attack = [str(programs.vegeta), "attack", f"-targets={targets}", f"-rate={work.rate_per_second}/s"]
    attack += [f"-duration={seconds}s", "-timeout=10s", f"-output={results}"]
    _checked(pin(attack), seconds + 60)
    report = json.loads(_checked([str(programs.vegeta), "report", "-type=json", str(results)], 60))
    requests = int(report["requests"])
    right = int(report["status_codes"].get("200", 0))
    if report["bytes_in"]["total"] != requests * len(expected):
        right = min(right, requests - 1)
    latency = report["latencies"]
    spent = (report["duration"] + report["wait"]) / 1e9
    return Sent(requests, 0, requests - right, spent, latency["50th"] / 1e6, latency["99th"] / 1e6)


def driven(
    programs: Programs,
    pin: Pin,
    port: int,
    work: Work,
    seconds: float,
    folder: Path,
    marks: Callable[[], None],
) -> Sent:
    """The driver, open loop where the work has a rate; `marks` is called as the measured time begins and ends."""
    file = folder / f"{work.name}.json"
    file.write_text(json.dumps(work.request))
    command = [str(programs.drive), str(port), PATH, str(file), str(work.connections), "1", str(seconds)]
    command += [str(work.events), *([str(work.rate_per_second)] if work.rate_per_second else [])]
    with subprocess.Popen(pin(command), stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            if process.stdout.readline().strip() != "begin":
                raise BenchError(f"the driver could not begin with {work.name}")
            marks()
            line = process.stdout.readline()
            marks()
        finally:
            process.kill()
    if not line.strip():
        raise BenchError(f"the driver stopped in the middle of {work.name}")
    return Sent(**json.loads(line))


def _checked(command: list[str], timeout_seconds: float) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=timeout_seconds, check=False)
    if done.returncode:
        raise BenchError(f"`{command[0]}` failed: {done.stderr.strip()}")
    return done.stdout
