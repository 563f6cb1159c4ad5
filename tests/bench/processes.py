"""Processes of a run: started on their core, waited for, ended by their own handle."""

import json
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from cluster.ports import ports_in_a_row

from .programs import BenchError


def fetch(url: str, request: dict[str, Any] | None, timeout_seconds: float = 20.0) -> tuple[int, bytes]:
    """Status and body of one request; status 0 when there was no answer."""
    data = None if request is None else json.dumps(request).encode()
    asked = urllib.request.Request(url, data=data, headers={"content-type": "application/json"})
    try:
        with urllib.request.urlopen(asked, timeout=timeout_seconds) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()
    except OSError:
        return 0, b""


def wait_for(url: str, request: dict[str, Any] | None, limit_seconds: float, log: Path | None = None) -> None:
    """Wait for a 200; raises BenchError with the end of the log."""
    deadline = time.monotonic() + limit_seconds
    while fetch(url, request)[0] != 200:
        if time.monotonic() > deadline:
            said = log.read_text(errors="replace")[-2000:] if log and log.exists() else ""
            raise BenchError(f"{url} gave no good answer within {limit_seconds:.0f} s\n{said}")
        time.sleep(0.1)


@contextmanager
def process(command: list[str], core: int | None, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process on one core (None: on any), terminated in the end, killed when that takes more than 5 s."""
    pinned = command if core is None else ["taskset", "-c", str(core), *command]
    with log.open("ab") as out:
        started = subprocess.Popen(pinned, stdout=out, stderr=out)
        try:
            yield started
        finally:
            started.terminate()
            try:
                started.wait(5)
            except subprocess.TimeoutExpired:
                started.kill()
                started.wait(5)


def end_as_asked() -> None:
    """Who ends the bench ends its processes with it: without this they would outlive it."""
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))


def free_port(count: int) -> int:
    """The first of `count` ports in a row that are free now, and nobody else's; raises BenchError.

    Below those that the kernel gives to clients: after a load, thousands of these are in TIME_WAIT.
    """
    try:
        return ports_in_a_row(count)
    except OSError as error:
        raise BenchError(f"{error}: close what listens on this machine") from error
