"""One round of one candidate: its engines and itself started, checked, loaded, measured and stopped."""

import json
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from . import machine
from .candidates import PORTS, Candidate, Place
from .held import hold
from .load import PATH, STREAM_EVENTS, Sent, Work, at_rate, body, driven
from .processes import fetch, free_port, process, wait_for
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
    """CPU time and memory of the proxy, and CPU time of its core, between two looks."""

    pids: Sequence[int]
    core: int
    looks: list[tuple[float, float, float, int]] = field(default_factory=list)

    def look(self) -> None:
        """Take a sample."""
        spent = sum(map(machine.cpu_seconds, self.pids))
        memory = sum(map(machine.resident_bytes, self.pids))
        self.looks.append((time.monotonic(), spent, machine.busy_seconds(self.core), memory))

    def spent(self) -> dict[str, float]:
        """Seconds of wall and of the proxy; shares of its core, its own and somebody else's; memory."""
        (t0, c0, b0, m0), (t1, c1, b1, m1) = self.looks[0], self.looks[-1]
        wall, proxy = t1 - t0, c1 - c0
        foreign = max(0.0, (b1 - b0 - proxy) / wall)
        shares = {"core_share": proxy / wall, "foreign_share": foreign}
        memory = {"resident_bytes": m1, "grown_bytes": m1 - m0}
        return {"wall_seconds": wall, "cpu_seconds": proxy} | shares | memory


@dataclass(frozen=True)
class Bench:
    """A candidate that runs and answers rightly."""

    candidate: Candidate
    programs: Programs
    setting: Setting
    folder: Path
    port: int
    pids: Sequence[int]
    expected: bytes  # the engine's own answer

    def pin(self, command: list[str]) -> list[str]:
        """The command on the load's core."""
        return ["taskset", "-c", str(self.setting.load_core), *command]

    def run(self, work: Work) -> dict[str, Any]:
        """One work, measured."""
        setting = self.setting
        if work.by == "vegeta":  # connections and caches are warm before the clock runs
            self._at_rate(work, 1)
        calm = setting.patience.wait((setting.proxy_core, setting.load_core))
        meter = Meter(self.pids, setting.proxy_core)
        if work.by == "vegeta":
            meter.look()
            sent = self._at_rate(work, setting.rate_seconds)
            meter.look()
        elif work.by == "held":
            sent = hold(self.port, work, meter.look)
        else:
            seconds = setting.rate_seconds if work.rate_per_second else setting.closed_seconds
            sent = driven(self.programs, self.pin, self.port, work, seconds, self.folder, meter.look)
        names = {"candidate": self.candidate.name, "work": work.name}
        return names | asdict(sent) | meter.spent() | {"calm": calm}

    def _at_rate(self, work: Work, seconds: float) -> Sent:
        url = f"http://127.0.0.1:{self.port}"
        return at_rate(self.programs, self.pin, url, work, self.expected, seconds, self.folder)


def measure(
    candidate: Candidate, programs: Programs, works: Sequence[Work], setting: Setting
) -> list[dict[str, Any]]:
    """All works of one candidate; raises BenchError when it does not answer rightly.

    What it keeps in memory is measured in a process that has done nothing else: memory that a load left behind
    would be used again and not be seen.
    """
    runs: list[dict[str, Any]] = []
    busy = [work for work in works if work.by != "held"]
    for group in (busy, *([work] for work in works if work.by == "held")):
        if group:
            with ExitStack() as stack:
                bench = _started(candidate, programs, setting, stack)
                runs += [bench.run(work) for work in group]
    return runs


def _started(candidate: Candidate, programs: Programs, setting: Setting, stack: ExitStack) -> Bench:
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tidepool-bench-")))
    engines = [_engine(programs, setting, folder, stack) for _ in range(candidate.engines)]
    port = int(engines[0].rpartition(":")[2]) if candidate.commands is None else free_port(PORTS)
    commands = [] if candidate.commands is None else candidate.commands(programs, Place(port, engines, folder))
    log = folder / "proxy.log"
    pids = [stack.enter_context(process(command, setting.proxy_core, log)).pid for command in commands]
    expected = _check(candidate, f"http://127.0.0.1:{port}", engines[0], folder)
    return Bench(candidate, programs, setting, folder, port, pids, expected)


def _engine(programs: Programs, setting: Setting, folder: Path, stack: ExitStack) -> str:
    port = free_port(1)
    stack.enter_context(process([str(programs.stub), str(port)], setting.load_core, folder / "stub.log"))
    wait_for(f"http://127.0.0.1:{port}/health", None, 10)
    return f"http://127.0.0.1:{port}"


def prove(programs: Programs, setting: Setting) -> None:
    """The driver must call a right stream right and a short one wrong; raises BenchError."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tidepool-bench-")))
        port = int(_engine(programs, setting, folder, stack).rpartition(":")[2])
        for events, right in ((STREAM_EVENTS, True), (STREAM_EVENTS + 1, False)):
            work = Work("proof", body(stream=True), connections=2, events=events)
            sent = driven(programs, list, port, work, 0.3, folder, lambda: None)
            if (sent.errors == 0) is not right:
                raise BenchError(f"the driver found {sent.errors} errors in {sent.requests} streams: {events=}")


def _check(candidate: Candidate, url: str, engine: str, folder: Path) -> bytes:
    """Wait for the candidate, then hold one answer and one stream of its against the engine's own."""
    log = folder / "proxy.log"
    wait_for(url + PATH, body(), 60, log)
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
