"""What public reports of other engines of workflows are about, as a caller of this one sees it."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from scripted.routers import until
from scripted.upstreams import Seen
from tidepool_router.workflow.core.states import Ending, Key
from tidepool_router.workflow.journal import JournalError
from tidepool_router.workflow.sql_journal import SqlJournal
from workflows.rooms import Place, asked, delta, echo, http, llm

Start = Callable[..., Awaitable[Place]]
pytestmark = pytest.mark.traffic
RUNS = "/v1/workflows/research/runs"
STREAM = {"model": "workflow/research", "messages": [{"role": "user", "content": "x"}], "stream": True}


async def silent(seen: Seen) -> None:
    """An engine that never answers."""
    await seen.closed.wait()


async def test_an_answer_that_the_next_step_cannot_read_ends_the_run_argo_14337(place: Start) -> None:
    """That is told at once: the deadline is there for the test alone, should nobody hear of the failure."""
    steps = [llm("a", "x"), llm("b", "{{ steps.a.json.title }}", depends="a"), llm("c", "y", depends="b")]
    here = await place({"deadline": "3s", "steps": steps})

    answer = await here.chat()

    assert answer.status_code == 502
    assert "b Errored: messages: steps.a.json.title is read" in answer.json()["error"]["message"]
    assert len(here.engine.requests) == 1


async def test_the_deadline_ends_a_run_whose_step_never_answers_argo_14337(place: Start) -> None:
    here = await place({"deadline": "300ms", "steps": [llm("a", "x"), llm("b", "y", depends="a")]}, engine=silent)

    async with asyncio.timeout(20):
        answer = await here.chat()
        await here.engine.requests[0].closed.wait()

    assert answer.status_code == 504
    assert "DeadlineExceeded: not done within 300ms" in answer.json()["error"]["message"]


async def test_a_stream_of_a_run_that_fails_ends_with_the_error_kserve_2484(place: Start) -> None:
    async def tool(seen: Seen) -> None:
        await seen.answer(b"no", b"400 Bad Request")

    here = await place({"steps": [http("a", "http://tool/"), llm("b", "x", depends="a")]}, tool=tool)

    lines = (await here.client.post("/v1/chat/completions", json=STREAM)).text.strip().split("\n\n")

    assert "a Failed: answered 400: no" in json.loads(lines[-1].removeprefix("data: "))["error"]["message"]
    assert "[DONE]" not in lines[-1]
    assert not here.engine.requests


async def test_a_client_that_leaves_a_stream_cuts_the_engines_answer_kserve_2837(place: Start) -> None:
    async def engine(seen: Seen) -> None:
        await seen.begin_stream()
        await seen.chunk(delta("Once"))
        await seen.closed.wait()

    here = await place({"steps": [llm("a", "x")]}, engine=engine)
    async with here.client.stream("POST", "/v1/chat/completions", json=STREAM) as answer:
        async for line in answer.aiter_lines():
            if "Once" in line:
                break

    async with asyncio.timeout(20):
        await here.engine.requests[0].closed.wait()
    await until(lambda: not here.rooms.workflows.active)


async def test_parallel_runs_of_one_workflow_inside_share_neither_context_nor_session_kagent_2538(
    place: Start,
) -> None:
    inner = {"steps": [llm("first", "{{ input.q }}"), llm("second", "{{ steps.first.text }}", depends="first")]}
    sub = {"name": "sub", "withItems": ["a", "b"], "workflow": {"name": "deep", "input": {"q": "{{ item }}"}}}
    here = await place({"steps": [sub]}, others={"deep": inner})

    assert (await here.chat()).json()["choices"][0]["message"]["content"] == "<<a>>\n<<b>>"

    sessions: dict[str, set[bytes]] = {"a": set(), "b": set()}
    for seen in here.engine.requests:
        sessions[asked(seen).strip("<>")].add(seen.headers[b"x-tidepool-session"])
    assert [len(own) for own in sessions.values()] == [1, 1]
    assert sessions["a"] != sessions["b"]


async def test_what_keeps_a_caller_on_a_pod_is_no_name_of_its_runs_kagent_2137(place: Start) -> None:
    here = await place({"steps": [llm("a", "{{ item }}", withItems=["x", "y"]), llm("b", "z", depends="a")]})
    headers = {"x-tidepool-session": "mine", "x-request-id": "mine"}
    body = {"model": "workflow/research", "messages": [{"role": "user", "content": "why"}]}

    for _ in range(2):
        answer = await here.client.post("/v1/chat/completions", json=body, headers=headers)
        assert answer.status_code == 200

    sent = [seen.headers for seen in here.engine.requests]
    assert len({one[b"x-tidepool-session"] for one in sent} - {b"mine"}) == 6
    assert len({one[b"x-request-id"] for one in sent} - {b"mine"}) == 6


async def test_a_run_that_cannot_be_written_is_not_taken_in_kagent_2086(
    place: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = await place({"steps": [llm("a", "x")]}, store=f"sqlite:///{tmp_path}/runs.db")

    async def away(*_: Any) -> int:
        raise JournalError("the disk is full")

    monkeypatch.setattr(SqlJournal, "accept", away)
    answer = await here.client.post(RUNS, json={})

    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "store_failed")
    assert "the disk is full" in answer.json()["error"]["message"]
    assert not here.rooms.workflows.active
    assert not here.engine.requests


async def test_a_store_that_fails_for_a_moment_loses_no_run_kagent_2086(
    place: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = await place({"steps": [llm("a", "x")]}, store=f"sqlite:///{tmp_path}/runs.db")
    commit, failures = SqlJournal.commit, iter([JournalError("a hiccup")])

    async def hiccup(self: SqlJournal, *told: Any) -> None:
        for failure in failures:
            raise failure
        await commit(self, *told)

    monkeypatch.setattr(SqlJournal, "commit", hiccup)
    run = (await here.client.post(RUNS, json={})).json()["id"]
    await here.client.get(f"{RUNS}/{run}/events")

    assert (await here.client.get(f"{RUNS}/{run}")).json()["phase"] == "Succeeded"
    assert len(here.engine.requests) == 1


async def test_nothing_builds_on_a_step_before_it_is_written_kagent_2086(
    place: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[str] = []
    seen_by_then: list[list[str]] = []
    commit = SqlJournal.commit

    async def slow(self: SqlJournal, run: str, fence: int, key: Key, ending: Ending) -> None:
        await asyncio.sleep(0.2)
        await commit(self, run, fence, key, ending)
        written.append(key.step)

    async def engine(seen: Seen) -> None:
        seen_by_then.append(list(written))
        await echo(seen)

    monkeypatch.setattr(SqlJournal, "commit", slow)
    here = await place({"steps": [llm("a", "x"), llm("b", "y", depends="a")]}, engine=engine)

    assert (await here.chat()).status_code == 200
    assert seen_by_then == [[], ["a"]]


async def test_a_field_that_nobody_knows_is_refused_by_name_sr_2946(place: Start, tmp_path: Path) -> None:
    here = await place({"steps": [llm("a", "x")]}, store=f"sqlite:///{tmp_path}/runs.db")

    answer = await here.client.post(RUNS, json={"inputs": {"q": "why"}})

    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "unknown_field")
    assert "'inputs'" in answer.json()["error"]["message"]
    assert not here.engine.requests
