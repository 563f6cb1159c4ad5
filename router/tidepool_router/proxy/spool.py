"""Large bodies that must be whole before it is known where they go: on disk, not in memory.

A file has no name from its first moment on, so nothing is left of it whatever becomes of the process. The client's
connection owns it, from the front of the body to the end of the answer. Reads and writes block: each is a piece
that goes to the page cache or comes from there.
"""

import asyncio
import logging
import os
import tempfile
from pathlib import Path
from typing import IO, Final

from tidepool_router.errors import Refusal, Refused
from tidepool_router.wire.messages import Request, RequestReader
from tidepool_router.wire.pieces import BodyFeed, Target

_log: Final = logging.getLogger("tidepool.router")
_PIECE_BYTES: Final = 131_072
# An engine that takes all at once must not keep the loop from everybody else.
_TURN_BYTES: Final = 1 << 20
_RETRY_AFTER_SECONDS: Final = 1.0
_REMEDY: Final = "try again in a moment, or write `model` before what is long, and the body goes on while it comes"


class Spools:
    """Where the files of a process lie, and how much is in them: at most `limit_bytes`."""

    def __init__(self, limit_bytes: int, folder: Path | None = None) -> None:
        """`folder`: None for the system's temporary one."""
        self.held_bytes = 0
        self._limit_bytes = limit_bytes
        self._folder = folder
        self._told = False

    def open(self, size_bytes: int | None) -> "Spool | None":
        """A file for a body of that size (None: not known). None where it cannot be had, and memory must do.

        Raises Refused (503) when others have the room.
        """
        size = size_bytes or 0
        if size > self._limit_bytes or not self._limit_bytes:
            return None
        self.take(size)
        try:
            file: IO[bytes] = tempfile.TemporaryFile(buffering=0, dir=self._folder)  # noqa: SIM115 (closed by `Spool`)
        except OSError as error:
            self.give(size)
            if not self._told:
                self._told = True
                _log.warning("no folder for large bodies; they are held in memory", extra={"reason": str(error)})
            return None
        return Spool(self, file, size)

    def take(self, size: int) -> None:
        """So much more will be written. Raises Refused."""
        if self.held_bytes + size > self._limit_bytes:
            raise _no_room("the router keeps as many large bodies as it may")
        self.held_bytes += size

    def give(self, size: int) -> None:
        """So much is gone."""
        self.held_bytes -= size


class Spool:
    """One body."""

    def __init__(self, owner: Spools, file: IO[bytes], reserved_bytes: int) -> None:
        self.size_bytes = 0
        self._owner = owner
        self._file = file
        self._reserved_bytes = reserved_bytes

    def write(self, part: bytes) -> None:
        """More of it has come. Raises Refused (503) when there is no room."""
        size = self.size_bytes + len(part)
        if size > self._reserved_bytes:  # its client did not say how long it is
            self._owner.take(size - self._reserved_bytes)
            self._reserved_bytes = size
        left = memoryview(part)
        try:
            while left:
                left = left[os.write(self._file.fileno(), left) :]
        except OSError as error:
            raise _no_room(f"the router found no room for a large body ({error.strerror})") from error
        self.size_bytes = size

    def read(self, start: int, count: int) -> bytes:
        """At most so many bytes from there on, and at least one. Raises Refused (503) when they are gone."""
        try:
            data = os.pread(self._file.fileno(), count, start)
        except OSError as error:
            raise _no_room(f"the router cannot read a body that it kept ({error.strerror})") from error
        if not data:
            raise _no_room("the router has lost a part of a body that it kept")
        return data

    def whole(self) -> bytes:
        """All of it, which is some milliseconds of work. Raises Refused."""
        parts: list[bytes] = []
        at = 0
        while at < self.size_bytes:
            parts.append(self.read(at, self.size_bytes - at))
            at += len(parts[-1])
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def replace(self, body: bytes) -> None:
        """Another body in its place. Raises Refused."""
        os.lseek(self._file.fileno(), 0, os.SEEK_SET)
        os.ftruncate(self._file.fileno(), 0)
        self.size_bytes = 0
        self.write(body)

    def close(self) -> None:
        """Nothing is left of it."""
        self._owner.give(self._reserved_bytes)
        self._reserved_bytes = 0
        self._file.close()


class StoredFeed(BodyFeed):
    """A whole body that is sent from its file, and from its beginning again when it must be sent again.

    Its request has no front in memory: `Request.body` is empty.
    """

    __slots__ = ("_at", "_spool")

    def __init__(self, spool: Spool) -> None:
        super().__init__(_NobodyWaits(), spool.size_bytes)
        self.whole = True
        self._spool = spool
        self._at = 0

    def read_all(self) -> bytes:
        """The body, for a look at it. Raises Refused."""
        return self._spool.whole()

    def replace(self, body: bytes) -> None:
        """Send this one. Raises Refused."""
        self._spool.replace(body)
        self._to_come_bytes = len(body)

    def start(self, target: Target) -> None:
        """BodyFeed."""
        super().start(target)
        self._at = 0

    def pump(self) -> None:
        """BodyFeed: send until the target takes no more, and not all at once."""
        target, owner = self._target, self._owner
        stop = self._at + _TURN_BYTES
        while target is not None and owner is not None and self._target is target and not self._full:
            if self._at >= stop:
                asyncio.get_running_loop().call_soon(self.pump)
                return
            try:
                data = self._spool.read(self._at, _PIECE_BYTES)
            except Refused as refused:
                owner.body_failed(refused.refusal)
                return
            self._at += len(data)
            last = self._at >= self._spool.size_bytes
            if last:
                self._target = target.feed = None
            target.send_more(data)
            if last:
                owner.body_waits(client=False)


class _NobodyWaits:
    """Source: it has all come."""

    def hold_body(self) -> None:
        """Source."""

    def take_body(self) -> None:
        """Source."""


def keep(reader: RequestReader, spool: Spool) -> None:
    """Put what has come of a body where the rest of it is. Raises Refused."""
    for part in reader.take_parts():
        spool.write(part)


def give_back(request: Request, spool: Spool) -> None:
    """Its request needs the body in memory after all. Raises Refused."""
    request.feed = None
    request.body = spool.whole()


def _no_room(message: str) -> Refused:
    refusal = Refusal(503, "service_unavailable", "router_full", f"{message}; {_REMEDY}", _RETRY_AFTER_SECONDS)
    return Refused(refusal)
