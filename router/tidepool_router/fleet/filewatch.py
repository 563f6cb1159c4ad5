"""Reads a file again whenever it changes, also where a mounted ConfigMap or Secret swaps a link."""

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final, Generic, TypeVar

from pydantic import BaseModel, ValidationError

from tidepool_api.routing import SidecarSettings
from tidepool_api.trust import TrustedCallers
from tidepool_router.documents import DocumentError, dotted, line_of, load
from tidepool_router.fleet.document import FleetDocument, FleetError, read_fleet
from tidepool_router.keys import ApiKey, KeysError, read_keys

_INTERVAL_SECONDS: Final = 1.0

log = logging.getLogger("tidepool.fleet")

Mark = tuple[int, int, int]
Content = TypeVar("Content")
_Document = TypeVar("_Document", bound=BaseModel)


class WatchedFile(Generic[Content]):
    """One file. `what` names its content in logs; `read` makes sense of the text or raises `error`.

    `may_be_empty`: somebody else will write it, so nothing in it is no error.
    """

    def __init__(
        self,
        path: Path,
        what: str,
        read: Callable[[str], Content],
        error: type[DocumentError],
        apply: Callable[[Content], None],
        *,
        may_be_empty: bool = False,
    ) -> None:
        self._path = path
        self._what = what
        self._parse = read
        self._error = error
        self._apply = apply
        self._may_be_empty = may_be_empty
        self._mark: Mark | None = None
        self._missing = False

    async def load(self) -> None:
        """Read it once; raises a DocumentError, also when it cannot be read."""
        self._mark, text = await asyncio.to_thread(self._read)
        if self._may_be_empty and not text.strip():
            return
        self._apply(self._parse(text))

    async def run(self) -> None:
        """Apply each change; a bad file is refused in the log and what was before stays. Ends by cancellation."""
        while True:
            await asyncio.sleep(_INTERVAL_SECONDS)
            if await asyncio.to_thread(self._changed):
                try:
                    await self.load()
                    log.info("%s file applied", self._what, extra={"file": str(self._path)})
                except DocumentError as error:
                    log.error(  # noqa: TRY400 - the reason is the message; a traceback says nothing more
                        "%s file refused; what was before stays",
                        self._what,
                        extra={"file": str(self._path), "line": error.line, "reason": error.reason},
                    )
                except Exception:  # nobody waits for this task, and the next change may be good
                    log.exception("%s file could not be applied", self._what, extra={"file": str(self._path)})

    def _changed(self) -> bool:
        try:
            mark = self._stat()
        except OSError:
            gone, self._missing = not self._missing, True
            if gone:
                where = {"file": str(self._path)}
                log.warning("%s file missing; what was before stays", self._what, extra=where)
            return False
        self._missing = False
        return mark != self._mark

    def _read(self) -> tuple[Mark, str]:
        try:
            mark = self._mark = self._stat()
            return mark, self._path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise self._error(f"{self._path} cannot be read: {error}") from error

    def _stat(self) -> Mark:
        stat = self._path.stat()
        return stat.st_mtime_ns, stat.st_size, stat.st_ino


class FleetFile(WatchedFile[FleetDocument]):
    """The file that `--fleet` names."""

    def __init__(self, path: Path, apply: Callable[[FleetDocument], None], *, may_be_empty: bool = False) -> None:
        super().__init__(path, "fleet", read_fleet, FleetError, apply, may_be_empty=may_be_empty)


class KeysFile(WatchedFile[tuple[ApiKey, ...]]):
    """The file that `--keys` names. Empty, missing or wrong it opens nothing: at the start that is an error."""

    def __init__(self, path: Path, apply: Callable[[tuple[ApiKey, ...]], None]) -> None:
        super().__init__(path, "keys", read_keys, KeysError, apply)


class SettingsFile(WatchedFile[SidecarSettings]):
    """The file that a sidecar's `--settings` names."""

    def __init__(self, path: Path, apply: Callable[[SidecarSettings], None]) -> None:
        super().__init__(path, "settings", partial(_read_document, SidecarSettings), DocumentError, apply)


class TrustFile(WatchedFile[TrustedCallers]):
    """The file that a gateway's `--trust-file` names; the operator may not have written it yet."""

    def __init__(self, path: Path, apply: Callable[[TrustedCallers], None]) -> None:
        read = partial(_read_document, TrustedCallers)
        super().__init__(path, "trust", read, DocumentError, apply, may_be_empty=True)


def _read_document(kind: type[_Document], text: str) -> _Document:
    try:
        return kind.model_validate(load(text))
    except ValidationError as error:
        fault = error.errors(include_url=False)[0]
        raise DocumentError(f"{dotted(fault['loc'])}: {fault['msg']}", line_of(text, fault["loc"])) from error
