"""The journal on real files: what is kept, who may write, and what is told when it cannot be."""

import asyncio
import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tidepool_router.workflow.core.states import Ending, Key, Output, Phase, Verdict
from tidepool_router.workflow.journal import Accepted, Fenced, JournalError, Summary
from tidepool_router.workflow.sql_journal import SqlJournal

DONE = Ending(Phase.SUCCEEDED, output=Output("found", {"a": [1]}, 12))


def accepted(name: str = "r1", created: float = 100.0) -> Accepted:
    return Accepted(name, "default/research", {"steps": []}, {"q": "why"}, created, created + 60.0)


@pytest.fixture
async def journal(tmp_path: Path) -> AsyncIterator[SqlJournal]:
    found = SqlJournal(f"sqlite:///{tmp_path}/runs.db")
    yield found
    await found.close()


async def test_what_was_accepted_and_committed_is_there_after_a_crash(journal: SqlJournal, tmp_path: Path) -> None:
    await journal.accept(accepted(), "gateway-1", 110.0)
    await journal.commit("r1", 1, Key("plan"), DONE)
    await journal.commit("r1", 1, Key("search", 3), Ending(Phase.FAILED, "no answer"))

    # Another process, while the first one has not closed anything.
    other = SqlJournal(f"sqlite:///{tmp_path}/runs.db")
    (claim,) = await other.claim("gateway-2", 111.0, 121.0, 10)
    await other.close()

    assert claim.run == accepted()
    assert claim.fence == 2
    assert claim.endings == {Key("plan"): DONE, Key("search", 3): Ending(Phase.FAILED, "no answer")}


async def test_the_file_is_written_through_to_the_disk(journal: SqlJournal) -> None:
    pragmas = await journal._do(
        lambda found: [
            found.exec_driver_sql(f"pragma {name}").scalar() for name in ("journal_mode", "synchronous")
        ]
    )

    assert pragmas == ["wal", 2]  # FULL


async def test_a_lease_that_is_kept_is_not_taken_over(journal: SqlJournal) -> None:
    await journal.accept(accepted(), "gateway-1", 110.0)
    await journal.renew("gateway-1", 120.0)

    assert await journal.claim("gateway-2", 119.0, 130.0, 10) == []
    assert len(await journal.claim("gateway-2", 120.5, 130.0, 10)) == 1
    assert await journal.claim("gateway-3", 121.0, 130.0, 10) == []


async def test_who_has_lost_a_run_writes_nothing_to_it(journal: SqlJournal) -> None:
    await journal.accept(accepted(), "slow", 110.0)
    await journal.claim("quick", 111.0, 121.0, 10)

    with pytest.raises(Fenced):
        await journal.commit("r1", 1, Key("plan"), DONE)
    with pytest.raises(Fenced):
        await journal.finish("r1", 1, Summary("r1", "", 0.0, Verdict.SUCCEEDED, "", 112.0), None)

    record = await journal.find("r1")
    assert record is not None
    assert (record.endings, record.summary.ended) == ({}, None)


async def test_the_first_ending_stands(journal: SqlJournal) -> None:
    await journal.accept(accepted(), "gateway-1", 110.0)
    await journal.commit("r1", 1, Key("plan"), DONE)
    await journal.commit("r1", 1, Key("plan"), Ending(Phase.FAILED, "late"))

    record = await journal.find("r1")

    assert record is not None
    assert record.endings == {Key("plan"): DONE}


async def test_one_writer_that_is_fenced_does_not_undo_the_others(journal: SqlJournal) -> None:
    await journal.accept(accepted("r1"), "gateway-1", 110.0)
    await journal.accept(accepted("r2"), "gateway-1", 110.0)

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


async def test_runs_are_listed_newest_first_and_forgotten_when_they_are_old(journal: SqlJournal) -> None:
    for index in range(3):
        await journal.accept(accepted(f"r{index}", 100.0 + index), "gateway-1", 110.0)
    end = Summary("r1", "default/research", 101.0, Verdict.FAILED, "plan Failed", 150.0, 7)
    await journal.finish("r1", 1, end, None)

    assert [run.id for run in await journal.runs("default/research", 2)] == ["r2", "r1"]
    assert [run.id for run in await journal.runs("default/research", 5, before=101.0)] == ["r0"]
    assert (await journal.runs("default/research", 5))[1] == end
    assert await journal.runs("default/other", 5) == []
    assert await journal.forget(151.0) == 1
    assert await journal.find("r1") is None


async def test_what_cannot_be_written_is_never_acknowledged_kagent_2086(
    journal: SqlJournal, tmp_path: Path
) -> None:
    await journal.accept(accepted(), "gateway-1", 110.0)
    with sqlite3.connect(tmp_path / "runs.db") as breaking:
        breaking.execute("drop table workflow_endings")

    with pytest.raises(JournalError, match="no such table") as caught:
        await journal.commit("r1", 1, Key("plan"), DONE)
    assert "found" not in str(caught.value)  # outputs stay out of messages
    assert await journal.find("r2") is None  # and the next transaction is a new one


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("runs.db", "sqlite:////var/lib"),
        ("mysql://host/db", "not built yet"),
        ("sqlite:////nowhere/at/all/runs.db", "cannot be opened"),
    ],
)
async def test_a_store_that_cannot_be_used_is_told_with_a_remedy(url: str, told: str) -> None:
    with pytest.raises(JournalError, match=told):
        SqlJournal(url)
