"""The journal in a SQL database: SQLite in a file, or in memory for runs that nobody asked to keep.

One thread writes. What comes while a transaction runs shares the next one, so the cost of an fsync is divided
among all who wait for it (group commit). WAL with synchronous=FULL: what has been answered survives a loss of
power.
"""

import asyncio
import json
import logging
import queue
import sqlite3
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Final, TypeVar, cast

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.pool import StaticPool

from tidepool_router.workflow.core.states import Ending, Key, Output, Phase, Verdict
from tidepool_router.workflow.journal import Accepted, Claim, Fenced, JournalError, Record, Summary

MEMORY: Final = "sqlite://"
_MOST_WAITING: Final = 10_000
_MOST_TOGETHER: Final = 256
_NO_ITEM: Final = -1

_log: Final = logging.getLogger("tidepool.workflow")
_meta: Final = sa.MetaData()
_runs: Final = sa.Table(
    "workflow_runs",
    _meta,
    sa.Column("id", sa.String(64), primary_key=True),
    sa.Column("workflow", sa.String(512), nullable=False),
    sa.Column("spec", sa.Text, nullable=False),
    sa.Column("input", sa.Text, nullable=False),
    sa.Column("caller", sa.Text, nullable=False),
    sa.Column("tenant", sa.String(256), nullable=False),
    sa.Column("background", sa.Boolean, nullable=False),
    sa.Column("created", sa.Float, nullable=False),
    sa.Column("deadline", sa.Float, nullable=False),
    sa.Column("owner", sa.String(256), nullable=False),
    sa.Column("lease_until", sa.Float, nullable=False),
    sa.Column("fence", sa.Integer, nullable=False),
    sa.Column("verdict", sa.String(16), nullable=False),
    sa.Column("reason", sa.Text, nullable=False),
    sa.Column("ended", sa.Float),
    sa.Column("tokens", sa.Integer, nullable=False),
    sa.Column("output", sa.Text),
    sa.Index("workflow_runs_newest", "workflow", "created"),
    sa.Index("workflow_runs_open", "ended", "lease_until"),
)
_endings: Final = sa.Table(
    "workflow_endings",
    _meta,
    sa.Column("run", sa.String(64), primary_key=True),
    sa.Column("step", sa.String(1024), primary_key=True),  # the path of a key
    sa.Column("item", sa.Integer, primary_key=True),
    sa.Column("phase", sa.String(16), nullable=False),
    sa.Column("reason", sa.Text, nullable=False),
    sa.Column("text", sa.Text, nullable=False),
    sa.Column("data", sa.Text),
    sa.Column("tokens", sa.Integer, nullable=False),
)

_T = TypeVar("_T")
_Work = tuple[Callable[[sa.Connection], Any], "asyncio.Future[Any]"]


class SqlJournal:
    """See Journal. `url` is SQLAlchemy's, such as `sqlite:////var/lib/tidepool/workflows.db`."""

    def __init__(self, url: str) -> None:
        self._engine = _engine(url)
        self._waiting: queue.SimpleQueue[_Work | None] = queue.SimpleQueue()
        self._loop = asyncio.get_running_loop()
        self._thread = threading.Thread(target=self._write, name="workflow-journal", daemon=True)
        self._closed = False
        try:
            _meta.create_all(self._engine)
        except sa.exc.SQLAlchemyError as error:
            raise JournalError(f"the store of workflow runs cannot be opened: {_told(error)}") from error
        self._thread.start()

    async def accept(self, run: Accepted, owner: str, lease_until: float) -> int:
        """Journal."""
        row = {
            "id": run.id,
            "workflow": run.workflow,
            "spec": json.dumps(run.spec),
            "input": json.dumps(run.input),
            "caller": json.dumps(run.caller),
            "tenant": run.tenant,
            "background": run.background,
            "created": run.created,
            "deadline": run.deadline,
            "owner": owner,
            "lease_until": lease_until,
            "fence": 1,
            "verdict": Verdict.RUNNING.value,
            "reason": "",
            "tokens": 0,
        }
        await self._do(lambda connection: connection.execute(_runs.insert(), row))
        return 1

    async def commit(self, run: str, fence: int, key: Key, ending: Ending) -> None:
        """Journal."""
        output = ending.output
        row = {
            "run": run,
            "step": key.path,
            "item": _NO_ITEM if key.item is None else key.item,
            "phase": ending.phase.value,
            "reason": ending.reason,
            "text": output.text,
            "data": None if output.data is None else json.dumps(output.data),
            "tokens": output.tokens,
        }

        def write(connection: sa.Connection) -> None:
            _require(connection, run, fence)
            connection.execute(self._insert_ending, row)

        await self._do(write)

    async def finish(self, run: str, fence: int, end: Summary, output: str | None) -> None:
        """Journal."""

        def write(connection: sa.Connection) -> None:
            _require(connection, run, fence)
            values = {
                "verdict": end.verdict.value,
                "reason": end.reason,
                "ended": end.ended,
                "tokens": end.tokens,
                "output": output,
            }
            connection.execute(_runs.update().where(_runs.c.id == run).values(**values))

        await self._do(write)

    async def renew(self, owner: str, lease_until: float) -> None:
        """Journal."""
        own = (_runs.c.owner == owner) & _runs.c.ended.is_(None)
        update = _runs.update().where(own).values(lease_until=lease_until)
        await self._do(lambda connection: connection.execute(update))

    async def claim(self, owner: str, now: float, lease_until: float, most: int) -> Sequence[Claim]:
        """Journal."""

        def take(connection: sa.Connection) -> list[Claim]:
            due = _runs.c.ended.is_(None) & (_runs.c.lease_until < now)
            oldest = sa.select(_runs).where(due).order_by(_runs.c.created).limit(most)
            claims = []
            for row in connection.execute(oldest.with_for_update(skip_locked=True)).all():
                fence = row.fence + 1
                values = {"owner": owner, "lease_until": lease_until, "fence": fence}
                connection.execute(_runs.update().where(_runs.c.id == row.id).values(**values))
                claims.append(Claim(_accepted(row), fence, _endings_of(connection, row.id)))
            return claims

        return await self._do(take)

    async def find(self, run: str) -> Record | None:
        """Journal."""

        def read(connection: sa.Connection) -> Record | None:
            row = connection.execute(sa.select(_runs).where(_runs.c.id == run)).one_or_none()
            if row is None:
                return None
            return Record(_accepted(row), _summary(row), row.output, _endings_of(connection, run))

        return await self._do(read)

    async def runs(
        self, workflow: str, most: int, *, before: float | None = None, tenant: str | None = None
    ) -> Sequence[Summary]:
        """Journal."""
        wanted = sa.select(_runs).where(_runs.c.workflow == workflow)
        if before is not None:
            wanted = wanted.where(_runs.c.created < before)
        if tenant is not None:
            wanted = wanted.where(_runs.c.tenant == tenant)
        newest = wanted.order_by(_runs.c.created.desc(), _runs.c.id).limit(most)
        return await self._do(lambda connection: [_summary(row) for row in connection.execute(newest)])

    async def forget(self, ended_before: float) -> int:
        """Journal."""

        def delete(connection: sa.Connection) -> int:
            old = sa.select(_runs.c.id).where(_runs.c.ended < ended_before)
            connection.execute(_endings.delete().where(_endings.c.run.in_(old)))
            return connection.execute(_runs.delete().where(_runs.c.ended < ended_before)).rowcount

        return await self._do(delete)

    async def close(self) -> None:
        """Journal."""
        self._closed = True
        self._waiting.put(None)
        await asyncio.to_thread(self._thread.join, 10.0)
        self._engine.dispose()

    @property
    def _insert_ending(self) -> sa.Insert:
        # Both dialects have the words, each in a class of its own.
        if self._engine.dialect.name == "postgresql":
            return postgresql.insert(_endings).on_conflict_do_nothing()
        return sqlite.insert(_endings).on_conflict_do_nothing()

    async def _do(self, work: Callable[[sa.Connection], _T]) -> _T:
        """Have it done in the writer's next transaction."""
        if self._closed or self._waiting.qsize() >= _MOST_WAITING:
            raise JournalError("the store of workflow runs takes no more; try again in a moment")
        future: asyncio.Future[_T] = self._loop.create_future()
        self._waiting.put((work, future))
        return await future

    def _write(self) -> None:
        """The writer's thread."""
        going = True
        while going:
            batch: list[_Work] = []
            first = self._waiting.get()
            going = first is not None
            if first is not None:
                batch.append(first)
                with suppress(queue.Empty):
                    while len(batch) < _MOST_TOGETHER:
                        more = self._waiting.get_nowait()
                        if more is None:
                            going = False
                            break
                        batch.append(more)
                self._transact(batch)

    def _transact(self, batch: Sequence[_Work]) -> None:
        results: list[tuple[asyncio.Future[Any], Any]] = []
        try:
            with self._engine.begin() as connection:
                for work, future in batch:
                    try:
                        results.append((future, work(connection)))
                    except Fenced as fenced:  # it has written nothing: the others' work stands
                        results.append((future, fenced))
        except Exception as error:
            _log.error("workflow runs could not be written: %s", _told(error))
            failure = JournalError(f"the store of workflow runs failed: {_told(error)}")
            failure.__cause__ = error
            results = [(future, failure) for _, future in batch]
        with suppress(RuntimeError):  # the loop is closed, and nobody waits any more
            self._loop.call_soon_threadsafe(_settle, results)


def _settle(results: Sequence[tuple["asyncio.Future[Any]", Any]]) -> None:
    for future, result in results:
        if future.done():
            continue
        if isinstance(result, JournalError):
            future.set_exception(result)
        else:
            future.set_result(result)


def _engine(url: str) -> sa.Engine:
    try:
        parts = sa.make_url(url)
    except sa.exc.ArgumentError as error:
        message = "the store's URL cannot be read; write it like sqlite:////var/lib/tidepool/workflows.db"
        raise JournalError(message) from error
    if parts.get_backend_name() != "sqlite":
        raise JournalError(f"{parts.get_backend_name()} is not built yet as a store of runs; use sqlite:///FILE")
    if parts.database in (None, "", ":memory:"):
        return sa.create_engine(MEMORY, poolclass=StaticPool, connect_args={"check_same_thread": False})
    engine = sa.create_engine(parts)

    @sa.event.listens_for(engine, "connect")
    def _durable(connection: sqlite3.Connection, _: object) -> None:
        connection.execute("pragma journal_mode=wal")
        connection.execute("pragma synchronous=full")
        connection.execute("pragma busy_timeout=5000")

    return engine


def _require(connection: sa.Connection, run: str, fence: int) -> None:
    # Locked until the transaction ends, so that nobody takes the run over meanwhile.
    wanted = sa.select(_runs.c.fence, _runs.c.ended).where(_runs.c.id == run).with_for_update(read=True)
    row = connection.execute(wanted).one_or_none()
    if row is None or row.fence != fence or row.ended is not None:
        raise Fenced(f"the run {run} belongs to another gateway by now, or is over")


def _accepted(row: "sa.Row[Any]") -> Accepted:
    return Accepted(
        row.id,
        row.workflow,
        json.loads(row.spec),
        json.loads(row.input),
        row.created,
        row.deadline,
        row.background,
        json.loads(row.caller),
    )


def _summary(row: "sa.Row[Any]") -> Summary:
    return Summary(row.id, row.workflow, row.created, Verdict(row.verdict), row.reason, row.ended, row.tokens)


def _endings_of(connection: sa.Connection, run: str) -> dict[Key, Ending]:
    found = {}
    for row in connection.execute(sa.select(_endings).where(_endings.c.run == run)):
        key = Key.at(row.step, None if row.item == _NO_ITEM else row.item)
        data = None if row.data is None else json.loads(row.data)
        found[key] = Ending(Phase(row.phase), row.reason, Output(row.text, data, row.tokens))
    return found


def _told(error: BaseException) -> str:
    """The database's own words, without the statement and its values, which hold prompts."""
    return str(cast("object", getattr(error, "orig", None) or type(error).__name__))[:300]
