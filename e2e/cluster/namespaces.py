"""Kernel namespaces from Python 3.11, which has no os.unshare and os.setns yet.

This file is also a program (`python3 -m cluster.namespaces`), because a process
that changes its namespaces must have one thread and no state to lose. The two
verbs print the process id that the machine outside sees:

    machine CONFIG      make a machine: new namespaces and a first process in them
    enter CONFIG        start a program inside a machine
"""

import contextlib
import ctypes
import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

# linux/sched.h
_CLONE_NEWNS = 0x00020000
_CLONE_NEWUTS = 0x04000000
_CLONE_NEWIPC = 0x08000000
_CLONE_NEWPID = 0x20000000
_CLONE_NEWNET = 0x40000000
_ALL = _CLONE_NEWNS | _CLONE_NEWUTS | _CLONE_NEWIPC | _CLONE_NEWPID | _CLONE_NEWNET

_LIBC = ctypes.CDLL(None, use_errno=True)


def _check(status: int, what: str) -> None:
    if status != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def make_machine(config: dict[str, Any]) -> int:
    """Fork the first process of a new machine; returns its id once the machine is ready.

    config: name, log, and `binds`, a mapping of paths under /run inside the
    machine to paths outside; with binds the machine gets a /run, /var/lib and
    /var/log of its own, in memory.
    """
    ready_read, ready_write = os.pipe()
    log = os.open(config["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    _check(_LIBC.unshare(_ALL), "unshare")
    pid = os.fork()
    if pid == 0:
        os.close(ready_read)
        _detach(log)
        _prepare(config)
        os.write(ready_write, b"1")
        os.close(ready_write)
        _reap_forever()
    os.close(ready_write)
    if not os.read(ready_read, 1):
        raise RuntimeError(f"machine {config['name']} did not come up: see {config['log']}")
    return pid


def _detach(log: int) -> None:
    os.setsid()
    os.chdir("/")
    nothing = os.open("/dev/null", os.O_RDONLY)
    for target, source in ((0, nothing), (1, log), (2, log)):
        os.dup2(source, target)


def _prepare(config: dict[str, Any]) -> None:
    socket.sethostname(config["name"])
    # Nothing that is mounted here is seen outside, and all of it goes with the last process.
    _mount("--make-rprivate", "/")
    _mount("-t", "proc", "proc", "/proc")
    if config["binds"]:
        _mount_own_folders(config["binds"], Path(config["run_folder"]))
    # kubelet and containerd share mounts with containers; shared inside the machine only.
    _mount("--make-rshared", "/")
    _run("ip", "link", "set", "lo", "up")
    Path("/proc/sys/net/ipv4/ip_forward").write_text("1")


def _mount_own_folders(binds: dict[str, str], staging: Path) -> None:
    # Staged and then moved: a source may itself lie below one of the folders that get covered.
    staging.mkdir(parents=True, exist_ok=True)
    _mount("-t", "tmpfs", "-o", "mode=755", "tidepool-run", str(staging))
    for inside, outside in binds.items():
        target = staging / inside
        target.mkdir(parents=True)
        _mount("--bind", outside, str(target))
    _mount("--move", str(staging), "/run")
    for folder in ("/var/lib", "/var/log"):
        _mount("-t", "tmpfs", "-o", "mode=755", "tidepool", folder)
    if not Path("/var/run").is_symlink():
        _mount("--bind", "/run", "/var/run")


def _mount(*arguments: str) -> None:
    # Without the table in /run/mount: it is the machine's outside, or already covered.
    _run("mount", "--no-mtab", *arguments)


def _run(*command: str) -> None:
    subprocess.run(command, check=True, timeout=30)


def _reap_forever() -> None:
    # The first process of a machine inherits every orphan in it.
    signal.signal(signal.SIGCHLD, lambda *_: None)
    while True:
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            signal.pause()


def enter(config: dict[str, Any]) -> int:
    """Start a program in a machine; returns its id, as seen outside.

    config: init (the machine's first process), command, environment, log.
    """
    log = os.open(config["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    kinds = ("net", "uts", "ipc", "pid", "mnt")
    handles = [os.open(f"/proc/{config['init']}/ns/{kind}", os.O_RDONLY) for kind in kinds]
    for kind, handle in zip(kinds, handles, strict=True):
        _check(_LIBC.setns(handle, 0), f"setns {kind}")
    pid = os.fork()
    if pid == 0:
        _detach(log)
        command = config["command"]
        with contextlib.suppress(OSError):
            os.closerange(3, 256)
        try:
            os.execve(command[0], command, config["environment"])
        except OSError as error:
            print(f"cannot start {command[0]}: {error}", file=sys.stderr, flush=True)
            os._exit(127)
    return pid


def main(arguments: list[str]) -> None:
    """Run one of the two verbs."""
    verb, text = arguments
    print({"machine": make_machine, "enter": enter}[verb](json.loads(text)), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
