"""One maker at a time for things in the cache that several commands may want."""

import fcntl
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from cluster.console import say
from cluster.errors import TimedOut


@contextmanager
def exclusive(path: Path, what: str, *, timeout_seconds: float = 3600.0) -> Iterator[None]:
    """Hold a file lock; it goes with the process, so a killed holder blocks nobody.

    Says every 8 s that it waits. Raises TimedOut.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as handle:
        waited = 0.0
        while not _try_lock(handle.fileno()):
            if waited % 8 == 0:
                say(f"another command is making {what}, waiting ({waited:.0f} s)")
            if waited >= timeout_seconds:
                raise TimedOut(f"{path} has been held for {waited:.0f} s: end its holder and try again")
            time.sleep(1)
            waited += 1
        yield


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
