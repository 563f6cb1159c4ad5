"""Usage on disk: kept over restarts, written again after a failure, told by the command."""

import asyncio
import csv
import io
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fakes.postgres import PostgresServer
from scripted.clients import RawClient, chat, post
from scripted.routers import until
from scripted.upstreams import JSON_ANSWER, ScriptedEngine, Seen
from tidepool_router import settings, usage_command
from tidepool_router.errors import SettingsError
from tidepool_router.keys import ApiKey, KeyRing, mint
from tidepool_router.usage import book as books
from tidepool_router.usage import report
from tidepool_router.usage.book import Book, read
from tidepool_router.usage.tally import Tally, Used, Who
from tidepool_router.workflow.journal import JournalError

ALICE = Who("k1", "a", "tiny")
KEY = mint(bytes(range(35)))


def count(tally: Tally, who: Who = ALICE) -> None:
    tally.ended(who, whole=True, prompt_tokens=7, cached_tokens=2, output_tokens=3)


async def lived(place: str, requests: int, clock: Callable[[], float] = time.time) -> None:
    tally = Tally()
    book = Book(tally, place, clock)
    book.start()
    for _ in range(requests):
        count(tally)
    await book.close()


async def test_restarts_add_up_and_hours_stay_apart(tmp_path: Path) -> None:
    place = f"sqlite:///{tmp_path}/usage.db"
    await lived(place, 2, lambda: 7200.0)
    await lived(place, 3, lambda: 7300.0)
    await lived(place, 1, lambda: 10800.0)

    first, second = sorted(read(place, 0.0, 1e12))
    assert first == (7200, ALICE, Used(5, 0, 35, 10, 15))
    assert second == (10800, ALICE, Used(1, 0, 7, 2, 3))
    assert [hour for hour, _, _ in read(place, 7201.0, 1e12)] == [10800]


async def test_what_could_not_be_written_is_written_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = f"sqlite:///{tmp_path}/usage.db"
    monkeypatch.setattr(books, "FLUSH_SECONDS", 0.01)
    tally = Tally()
    book = Book(tally, place)
    book.start()
    written = book._writer.do
    tries = 0

    async def away(*arguments: Any) -> Any:
        nonlocal tries
        tries += 1
        if tries <= 2:
            raise JournalError("away")
        return await written(*arguments)

    monkeypatch.setattr(book._writer, "do", away)
    count(tally)
    await until(lambda: read(place, 0.0, 1e12))
    await book.close()

    assert [used.requests for _, _, used in read(place, 0.0, 1e12)] == [1]


async def test_a_database_that_is_away_does_not_hold_up_the_end_of_a_gateway(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tally = Tally()
    book = Book(tally, f"sqlite:///{tmp_path}/usage.db")
    book.start()

    async def away(work: Any, within_seconds: float | None = None) -> None:
        if within_seconds is None:
            await asyncio.Event().wait()
        raise JournalError("has not answered")

    monkeypatch.setattr(book._writer, "do", away)
    tally.ended(Who("k", "t", "m"), whole=True, prompt_tokens=1, cached_tokens=0, output_tokens=1)

    async with asyncio.timeout(10):
        await book.close()


async def test_what_is_older_than_a_bill_is_forgotten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = f"sqlite:///{tmp_path}/usage.db"
    await lived(place, 1, lambda: 7200.0)
    monkeypatch.setattr(books, "FLUSH_SECONDS", 0.01)
    book = Book(Tally(), place, lambda: 7200.0 + books.KEPT_SECONDS + 3600.0)
    book.start()
    await until(lambda: not read(place, 0.0, 1e12))
    await book.close()


@pytest.mark.postgres
async def test_gateways_share_a_server_and_its_sums(postgres: PostgresServer) -> None:
    place = postgres.database()
    await lived(place, 2, lambda: 7200.0)
    await lived(place, 1, lambda: 7200.0)

    assert read(place, 0.0, 1e12) == [(7200, ALICE, Used(3, 0, 21, 6, 9))]


async def test_each_request_is_counted_for_its_key_as_the_engine_counted(gateway: Any) -> None:
    keys = KeyRing()
    keys.apply([ApiKey.model_validate({"id": KEY.id, "sha256": KEY.digest, "tenant": "search"})], 0.0)
    tally = Tally()

    async def script(seen: Seen) -> None:
        if len(engine.requests) == 2:
            await seen.answer(b"{}", b"400 Bad Request")
        else:
            await seen.answer(JSON_ANSWER)

    async with ScriptedEngine(script) as engine:
        router = await gateway(engine.url, keys=keys, tally=tally)
        for _ in range(2):
            async with RawClient(router.port) as client:
                await client.ask(post(chat(), extra=b"Authorization: Bearer %b\r\n" % KEY.text.encode()))

    assert dict(tally) == {Who(KEY.id, "search", "tiny"): Used(2, 1, 7, 0, 3)}


async def test_a_client_that_leaves_is_counted_for_what_it_had(gateway: Any) -> None:
    tally = Tally()

    async def script(seen: Seen) -> None:
        await seen.begin_stream()
        await seen.chunk(b'data: {"choices":[{"delta":{"role":"assistant","content":""}}]}\n\n')
        for _ in range(3):
            await seen.chunk(b'data: {"choices":[{"delta":{"content":"a"}}]}\n\n')
        await seen.closed.wait()

    async with ScriptedEngine(script) as engine:
        router = await gateway(engine.url, tally=tally)
        async with RawClient(router.port) as client:
            await client.send(post(chat(stream=True), extra=b"X-Tidepool-Tenant: night\r\n"))
            for _ in range(3):
                await client.until(b'"content":"a"')
        await until(lambda: list(tally))

    ((who, used),) = tally
    assert who == Who("", "night", "tiny")
    assert (used.requests, used.failed, used.output_tokens) == (1, 1, 3)
    assert used.prompt_tokens > 0


async def test_the_command_prints_bills(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place = f"sqlite:///{tmp_path}/usage.db"
    await lived(place, 2)

    assert usage_command.run(["--store", place, "--by", "key,model", "-o", "csv"]) == 0
    (row,) = csv.DictReader(io.StringIO(capsys.readouterr().out))
    assert (row["key"], row["model"], row["requests"], row["output_tokens"]) == ("k1", "tiny", "2", "6")
    assert usage_command.run(["--store", place, "-o", "json"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["prompt_tokens"] == 14
    assert usage_command.run(["--store", place]) == 0
    assert capsys.readouterr().out.splitlines()[-1].split() == ["all", "2", "0", "14", "4", "6"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        pytest.param(["--by", "colour"], "name some of day, hour, key", id="a part that there is not"),
        pytest.param(["--since", "soon"], "is no time", id="no time"),
        pytest.param([], "no store is named", id="no store"),
        pytest.param(["--store", "mysql://x"], "no store", id="another database"),
        pytest.param(["--store", "sqlite:////no/such/folder/u.db"], "cannot be read", id="no such file"),
    ],
)
def test_input_that_cannot_be_used_is_said(
    arguments: list[str], words: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv(usage_command.STORE_VARIABLE, raising=False)

    assert usage_command.run(arguments) == 2
    assert words in capsys.readouterr().err


def test_a_name_that_a_spreadsheet_would_run_is_harmless() -> None:
    rows = [(0, Who("k", "=HYPERLINK(1)", "m"), Used(1))]

    assert "'=HYPERLINK(1)" in report.as_csv(report.summed(rows, ("tenant",)), ("tenant",))


def test_a_name_that_a_terminal_would_obey_is_harmless() -> None:
    rows = [(0, Who("k", "\x9b2J", "m"), Used(1))]

    assert "?2J" in report.as_table(report.summed(rows, ("tenant",)), ("tenant",))


def test_usage_without_a_store_is_refused_at_the_start() -> None:
    with pytest.raises(SettingsError, match="--usage keeps it in the store"):
        settings.parse(["gateway", "--fleet", "f.json", "--usage"], {})
