"""The databases that the journal knows: how each is opened, tells the time, locks, and fails.

An address with a password comes from a file or the environment, is read again for each new connection (so a new
password is taken up), and stands in no message.
"""

import logging
import sqlite3
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, cast
from urllib.parse import quote

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.pool import StaticPool

from tidepool_router.workflow import sql_tables
from tidepool_router.workflow.journal import JournalError

MEMORY: Final = "sqlite://"
_CONNECT_SECONDS: Final = 5
# What a statement may take, and a connection whose server says nothing: then it is opened anew.
_STATEMENT_MS: Final = 10_000
_SILENT_MS: Final = 10_000
# How long the writer goes on trying while the database is away: a restart, a failover.
_BUDGET_SECONDS: Final = 30.0
_SCHEMA_LOCK: Final = 0x7469_6465  # any number, the same in all gateways
_REMEDY: Final = (
    "write it like postgresql://user:password@host/database or sqlite:////var/lib/tidepool/workflows.db"
)
_PASSING: Final = frozenset(
    (
        "40001",  # serialization_failure
        "40P01",  # deadlock_detected
        "55P03",  # lock_not_available
        "57014",  # query_canceled: by statement_timeout
        "25006",  # read_only_sql_transaction: what was the primary is none any more
    )
)

_log: Final = logging.getLogger("tidepool.workflow")


class Store(ABC):
    """One database. `shared`: several gateways may use it. `budget_seconds`: how long it may be away."""

    shared: bool
    budget_seconds: float
    engine: sa.Engine

    @abstractmethod
    def now(self) -> Any:  # noqa: ANN401 - a number, or an expression
        """The time that leases are measured by, in Unix seconds: the database's own where gateways share it."""

    @abstractmethod
    def insert_once(self, table: sa.Table) -> Any:  # noqa: ANN401 - each dialect has a class of its own
        """An insert that leaves alone what is there."""

    @abstractmethod
    def insert_or_replace(self, table: sa.Table, keys: Sequence[str], values: Sequence[str]) -> Any:  # noqa: ANN401
        """An insert that sets `values` where a row with the same `keys` is there."""

    @abstractmethod
    def lock_schema(self, connection: sa.Connection) -> None:
        """Let no other gateway make tables until the transaction ends."""

    @abstractmethod
    def passes(self, error: BaseException) -> bool:
        """Whether the same work may succeed a moment later, on a new connection."""

    def told(self, error: BaseException) -> str:
        """The database's own words, without the statement and its values, which hold prompts."""
        return str(cast("object", getattr(error, "orig", None) or type(error).__name__))[:300]

    def prepare(self) -> None:
        """Make the tables where they are missing."""
        with self.engine.begin() as connection:
            self.lock_schema(connection)
            sql_tables.create(connection)


class Sqlite(Store):
    """A file, or memory alone. WAL with synchronous=FULL: what has been answered survives a loss of power."""

    shared = False
    budget_seconds = 0.0

    def __init__(self, url: sa.URL, clock: Callable[[], float] | None) -> None:
        self._clock = clock or time.time
        if url.database in (None, "", ":memory:"):
            self.engine = sa.create_engine(MEMORY, poolclass=StaticPool, connect_args={"check_same_thread": False})
            return
        self.engine = sa.create_engine(url)
        sa.event.listen(self.engine, "connect", _durable)

    def now(self) -> float:
        """Store."""
        return self._clock()

    def insert_once(self, table: sa.Table) -> sqlite.Insert:
        """Store."""
        return sqlite.insert(table).on_conflict_do_nothing()

    def insert_or_replace(self, table: sa.Table, keys: Sequence[str], values: Sequence[str]) -> sqlite.Insert:
        """Store."""
        insert = sqlite.insert(table)
        fresh = {name: insert.excluded[name] for name in values}
        return insert.on_conflict_do_update(index_elements=keys, set_=fresh)

    def lock_schema(self, connection: sa.Connection) -> None:
        """Store: a file is one gateway's."""

    def passes(self, error: BaseException) -> bool:
        """Store: who waits is told at once, and tries again."""
        del error
        return False


def _durable(connection: sqlite3.Connection, _: object) -> None:
    connection.execute("pragma journal_mode=wal")
    connection.execute("pragma synchronous=full")
    connection.execute("pragma busy_timeout=5000")


class Postgres(Store):
    """A server that gateways share. `address` is read for each new connection."""

    shared = True
    budget_seconds = _BUDGET_SECONDS

    def __init__(self, address: Callable[[], sa.URL], clock: Callable[[], float] | None) -> None:
        self._clock = clock
        self._address = address
        self._secrets: set[str] = set()
        url = address()
        self._note(url)
        # One connection for the writer; a broken one is never used again.
        self.engine = sa.create_engine(url.set(password=None), pool_size=1, max_overflow=0)
        sa.event.listen(self.engine, "do_connect", self._connect)
        sa.event.listen(self.engine, "connect", _bounded)

    def now(self) -> Any:  # noqa: ANN401
        """Store."""
        if self._clock is not None:
            return self._clock()
        return sa.cast(sa.func.extract("epoch", sa.func.clock_timestamp()), sa.Double)

    def insert_once(self, table: sa.Table) -> postgresql.Insert:
        """Store."""
        return postgresql.insert(table).on_conflict_do_nothing()

    def insert_or_replace(self, table: sa.Table, keys: Sequence[str], values: Sequence[str]) -> postgresql.Insert:
        """Store."""
        insert = postgresql.insert(table)
        fresh = {name: insert.excluded[name] for name in values}
        return insert.on_conflict_do_update(index_elements=keys, set_=fresh)

    def lock_schema(self, connection: sa.Connection) -> None:
        """Store."""
        connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_SCHEMA_LOCK)))

    def passes(self, error: BaseException) -> bool:
        """Store."""
        if not isinstance(error, sa.exc.DBAPIError):
            return False
        state = getattr(error.orig, "sqlstate", None)
        return error.connection_invalidated or isinstance(error, sa.exc.OperationalError) or state in _PASSING

    def told(self, error: BaseException) -> str:
        """Store; and without any password that was ever used."""
        text = super().told(error)
        for secret in self._secrets:
            text = text.replace(secret, "***")
        return text

    def _note(self, url: sa.URL) -> None:
        if url.password:
            self._secrets |= {str(url.password), quote(str(url.password), safe="")}

    def _connect(
        self, dialect: sa.Dialect, record: object, arguments: list[Any], parameters: dict[str, Any]
    ) -> None:
        """The address as it is now; what is there already is the one of the start."""
        del record
        url = self._address()
        self._note(url)
        fresh_arguments, fresh = dialect.create_connect_args(url)
        arguments[:] = fresh_arguments
        parameters.clear()
        parameters.update(
            {
                "connect_timeout": _CONNECT_SECONDS,
                "keepalives_idle": 10,
                "keepalives_interval": 5,
                "keepalives_count": 3,
                "tcp_user_timeout": _SILENT_MS,
                "application_name": "tidepool-gateway",
            }
        )
        parameters.update(fresh)


def _bounded(connection: Any, _: object) -> None:  # noqa: ANN401 - the driver's
    # As statements, for a pooler between takes no options. No answer before it is on disk.
    with connection.cursor() as cursor:
        cursor.execute(f"set statement_timeout = {_STATEMENT_MS}")
        cursor.execute(f"set lock_timeout = {_STATEMENT_MS // 2}")
        cursor.execute(f"set idle_in_transaction_session_timeout = {2 * _STATEMENT_MS}")
        cursor.execute("set synchronous_commit = on")
    connection.commit()


def store_of(place: str | Path, clock: Callable[[], float] | None = None) -> Store:
    """The store at a URL, or at the one that a file holds. `clock` replaces the store's own.

    Raises JournalError that says what a right address looks like, and never what is in it.
    """
    url = _read(place)
    if url.get_backend_name() == "sqlite":
        return Sqlite(url, clock)
    return Postgres(lambda: _read(place), clock)


def _read(place: str | Path) -> sa.URL:
    text = place
    if isinstance(place, Path):
        try:
            text = place.read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise JournalError(f"the file with the store's address cannot be read: {error}") from error
    try:
        url = sa.make_url(str(text))
    except (sa.exc.ArgumentError, ValueError) as error:
        raise JournalError(f"the address of the store of workflow runs cannot be read; {_REMEDY}") from error
    if url.drivername in ("postgres", "postgresql", "postgresql+psycopg"):
        return url.set(drivername="postgresql+psycopg")
    if url.drivername != "sqlite":
        raise JournalError(f"{url.drivername[:40]} is no store of workflow runs; {_REMEDY}")
    return url
