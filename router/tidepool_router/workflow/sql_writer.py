"""One thread that works on the database, a transaction after the other.

What comes while a transaction runs shares the next one, so the cost of an fsync is divided among all who wait for
it (group commit). While a shared database is away the thread goes on trying, within its budget; what has been
answered is written, and what is tried again may be written already: all work is such that twice is once.
"""

import asyncio
import logging
import queue
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from time import monotonic
from typing import Any, Final, TypeVar

import sqlalchemy as sa

from tidepool_router.workflow.journal import JournalError
from tidepool_router.workflow.sql_store import Store

_MOST_WAITING: Final = 10_000
_MOST_TOGETHER: Final = 256
_FIRST_PAUSE_SECONDS: Final = 0.1
_LONGEST_PAUSE_SECONDS: Final = 1.0
_CLOSE_SECONDS: Final = 10.0

_log: Final = logging.getLogger("tidepool.workflow")
_T = TypeVar("_T")
_Work = tuple[Callable[[sa.Connection], Any], "asyncio.Future[Any]"]


class Writer:
    """`do` from the loop that it was made on."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._prepared = False
        self._waiting: queue.SimpleQueue[_Work | None] = queue.SimpleQueue()
        self._loop = asyncio.get_running_loop()
        self._thread = threading.Thread(target=self._write, name="workflow-journal", daemon=True)
        self._closing = threading.Event()

    def start(self) -> None:
        """Begin. A store of our own is opened now, and raises JournalError; a shared one when it is there."""
        if not self._store.shared:
            try:
                self._prepare()
            except sa.exc.SQLAlchemyError as error:
                told = self._store.told(error)
                raise JournalError(f"the store of workflow runs cannot be opened: {told}") from error
        self._thread.start()

    async def close(self) -> None:
        """Write what waits, then end."""
        self._closing.set()
        self._waiting.put(None)
        await asyncio.to_thread(self._thread.join, _CLOSE_SECONDS)
        self._store.engine.dispose()

    async def do(self, work: Callable[[sa.Connection], _T], within_seconds: float | None = None) -> _T:
        """Have it done in the next transaction; twice must be once. Raises JournalError."""
        if self._closing.is_set() or self._waiting.qsize() >= _MOST_WAITING:
            raise JournalError("the store of workflow runs takes no more; try again in a moment")
        future: asyncio.Future[_T] = self._loop.create_future()
        self._waiting.put((work, future))
        try:
            async with asyncio.timeout(within_seconds):
                return await future
        except TimeoutError as error:
            message = (
                f"the store of workflow runs has not answered for {within_seconds:g} s; try again in a moment"
            )
            raise JournalError(message) from error

    # The thread.

    def _write(self) -> None:
        going = True
        while going:
            first = self._waiting.get()
            batch = [] if first is None else [first]
            going = first is not None and self._gather(batch)
            if batch:
                self._transact(batch)

    def _gather(self, batch: list[_Work]) -> bool:
        """Take along what waits; False: the end was among it."""
        with suppress(queue.Empty):
            while len(batch) < _MOST_TOGETHER:
                more = self._waiting.get_nowait()
                if more is None:
                    return False
                batch.append(more)
        return True

    def _transact(self, batch: Sequence[_Work]) -> None:
        until = monotonic() + self._store.budget_seconds
        pause = _FIRST_PAUSE_SECONDS
        while True:
            wanted = [(work, future) for work, future in batch if not future.cancelled()]
            try:
                self._settle(self._attempt(wanted))
            except Exception as error:
                if self._store.passes(error) and monotonic() + pause < until:
                    self._store.engine.dispose()
                    if pause == _FIRST_PAUSE_SECONDS:  # once for each time that it is away
                        _log.warning("the store of workflow runs is away: %s", self._store.told(error))
                    if not self._closing.wait(pause):
                        pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)
                        continue
                self._give_up(wanted, error)
            return

    def _attempt(self, batch: Sequence[_Work]) -> list[tuple["asyncio.Future[Any]", Any]]:
        results: list[tuple[asyncio.Future[Any], Any]] = []
        if not self._prepared:
            self._prepare()
        with self._store.engine.begin() as connection:
            for work, future in batch:
                try:
                    results.append((future, work(connection)))
                except JournalError as refused:  # it has written nothing: the others' work stands
                    results.append((future, refused))
        return results

    def _give_up(self, batch: Sequence[_Work], error: Exception) -> None:
        """Tell who waits. What the database refused may be one's alone, so each is tried once by itself."""
        if len(batch) > 1 and not self._store.passes(error):
            for one in batch:
                self._transact([one])
            return
        told = self._store.told(error)
        _log.error("workflow runs could not be written: %s", told)
        failure = JournalError(f"the store of workflow runs failed: {told}")
        failure.__cause__ = error
        self._settle([(future, failure) for _, future in batch])

    def _prepare(self) -> None:
        self._store.prepare()
        self._prepared = True

    def _settle(self, results: Sequence[tuple["asyncio.Future[Any]", Any]]) -> None:
        with suppress(RuntimeError):  # the loop is closed, and nobody waits any more
            self._loop.call_soon_threadsafe(_tell, results)


def _tell(results: Sequence[tuple["asyncio.Future[Any]", Any]]) -> None:
    for future, result in results:
        if future.done():
            continue
        if isinstance(result, JournalError):
            future.set_exception(result)
        else:
            future.set_result(result)
