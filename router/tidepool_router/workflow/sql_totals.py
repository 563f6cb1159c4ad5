"""How many runs each workflow has and how long they took, in two statements over the journal's indexes."""

from typing import Any, Final

import sqlalchemy as sa

from tidepool_router.workflow.core.states import Verdict
from tidepool_router.workflow.journal import Totals
from tidepool_router.workflow.sql_tables import RUNS

# Of all workflows together, the newest: other work waits for the statement, 14 us a run.
MOST_COUNTED: Final = 5_000
# Runs of one workflow whose seconds count: how long they take now, not a day ago.
MOST_TIMED: Final = 500


def totals(connection: sa.Connection, ended_after: float) -> list[Totals]:
    """See Journal."""
    active = {row.workflow: row.runs for row in connection.execute(_ACTIVE)}
    ended = {row.workflow: row for row in connection.execute(_ENDED, {"ended_after": ended_after})}
    return [
        Totals(name, active.get(name, 0), *(tuple(ended[name])[1:] if name in ended else ()))
        for name in sorted(active.keys() | ended.keys())
    ]


def _ended() -> sa.Select[Any]:
    """A row for each workflow. Percentiles are by rank: each is the time that a run took."""
    newest = (
        sa.select(RUNS.c.workflow, RUNS.c.verdict, RUNS.c.ended, (RUNS.c.ended - RUNS.c.created).label("seconds"))
        .where(
            RUNS.c.ended >= sa.bindparam("ended_after", type_=sa.Double),
            RUNS.c.verdict.in_((Verdict.SUCCEEDED.value, Verdict.FAILED.value)),
        )
        .order_by(RUNS.c.ended.desc())
        .limit(MOST_COUNTED)
        .subquery()
    )
    age = sa.func.row_number().over(partition_by=newest.c.workflow, order_by=newest.c.ended.desc())
    aged = sa.select(newest, (age <= MOST_TIMED).label("timed")).subquery()
    window = (aged.c.workflow, aged.c.timed)
    rank = sa.func.row_number().over(partition_by=window, order_by=aged.c.seconds)
    ranked = sa.select(aged, rank.label("rank"), sa.func.count().over(partition_by=window).label("of")).subquery()
    return sa.select(
        ranked.c.workflow,
        sa.func.count().filter(ranked.c.verdict == Verdict.SUCCEEDED.value),
        sa.func.count().filter(ranked.c.verdict == Verdict.FAILED.value),
        *(
            sa.func.min(ranked.c.seconds).filter(ranked.c.timed, 100 * ranked.c.rank >= share * ranked.c.of)
            for share in (50, 95)
        ),
    ).group_by(ranked.c.workflow)


_ACTIVE: Final = (
    sa.select(RUNS.c.workflow, sa.func.count().label("runs"))
    .where(RUNS.c.ended.is_(None))
    .group_by(RUNS.c.workflow)
)
_ENDED: Final = _ended()
