"""`tidepool-router load URI FOLDER` loads once, `drop FOLDER` takes away; the last line says why one could not."""

import argparse
import logging
import os
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import FrameType

from tidepool_router.loading.folder import drop, fill

log = logging.getLogger("tidepool.load")


def run(arguments: Sequence[str]) -> int:
    """0: the folder is whole. 1: it is not, and the last line of standard error is the cause."""
    parser = argparse.ArgumentParser(prog="tidepool-router load", description="Loads a model into a folder.")
    parser.add_argument("uri", help="hf://owner/name, s3://bucket/path or gs://bucket/path")
    parser.add_argument("folder", type=Path, help="made when all files are there")
    parser.add_argument("--revision", help="branch, tag or commit of an hf:// model")
    parser.add_argument("--user", default="", help="who wants it; it is dropped with the last one who does")
    given = parser.parse_args(arguments)
    _begin()
    return _end(outcome(given.uri, given.folder, given.revision, given.user))


def run_drop(arguments: Sequence[str]) -> int:
    """0: the folder is gone, or others want it. 1: it could not be removed."""
    parser = argparse.ArgumentParser(prog="tidepool-router drop", description="Removes what `load` has loaded.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--user", required=True, help="who does not want it any more")
    given = parser.parse_args(arguments)
    _begin()
    try:
        drop(given.folder, given.user)
    except OSError as error:
        return _end(_line(error))
    return 0


def _begin() -> None:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s: %(message)s", stream=sys.stderr)
    logging.getLogger("httpx2").setLevel(logging.WARNING)
    # As process 1 it would not end by a signal that nobody handles, and there is nothing to finish.
    signal.signal(signal.SIGTERM, _terminate)
    # Engines of whatever user must read them.
    os.umask(0o022)


def _end(cause: str | None) -> int:
    if cause is not None:
        print(cause, file=sys.stderr)
    return 0 if cause is None else 1


def outcome(uri: str, folder: Path, revision: str | None, user: str = "") -> str | None:
    """Why the folder is not whole now, in one line as Python ends a trace; None when it is."""
    begun = time.monotonic()
    try:
        made = load(uri, folder, revision, user)
    except Exception as error:  # whatever it is, the last line must say it
        return _line(error)
    log.info("%s is %s %s", uri, f"in {time.monotonic() - begun:.0f} s at" if made else "already at", folder)
    return None


def load(uri: str, folder: Path, revision: str | None = None, user: str = "") -> bool:
    """Make `folder` whole; False when it was. Raises LoadError, OSError and the hub client's errors."""
    about = {"uri": uri} | ({"revision": revision} if revision else {})
    return fill(folder, lambda into: _fetch(uri, revision, into), about, user)


def _fetch(uri: str, revision: str | None, into: Path) -> Mapping[str, int]:
    scheme, _, rest = uri.partition("://")
    # The clients take a second and tens of megabytes to import: only the one that is needed.
    if scheme == "hf":
        from tidepool_router.loading import hub

        return hub.fetch(rest, revision, into)
    if scheme in ("s3", "gs"):
        from tidepool_router.loading import stores

        return stores.fetch(uri, into)
    raise ValueError(f"{uri}: only hf://, s3:// and gs:// are loaded")


def _line(error: Exception) -> str:
    """As Python ends a trace, in one line: the diagnosis reads names and beginnings."""
    kind = type(error)
    name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    return f"{name}: {' '.join(str(error).split())}"


def _terminate(signum: int, _: FrameType | None) -> None:
    os._exit(128 + signum)
