"""One model's folder: whole or not there, whoever fills it at the same moment, however it ends.

Files come into `NAME.part` and the folder gets its name when all are there. A list of them, with sizes, lies
inside; a folder whose files are not as listed is filled again.
"""

import contextlib
import fcntl
import json
import logging
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from tidepool_router.loading.errors import FilesBrokenError

log = logging.getLogger("tidepool.load")

_OWN: Final = ".tidepool"
_LIST: Final = "files.json"
_USERS: Final = "users"
_LOCKS: Final = ".locks"

# Brings files below a folder; sizes in bytes by name.
Fetch = Callable[[Path], Mapping[str, int]]


def fill(target: Path, fetch: Fetch, about: Mapping[str, Any], user: str = "") -> bool:
    """Make `target` whole, and note that `user` wants it; False when it was whole already.

    Raises OSError, and what `fetch` raises.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    with _locked(target):
        made = not is_whole(target) and _fill(target, fetch, about)
        if user:
            users = target / _OWN / _USERS
            users.mkdir(parents=True, exist_ok=True)
            (users / user).touch()
    return made


def drop(target: Path, user: str) -> bool:
    """`user` does not want the folder any more; it goes with the last one who does. False when it stays."""
    if not target.parent.is_dir():
        return True
    with _locked(target):
        (target / _OWN / _USERS / user).unlink(missing_ok=True)
        others = sorted(path.name for path in (target / _OWN / _USERS).glob("*"))
        if others:
            log.info("%s stays: %s loaded it too", target.name, ", ".join(others))
            return False
        for folder in (target, target.with_name(f"{target.name}.part")):
            # One that is broken off half way is not whole, so nobody takes it for the model.
            if folder.exists():
                (folder / _OWN / _LIST).unlink(missing_ok=True)
                shutil.rmtree(folder)
    return True


def _fill(target: Path, fetch: Fetch, about: Mapping[str, Any]) -> bool:
    part = target.with_name(f"{target.name}.part")
    if target.exists() and not part.exists():
        target.rename(part)  # what of it is right need not come again
    part.mkdir(exist_ok=True)
    sizes = fetch(part)
    _check(part, sizes)
    _write_list(part, {**about, "files": dict(sizes)})
    if target.exists():
        shutil.rmtree(target)
    part.rename(target)
    return True


def is_whole(folder: Path) -> bool:
    """Whether all listed files are there in their size."""
    try:
        listed = json.loads((folder / _OWN / _LIST).read_text())["files"]
        return all((folder / name).stat().st_size == size for name, size in listed.items())
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False


def _check(folder: Path, sizes: Mapping[str, int]) -> None:
    for name, size in sizes.items():
        found = (folder / name).stat().st_size
        if found != size:
            raise FilesBrokenError(f"{name} has {found} bytes instead of {size}")


def _write_list(folder: Path, listed: Mapping[str, Any]) -> None:
    own = folder / _OWN
    own.mkdir(exist_ok=True)
    (own / _LIST).write_text(json.dumps(listed, indent=1, sort_keys=True))
    # The name must not come before what it promises.
    for path in (own / _LIST, own, folder):
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


@contextlib.contextmanager
def _locked(target: Path) -> Iterator[None]:
    """One process at a time, also of several pods on file systems that lock across nodes; others wait for it."""
    locks = target.parent / _LOCKS
    locks.mkdir(exist_ok=True)
    with (locks / target.name).open("w") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            log.info("somebody else loads %s; waiting", target.name)
            fcntl.flock(handle, fcntl.LOCK_EX)
        except OSError as error:
            log.warning("this file system has no locks (%s); going on without", error)
        yield
