"""Reads a fleet file again whenever it changes, also where a mounted ConfigMap swaps a link."""

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Final

from tidepool_router.fleet.document import FleetDocument, FleetError, read_fleet

_INTERVAL_SECONDS: Final = 1.0

log = logging.getLogger("tidepool.fleet")

Mark = tuple[int, int, int]


class FleetFile:
    """The file that `--fleet` names. `may_be_empty`: somebody else will write it, so nothing in it is no error."""

    def __init__(self, path: Path, apply: Callable[[FleetDocument], None], *, may_be_empty: bool = False) -> None:
        self._path = path
        self._apply = apply
        self._may_be_empty = may_be_empty
        self._mark: Mark | None = None
        self._missing = False

    async def load(self) -> None:
        """Read it once; raises FleetError, also when it cannot be read."""
        self._mark, text = await asyncio.to_thread(self._read)
        if self._may_be_empty and not text.strip():
            return
        self._apply(read_fleet(text))

    async def run(self) -> None:
        """Apply each change; a bad file is refused in the log and what was before stays. Ends by cancellation."""
        while True:
            await asyncio.sleep(_INTERVAL_SECONDS)
            if await asyncio.to_thread(self._changed):
                try:
                    await self.load()
                    log.info("fleet file applied", extra={"file": str(self._path)})
                except FleetError as error:
                    log.error(  # noqa: TRY400 - the reason is the message; a traceback says nothing more
                        "fleet file refused; the fleet from before stays",
                        extra={"file": str(self._path), "line": error.line, "reason": error.reason},
                    )

    def _changed(self) -> bool:
        try:
            mark = self._stat()
        except OSError:
            gone, self._missing = not self._missing, True
            if gone:
                log.warning("fleet file missing; the fleet from before stays", extra={"file": str(self._path)})
            return False
        self._missing = False
        return mark != self._mark

    def _read(self) -> tuple[Mark, str]:
        try:
            mark = self._mark = self._stat()
            return mark, self._path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise FleetError(f"{self._path} cannot be read: {error}") from error

    def _stat(self) -> Mark:
        stat = self._path.stat()
        return stat.st_mtime_ns, stat.st_size, stat.st_ino
