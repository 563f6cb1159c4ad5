"""Decisions written to a file, one JSON object a line, bounded: off unless somebody names the file."""

import logging
from pathlib import Path
from typing import IO, Final

import msgspec

from tidepool_router.errors import SettingsError
from tidepool_router.picking.decision import Decision

# The file and the one before it: this much each.
MOST_BYTES: Final = 64 * 1024 * 1024
_FLUSHED_AT_BYTES: Final = 64 * 1024

log = logging.getLogger("tidepool.fleet")


class DecisionLog:
    """At its limit the file becomes FILE.1, in place of an earlier one. A disk that fails ends the recording."""

    def __init__(self, path: Path, most_bytes: int = MOST_BYTES) -> None:
        self._path = path
        self._most_bytes = most_bytes
        self._encode = msgspec.json.Encoder().encode
        self._file: IO[bytes] | None = self._open("ab")
        self._size_bytes = path.stat().st_size

    def record(self, decision: Decision) -> None:
        """Write one line, in memory at first."""
        if self._file is None:
            return
        line = self._encode(decision) + b"\n"
        try:
            if self._size_bytes + len(line) > self._most_bytes:
                self._turn()
            self._file.write(line)
        except OSError as error:
            self._give_up(error)
            return
        self._size_bytes += len(line)

    def flush(self) -> None:
        """So that a reader sees what was written."""
        try:
            if self._file is not None:
                self._file.flush()
        except OSError as error:
            self._give_up(error)

    def close(self) -> None:
        """Write the rest."""
        file, self._file = self._file, None
        if file is not None:
            try:
                file.close()
            except OSError as error:
                log.warning("recorded decisions were lost", extra={"reason": str(error)})

    def _turn(self) -> None:
        if self._file is not None:
            self._file.close()
        self._path.replace(self._path.with_name(self._path.name + ".1"))
        self._file = self._open("wb")
        self._size_bytes = 0

    def _give_up(self, error: OSError) -> None:
        log.warning("decisions are no longer recorded", extra={"reason": str(error)})
        self.close()

    def _open(self, mode: str) -> IO[bytes]:
        try:
            return self._path.open(mode, buffering=_FLUSHED_AT_BYTES)
        except OSError as error:
            raise SettingsError(f"--record-decisions {self._path} cannot be written: {error.strerror}") from error
