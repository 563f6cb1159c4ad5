"""Runs of each workflow, counted: in the journal, and as the operator asks a gateway for them."""

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from fakes.postgres import PostgresServer
from scripted.routers import until
from scripted.upstreams import Seen
from tidepool_router.workflow import sql_tables, sql_totals
from tidepool_router.workflow.core.states import Verdict
from tidepool_router.workflow.journal import Accepted, Totals
from tidepool_router.workflow.sql_journal import SqlJournal
from tidepool_router.workflow.sql_totals import MOST_TIMED
from workflows.rooms import Place, echo, llm

Start = Callable[..., Awaitable[Place]]
DAY = 24 * 3600.0


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
async def journal(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[SqlJournal]:
    place = f"sqlite:///{tmp_path}/runs.db"
    if request.param == "postgres":
        server: PostgresServer = request.getfixturevalue("postgres")
        place = server.database()
    found = SqlJournal(place, lambda: 100.0, asked_seconds=60.0)
    yield found
    await found.close()


def row(name: str, workflow: str, ended: float | None, seconds: float, verdict: Verdict) -> dict[str, Any]:
    """A run that is kept; it holds as much text as one may."""
    created = 0.0 if ended is None else ended - seconds
    run = Accepted(name, workflow, {"steps": []}, {"q": "why"}, created, created + 60.0)
    over = {"ended": ended, "verdict": verdict.value}
    return sql_tables.run_row(run, "gateway-1") | {"lease_until": 0.0} | over


async def keep(journal: SqlJournal, rows: list[dict[str, Any]]) -> None:
    await journal._writer.do(lambda connection: connection.execute(sql_tables.RUNS.insert(), rows))


async def test_runs_are_counted_by_how_they_ended_and_timed(journal: SqlJournal) -> None:
    rows = [row(f"a{index}", "ns/a", DAY + index, float(index), Verdict.SUCCEEDED) for index in range(1, 20)]
    rows += [
        row("a-failed", "ns/a", DAY + 30.0, 20.0, Verdict.FAILED),
        row("a-cancelled", "ns/a", DAY + 30.0, 900.0, Verdict.CANCELLED),
        row("a-old", "ns/a", DAY - 1.0, 900.0, Verdict.SUCCEEDED),
        row("a-runs", "ns/a", None, 0.0, Verdict.RUNNING),
        row("b-runs", "ns/b", None, 0.0, Verdict.RUNNING),
        row("b-runs-too", "ns/b", None, 0.0, Verdict.RUNNING),
        row("c-cancelled", "ns/c", DAY + 30.0, 900.0, Verdict.CANCELLED),
        row("d", "ns/d", DAY, 3.0, Verdict.FAILED),
    ]
    await keep(journal, rows)

    assert await journal.totals(DAY) == [
        Totals("ns/a", active=1, succeeded=19, failed=1, p50_seconds=10.0, p95_seconds=19.0),
        Totals("ns/b", active=2),
        Totals("ns/d", failed=1, p50_seconds=3.0, p95_seconds=3.0),
    ]


async def test_the_times_are_those_of_now_and_not_of_a_day_ago(journal: SqlJournal) -> None:
    slow = [row(f"a{index}", "ns/a", DAY + index, 900.0, Verdict.SUCCEEDED) for index in range(100)]
    fast = [row(f"b{index}", "ns/a", 2 * DAY + index, 2.0, Verdict.SUCCEEDED) for index in range(MOST_TIMED)]
    await keep(journal, slow + fast)

    assert await journal.totals(DAY) == [Totals("ns/a", 0, 100 + MOST_TIMED, 0, 2.0, 2.0)]


async def test_of_very_many_runs_the_newest_are_counted(
    journal: SqlJournal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sql_totals, "MOST_COUNTED", 20)
    monkeypatch.setattr(sql_totals, "_ENDED", sql_totals._ended())
    await keep(journal, [row(f"a{index}", "ns/a", DAY + index, 2.0, Verdict.FAILED) for index in range(30)])
    await keep(journal, [row("b", "ns/b", 2 * DAY, 2.0, Verdict.SUCCEEDED)])

    assert [(one.failed, one.succeeded) for one in await journal.totals(DAY)] == [(19, 0), (0, 1)]


async def test_counting_reads_the_index_and_no_prompts(tmp_path: Path) -> None:
    journal = SqlJournal(f"sqlite:///{tmp_path}/runs.db")
    asked = sql_totals._ended().params(ended_after=DAY)
    explain = asked.compile(journal._store.engine, compile_kwargs={"literal_binds": True})
    plan = await journal._writer.do(
        lambda found: [str(one[-1]) for one in found.exec_driver_sql(f"explain query plan {explain}")]
    )
    await journal.close()

    (reading,) = [line for line in plan if "workflow_runs" in line]
    assert reading.startswith("SEARCH workflow_runs USING COVERING INDEX workflow_runs_ended"), plan


async def asked(here: Place) -> tuple[int, Any]:
    answer = await here.rooms.objects.handle("GET", "/runs/totals", {}, b"")
    return answer.status, json.loads(answer.body)


@pytest.mark.traffic
async def test_a_gateway_tells_of_all_workflows_in_one_answer(place: Start, tmp_path: Path) -> None:
    async def engine(seen: Seen) -> None:
        if "stay" in seen.body.decode():
            await seen.closed.wait()
        else:
            await echo(seen)

    spec = {"steps": [llm("a", "{{ input.q }}")]}
    here = await place(spec, engine=engine, store=f"sqlite:///{tmp_path}/runs.db", others={"other": spec})
    await here.client.post("/v1/workflows/research/runs", json={"input": {"q": "go"}})
    await until(lambda: not here.rooms.workflows.active)
    await here.client.post("/v1/workflows/other/runs", json={"input": {"q": "stay"}})

    status, told = await asked(here)

    other, research = told["workflows"]
    assert status == 200
    assert 0.0 < research.pop("p50Seconds") == research.pop("p95Seconds") < 20.0
    assert research == {"workflow": "default/research", "active": 0, "succeeded": 1, "failed": 0}
    assert (other.pop("p50Seconds"), other.pop("p95Seconds")) == (None, None)
    assert other == {"workflow": "default/other", "active": 1, "succeeded": 0, "failed": 0}


@pytest.mark.traffic
async def test_a_gateway_without_a_store_counts_nothing(place: Start) -> None:
    status, told = await asked(await place({"steps": [llm("a", "hi")]}))

    assert (status, told["error"]["code"]) == (501, "no_store")
