"""Progress for a person: every line carries the seconds since the command began."""

import collections
import contextlib
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from cluster.errors import CommandFailed, TimedOut

_STARTED = time.monotonic()
_HEARTBEAT_SECONDS = 8.0


def say(text: str) -> None:
    """Print one progress line to stderr; stdout is kept for what a caller wants to read."""
    print(f"[{time.monotonic() - _STARTED:6.1f}s] {text}", file=sys.stderr, flush=True)


@contextlib.contextmanager
def step(label: str, detail: Callable[[], str] = lambda: "") -> Iterator[None]:
    """Announce a step, give a sign of life while it lasts, and say how long it took."""
    began = time.monotonic()
    over = threading.Event()

    def heartbeat() -> None:
        while not over.wait(_HEARTBEAT_SECONDS):
            say(f"{label} ... {time.monotonic() - began:.0f} s {detail()}".rstrip())

    ticker = threading.Thread(target=heartbeat, daemon=True)
    ticker.start()
    try:
        yield
    finally:
        over.set()
        ticker.join()
    say(f"{label}: done in {time.monotonic() - began:.1f} s")


def run_logged(
    label: str,
    command: Sequence[str],
    *,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    log: Path | None = None,
    timeout_seconds: float = 3600,
    telling: Callable[[str], bool] = bool,
) -> None:
    """Run a long command as a step; its output goes to a log, its last telling lines into the error.

    Raises CommandFailed when it exits with another status than 0 or runs past the timeout.
    """
    tail: collections.deque[str] = collections.deque(maxlen=25)
    count = [0]
    process = subprocess.Popen(
        command,
        env=dict(env) if env is not None else None,
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    )
    deadline = threading.Timer(timeout_seconds, process.kill)
    deadline.start()
    try:
        with step(label, lambda: f"({count[0]} lines of output)"):
            _follow(process, tail, count, log, telling)
            if process.wait() != 0:
                where = f" (whole log: {log})" if log else ""
                raise CommandFailed(
                    f"{label} failed with status {process.returncode}{where}:\n  "
                    + "\n  ".join(tail)
                    + f"\n  command: {' '.join(command)}"
                )
    finally:
        deadline.cancel()
        if process.poll() is None:
            process.kill()
            process.wait()


def _follow(
    process: subprocess.Popen[str],
    tail: collections.deque[str],
    count: list[int],
    log: Path | None,
    telling: Callable[[str], bool],
) -> None:
    assert process.stdout is not None
    sink = log.open("a", encoding="utf-8") if log else None
    try:
        for line in process.stdout:
            count[0] += 1
            if telling(line):
                tail.append(line.rstrip())
            if sink:
                sink.write(line)
    finally:
        process.stdout.close()  # left to the collector, the pipe would warn, and warnings fail tests
        if sink:
            sink.close()


def capture(
    command: Sequence[str],
    *,
    timeout_seconds: float = 60,
    stdin: str = "",
    stdin_file: Path | None = None,
) -> str:
    """Run a short command and return its stdout. Raises CommandFailed with its stderr."""
    try:
        with contextlib.ExitStack() as stack:
            source = stack.enter_context(stdin_file.open("rb")) if stdin_file is not None else None
            done = subprocess.run(
                command,
                stdin=source,
                input=stdin.encode() if source is None else None,
                capture_output=True,
                timeout=timeout_seconds,
                check=False,
            )
    except subprocess.TimeoutExpired as error:
        raise CommandFailed(f"{' '.join(command)} took over {timeout_seconds:.0f} s") from error
    except FileNotFoundError as error:
        raise CommandFailed(f"{command[0]} is not installed") from error
    out, complaint = (stream.decode(errors="replace") for stream in (done.stdout, done.stderr))
    if done.returncode != 0:
        raise CommandFailed(f"{' '.join(command)} failed: {complaint.strip() or out.strip()}")
    return out


def wait_until(
    label: str, ready: Callable[[], bool], *, timeout_seconds: float, interval_seconds: float = 0.1
) -> None:
    """Poll a condition as a step. Raises TimedOut when it does not come true in time."""
    deadline = time.monotonic() + timeout_seconds
    with step(label):
        while not ready():
            if time.monotonic() > deadline:
                raise TimedOut(f"{label}: not so after {timeout_seconds:.0f} s")
            time.sleep(interval_seconds)
