"""Run objects at the gateway's control port, as the operator asks for them."""

import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from scripted.routers import until
from scripted.upstreams import Seen
from tidepool_router.workflow.core.states import Verdict
from tidepool_router.workflow.journal import Accepted, Record, Summary
from tidepool_router.workflow.objects import report
from tidepool_router.workflow.start import WorkflowRooms
from workflows.rooms import Place, echo

Start = Callable[..., Awaitable[Place]]
pytestmark = pytest.mark.traffic
SPEC = {
    "input": {"type": "object", "required": ["q"], "properties": {"q": {"type": "string"}}},
    "steps": [
        {
            "name": "a",
            "llm": {"pools": [{"name": "pool"}], "messages": [{"role": "user", "content": "{{ input.q }}"}]},
        }
    ],
}


async def ask(rooms: WorkflowRooms, method: str, path: str, body: dict[str, Any] | None = None) -> tuple[int, Any]:
    answer = await rooms.objects.handle(method, path, {}, json.dumps(body or {}).encode())
    return answer.status, json.loads(answer.body or b"null")


def order(text: str = "why", **more: Any) -> dict[str, Any]:
    return {"namespace": "default", "workflow": "research", "input": {"q": text}, **more}


async def test_an_object_has_one_run_however_often_it_is_asked_for(place: Start, tmp_path: Path) -> None:
    here = await place(SPEC, store=f"sqlite:///{tmp_path}/runs.db")

    status, first = await ask(here.rooms, "PUT", "/runs/u1", order())
    await until(lambda: not here.rooms.workflows.active)
    _, last = await ask(here.rooms, "PUT", "/runs/u1", order())

    assert (status, first["phase"], first["run"]) == (200, "Running", "object-u1")
    assert (last["phase"], last["output"], last["tokens"], last["steps"]) == ("Succeeded", "<why>", 7, 1)
    assert len(here.engine.requests) == 1
    state = await here.client.get("/v1/workflows/research/runs/object-u1")  # and people see all of it
    assert state.json()["output"] == "<why>"


async def test_what_an_object_holds_is_bounded_argo_12802(place: Start, tmp_path: Path) -> None:
    here = await place(SPEC, store=f"sqlite:///{tmp_path}/runs.db")

    await ask(here.rooms, "PUT", "/runs/u1", order("x" * 20_000))
    await until(lambda: not here.rooms.workflows.active)
    _, told = await ask(here.rooms, "PUT", "/runs/u1", order())

    assert (len(told["output"]), told["outputCut"]) == (8192, True)


def test_a_reason_that_an_object_holds_is_bounded_argo_12802() -> None:
    run = Accepted("object-u1", "default/research", {}, {}, 100.0, 160.0)
    end = Summary(run.id, run.workflow, run.created, Verdict.FAILED, "x" * 5000, 112.0)

    assert len(report(Record(run, end, None, {})).reason) == 1024


async def test_open_runs_are_told_and_cancelled(place: Start, tmp_path: Path) -> None:
    async def engine(seen: Seen) -> None:
        if "stay" in seen.body.decode():
            await seen.closed.wait()
        else:
            await echo(seen)

    here = await place(SPEC, engine=engine, store=f"sqlite:///{tmp_path}/runs.db")
    await here.client.post("/v1/workflows/research/runs", json={"input": {"q": "stay"}})
    await ask(here.rooms, "PUT", "/runs/u1", order("stay"))

    assert await ask(here.rooms, "GET", "/runs") == (200, {"runs": [{"uid": "u1", "namespace": "default"}]})
    assert (await ask(here.rooms, "DELETE", "/runs/u1"))[0] == 204
    await until(lambda: len(here.rooms.workflows.active) == 1)
    assert (await ask(here.rooms, "PUT", "/runs/u1", order()))[1]["phase"] == "Cancelled"
    assert await ask(here.rooms, "GET", "/runs") == (200, {"runs": []})


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "code"),
    [
        ("PUT", "/runs/u1", order(1), 400, "invalid_input"),  # type: ignore[arg-type]
        ("PUT", "/runs/u1", {"namespace": "default"}, 400, "invalid_order"),
        ("PUT", "/runs/u1", order(workflow="nobody"), 404, "workflow_not_found"),
        ("PUT", "/runs/u1", order(begun=True), 410, "run_forgotten"),
        ("PUT", "/runs/" + "u" * 58, order(), 400, "invalid_uid"),
        ("POST", "/runs", {}, 405, "unknown_path"),
    ],
)
async def test_what_cannot_be_done_is_told_by_its_code(
    place: Start, tmp_path: Path, method: str, path: str, body: dict[str, Any], status: int, code: str
) -> None:
    here = await place(SPEC, store=f"sqlite:///{tmp_path}/runs.db")

    found = await ask(here.rooms, method, path, body)

    assert (found[0], found[1]["error"]["code"]) == (status, code)


async def test_a_gateway_that_keeps_nothing_says_so(place: Start) -> None:
    here = await place(SPEC)

    assert (await ask(here.rooms, "PUT", "/runs/u1", order()))[0] == 501


async def test_who_looks_sees_all_runs_and_how_their_time_went_without_their_texts(place: Start) -> None:
    async def engine(seen: Seen) -> None:
        if "secret" in json.dumps(json.loads(seen.body)["messages"]):
            await seen.answer(b'{"error": {"message": "no \'secret\' here"}}', status=b"400 Bad Request")
        else:
            await echo(seen)

    here = await place(SPEC, engine=engine)  # without a store
    await here.chat("why")
    await here.chat("secret")

    _, found = await ask(here.rooms, "GET", "/runs/of/default/research")
    told = [await ask(here.rooms, "GET", f"/runs/told/{run['id']}") for run in found["runs"]]
    failed, well = (story for _, story in told)

    assert [run["phase"] for run in found["runs"]] == ["Failed", "Succeeded"]
    assert "secret" not in json.dumps([found, failed, well])
    assert [event["phase"] for event in well["events"]] == ["Running", "Succeeded"]
    ended = well["events"][1]
    assert (ended["pool"], ended["promptTokens"], ended["queueSeconds"]) == ("default/pool", 5, 0.0)
    assert well["deadline"] > well["summary"]["created"]
    assert (await ask(here.rooms, "GET", "/runs/told/run-none"))[0] == 404
    assert (await ask(here.rooms, "GET", "/runs/of/default/none"))[1] == {"runs": []}


async def test_a_streamed_answer_tells_when_its_first_token_came_and_a_whole_one_cannot(place: Start) -> None:
    first = {**SPEC["steps"][0], "name": "first"}  # type: ignore[index]
    here = await place({**SPEC, "steps": [first, {**SPEC["steps"][0], "depends": "first"}]})  # type: ignore[index]
    await here.chat("why")  # whose last step is asked for a stream

    _, found = await ask(here.rooms, "GET", "/runs/of/default/research")
    _, told = await ask(here.rooms, "GET", f"/runs/told/{found['runs'][0]['id']}")
    seconds = {event["step"]: event["firstSeconds"] for event in told["events"] if event["phase"] == "Succeeded"}

    assert seconds["first"] is None
    assert seconds["a"] >= 0.0
