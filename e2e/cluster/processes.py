"""Background processes that outlive the command that started them, and how to know them again.

A process id alone is not an identity: the kernel gives it out again. A process
is therefore recorded with the tick at which it started and the boot it belongs
to, and nothing is ever signalled whose record does not match.
"""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from cluster.errors import TimedOut

# Carried in the environment of all that the cluster starts, so that a process
# is found even if the command that started it was killed before it wrote the record.
MARK = "TIDEPOOL_CLUSTER_STATE"
_OWNER = "owner.json"


@dataclass(frozen=True)
class Identity:
    """One process of one boot: never equal to a later process with the same id."""

    pid: int
    start_ticks: int
    boot_id: str


def parse_start_ticks(stat: str) -> int:
    """Field 22 of /proc/PID/stat (proc(5)); the name before it may hold spaces and parentheses."""
    return int(stat.rpartition(")")[2].split()[19])


def parse_state(stat: str) -> str:
    """Field 3 of /proc/PID/stat: R, S, D, Z for a zombie, and so on."""
    return stat.rpartition(")")[2].split()[0]


def boot_id() -> str:
    """The kernel's name for this boot."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def _stat(pid: int) -> str | None:
    try:
        return Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None


def identify(pid: int) -> Identity | None:
    """The identity of a running process; None when there is none (a zombie counts as none)."""
    stat = _stat(pid)
    if stat is None or parse_state(stat) in "ZX":
        return None
    return Identity(pid, parse_start_ticks(stat), boot_id())


def is_alive(identity: Identity) -> bool:
    """Whether this very process still runs."""
    return identify(identity.pid) == identity


def write_record(path: Path, identity: Identity) -> None:
    """Record a process; the file appears whole or not at all."""
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps(asdict(identity)))
    partial.rename(path)


def read_record(path: Path) -> Identity | None:
    """The recorded process; None when there is no record or it cannot be read."""
    try:
        return Identity(**json.loads(path.read_text()))
    except (FileNotFoundError, ValueError, TypeError):
        return None


def spawn(
    command: Sequence[str],
    log: Path,
    *,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
) -> subprocess.Popen[bytes]:
    """Start a process in a session of its own, with its output in a log file."""
    with log.open("ab") as sink:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=sink,
            stderr=subprocess.STDOUT,
            env=dict(env) if env is not None else None,
            cwd=cwd,
            start_new_session=True,
        )


def send(identity: Identity, number: signal.Signals) -> None:
    """Signal this very process, or nobody."""
    if is_alive(identity):
        with contextlib.suppress(ProcessLookupError):
            os.kill(identity.pid, number)


def end(identities: Sequence[Identity], *, grace_seconds: float = 5.0, timeout_seconds: float = 20.0) -> None:
    """Ask processes to stop, kill those that have not after the grace time, and see them gone.

    Raises TimedOut when one outlives SIGKILL.
    """
    for identity in identities:
        send(identity, signal.SIGTERM)
    if not _gone(identities, grace_seconds):
        for identity in identities:
            send(identity, signal.SIGKILL)
        if not _gone(identities, timeout_seconds):
            left = [identity.pid for identity in identities if is_alive(identity)]
            raise TimedOut(f"processes {left} do not end after SIGKILL: see their state with ps")


def _gone(identities: Sequence[Identity], timeout_seconds: float) -> bool:
    deadline = time.monotonic() + timeout_seconds
    while any(is_alive(identity) for identity in identities):
        _reap_children(identities)
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    _reap_children(identities)
    return True


def _reap_children(identities: Sequence[Identity]) -> None:
    for identity in identities:
        with contextlib.suppress(ChildProcessError):
            os.waitpid(identity.pid, os.WNOHANG)


def marked(value: str) -> list[Identity]:
    """All processes whose environment carries our mark with this value."""
    found = []
    wanted = f"{MARK}={value}".encode()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            identity = identify(int(entry.name))
            if identity and wanted in _environment(entry).split(b"\0"):
                found.append(identity)
    return found


def _environment(entry: Path) -> bytes:
    try:
        return (entry / "environ").read_bytes()
    except OSError:
        return b""


def claim(folder: Path) -> None:
    """Write down that this process owns a folder and all processes marked with it."""
    owner = identify(os.getpid())
    if owner is not None:
        write_record(folder / _OWNER, owner)


def clear_abandoned(parent: Path, prefix: str) -> list[Path]:
    """End the processes and remove the folders of owners that are gone; returns the folders."""
    cleared = []
    for folder in parent.glob(f"{prefix}*"):
        owner = read_record(folder / _OWNER)
        if owner is not None and not is_alive(owner):
            end(marked(str(folder)))
            shutil.rmtree(folder, ignore_errors=True)
            cleared.append(folder)
    return cleared
