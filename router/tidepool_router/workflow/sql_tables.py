"""The journal's tables, and how its values stand in their rows. A later release only adds columns and tables."""

import json
from typing import Any, Final

import sqlalchemy as sa

from tidepool_router.workflow.core.states import Ending, Key, Output, Phase, Verdict
from tidepool_router.workflow.journal import Accepted, Summary

_NO_ITEM: Final = -1
# A text that a database may refuse (NUL in PostgreSQL, half a surrogate pair in both) stands as JSON after this.
_ESCAPED: Final = "\x01"

META: Final = sa.MetaData()
RUNS: Final = sa.Table(
    "workflow_runs",
    META,
    sa.Column("id", sa.String(64), primary_key=True),
    sa.Column("workflow", sa.String(512), nullable=False),
    sa.Column("spec", sa.Text, nullable=False),
    sa.Column("input", sa.Text, nullable=False),
    sa.Column("caller", sa.Text, nullable=False),
    sa.Column("tenant", sa.String(256), nullable=False),
    sa.Column("background", sa.Boolean, nullable=False),
    sa.Column("created", sa.Double, nullable=False),
    sa.Column("deadline", sa.Double, nullable=False),
    sa.Column("owner", sa.String(256), nullable=False),
    sa.Column("lease_until", sa.Double, nullable=False),
    sa.Column("fence", sa.Integer, nullable=False),
    sa.Column("verdict", sa.String(16), nullable=False),
    sa.Column("reason", sa.Text, nullable=False),
    sa.Column("ended", sa.Double),
    sa.Column("tokens", sa.BigInteger, nullable=False),
    sa.Column("output", sa.Text),
    sa.Column("cancel", sa.Text),
    sa.Index("workflow_runs_newest", "workflow", "created"),
    sa.Index("workflow_runs_open", "ended", "lease_until"),
)
# All that is counted of runs that have ended, so that their rows, which hold prompts, need not be read.
sa.Index("workflow_runs_ended", RUNS.c.ended, RUNS.c.verdict, RUNS.c.workflow, RUNS.c.created)
_asked: Final = RUNS.c.cancel.is_not(None) & RUNS.c.ended.is_(None)
# Nearly always empty, so that it can be looked at twice a second.
sa.Index("workflow_runs_cancel", RUNS.c.owner, postgresql_where=_asked, sqlite_where=_asked)
ENDINGS: Final = sa.Table(
    "workflow_endings",
    META,
    sa.Column("run", sa.String(64), primary_key=True),
    sa.Column("step", sa.String(1024), primary_key=True),  # the path of a key
    sa.Column("item", sa.Integer, primary_key=True),
    sa.Column("phase", sa.String(16), nullable=False),
    sa.Column("reason", sa.Text, nullable=False),
    sa.Column("text", sa.Text, nullable=False),
    sa.Column("data", sa.Text),
    sa.Column("tokens", sa.BigInteger, nullable=False),
    sa.Column("pool", sa.String(512)),
    sa.Column("seed", sa.BigInteger),
    sa.Column("began", sa.Double),
    sa.Column("ended", sa.Double),
)
# What one gateway process counted in one hour; see usage/book.py.
USAGE: Final = sa.Table(
    "gateway_usage",
    META,
    sa.Column("hour", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("writer", sa.String(32), primary_key=True),
    *(sa.Column(name, sa.String(256), primary_key=True) for name in ("key", "tenant", "model", "workflow")),
    *(
        sa.Column(name, sa.BigInteger, nullable=False)
        for name in ("requests", "failed", "prompt_tokens", "cached_tokens", "output_tokens")
    ),
)
SUMMARY: Final[tuple[sa.Column[Any], ...]] = (
    RUNS.c.id,
    RUNS.c.workflow,
    RUNS.c.created,
    RUNS.c.verdict,
    RUNS.c.reason,
    RUNS.c.ended,
    RUNS.c.tokens,
)


def create(connection: sa.Connection) -> None:
    """Make what is missing, also columns that an earlier release did not have; nothing is taken away."""
    META.create_all(connection)
    found = sa.inspect(connection)
    for table in META.tables.values():
        there = {column["name"] for column in found.get_columns(table.name)}
        for column in table.columns:
            if column.name not in there:
                kind = column.type.compile(connection.dialect)
                connection.exec_driver_sql(f"ALTER TABLE {table.name} ADD COLUMN {column.name} {kind}")
    indexes = {index["name"] for name in META.tables for index in found.get_indexes(name)}
    for table in META.tables.values():
        for index in table.indexes:
            if index.name not in indexes:
                index.create(connection, checkfirst=True)


def kept(text: str) -> str:
    """A text as any database keeps it."""
    plain = "\x00" not in text and not text.startswith(_ESCAPED) and _encodes(text)
    return text if plain else _ESCAPED + json.dumps(text)


def read(text: str) -> str:
    """The text that was kept."""
    return str(json.loads(text[1:])) if text.startswith(_ESCAPED) else text


def _encodes(text: str) -> bool:
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def run_row(run: Accepted, owner: str) -> dict[str, Any]:
    """A run that begins, without its lease."""
    return {
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
        "fence": 1,
        "verdict": Verdict.RUNNING.value,
        "reason": "",
        "tokens": 0,
    }


def ending_row(run: str, key: Key, ending: Ending) -> dict[str, Any]:
    """One ending."""
    output = ending.output
    return {
        "run": run,
        "step": key.path,
        "item": _NO_ITEM if key.item is None else key.item,
        "phase": ending.phase.value,
        "reason": kept(ending.reason),
        "text": kept(output.text),
        "data": None if output.data is None else json.dumps(output.data),
        "tokens": output.tokens,
        "pool": output.pool or None,
        "seed": output.seed,
        "began": ending.began,
        "ended": ending.ended,
    }


def end_row(end: Summary, output: str | None) -> dict[str, Any]:
    """How a run ended."""
    return {
        "verdict": end.verdict.value,
        "reason": kept(end.reason),
        "ended": end.ended,
        "tokens": end.tokens,
        "output": None if output is None else kept(output),
    }


def accepted(row: "sa.Row[Any]") -> Accepted:
    """A run as it was taken in."""
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


def summary(row: "sa.Row[Any]") -> Summary:
    """A run in a list, of the columns SUMMARY."""
    return Summary(
        row.id, row.workflow, row.created, Verdict(row.verdict), read(row.reason), row.ended, row.tokens
    )


def endings(connection: sa.Connection, run: str) -> dict[Key, Ending]:
    """All that has ended of a run, with what it made."""
    found = {}
    for row in connection.execute(sa.select(ENDINGS).where(ENDINGS.c.run == run)):
        data = None if row.data is None else json.loads(row.data)
        found[_key(row.step, row.item)] = Ending(
            Phase(row.phase),
            read(row.reason),
            Output(read(row.text), data, row.tokens, row.pool or "", row.seed),
            row.began,
            row.ended,
        )
    return found


def endings_told(connection: sa.Connection, run: str) -> dict[Key, Ending]:
    """How the steps of a run ended, without what they made: that may be megabytes."""
    own = ENDINGS.c
    columns = (own.step, own.item, own.phase, own.reason, own.tokens, own.pool, own.began, own.ended)
    return {
        _key(row.step, row.item): Ending(
            Phase(row.phase),
            read(row.reason),
            Output(tokens=row.tokens, pool=row.pool or ""),
            row.began,
            row.ended,
        )
        for row in connection.execute(sa.select(*columns).where(ENDINGS.c.run == run))
    }


def _key(step: str, item: int) -> Key:
    return Key.at(step, None if item == _NO_ITEM else item)
