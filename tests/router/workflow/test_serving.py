"""Workflows as their callers see them: through a gateway's sockets."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from time import monotonic

import pytest

from scripted.routers import until
from scripted.upstreams import Seen
from tidepool_api.load import GatewayReport
from workflows.rooms import END, USAGE, Place, asked, delta, echo, found, http, llm, said

Start = Callable[..., Awaitable[Place]]
pytestmark = pytest.mark.traffic


RESEARCH = {
    "steps": [
        llm("plan", '["{{ input.text }}", "b"]'),
        http(
            "search",
            "http://tool/{{ item | urlencode }}",
            depends="plan",
            withParam="{{ steps.plan.text | trim }}",
        ),
        llm("write", "{{ steps.search.json }}", depends="search"),
    ]
}


async def bare(seen: Seen) -> None:
    """An engine that answers what it was asked, without brackets."""
    if json.loads(seen.body).get("stream"):
        await echo(seen)
    else:
        await seen.answer(said(asked(seen)))


async def test_a_workflow_is_called_as_a_chat_model(place: Start) -> None:
    here = await place(RESEARCH, engine=bare)

    answer = await here.chat("a c")

    assert answer.status_code == 200, answer.text
    body = answer.json()
    assert json.loads(body["choices"][0]["message"]["content"].strip("<>")) == [{"path": "/a%20c"}, {"path": "/b"}]
    assert body["usage"] == {"prompt_tokens": 10, "completion_tokens": 4, "total_tokens": 14}  # all steps together
    assert body["model"] == "workflow/research"
    models = (await here.client.get("/v1/models")).json()["data"]
    assert "workflow/default/research" in [model["id"] for model in models]


async def test_the_first_token_comes_before_the_last_step_has_ended_kserve_2837(place: Start) -> None:
    may_end = asyncio.Event()

    async def engine(seen: Seen) -> None:
        if not json.loads(seen.body).get("stream"):
            await seen.answer(said("planned"))
            return
        await seen.begin_stream()
        await seen.chunk(delta("Once"))
        await may_end.wait()
        for data in (delta(" upon"), USAGE, END, b""):
            await seen.chunk(data)

    here = await place(
        {"steps": [llm("plan", "x"), llm("write", "{{ steps.plan.text }}", depends="plan")]}, engine=engine
    )
    lines = []
    body = {
        "model": "workflow/research",
        "messages": [{"role": "user", "content": "x"}],
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    async with here.client.stream("POST", "/v1/chat/completions", json=body) as answer:
        async for line in answer.aiter_lines():
            if line.startswith("data: "):
                lines.append(line[6:])
            if "Once" in line:
                may_end.set()

    assert lines[-1] == "[DONE]"
    chunks = [json.loads(line) for line in lines[:-1]]
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks if chunk["choices"]]
    assert "".join(one.get("content") or "" for one in deltas) == "Once upon"
    progress = "".join(one.get("reasoning_content") or "" for one in deltas)
    assert progress.startswith("plan Running\nplan Succeeded\nwrite Running\n")
    assert chunks[-1]["usage"]["total_tokens"] == 14


async def test_a_client_that_leaves_stops_every_step(place: Start) -> None:
    async def engine(seen: Seen) -> None:
        await seen.closed.wait()

    here = await place({"steps": [llm("a", "x"), llm("b", "x")]}, engine=engine)
    call = asyncio.ensure_future(here.chat())
    first, second = await here.engine.arrived.get(), await here.engine.arrived.get()

    call.cancel()

    async with asyncio.timeout(20):
        await first.closed.wait()
        await second.closed.wait()
    await until(lambda: not here.rooms.workflows.active)


async def test_what_a_cancelled_run_has_under_way_is_cut_before_its_exit_step_ends(place: Start) -> None:
    may_end = asyncio.Event()

    async def engine(seen: Seen) -> None:
        await seen.closed.wait()

    async def tool(seen: Seen) -> None:
        await may_end.wait()
        await seen.answer(b"bye")

    here = await place(
        {"onExit": "bye", "steps": [llm("a", "x"), http("bye", "http://tool/")]}, engine=engine, tool=tool
    )
    call = asyncio.ensure_future(here.chat())
    asked_for = await here.engine.arrived.get()

    call.cancel()

    async with asyncio.timeout(20):
        await asked_for.closed.wait()
    assert here.rooms.workflows.active  # the exit step runs
    may_end.set()
    await until(lambda: not here.rooms.workflows.active)


async def test_a_try_that_takes_too_long_is_cut_and_made_again(place: Start) -> None:
    async def engine(seen: Seen) -> None:
        if len(here.engine.requests) == 1:
            await seen.closed.wait()
        else:
            await echo(seen)

    retry = {"limit": 1, "backoff": {"duration": "10ms"}}
    here = await place({"steps": [llm("a", "x", timeout="300ms", retryStrategy=retry)]}, engine=engine)

    answer = await here.chat()

    assert answer.json()["choices"][0]["message"]["content"] == "<x>"
    assert here.engine.requests[0].closed.is_set()


async def test_a_hard_failure_is_the_status_of_the_whole_kserve_2484(place: Start) -> None:
    async def tool(seen: Seen) -> None:
        await seen.answer(b"no", b"400 Bad Request")

    here = await place({"steps": [http("a", "http://tool/"), llm("b", "x", depends="a")]}, tool=tool)

    answer = await here.chat()

    assert answer.status_code == 502
    assert "a Failed: answered 400: no" in answer.json()["error"]["message"]
    assert not here.engine.requests


async def test_a_tool_that_fails_for_a_moment_is_called_again_with_the_same_key(place: Start) -> None:
    keys = []

    async def tool(seen: Seen) -> None:
        keys.append(seen.headers[b"idempotency-key"])
        await seen.answer(b"{}", b"503 Service Unavailable" if len(keys) == 1 else b"200 OK")

    retry = {"limit": 1, "backoff": {"duration": "10ms"}}
    here = await place({"steps": [http("a", "http://tool/", retryStrategy=retry)]}, tool=tool)

    assert (await here.chat()).status_code == 200
    assert len(keys) == 2
    assert keys[0] == keys[1]


async def test_a_step_is_skipped_when_its_condition_is_false(place: Start) -> None:
    here = await place(
        {
            "steps": [
                http("a", "http://tool/", when="{{ input.text }}"),
                llm("b", "ran{{ steps.a.text }}", depends="a"),
            ]
        }
    )

    assert (await here.chat("false")).json()["choices"][0]["message"]["content"] == "<ran>"
    assert not here.tool.requests
    await here.chat("true")
    assert len(here.tool.requests) == 1


async def test_a_call_tells_what_its_run_still_needs_and_how_long_it_may_take(place: Start) -> None:
    here = await place({"deadline": "30s", "steps": [llm("a", "x"), llm("b", "x", depends="a")]})

    assert (await here.chat()).status_code == 200

    first, second = [seen.headers for seen in here.engine.requests]
    tokens = [int(headers[b"x-tidepool-run"].split(b";")[0]) for headers in (first, second)]
    assert tokens[0] > tokens[1]
    assert 20.0 < float(first[b"x-tidepool-deadline"].rstrip(b"s")) <= 30.0


async def test_branches_have_sessions_of_their_own_and_steps_in_a_row_share_one_kagent_2137(place: Start) -> None:
    fan = llm("a", "{{ item }}", withItems=["x", "y"])
    here = await place({"steps": [llm("first", "1"), {**fan, "depends": "first"}, llm("last", "2", depends="a")]})

    assert (await here.chat()).status_code == 200

    first, *items, last = [seen.headers[b"x-tidepool-session"] for seen in here.engine.requests]
    assert first == last
    assert len({first, *items}) == 3


async def test_the_next_pool_is_asked_when_the_best_one_fails(place: Start) -> None:
    step = llm("a", "x")
    step["llm"]["pools"] = [{"name": "pool", "quality": 0.2}, {"name": "gone", "quality": 0.9}]
    here = await place({"steps": [step]})

    assert (await here.chat()).status_code == 200


async def test_a_run_in_the_background_outlives_its_caller(place: Start, tmp_path: Path) -> None:
    here = await place(
        {
            "input": {"type": "object", "required": ["q"], "properties": {"q": {"type": "string"}}},
            "steps": [llm("a", "{{ input.q }}")],
        },
        store=f"sqlite:///{tmp_path}/runs.db",
    )
    runs = "/v1/workflows/research/runs"

    wrong = await here.client.post(runs, json={"input": {"q": 1}})
    assert (wrong.status_code, wrong.json()["error"]["message"]) == (400, "input.q: 1 is not of type 'string'")

    begun = await here.client.post(runs, json={"input": {"q": "why"}})
    assert begun.status_code == 202
    run = f"{runs}/{begun.json()['id']}"
    events = (await here.client.get(f"{run}/events")).text
    state = (await here.client.get(run)).json()

    assert '"phase": "Succeeded"' in events
    assert (state["phase"], state["output"], state["tokens"]) == ("Succeeded", "<why>", 7)
    assert [step["step"] for step in state["steps"]] == ["a"]
    assert [one["id"] for one in (await here.client.get(runs)).json()["data"]] == [state["id"]]
    assert (await here.client.get(f"{runs}/run-0")).status_code == 404


async def test_the_state_of_a_run_does_not_hold_what_its_steps_made_argo_13783(
    place: Start, tmp_path: Path
) -> None:
    async def engine(seen: Seen) -> None:
        await seen.answer(said("x" * 500_000))

    fan = llm("a", "{{ item }}", withItems=list(range(4)))
    here = await place({"steps": [fan], "output": "short"}, engine=engine, store=f"sqlite:///{tmp_path}/runs.db")
    run = (await here.client.post("/v1/workflows/research/runs", json={})).json()["id"]
    await here.client.get(f"/v1/workflows/research/runs/{run}/events")

    state = await here.client.get(f"/v1/workflows/research/runs/{run}")
    assert state.json()["output"] == "short"
    assert len(state.content) < 2000


async def test_runs_and_steps_are_counted_by_workflow(place: Start) -> None:
    here = await place({"steps": [llm("a", "{{ item }}", withItems=["x", "y"])]})
    await here.chat()

    page = here.router.state.metrics.registry.render().decode()
    assert 'tidepool_workflow_runs_total{workflow="default/research",phase="Succeeded"} 1' in page
    assert 'tidepool_workflow_steps_total{workflow="default/research",step="a",phase="Succeeded"} 2' in page
    assert 'tidepool_workflow_step_tokens_total{workflow="default/research",step="a"} 14' in page
    assert 'tidepool_workflow_step_duration_seconds_count{workflow="default/research",step="a"} 2' in page


async def test_what_a_run_does_without_for_its_budget_is_recorded(place: Start, tmp_path: Path) -> None:
    nice = llm("nice", "x", depends="a", dependency="Soft")
    degrade = [{"measure": "SkipSoft", "atPercent": 50}]
    spec = {
        "budget": {"tokens": 14, "degrade": degrade},
        "steps": [llm("a", "x"), nice, llm("b", "y", depends="a")],
    }
    here = await place(spec, store=f"sqlite:///{tmp_path}/runs.db")
    run = (await here.client.post("/v1/workflows/research/runs", json={})).json()["id"]

    events = (await here.client.get(f"/v1/workflows/research/runs/{run}/events")).text
    state = (await here.client.get(f"/v1/workflows/research/runs/{run}")).json()

    assert '{"type": "saving", "measure": "SkipSoft", "tokens": 7, "within": ""' in events
    assert (state["phase"], state["reason"]) == ("Succeeded", "degraded for the budget: the step nice")
    page = here.router.state.metrics.registry.render().decode()
    assert 'tidepool_workflow_saving_total{workflow="default/research",measure="SkipSoft"} 1' in page


async def test_a_pool_that_a_run_needs_later_is_announced_until_it_ends(place: Start) -> None:
    may_end = asyncio.Event()

    async def tool(seen: Seen) -> None:
        await may_end.wait()
        await seen.answer(b"{}")

    here = await place({"steps": [http("a", "http://tool/"), llm("b", "x", depends="a")]}, tool=tool)
    pool = next(iter(here.router.state.pools.values()))
    call = asyncio.ensure_future(here.chat())
    await here.tool.arrived.get()

    # It does not fall asleep; an engine that nobody has looked at yet is woken.
    await until(lambda: (pool.demand(pool.now()).held, pool.demand(pool.now()).in_flight) == (0, 1))
    may_end.set()
    assert (await call).status_code == 200
    await until(lambda: pool.demand(pool.now()).in_flight == 0)
    pool.announce(1)
    pool.set_pods([])
    assert pool.demand(pool.now()).held == 1  # it wakes


async def test_runs_announce_the_calls_of_their_second_step_before_they_come(place: Start) -> None:
    may_end, may_answer = asyncio.Event(), asyncio.Event()

    async def tool(seen: Seen) -> None:
        await may_end.wait()
        await seen.answer(b"{}")

    async def engine(seen: Seen) -> None:
        await may_answer.wait()
        await echo(seen)

    steps = [http("a", "http://tool/"), llm("b", "x", depends="a")]
    here = await place({"steps": steps}, tool=tool, engine=engine)
    profiles = here.rooms.workflows._performer.profiles
    for step, seconds in (("a", 30.0), ("b", 20.0)):
        for _ in range(100):
            profiles.worked("default/research", step, tokens=7, seconds=seconds, now=monotonic())

    def coming() -> int:
        return GatewayReport.decode(here.router.state.report().encode()).pools["default/pool"].coming

    assert coming() == 0  # nobody runs
    calls = [asyncio.ensure_future(here.chat()) for _ in range(5)]
    for _ in calls:
        await here.tool.arrived.get()

    await until(lambda: coming() == 5)  # and none of them has come
    assert here.engine.arrived.empty()
    may_end.set()
    await until(lambda: coming() == 0)  # they are in flight
    may_answer.set()
    assert [(await call).status_code for call in calls] == [200] * 5


async def test_a_run_is_cancelled_by_a_request(place: Start, tmp_path: Path) -> None:
    async def engine(seen: Seen) -> None:
        await seen.closed.wait()

    here = await place({"steps": [llm("a", "x")]}, engine=engine, store=f"sqlite:///{tmp_path}/runs.db")
    begun = await here.client.post("/v1/workflows/research/runs", json={})
    run = f"/v1/workflows/research/runs/{begun.json()['id']}"
    asked_for = await here.engine.arrived.get()

    assert (await here.client.delete(run)).status_code == 202
    async with asyncio.timeout(20):
        await asked_for.closed.wait()
    await here.client.get(f"{run}/events")
    state = (await here.client.get(run)).json()
    assert (state["phase"], state["reason"]) == ("Cancelled", "cancelled by a request")


async def test_a_cancelled_run_stays_cancelled_when_its_gateway_dies(place: Start, tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path}/runs.db"

    async def hang(seen: Seen) -> None:
        await seen.closed.wait()

    spec = {"onExit": "bye", "steps": [llm("a", "x"), http("bye", "http://tool/")]}
    here = await place(spec, engine=hang, tool=hang, store=store)
    run = (await here.client.post("/v1/workflows/research/runs", json={})).json()["id"]
    await here.engine.arrived.get()
    assert (await here.client.delete(f"/v1/workflows/research/runs/{run}")).status_code == 202
    await here.tool.arrived.get()  # its exit step is under way
    await here.rooms.close()

    here.tool.script = found
    there = await place(spec, store=store, place=here)
    await until(lambda: run in there.rooms.workflows.active)
    await there.client.get(f"/v1/workflows/research/runs/{run}/events")

    state = (await there.client.get(f"/v1/workflows/research/runs/{run}")).json()
    assert (state["phase"], state["reason"]) == ("Cancelled", "cancelled by a request")
    assert len(here.engine.requests) == 1


async def test_another_gateway_goes_on_from_the_last_committed_step(place: Start, tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path}/runs.db"
    may_write = asyncio.Event()

    async def engine(seen: Seen) -> None:
        if asked(seen) == "first" or may_write.is_set():
            await echo(seen)
        else:
            await seen.closed.wait()

    spec = {"steps": [llm("a", "first"), llm("b", "{{ steps.a.text }}", depends="a")]}
    here = await place(spec, engine=engine, store=store)
    run = (await here.client.post("/v1/workflows/research/runs", json={})).json()["id"]
    for _ in range(2):
        await here.engine.arrived.get()
    await here.rooms.close()  # as when it is told to end
    may_write.set()

    there = await place(spec, store=store, place=here)
    await until(lambda: run in there.rooms.workflows.active)
    events = (await there.client.get(f"/v1/workflows/research/runs/{run}/events")).text

    state = (await there.client.get(f"/v1/workflows/research/runs/{run}")).json()
    assert (state["phase"], state["output"]) == ("Succeeded", "<<first>>")
    assert [asked(seen) for seen in here.engine.requests] == ["first", "<first>", "<first>"]
    steps = [json.loads(line[6:]).get("step") for line in events.splitlines() if line]
    assert steps[:3] == ["a", "a", "b"]  # also what happened before


async def test_a_gateway_that_was_too_slow_to_keep_its_run_writes_nothing_to_it(
    place: Start, tmp_path: Path
) -> None:
    store = f"sqlite:///{tmp_path}/runs.db"
    may_end = asyncio.Event()

    async def engine(seen: Seen) -> None:
        first = sum(asked(one) == "first" for one in here.engine.requests) == 1
        if first:
            await may_end.wait()
            await seen.answer(said("late"))
        else:
            await echo(seen)

    spec = {"steps": [llm("a", "first"), llm("b", "{{ steps.a.text }}", depends="a")]}
    here = await place(spec, engine=engine, store=store, lease_seconds=0.2)
    here.rooms.workflows.pause()
    run = (await here.client.post("/v1/workflows/research/runs", json={})).json()["id"]
    slow = here.rooms.workflows.active[run]

    there = await place(spec, store=store, place=here, lease_seconds=0.2)
    # A gateway of the same name with runs of its own, as after a restart: it keeps those, and takes this one over.
    await there.client.post("/v1/workflows/research/runs", json={})
    await until(lambda: run in there.rooms.workflows.active)
    await there.client.get(f"/v1/workflows/research/runs/{run}/events")
    may_end.set()
    await slow.over()

    assert slow.lost
    state = (await there.client.get(f"/v1/workflows/research/runs/{run}")).json()
    assert (state["phase"], state["output"]) == ("Succeeded", "<<first>>")


@pytest.mark.parametrize(
    ("method", "path", "status", "told"),
    [
        ("POST", "/v1/workflows/research/runs", 501, "--workflow-store"),
        ("POST", "/v1/workflows/nobody/runs", 404, "known workflows: default/research"),
        ("GET", "/v1/workflows/research/walks", 404, "runs are at /v1/workflows/NAME/runs"),
        ("GET", "/v1/workflowsx", 404, "is not served here"),
    ],
)
async def test_what_cannot_be_answered_says_what_would(
    place: Start, method: str, path: str, status: int, told: str
) -> None:
    here = await place({"steps": [llm("a", "x")]})

    answer = await here.client.request(method, path, json={})

    assert answer.status_code == status
    assert told in answer.json()["error"]["message"]


async def test_an_input_that_is_too_long_is_refused(place: Start) -> None:
    here = await place({"steps": [llm("a", "x")]})

    answer = await here.chat("y" * (2 << 20))

    assert (answer.status_code, answer.json()["error"]["code"]) == (413, "input_too_long")
