"""Free ports for processes that cannot choose one themselves."""

import fcntl
import os
import random
import socket
import tempfile
from functools import cache
from pathlib import Path

# Below the range that the kernel gives to outgoing connections (32768 and up), so that
# a port found free is not taken by a passing client before its owner listens on it.
_LOWEST, _HIGHEST = 20000, 32000
_TRIES = 500
# By this process, which gives none out again: who had one may want to listen there once more.
_given: set[int] = set()


def free_ports(count: int) -> list[int]:
    """Distinct TCP ports that nobody listens on, and that no other process is given as long as this one lives.

    Raises OSError after 500 tries.
    """
    found: list[int] = []
    while len(found) < count:
        found.append(ports_in_a_row(1))
    return found


def ports_in_a_row(count: int) -> int:
    """The first of so many TCP ports in a row, otherwise as `free_ports` gives them. Raises OSError."""
    for _ in range(_TRIES):
        first = random.randint(_LOWEST, _HIGHEST)
        ports = range(first, first + count)
        if all(port not in _given and _is_ours(port) and _is_free(port) for port in ports):
            _given.update(ports)
            return first
    raise OSError(f"no {count} free ports in a row found between {_LOWEST} and {_HIGHEST}")


def _is_ours(port: int) -> bool:
    """Hold a lock on one byte of a file, the port's, for as long as the process lives."""
    try:
        fcntl.lockf(_ledger(os.getpid()), fcntl.LOCK_EX | fcntl.LOCK_NB, 1, port)
    except OSError:
        return False
    return True


@cache
def _ledger(_process: int) -> int:
    """The file's descriptor, never closed: with any of them a process loses all its locks of a file."""
    path = Path(tempfile.gettempdir()) / f"tidepool-ports-{os.getuid()}.lock"
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)


def _is_free(port: int) -> bool:
    """At every address of this machine."""
    with socket.socket() as probe:
        try:
            probe.bind(("", port))
        except OSError:
            return False
    return True
