"""The journal on real files and a real server: what is kept, who may write, and what is told when it cannot be."""

import asyncio
import sqlite3
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import sqlalchemy as sa

from fakes.postgres import PASSWORD, PostgresServer
from tidepool_router.workflow.core.states import Ending, Key, Output, Phase, Verdict
from tidepool_router.workflow.journal import Accepted, Fenced, JournalError, Summary, Taken
from tidepool_router.workflow.sql_journal import SqlJournal

DONE = Ending(Phase.SUCCEEDED, output=Output("found", {"a": [1]}, 12))
END = Summary("r1", "default/research", 100.0, Verdict.SUCCEEDED, "", 112.0, 7)


def accepted(name: str = "r1", created: float = 100.0) -> Accepted:
    return Accepted(name, "default/research", {"steps": []}, {"q": "why"}, created, created + 60.0)


@dataclass
class Stores:
    """Journals of one store, as several gateways have them. `now` is what its clock says."""

    place: str
    now: float = 100.0

    def open(self) -> SqlJournal:
        return SqlJournal(self.place, lambda: self.now, asked_seconds=60.0)  # for a busy machine


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def stores(request: pytest.FixtureRequest, tmp_path: Path) -> Stores:
    if request.param == "sqlite":
        return Stores(f"sqlite:///{tmp_path}/runs.db")
    server: PostgresServer = request.getfixturevalue("postgres")
    return Stores(server.database())


@pytest.fixture
async def journal(stores: Stores) -> AsyncIterator[SqlJournal]:
    found = stores.open()
    yield found
    await found.close()


@pytest.fixture
async def other(stores: Stores, journal: SqlJournal) -> AsyncIterator[SqlJournal]:
    """Another gateway's, while the first one has not closed anything."""
    found = stores.open()
    yield found
    await found.close()


async def test_what_was_accepted_and_committed_is_there_after_a_crash(
    stores: Stores, journal: SqlJournal, other: SqlJournal
) -> None:
    await journal.accept(accepted(), "gateway-1", 10.0)
    await journal.commit("r1", 1, Key("plan"), DONE)
    await journal.commit("r1", 1, Key("search", 3), Ending(Phase.FAILED, "no answer"))
    stores.now = 111.0

    (claim,) = await other.claim("gateway-2", 10.0, 10)

    assert claim.run == accepted()
    assert claim.fence == 2
    assert claim.endings == {Key("plan"): DONE, Key("search", 3): Ending(Phase.FAILED, "no answer")}


@pytest.mark.parametrize("text", ["a\x00b", "half \ud83d of it", "\x01odd", "", "größer 🌊"])
async def test_any_text_that_a_model_or_a_tool_may_say_comes_back_as_it_was(
    text: str, stores: Stores, journal: SqlJournal, other: SqlJournal
) -> None:
    ending = Ending(Phase.FAILED, text, Output(text, {"said": text}))
    await journal.accept(accepted(), "gateway-1", 10.0)
    await journal.commit("r1", 1, Key("plan"), ending)
    await journal.finish("r1", 1, END, text)

    record = await journal.find("r1")

    assert record is not None
    assert (record.output, record.endings[Key("plan")].reason) == (text, text)
    await journal.accept(accepted("r2"), "gateway-1", 10.0)
    await journal.commit("r2", 1, Key("plan"), ending)
    stores.now = 111.0
    assert (await other.claim("gateway-2", 10.0, 10))[0].endings == {Key("plan"): ending}


async def test_what_a_run_made_is_read_back_with_who_made_it(journal: SqlJournal) -> None:
    fence = await journal.accept(accepted(), "a", 15.0)
    made = Ending(Phase.SUCCEEDED, output=Output("found", None, 12, "default/small", 7))
    await journal.commit("r1", fence, Key("a", 1, "sub#1/"), made)

    assert await journal.recorded("r1") == (accepted(), {Key("a", 1, "sub#1/"): made})
    assert await journal.recorded("r2") is None


async def test_what_is_told_of_a_run_leaves_out_what_its_steps_made_argo_13783(journal: SqlJournal) -> None:
    await journal.accept(accepted(), "gateway-1", 10.0)
    await journal.commit("r1", 1, Key("plan"), DONE)

    record, recorded = await journal.find("r1"), await journal.recorded("r1")

    assert record is not None
    assert record.endings == {Key("plan"): Ending(Phase.SUCCEEDED, output=Output(tokens=12))}
    assert recorded == (accepted(), {Key("plan"): DONE})


async def test_a_lease_that_is_kept_is_not_taken_over(stores: Stores, journal: SqlJournal) -> None:
    await journal.accept(accepted(), "gateway-1", 10.0)
    stores.now = 109.0
    assert await journal.renew("gateway-1", ["r1", "r9"], 11.0) == {"r1"}

    stores.now = 119.0
    assert await journal.claim("gateway-2", 10.0, 10) == []
    stores.now = 120.5
    assert len(await journal.claim("gateway-2", 10.0, 10)) == 1
    assert await journal.renew("gateway-1", ["r1"], 10.0) == set()
    assert await journal.claim("gateway-3", 10.0, 10) == []


async def test_however_many_runs_are_kept_the_driver_has_few_statements_to_remember(journal: SqlJournal) -> None:
    """It kept one for each count, of a thousand names each: 28 MB within ten minutes."""
    asked: set[str] = set()

    def note(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        asked.add(statement)

    sa.event.listen(journal._store.engine, "before_cursor_execute", note)
    for count in range(1, 130):
        await journal.renew("gateway-1", [f"r{number}" for number in range(count)], 10.0)

    renewals = [statement for statement in asked if statement.startswith("UPDATE")]  # not those that make tables
    assert len(renewals) <= 9  # 1, 2, 4 and on to 256


async def test_a_lease_that_is_given_back_can_be_taken_over_at_once(journal: SqlJournal) -> None:
    await journal.accept(accepted(), "gateway-1", 10.0)

    await journal.release("gateway-1")

    assert [claim.fence for claim in await journal.claim("gateway-2", 10.0, 10)] == [2]


async def test_who_has_lost_a_run_writes_nothing_to_it(
    stores: Stores, journal: SqlJournal, other: SqlJournal
) -> None:
    await journal.accept(accepted(), "slow", 10.0)
    stores.now = 111.0
    await other.claim("quick", 10.0, 10)

    with pytest.raises(Fenced):
        await journal.commit("r1", 1, Key("plan"), DONE)
    with pytest.raises(Fenced):
        await journal.finish("r1", 1, END, None)

    record = await journal.find("r1")
    assert record is not None
    assert (record.endings, record.summary.ended, record.moves) == ({}, None, 1)


async def test_the_first_ending_stands(stores: Stores, journal: SqlJournal) -> None:
    await journal.accept(accepted(), "gateway-1", 10.0)
    await journal.commit("r1", 1, Key("plan"), DONE)
    await journal.commit("r1", 1, Key("plan"), Ending(Phase.FAILED, "late"))

    stores.now = 111.0
    assert (await journal.claim("gateway-2", 10.0, 10))[0].endings == {Key("plan"): DONE}


async def test_what_is_asked_twice_because_an_answer_was_lost_is_done_once(journal: SqlJournal) -> None:
    await journal.accept(accepted(), "gateway-1", 10.0)
    with pytest.raises(Taken):
        await journal.accept(accepted(), "gateway-1", 10.0)
    await journal.finish("r1", 1, END, "answer")
    await journal.finish("r1", 1, END, "answer")

    with pytest.raises(Fenced):
        await journal.finish("r1", 1, Summary("r1", "", 0.0, Verdict.FAILED, "late", 113.0), None)
    with pytest.raises(Fenced):
        await journal.commit("r1", 1, Key("plan"), DONE)


async def test_one_writer_that_is_fenced_does_not_undo_the_others(stores: Stores, journal: SqlJournal) -> None:
    await journal.accept(accepted("r1"), "gateway-1", 10.0)
    await journal.accept(accepted("r2"), "gateway-1", 10.0)

    results = await asyncio.gather(
        journal.commit("r1", 1, Key("plan"), DONE),
        journal.commit("r2", 9, Key("plan"), DONE),
        journal.commit("r1", 1, Key("write"), DONE),
        return_exceptions=True,
    )

    assert [type(result) for result in results] == [type(None), Fenced, type(None)]
    record = await journal.find("r1")
    assert record is not None
    assert set(record.endings) == {Key("plan"), Key("write")}


async def test_what_the_database_refuses_of_one_run_does_not_undo_the_others(
    stores: Stores, journal: SqlJournal
) -> None:
    await journal.accept(accepted("r1"), "gateway-1", 10.0)

    results = await asyncio.gather(
        journal.commit("r1", 1, Key("plan"), DONE),
        journal.commit("r1", 1, Key("write", 1 << 70), DONE),  # no number of the database's
        journal.commit("r1", 1, Key("read"), DONE),
        return_exceptions=True,
    )

    assert [type(result) for result in results] == [type(None), JournalError, type(None)]
    record = await journal.find("r1")
    assert record is not None
    assert set(record.endings) == {Key("plan"), Key("read")}


async def test_the_owner_of_a_run_hears_that_it_is_to_end(
    stores: Stores, journal: SqlJournal, other: SqlJournal
) -> None:
    await journal.accept(accepted(), "gateway-1", 10.0)
    await other.ask_to_cancel("r1", "by a request")
    await other.ask_to_cancel("r1", "again")

    assert await journal.cancels("gateway-1") == {"r1": "by a request"}
    assert await other.cancels("gateway-2") == {}
    stores.now = 111.0
    assert (await other.claim("gateway-2", 10.0, 10))[0].cancel == "by a request"
    await other.finish("r1", 2, END, None)
    assert await other.cancels("gateway-2") == {}


async def test_runs_are_listed_newest_first_and_forgotten_when_they_are_old(journal: SqlJournal) -> None:
    for index in range(3):
        await journal.accept(accepted(f"r{index}", 100.0 + index), "gateway-1", 10.0)
    end = Summary("r1", "default/research", 101.0, Verdict.FAILED, "plan Failed", 150.0, 7)
    await journal.finish("r1", 1, end, None)

    assert [run.id for run in await journal.runs("default/research", 2)] == ["r2", "r1"]
    assert [run.id for run in await journal.runs("default/research", 5, before=101.0)] == ["r0"]
    assert (await journal.runs("default/research", 5))[1] == end
    assert await journal.runs("default/other", 5) == []
    assert await journal.forget(151.0) == 1
    assert await journal.find("r1") is None


@pytest.fixture
async def file_journal(tmp_path: Path) -> AsyncIterator[SqlJournal]:
    found = SqlJournal(f"sqlite:///{tmp_path}/runs.db", lambda: 100.0)
    yield found
    await found.close()


async def test_the_file_is_written_through_to_the_disk(file_journal: SqlJournal) -> None:
    pragmas = await file_journal._writer.do(
        lambda found: [
            found.exec_driver_sql(f"pragma {name}").scalar() for name in ("journal_mode", "synchronous")
        ]
    )

    assert pragmas == ["wal", 2]  # FULL


async def test_a_file_of_an_earlier_release_gets_what_it_lacks(tmp_path: Path) -> None:
    first = SqlJournal(f"sqlite:///{tmp_path}/runs.db", lambda: 100.0)
    await first.accept(accepted(), "gateway-1", 10.0)
    await first.close()
    with sqlite3.connect(tmp_path / "runs.db") as old:
        old.execute("drop index workflow_runs_cancel")
        old.execute("alter table workflow_runs drop column cancel")

    later = SqlJournal(f"sqlite:///{tmp_path}/runs.db", lambda: 111.0)

    await later.ask_to_cancel("r1", "why not")
    assert [claim.cancel for claim in await later.claim("gateway-2", 10.0, 10)] == ["why not"]
    await later.close()


async def test_what_cannot_be_written_is_never_acknowledged_kagent_2086(
    file_journal: SqlJournal, tmp_path: Path
) -> None:
    await file_journal.accept(accepted(), "gateway-1", 10.0)
    with sqlite3.connect(tmp_path / "runs.db") as breaking:
        breaking.execute("drop table workflow_endings")

    with pytest.raises(JournalError, match="no such table") as caught:
        await file_journal.commit("r1", 1, Key("plan"), DONE)
    assert "found" not in str(caught.value)  # outputs stay out of messages
    assert await file_journal.runs("default/other", 1) == []  # and the next transaction is a new one


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("runs.db", "sqlite:////var/lib"),
        ("mysql://host/db", "is no store"),
        ("sqlite:////nowhere/at/all/runs.db", "cannot be opened"),
        ("postgresql://user:hidden@host:port/db", "cannot be read"),
    ],
)
async def test_a_store_that_cannot_be_used_is_told_with_a_remedy(url: str, told: str) -> None:
    with pytest.raises(JournalError, match=told) as caught:
        SqlJournal(url)
    assert "hidden" not in str(caught.value)


# What a server alone has: gateways beside each other, and times when it is away.


@pytest.mark.postgres
async def test_gateways_that_look_at_once_share_what_one_left_behind(postgres: PostgresServer) -> None:
    stores = Stores(postgres.database())
    journal, other = stores.open(), stores.open()
    for index in range(6):
        await journal.accept(accepted(f"r{index}"), "dead", 1.0)
    stores.now = 102.0

    claims = await asyncio.gather(
        *(one.claim(name, 10.0, 2) for one, name in ((journal, "a"), (other, "b"), (journal, "a")) * 2)
    )

    taken = [claim.run.id for some in claims for claim in some]
    assert len(taken) == len(set(taken))
    await journal.close()
    await other.close()


@pytest.mark.postgres
@pytest.mark.parametrize("crash", [False, True], ids=["restart", "crash"])
async def test_a_server_that_restarts_loses_nothing_and_nobody_is_told(
    crash: bool, postgres: PostgresServer
) -> None:
    journal = SqlJournal(postgres.database(), asked_seconds=60.0)
    await journal.accept(accepted(), "gateway-1", 60.0)
    writes = []

    async def go_on_writing() -> None:
        for item in range(60):
            writes.append(asyncio.create_task(journal.commit("r1", 1, Key("search", item), DONE)))
            await asyncio.sleep(0.01)

    writing = asyncio.create_task(go_on_writing())
    await asyncio.sleep(0.1)
    await asyncio.to_thread(postgres.kill if crash else postgres.stop)
    await asyncio.to_thread(postgres.start)
    await writing
    await asyncio.gather(*writes)

    record = await journal.find("r1")
    await journal.close()
    assert record is not None
    assert set(record.endings) == {Key("search", item) for item in range(60)}


@pytest.mark.postgres
async def test_a_server_that_is_away_at_the_start_is_waited_for(postgres: PostgresServer) -> None:
    url = postgres.database()
    await asyncio.to_thread(postgres.stop)
    journal = SqlJournal(url, asked_seconds=60.0)
    accepting = asyncio.create_task(journal.accept(accepted(), "gateway-1", 60.0))
    await asyncio.sleep(0.05)
    await asyncio.to_thread(postgres.start)

    assert await accepting == 1
    await journal.close()


@pytest.mark.postgres
async def test_a_password_is_taken_up_when_it_changes_and_never_told(
    postgres: PostgresServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    name = urlsplit(postgres.database()).path.lstrip("/")
    file = tmp_path / "url"
    file.write_text(postgres.url(name, "wrong" + PASSWORD) + "\n")
    journal = SqlJournal(file, asked_seconds=0.5)
    with pytest.raises(JournalError) as caught:
        await journal.accept(accepted(), "gateway-1", 60.0)
    async with asyncio.timeout(60):
        while "authentication" not in caplog.text:  # noqa: ASYNC110 (the writer's thread has no event for it)
            await asyncio.sleep(0.05)

    file.write_text(postgres.url(name))

    async with asyncio.timeout(60):
        while True:
            try:
                await journal.accept(accepted("r2"), "gateway-1", 60.0)
            except Taken:
                break
            except JournalError:
                continue
    await journal.close()
    assert PASSWORD not in str(caught.value) + caplog.text
