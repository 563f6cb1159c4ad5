"""Inputs, stores and answers that no ordinary run has, through a gateway's sockets."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from scripted.upstreams import Seen
from tidepool_router.workflow import driver, manager
from tidepool_router.workflow.mcp_tools import McpTools
from tidepool_router.workflow.rendering import Renderer
from tidepool_router.workflow.sql_journal import SqlJournal
from workflows.rooms import Place, http, llm

Start = Callable[..., Awaitable[Place]]
pytestmark = pytest.mark.traffic


async def ended(here: Place, run: str) -> dict[str, Any]:
    async with asyncio.timeout(20):
        while True:
            state: dict[str, Any] = (await here.client.get(f"/v1/workflows/research/runs/{run}")).json()
            if state["ended"] is not None:
                return state
            await asyncio.sleep(0.02)


async def test_half_a_surrogate_pair_in_an_input_ends_a_run_as_any_text_does(place: Start, tmp_path: Path) -> None:
    spec = {"steps": [http("a", "http://tool/x", when="{{ input.text }}")], "output": "{{ input.text }}"}
    here = await place(spec, store=f"sqlite:///{tmp_path}/runs.db")

    begun = await here.client.post("/v1/workflows/research/runs", content=b'{"input": {"text": "a\\ud800b"}}')
    state = await ended(here, begun.json()["id"])
    events = await here.client.get(f"/v1/workflows/research/runs/{state['id']}/events")

    assert (state["phase"], state["output"]) == ("Succeeded", "a?b")
    assert "when came out" in events.text


@pytest.mark.parametrize("field", ["output", "withParam"])
async def test_what_nobody_foresaw_ends_the_run_and_not_its_deadline(
    place: Start, field: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    spec = {"steps": [llm("a", "x", withParam="{{ input.items }}")], "output": "{{ steps.a.text }}"}
    here = await place(spec)
    render = Renderer.render

    async def broken(self: Renderer, template: str, values: Any) -> str:
        if template == (spec["output"] if field == "output" else "{{ input.items }}"):
            raise ZeroDivisionError
        return await render(self, template, values)

    monkeypatch.setattr(Renderer, "render", broken)
    answer = await here.chat(input={"items": [1]})

    assert answer.status_code == 502
    assert "the gateway failed on it: ZeroDivisionError" in answer.json()["error"]["message"]
    assert "nobody foresaw" in caplog.text


@pytest.mark.parametrize(("status", "phase"), [(b"200 OK", "Succeeded"), (b"404 Not Found", "Failed")])
async def test_what_came_in_time_counts_however_long_the_store_takes(
    place: Start, status: bytes, phase: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def tool(seen: Seen) -> None:
        await seen.answer(b"{}", status)

    retry = {"limit": 3, "backoff": {"duration": "1ms"}}
    here = await place({"steps": [http("a", "http://tool/x", timeout="1s", retryStrategy=retry)]}, tool=tool)
    commit = SqlJournal.commit

    async def slow(self: SqlJournal, *told: Any) -> None:
        await asyncio.sleep(1.5)
        await commit(self, *told)

    monkeypatch.setattr(SqlJournal, "commit", slow)
    async with asyncio.timeout(20):
        answer = await here.chat()

    assert len(here.tool.requests) == 1
    assert answer.status_code == (200 if phase == "Succeeded" else 502)
    assert phase == "Succeeded" or "answered 404" in answer.json()["error"]["message"]


@pytest.mark.parametrize("options", [["include_usage"], "yes", 1])
async def test_stream_options_that_are_none_are_told(place: Start, options: Any) -> None:
    here = await place({"steps": [llm("a", "x")]})

    answer = await here.chat(stream=True, stream_options=options)

    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "invalid_stream_options")


async def test_a_gateway_replays_no_more_runs_than_it_takes_in(
    place: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = await place({"steps": [llm("a", "x")]}, store=f"sqlite:///{tmp_path}/runs.db")
    run = (await here.client.post("/v1/workflows/research/runs", json={})).json()["id"]
    await ended(here, run)

    monkeypatch.setattr(manager, "MOST_ACTIVE", 0)
    answer = await here.client.post(f"/v1/workflows/research/runs/{run}/replay")

    assert (answer.status_code, answer.json()["error"]["code"]) == (429, "too_many_runs")


@pytest.mark.parametrize("kind", ["llm", "workflow", "mcp"])
async def test_all_that_a_run_holds_is_bounded_whoever_made_it(
    place: Start, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    long = "x" * 400

    async def call(*_: Any) -> tuple[str, Any]:
        return "well", {"long": long}

    monkeypatch.setattr(McpTools, "call", call)
    monkeypatch.setattr(driver, "_MOST_CHARACTERS", 1000)
    does = {
        "llm": llm("a", long),
        "workflow": {"name": "a", "workflow": {"name": "deep"}},
        "mcp": {"name": "a", "mcp": {"server": "http://tool/", "tool": "t"}},
    }
    fan = {**does[kind], "withItems": [1, 2, 3], "maxParallel": 1}
    deep = {"steps": [http("b", "http://tool/", when="{{ input.never | default('') }}")], "output": long}
    here = await place({"steps": [fan], "output": "short"}, others={"deep": deep})

    answer = await here.chat()

    assert answer.status_code == 502
    assert "item 2: all outputs of the run together are longer" in answer.json()["error"]["message"]


async def test_a_gateway_remembers_fewer_runs_where_they_are_long(
    place: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(manager, "_MOST_RECENT_EVENTS", 12)
    here = await place({"steps": [llm("a", "x", withItems=[1, 2])]})

    for _ in range(3):
        assert (await here.chat()).status_code == 200

    assert [len(events) for events in here.rooms.workflows.recent.values()] == [5, 5]


async def test_an_answer_is_as_long_as_its_step_says(place: Start) -> None:
    step = llm("a", "x")
    step["llm"]["maxTokens"] = 40
    here = await place({"steps": [step, llm("b", "y", depends="a")]})

    assert (await here.chat(seed=3)).status_code == 200

    assert [json.loads(seen.body).get("max_tokens") for seen in here.engine.requests] == [40, None]
