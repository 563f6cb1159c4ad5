"""One round of one candidate: its engines and itself started, checked, loaded, measured and stopped."""

import json
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from . import machine
from .candidates import Candidate, Place
from .load import PATH, STREAM_EVENTS, Sent, Work, at_rate, body, closed_loop, fetch
from .programs import BenchError, Programs


@dataclass(frozen=True)
class Setting:
    """Cores, lengths, and how long to wait for a calm machine."""

    proxy_core: int
    load_core: int
    rate_seconds: float
    closed_seconds: float
    patience: machine.Patience


@dataclass
class Meter:
    """CPU time of the proxy and of its core between two looks."""

    pid: int | None
    core: int
    looks: list[tuple[float, float, float]] = field(default_factory=list)

    def look(self) -> None:
        """Take a sample."""
        spent = machine.cpu_seconds(self.pid) if self.pid else 0.0
        self.looks.append((time.monotonic(), spent, machine.busy_seconds(self.core)))

    def spent(self) -> dict[str, float]:
        """Seconds of wall and of the proxy; shares of its core that were the proxy's and somebody else's."""
        (t0, c0, b0), (t1, c1, b1) = self.looks[0], self.looks[-1]
        wall, proxy = t1 - t0, c1 - c0
        foreign = max(0.0, (b1 - b0 - proxy) / wall)
        return {"wall_seconds": wall, "cpu_seconds": proxy, "core_share": proxy / wall, "foreign_share": foreign}


@dataclass(frozen=True)
class Bench:
    """A candidate that runs and answers rightly."""

    candidate: Candidate
    programs: Programs
    setting: Setting
    folder: Path
    port: int
    pid: int | None
    expected: bytes  # the engine's own answer

    def pin(self, command: list[str]) -> list[str]:
        """The command on the load's core."""
        return ["taskset", "-c", str(self.setting.load_core), *command]

    def run(self, work: Work) -> dict[str, Any]:
        """One work, measured."""
        setting = self.setting
        if work.rate_per_second:  # connections and caches are warm before the clock runs
            self._at_rate(work, 1)
        cores = (setting.proxy_core, setting.load_core)
        calm = setting.patience.wait(cores)
        meter = Meter(self.pid, setting.proxy_core)
        if work.rate_per_second:
            meter.look()
            sent = self._at_rate(work, setting.rate_seconds)
            meter.look()
        else:
            seconds = setting.closed_seconds
            sent = closed_loop(self.programs, self.pin, self.port, work, seconds, self.folder, meter.look)
        memory = machine.resident_bytes(self.pid) if self.pid else 0
        names = {"candidate": self.candidate.name, "work": work.name}
        return names | asdict(sent) | meter.spent() | {"calm": calm, "resident_bytes": memory}

    def _at_rate(self, work: Work, seconds: float) -> Sent:
        url = f"http://127.0.0.1:{self.port}"
        return at_rate(self.programs, self.pin, url, work, self.expected, seconds, self.folder)


def measure(
    candidate: Candidate, programs: Programs, works: tuple[Work, ...], setting: Setting
) -> list[dict[str, Any]]:
    """All works of one candidate; raises BenchError when it does not answer rightly."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tidepool-bench-")))
        engines = []
        for _ in range(candidate.engines):
            port = free_port(1)
            stack.enter_context(_process([str(programs.stub), str(port)], setting.load_core, folder / "stub.log"))
            engines.append(f"http://127.0.0.1:{port}")
            _wait(f"{engines[-1]}/health", None, 10)
        port, pid = int(engines[0].rpartition(":")[2]), None
        if candidate.command is not None:
            port = free_port(3)
            command = candidate.command(programs, Place(port, engines, folder))
            pid = stack.enter_context(_process(command, setting.proxy_core, folder / "proxy.log")).pid
        expected = _check(candidate, f"http://127.0.0.1:{port}", engines[0], folder)
        bench = Bench(candidate, programs, setting, folder, port, pid, expected)
        return [bench.run(work) for work in works]


def prove(programs: Programs, setting: Setting) -> None:
    """The driver must call a right stream right and a short one wrong; raises BenchError."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tidepool-bench-")))
        port = free_port(1)
        stack.enter_context(_process([str(programs.stub), str(port)], setting.load_core, folder / "stub.log"))
        _wait(f"http://127.0.0.1:{port}/health", None, 10)
        for events, right in ((STREAM_EVENTS, True), (STREAM_EVENTS + 1, False)):
            work = Work("proof", body(stream=True), connections=2, events=events)
            sent = closed_loop(programs, list, port, work, 0.3, folder, lambda: None)
            if (sent.errors == 0) is not right:
                raise BenchError(f"the driver found {sent.errors} errors in {sent.requests} streams: {events=}")


def _check(candidate: Candidate, url: str, engine: str, folder: Path) -> bytes:
    """Wait for the candidate, then hold one answer and one stream of its against the engine's own."""
    log = folder / "proxy.log"
    _wait(url + PATH, body(), 60, log)
    expected = fetch(engine + PATH, body())[1]
    status, got = fetch(url + PATH, body())
    if status != 200 or json.loads(got) != json.loads(expected):
        raise BenchError(
            f"{candidate.name} answered {status} {got[:300]!r} where the engine says {expected[:300]!r}"
        )
    status, got = fetch(url + PATH, body(stream=True))
    events = got.count(b"\n\n")
    if status != 200 or events != STREAM_EVENTS:
        raise BenchError(f"{candidate.name} streamed {events} of {STREAM_EVENTS} events (status {status})")
    return expected


def _wait(url: str, request: dict[str, Any] | None, limit_seconds: float, log: Path | None = None) -> None:
    deadline = time.monotonic() + limit_seconds
    while fetch(url, request)[0] != 200:
        if time.monotonic() > deadline:
            said = log.read_text(errors="replace")[-2000:] if log and log.exists() else ""
            raise BenchError(f"{url} gave no good answer within {limit_seconds:.0f} s\n{said}")
        time.sleep(0.1)


@contextmanager
def _process(command: list[str], core: int, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    with log.open("ab") as out:
        process = subprocess.Popen(["taskset", "-c", str(core), *command], stdout=out, stderr=out)
        try:
            yield process
        finally:
            process.terminate()
            try:
                process.wait(5)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(5)


def free_port(count: int) -> int:
    """The first of `count` ports in a row that are free now."""
    for _ in range(100):
        with ExitStack() as stack:
            first = stack.enter_context(socket.socket())
            first.bind(("127.0.0.1", 0))
            port: int = first.getsockname()[1]
            try:
                for more in range(1, count):
                    stack.enter_context(socket.socket()).bind(("127.0.0.1", port + more))
            except OSError:
                continue
            return port
    raise BenchError("no free ports in a row were found: close what listens on this machine")
