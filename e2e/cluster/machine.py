"""A machine of the cluster: one set of kernel namespaces, held by its first process.

When that process ends the kernel ends all others of the machine and takes its
mounts, network devices, routes and nftables tables with it. That is how `down`
can promise that nothing stays behind.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from cluster import processes
from cluster.console import capture
from cluster.errors import ClusterError, TimedOut
from cluster.paths import NAME_VARIABLE, REPOSITORY, cluster_name
from cluster.processes import MARK, Identity

_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class MachineError(ClusterError):
    """A machine or a program in it could not be started."""


class Machine:
    """One machine by name; `record` names its first process across commands."""

    def __init__(self, name: str, folder: Path, mark: str) -> None:
        self.name = name
        self.folder = folder
        self._mark = mark
        self._record = folder / "machine.json"

    def __repr__(self) -> str:
        return f"<Machine {self.name}>"

    @property
    def init(self) -> Identity | None:
        """The first process, if the machine is up: one that is being killed has lost its namespaces first."""
        identity = self._recorded()
        return identity if identity is not None and _has_network(identity.pid) else None

    def _recorded(self) -> Identity | None:
        """The first process while it exists, be it on its way out."""
        identity = processes.read_record(self._record)
        return identity if identity is not None and processes.is_alive(identity) else None

    def _require(self) -> Identity:
        init = self.init
        if init is None:
            raise MachineError(f"{self.name} is not up: run `python3 -m cluster up`")
        return init

    def create(self, binds: Mapping[str, Path]) -> None:
        """Make the machine; `binds` are paths under its /run to folders outside. Raises MachineError."""
        self.folder.mkdir(parents=True, exist_ok=True)
        config = {
            "name": self.name,
            "log": str(self.folder / "machine.log"),
            "run_folder": str(self.folder / "run"),
            "binds": {inside: str(outside) for inside, outside in binds.items()},
        }
        pid = self._helper("machine", config)
        identity = processes.identify(pid)
        if identity is None:
            raise MachineError(f"{self.name} ended at once: see {config['log']}")
        processes.write_record(self._record, identity)

    def kill(self) -> None:
        """Begin to end the machine; `destroy` waits for it."""
        init = self.init
        if init is not None:
            processes.send(init, signal.SIGKILL)

    def destroy(self) -> None:
        """End the machine and all in it. Raises TimedOut."""
        self.kill()
        init = self._recorded()
        if init is not None:
            deadline = time.monotonic() + 30
            while processes.is_alive(init):
                if time.monotonic() > deadline:
                    raise TimedOut(f"{self.name} (process {init.pid}) does not end after SIGKILL")
                time.sleep(0.02)
        self._record.unlink(missing_ok=True)

    def run(self, *command: str, timeout_seconds: float = 60, stdin_file: Path | None = None) -> str:
        """Run a short command in the machine, with its view of files and network. Raises CommandFailed."""
        return capture(
            ["nsenter", f"--target={self._require().pid}", "--mount", "--net", "--pid", "--", *command],
            timeout_seconds=timeout_seconds,
            stdin_file=stdin_file,
        )

    def network(self, *command: str) -> str:
        """Run a command in the machine's network alone: process ids mean what they mean outside."""
        return capture(["nsenter", f"--target={self._require().pid}", "--net", "--", *command])

    def ensure(self, command: Sequence[str], environment: Mapping[str, str] | None = None) -> bool:
        """See that a program runs with exactly this command line; returns whether it had to be started.

        Programs of the same name with another command line are ended first: they
        are of an earlier version of the cluster.
        """
        init = self._require()
        running = [(found, line) for found, line in programs(init) if found != init]
        stale = [found for found, line in running if line[0] == command[0] and tuple(line) != tuple(command)]
        if stale:
            processes.end(stale)
        if any(tuple(line) == tuple(command) for _, line in running):
            return False
        config = {
            "init": init.pid,
            "command": list(command),
            "environment": {**_base_environment(), MARK: self._mark, **(environment or {})},
            "log": str(self.log(command)),
        }
        self._helper("enter", config)
        return True

    def stop_program(self, program: str) -> None:
        """End every process of the machine whose command line starts with this path."""
        processes.end([found for found, line in programs(self._require()) if line[0] == program])

    def pid_of(self, program: str) -> int | None:
        """The process of the machine whose command line starts with this path; None when there is none."""
        init = self.init
        running = programs(init) if init is not None else []
        return next((found.pid for found, line in running if line[0] == program), None)

    def log(self, command: Sequence[str]) -> Path:
        """Where a program's output goes."""
        return self.folder / f"{Path(command[0]).name}.log"

    def _helper(self, verb: str, config: Mapping[str, object]) -> int:
        command = [sys.executable, "-m", "cluster.namespaces", verb, json.dumps(config)]
        environment = {**os.environ, "PYTHONPATH": str(REPOSITORY / "e2e"), MARK: self._mark}
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=60, check=False, cwd="/"
        )
        if done.returncode != 0:
            raise MachineError(f"{self.name}: {verb} failed: {done.stderr.strip()[-2000:]}")
        return int(done.stdout)


def _base_environment() -> dict[str, str]:
    return {"PATH": _PATH, "HOME": "/root", "LANG": "C.UTF-8", NAME_VARIABLE: cluster_name()}


def programs(init: Identity) -> list[tuple[Identity, list[str]]]:
    """All processes in the pid namespace that `init` leads, with their command lines."""
    namespace = _pid_namespace(init.pid)
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and _pid_namespace(int(entry.name)) == namespace:
            line = _command_line(entry)
            identity = processes.identify(int(entry.name))
            if identity is not None and line:
                found.append((identity, line))
    return found


def _has_network(pid: int) -> bool:
    """Whether the process still has a network namespace that can be entered; a dying one is listed without."""
    try:
        Path(f"/proc/{pid}/ns/net").readlink()
    except OSError:
        return False
    return True


def _pid_namespace(pid: int) -> str:
    try:
        return str(Path(f"/proc/{pid}/ns/pid").readlink())
    except OSError:
        return ""


def _command_line(entry: Path) -> list[str]:
    try:
        return (entry / "cmdline").read_text(errors="replace").split("\0")[:-1]
    except OSError:
        return []


def strays(mark: str, known: Sequence[Machine]) -> list[Identity]:
    """Processes of the cluster that belong to no known machine: left by a command killed half-way."""
    namespaces = {_pid_namespace(machine.init.pid) for machine in known if machine.init is not None}
    return [found for found in processes.marked(mark) if _pid_namespace(found.pid) not in namespaces]
