"""Steps that are made of others: what a model picks turn by turn, and workflows that run workflows."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from scripted.routers import until
from scripted.upstreams import Seen
from workflows.rooms import Place, asked, echo, said

Start = Callable[..., Awaitable[Place]]
pytestmark = pytest.mark.traffic
POOLS = [{"name": "pool"}]


def llm(name: str, content: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "llm": {"pools": POOLS, "messages": [{"role": "user", "content": content}]}, **more}


def choosing(**more: Any) -> dict[str, Any]:
    look = {"pools": POOLS, "messages": [{"role": "user", "content": "about {{ input.text }}"}], "maxTurns": 3}
    return {
        "steps": [
            {"name": "look", "choose": {**look, "among": ["lookup", "calc"]}, **more},
            {"name": "lookup", "http": {"url": "http://tool/{{ pick.term }}"}, "dependency": "Soft"},
            {"name": "calc", "http": {"method": "POST", "url": "http://tool/", "body": "{{ pick.expression }}"}},
            llm("write", "{{ steps.look.text }}: {{ steps.look.turns | tojson }}", depends="look"),
        ]
    }


def picks(*answers: dict[str, Any]) -> Callable[[Seen], Awaitable[None]]:
    """An engine that picks these, one after the other, and echoes whatever else it is asked."""

    async def engine(seen: Seen) -> None:
        body = json.loads(seen.body)
        if "response_format" in body:
            turn = sum(message["role"] == "assistant" for message in body["messages"])
            await seen.answer(said(json.dumps(answers[turn])))
        else:
            await echo(seen)

    return engine


async def test_a_model_picks_what_to_do_next_turn_by_turn(place: Start) -> None:
    engine = picks(
        {"step": "lookup", "term": "tides"},
        {"step": "calc", "expression": "1+1"},
        {"step": None, "text": "enough"},
    )
    here = await place(choosing(), engine=engine)

    answer = await here.chat("moon")

    assert answer.status_code == 200, answer.text
    assert [(seen.line.split()[1], seen.body) for seen in here.tool.requests] == [(b"/tides", b""), (b"/", b"1+1")]
    first, _, third, write = [json.loads(seen.body) for seen in here.engine.requests]
    assert first["messages"][-1] == {"role": "user", "content": "about moon"}
    # Each question begins as the one before did.
    assert third["messages"][: len(first["messages"])] == first["messages"]
    assert third["messages"][-1]["content"] == 'calc Succeeded: {"path": "/"}'
    shapes = first["response_format"]["json_schema"]["schema"]["anyOf"]
    assert [list(shape["properties"]) for shape in shapes] == [
        ["step", "term"],
        ["step", "expression"],
        ["step", "text"],
    ]
    said_in_the_end, _, turns = write["messages"][0]["content"].partition(": ")
    assert said_in_the_end == "enough"
    assert [(turn["step"], turn["pick"], turn["status"]) for turn in json.loads(turns)] == [
        ("lookup", {"term": "tides"}, "Succeeded"),
        ("calc", {"expression": "1+1"}, "Succeeded"),
    ]
    assert answer.json()["usage"]["total_tokens"] == 4 * 7
    keys = [seen.headers[b"idempotency-key"] for seen in here.tool.requests]
    assert len(set(keys)) == 2


async def test_a_model_picks_for_each_item_that_flows_on(place: Start) -> None:
    spec = choosing(depends="found", withParam="{{ steps.found.results }}")
    look = {**spec["steps"][0]["choose"], "messages": [{"role": "user", "content": "about {{ item.json.path }}"}]}
    found = {"name": "found", "http": {"url": "http://tool/{{ item }}"}, "withItems": ["a", "b"]}
    spec["steps"] = [found, {**spec["steps"][0], "choose": look}, *spec["steps"][1:3]]
    here = await place({**spec, "output": "{{ steps.look.text }}"}, engine=picks({"step": None, "text": "enough"}))

    answer = await here.chat("moon")

    assert answer.status_code == 200, answer.text
    assert sorted(asked(seen) for seen in here.engine.requests) == ["about /a", "about /b"]


async def test_a_soft_tool_that_fails_is_told_to_the_model_kagent_1530(place: Start) -> None:
    async def tool(seen: Seen) -> None:
        await seen.answer(b"gone", b"404 Not Found")

    engine = picks({"step": "lookup", "term": "x"}, {"step": None, "text": "no luck"})
    here = await place(choosing(), engine=engine, tool=tool)

    assert (await here.chat()).status_code == 200
    question = json.loads(here.engine.requests[1].body)["messages"]
    assert question[-1]["content"] == "lookup Failed: answered 404: gone"


async def test_a_hard_tool_that_fails_fails_the_run_with_its_turn(place: Start) -> None:
    async def tool(seen: Seen) -> None:
        await seen.answer(b"gone", b"404 Not Found")

    here = await place(choosing(), engine=picks({"step": "calc", "expression": "1"}), tool=tool)

    answer = await here.chat()

    assert answer.status_code == 502
    assert "look Failed: turn 1: calc Failed: answered 404: gone" in answer.json()["error"]["message"]


async def test_no_more_turns_are_taken_than_max_turns(place: Start) -> None:
    here = await place(choosing(), engine=picks(*[{"step": "lookup", "term": "x"}] * 4))

    assert (await here.chat()).status_code == 200
    assert len(here.tool.requests) == 3


async def test_a_pick_that_does_not_fit_is_asked_for_again(place: Start) -> None:
    answers = iter(["maybe lookup", '{"step": "nobody"}', '{"step": null, "text": "done"}'])

    async def engine(seen: Seen) -> None:
        if "response_format" in json.loads(seen.body):
            await seen.answer(said(next(answers)))
        else:
            await echo(seen)

    retry = {"limit": 2, "backoff": {"duration": "10ms"}}
    here = await place(choosing(retryStrategy=retry), engine=engine)

    assert (await here.chat()).status_code == 200
    assert not here.tool.requests


async def test_turns_stop_when_the_budget_is_spent(place: Start) -> None:
    spec = {**choosing(), "budget": {"tokens": 7}}
    here = await place(spec, engine=picks(*[{"step": "calc", "expression": "1"}] * 4))

    assert (await here.chat()).status_code == 200
    assert len(here.tool.requests) == 1


SUB = {
    "input": {"type": "object", "required": ["q"], "properties": {"q": {"type": "string"}}},
    "onExit": "bye",
    "steps": [
        llm("first", "first {{ input.q }}"),
        llm("second", "second {{ steps.first.text }}", depends="first"),
        {"name": "bye", "http": {"url": "http://tool/bye"}},
    ],
}
OUTER = {
    "steps": [
        {"name": "sub", "withItems": ["a", "b"], "workflow": {"name": "deep", "input": {"q": "{{ item }}"}}},
        llm("write", "{{ steps.sub.text }}", depends="sub"),
    ]
}


async def test_a_workflow_runs_another_one_per_item(place: Start) -> None:
    here = await place(OUTER, others={"deep": SUB})

    answer = await here.chat()

    assert answer.json()["choices"][0]["message"]["content"] == "<<second <first a>>\n<second <first b>>>"
    assert answer.json()["usage"]["total_tokens"] == 5 * 7
    assert [seen.line.split()[1] for seen in here.tool.requests] == [b"/bye", b"/bye"]


async def test_an_input_that_does_not_fit_the_inner_workflow_fails_its_step(place: Start) -> None:
    step = {"name": "sub", "workflow": {"name": "deep", "input": {"q": 3}}}
    here = await place({"steps": [step]}, others={"deep": SUB})

    answer = await here.chat()

    assert "sub Errored: input.q: 3 is not of type 'string'" in answer.json()["error"]["message"]
    assert not here.engine.requests


async def test_leaving_cuts_what_runs_inside_and_its_exit_step_still_runs(place: Start) -> None:
    async def engine(seen: Seen) -> None:
        await seen.closed.wait()

    here = await place(OUTER, others={"deep": SUB}, engine=engine)
    call = asyncio.ensure_future(here.chat())
    both = [await here.engine.arrived.get() for _ in range(2)]

    call.cancel()

    async with asyncio.timeout(20):
        for seen in both:
            await seen.closed.wait()
    await until(lambda: not here.rooms.workflows.active)
    assert [seen.line.split()[1] for seen in here.tool.requests] == [b"/bye", b"/bye"]


async def test_another_gateway_goes_on_inside_from_the_last_committed_step(place: Start, tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path}/runs.db"
    may_write = asyncio.Event()

    async def engine(seen: Seen) -> None:
        if asked(seen).startswith("first") or may_write.is_set():
            await echo(seen)
        else:
            await seen.closed.wait()

    spec = {"steps": [{"name": "sub", "workflow": {"name": "deep", "input": {"q": "x"}}}]}
    here = await place(spec, others={"deep": SUB}, engine=engine, store=store)
    run = (await here.client.post("/v1/workflows/research/runs", json={})).json()["id"]
    for _ in range(2):
        await here.engine.arrived.get()
    await here.rooms.close()
    may_write.set()

    # The workflow inside has gone meanwhile: a run ends by the specs that it began with.
    there = await place(spec, store=store, place=here)
    await until(lambda: run in there.rooms.workflows.active)
    await there.client.get(f"/v1/workflows/research/runs/{run}/events")

    state = (await there.client.get(f"/v1/workflows/research/runs/{run}")).json()
    assert (state["phase"], state["output"]) == ("Succeeded", "<second <first x>>")
    assert [asked(seen) for seen in here.engine.requests] == ["first x", "second <first x>", "second <first x>"]
    assert state["tokens"] == 14
    assert [step["step"] for step in state["steps"]] == ["sub", "sub#1/bye", "sub#1/first", "sub#1/second"]


async def test_workflows_that_run_each_other_without_end_are_refused(place: Start) -> None:
    one = {"steps": [{"name": "a", "workflow": {"name": "two"}}]}
    two = {"steps": [{"name": "b", "workflow": {"name": "research"}}]}
    here = await place(one, others={"two": two})

    answer = await here.chat()

    assert answer.status_code == 422
    assert "default/research -> default/two -> default/research" in answer.json()["error"]["message"]
