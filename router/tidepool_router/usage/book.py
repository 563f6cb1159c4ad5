"""Writes a tally into the database that keeps runs of workflows, a second at most after something has ended."""

import asyncio
import logging
import secrets
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import sqlalchemy as sa

from tidepool_router.usage.report import Row
from tidepool_router.usage.tally import Hours, Tally, Used, Who
from tidepool_router.workflow.journal import JournalError
from tidepool_router.workflow.sql_store import Store, store_of
from tidepool_router.workflow.sql_tables import USAGE
from tidepool_router.workflow.sql_writer import Writer

FLUSH_SECONDS: Final = 1.0
_HOUR_SECONDS: Final = 3600
# A database that is away must not hold up the end of a gateway: the last second of usage is lost then.
_LAST_SECONDS: Final = 5.0
KEPT_SECONDS: Final = 400 * 24 * _HOUR_SECONDS  # a year, and time to bill it
# Names stand in columns of this width; what is longer is no name that anybody gave.
_NAME_CHARACTERS: Final = 256

_log: Final = logging.getLogger("tidepool.usage")


class Book:
    """One process's rows. `clock` is in Unix seconds.

    `start` raises JournalError for a file that cannot be opened.
    """

    def __init__(self, tally: Tally, place: str | Path, clock: Callable[[], float] = time.time) -> None:
        self._tally = tally
        self._hours = Hours(tally)
        self._clock = clock
        # A process writes no other's rows, so sums are of all writers and nobody waits for a lock on a row.
        self._writer_name = secrets.token_hex(8)
        self._store = store_of(place)
        self._writer = Writer(self._store)
        self._upsert = _upsert(self._store)
        self._task: asyncio.Task[None] | None = None
        self._swept_hour = 0

    def start(self) -> None:
        """Begin."""
        self._writer.start()
        self._hours.turn(self._hour(), {})
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def close(self) -> None:
        """Write what is left, then end."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await self._flush(_LAST_SECONDS)
        await self._writer.close()

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(FLUSH_SECONDS)
            await self._flush()
            await self._forget()

    async def _flush(self, within_seconds: float | None = None) -> None:
        """Write what has changed. What ended in the last second of an hour may stand in the next one."""
        hour = self._hour()
        # In one breath with the rows: what ends while they are written is of the hour that then begins.
        turned = None if hour == self._hours.hour else dict(self._tally)
        changed = self._tally.take_changed()
        if changed:
            rows = [self._row(who, self._hours.row(who)) for who in changed]
            try:
                await self._writer.do(lambda connection: connection.execute(self._upsert, rows), within_seconds)
            except JournalError as error:  # the sums stand in memory, and are tried again
                self._tally.give_back(changed)
                _log.warning("usage could not be written; trying again", extra={"reason": str(error)})
                return
            except asyncio.CancelledError:
                self._tally.give_back(changed)
                raise
        if turned is not None:
            self._hours.turn(hour, turned)

    async def _forget(self) -> None:
        if self._swept_hour == self._hours.hour:
            return
        old = USAGE.c.hour < self._hours.hour - KEPT_SECONDS
        try:
            await self._writer.do(lambda connection: connection.execute(USAGE.delete().where(old)))
        except JournalError as error:
            _log.warning("old usage could not be forgotten; trying again", extra={"reason": str(error)})
            return
        self._swept_hour = self._hours.hour

    def _row(self, who: Who, used: Used) -> dict[str, Any]:
        names = {name: _stored(value) for name, value in who._asdict().items()}
        return {"hour": self._hours.hour, "writer": self._writer_name, **names, **used._asdict()}

    def _hour(self) -> int:
        return int(self._clock()) // _HOUR_SECONDS * _HOUR_SECONDS


def _stored(name: str) -> str:
    """What a database refuses (NUL in PostgreSQL, half a surrogate pair in both) is replaced."""
    return name[:_NAME_CHARACTERS].replace("\x00", "?").encode("utf-8", "replace").decode()


def _upsert(store: Store) -> Any:  # noqa: ANN401 - each dialect has a class of its own
    keys = [column.name for column in USAGE.primary_key.columns]
    return store.insert_or_replace(USAGE, keys, Used._fields)


def read(place: str | Path, since: float, until: float) -> Sequence[Row]:
    """Rows of the hours that begin in [since, until), Unix seconds. Raises JournalError."""
    store = store_of(place)
    names = [USAGE.c[name] for name in Who._fields]
    sums = [sa.func.sum(USAGE.c[name]).label(name) for name in Used._fields]
    asked = (
        sa.select(USAGE.c.hour, *names, *sums)
        .where((USAGE.c.hour >= since) & (USAGE.c.hour < until))
        .group_by(USAGE.c.hour, *names)
    )
    try:
        with store.engine.connect() as connection:
            found = connection.execute(asked).all()
    except sa.exc.SQLAlchemyError as error:
        raise JournalError(f"the store cannot be read: {store.told(error)}") from error
    finally:
        store.engine.dispose()
    width = 1 + len(names)
    return [(row[0], Who(*row[1:width]), Used(*map(int, row[width:]))) for row in found]
