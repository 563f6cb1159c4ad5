"""The journal in a SQL database: PostgreSQL, SQLite in a file, or in memory for runs that nobody asked to keep."""

from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import sqlalchemy as sa

from tidepool_router.workflow import sql_tables, sql_totals
from tidepool_router.workflow.core.states import Ending, Key
from tidepool_router.workflow.journal import Accepted, Claim, Fenced, Record, Summary, Taken, Totals
from tidepool_router.workflow.sql_store import MEMORY, store_of
from tidepool_router.workflow.sql_tables import ENDINGS, RUNS
from tidepool_router.workflow.sql_writer import Writer

__all__ = ["MEMORY", "SqlJournal"]

# Somebody waits at the other end of a connection; what a run writes may wait for as long as the writer tries.
_ASKED_SECONDS: Final = 5.0
# Else SQLAlchemy keeps no count of what an insert has inserted.
_COUNTED: Final = {"preserve_rowcount": True}
_MOST_FORGOTTEN: Final = 1000  # in one transaction, for others wait behind it


class SqlJournal:
    """See Journal. `place`: a URL, such as `sqlite:////var/lib/tidepool/workflows.db`, or a file that has it.

    `clock` replaces the store's own; `asked_seconds` bounds what somebody waits for. Raises JournalError.
    """

    def __init__(
        self,
        place: str | Path,
        clock: Callable[[], float] | None = None,
        asked_seconds: float = _ASKED_SECONDS,
    ) -> None:
        self._store = store_of(place, clock)
        self.shared = self._store.shared
        self._asked_seconds = asked_seconds
        self._writer = Writer(self._store)
        self._insert_run = self._store.insert_once(RUNS)
        self._insert_ending = _guarded(self._store.insert_once(ENDINGS))
        self._writer.start()

    async def accept(self, run: Accepted, owner: str, lease_seconds: float) -> int:
        """Journal."""
        row = sql_tables.run_row(run, owner)
        tried = False

        def write(connection: sa.Connection) -> int:
            nonlocal tried
            again, tried = tried, True
            lease = {"lease_until": self._store.now() + lease_seconds}
            if connection.execute(self._insert_run.values(**lease), row, execution_options=_COUNTED).rowcount:
                return 1
            # An answer of the database may have been lost, and this may be our own row.
            mine = (RUNS.c.id == run.id) & (RUNS.c.owner == owner) & (RUNS.c.fence == 1)
            if again and connection.execute(sa.select(RUNS.c.id).where(mine)).one_or_none() is not None:
                return 1
            raise Taken(f"the run {run.id} was taken in before")

        return await self._writer.do(write, self._asked_seconds)

    async def commit(self, run: str, fence: int, key: Key, ending: Ending) -> None:
        """Journal."""
        row = {f"v_{name}": value for name, value in sql_tables.ending_row(run, key, ending).items()}
        row["v_fence"] = fence

        def write(connection: sa.Connection) -> None:
            if not connection.execute(self._insert_ending, row, execution_options=_COUNTED).rowcount:
                _require(connection, run, fence)  # else it has ended before, and that ending stands

        await self._writer.do(write)

    async def finish(self, run: str, fence: int, end: Summary, output: str | None) -> None:
        """Journal."""
        row = sql_tables.end_row(end, output)

        def write(connection: sa.Connection) -> None:
            open_run = (RUNS.c.id == run) & (RUNS.c.fence == fence) & RUNS.c.ended.is_(None)
            if connection.execute(RUNS.update().where(open_run), row).rowcount:
                return
            mine = (RUNS.c.id == run) & (RUNS.c.fence == fence) & (RUNS.c.ended == end.ended)
            if connection.execute(sa.select(RUNS.c.id).where(mine)).one_or_none() is None:
                raise _fenced(run)

        await self._writer.do(write)

    async def renew(self, owner: str, runs: Collection[str], lease_seconds: float) -> Collection[str]:
        """Journal."""
        own = _among(RUNS.c.id, runs) & (RUNS.c.owner == owner) & RUNS.c.ended.is_(None)

        def write(connection: sa.Connection) -> set[str]:
            until = self._store.now() + lease_seconds
            kept = connection.execute(RUNS.update().where(own).values(lease_until=until).returning(RUNS.c.id))
            return set(kept.scalars())

        return await self._writer.do(write)

    async def release(self, owner: str) -> None:
        """Journal."""
        own = (RUNS.c.owner == owner) & RUNS.c.ended.is_(None)
        await self._writer.do(
            lambda connection: connection.execute(RUNS.update().where(own).values(lease_until=0.0)),
            self._asked_seconds,
        )

    async def claim(self, owner: str, lease_seconds: float, most: int) -> Sequence[Claim]:
        """Journal."""

        def take(connection: sa.Connection) -> list[Claim]:
            now = self._store.now()
            due = RUNS.c.ended.is_(None) & (RUNS.c.lease_until < now)
            oldest = sa.select(RUNS).where(due).order_by(RUNS.c.created).limit(most)
            claims = []
            for row in connection.execute(oldest.with_for_update(skip_locked=True)).all():
                fence = row.fence + 1
                values = {"owner": owner, "lease_until": now + lease_seconds, "fence": fence}
                connection.execute(RUNS.update().where(RUNS.c.id == row.id).values(**values))
                endings = sql_tables.endings(connection, row.id)
                claims.append(Claim(sql_tables.accepted(row), fence, endings, row.cancel))
            return claims

        return await self._writer.do(take)

    async def ask_to_cancel(self, run: str, reason: str) -> None:
        """Journal."""
        wanted = (RUNS.c.id == run) & RUNS.c.ended.is_(None) & RUNS.c.cancel.is_(None)
        await self._writer.do(
            lambda connection: connection.execute(RUNS.update().where(wanted).values(cancel=reason)),
            self._asked_seconds,
        )

    async def cancels(self, owner: str) -> Mapping[str, str]:
        """Journal."""
        asked = RUNS.c.cancel.is_not(None) & RUNS.c.ended.is_(None) & (RUNS.c.owner == owner)
        wanted = sa.select(RUNS.c.id, RUNS.c.cancel).where(asked)
        return await self._writer.do(lambda found: {row.id: row.cancel for row in found.execute(wanted)})

    async def find(self, run: str) -> Record | None:
        """Journal."""

        def read(connection: sa.Connection) -> Record | None:
            row = connection.execute(sa.select(RUNS).where(RUNS.c.id == run)).one_or_none()
            if row is None:
                return None
            output = None if row.output is None else sql_tables.read(row.output)
            told = sql_tables.endings_told(connection, run)
            return Record(sql_tables.accepted(row), sql_tables.summary(row), output, told, row.fence - 1)

        return await self._writer.do(read, self._asked_seconds)

    async def recorded(self, run: str) -> tuple[Accepted, dict[Key, Ending]] | None:
        """Journal."""

        def read(connection: sa.Connection) -> tuple[Accepted, dict[Key, Ending]] | None:
            row = connection.execute(sa.select(RUNS).where(RUNS.c.id == run)).one_or_none()
            return None if row is None else (sql_tables.accepted(row), sql_tables.endings(connection, run))

        return await self._writer.do(read, self._asked_seconds)

    async def runs(
        self, workflow: str, most: int, *, before: float | None = None, tenant: str | None = None
    ) -> Sequence[Summary]:
        """Journal."""
        wanted = sa.select(*sql_tables.SUMMARY).where(RUNS.c.workflow == workflow)
        if before is not None:
            wanted = wanted.where(RUNS.c.created < before)
        if tenant is not None:
            wanted = wanted.where(RUNS.c.tenant == tenant)
        newest = wanted.order_by(RUNS.c.created.desc(), RUNS.c.id).limit(most)
        return await self._writer.do(
            lambda found: [sql_tables.summary(row) for row in found.execute(newest)], self._asked_seconds
        )

    async def open_runs(self, prefix: str, most: int) -> Sequence[tuple[str, str]]:
        """Journal."""
        begins = RUNS.c.ended.is_(None) & RUNS.c.id.startswith(prefix, autoescape=True)
        wanted = sa.select(RUNS.c.id, RUNS.c.workflow).where(begins).order_by(RUNS.c.created).limit(most)
        return await self._writer.do(
            lambda found: [(row.id, row.workflow) for row in found.execute(wanted)], self._asked_seconds
        )

    async def totals(self, ended_after: float) -> Sequence[Totals]:
        """Journal."""
        return await self._writer.do(
            lambda connection: sql_totals.totals(connection, ended_after), self._asked_seconds
        )

    async def forget(self, ended_before: float) -> int:
        """Journal."""
        old = sa.select(RUNS.c.id).where(RUNS.c.ended < ended_before).limit(_MOST_FORGOTTEN)

        def delete(connection: sa.Connection) -> int:
            names = list(connection.execute(old).scalars())
            connection.execute(ENDINGS.delete().where(_among(ENDINGS.c.run, names)))
            return connection.execute(RUNS.delete().where(_among(RUNS.c.id, names))).rowcount

        deleted = 0
        while some := await self._writer.do(delete):
            deleted += some
        return deleted

    async def close(self) -> None:
        """Journal."""
        await self._writer.close()


def _among(column: sa.Column[str], names: Collection[str]) -> sa.ColumnElement[bool]:
    """Whether it is one of them. The list is filled up to a power of two with one that is in it.

    Drivers keep the statements that they ran last, and one for each length would hold 28 MB of a thousand names.
    """
    listed = list(names)
    more = (1 << max(0, len(listed) - 1).bit_length()) - len(listed)
    return column.in_(listed + listed[:1] * more)


def _guarded(insert: Any) -> Any:  # noqa: ANN401 - each dialect has a class of its own
    """Insert an ending where its run is open under the fence named, in one statement.

    The run's row stays locked until the transaction ends, so that nobody takes the run over meanwhile; renewals of
    its lease are not kept waiting.
    """
    values = [sa.bindparam(f"v_{column.name}", type_=column.type) for column in ENDINGS.columns]
    own = (
        (RUNS.c.id == sa.bindparam("v_run", type_=RUNS.c.id.type))
        & (RUNS.c.fence == sa.bindparam("v_fence", type_=sa.Integer))
        & RUNS.c.ended.is_(None)
    )
    guarded = sa.select(*values).select_from(RUNS).where(own).with_for_update(read=True, key_share=True)
    return insert.from_select([column.name for column in ENDINGS.columns], guarded)


def _require(connection: sa.Connection, run: str, fence: int) -> None:
    own = (RUNS.c.id == run) & (RUNS.c.fence == fence) & RUNS.c.ended.is_(None)
    if connection.execute(sa.select(RUNS.c.id).where(own)).one_or_none() is None:
        raise _fenced(run)


def _fenced(run: str) -> Fenced:
    return Fenced(f"the run {run} belongs to another gateway by now, or is over")
