"""A run again: models are asked as they were, and what tools answered is taken from the first run."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from scripted.upstreams import Seen
from tidepool_api.routing import Routing
from tidepool_api.workflow_steps import Llm
from tidepool_router import workflow_command
from tidepool_router.workflow.core.outlook import Standing
from tidepool_router.workflow.core.profiles import Profiles
from tidepool_router.workflow.core.replaying import differing, of_tools, replay_of, seed_of
from tidepool_router.workflow.core.states import Call, Ending, Key, Output, Phase
from tidepool_router.workflow.models import Asking, Models
from workflows.graphs import planned
from workflows.rooms import Place, asked, said

Start = Callable[..., Awaitable[Place]]
RUNS = "/v1/workflows/research/runs"


def llm(name: str, content: str, **more: Any) -> dict[str, Any]:
    ask = {"pools": [{"name": "pool"}], "messages": [{"role": "user", "content": content}]}
    return {"name": name, "llm": ask, **more}


CHOOSING = {
    "steps": [
        llm("plan", "plan"),
        {"name": "search", "depends": "plan", "withItems": ["a", "b"], "http": {"url": "http://tool/{{ item }}"}},
        {
            "name": "look",
            "depends": "search",
            "choose": {
                "pools": [{"name": "pool"}],
                "messages": [{"role": "user", "content": "{{ steps.search.text }}"}],
                "among": ["calc", "guess"],
                "maxTurns": 1,
            },
        },
        {"name": "calc", "http": {"url": "http://tool/calc"}},
        {"name": "guess", "http": {"url": "http://tool/guess"}},
        llm(
            "write",
            "{{ steps.plan.text }} {{ steps.search.text }} {{ steps.look.turns | tojson }}",
            depends="look",
        ),
    ]
}


class Dice:
    """An engine whose answers follow from what it is asked and the seed, and are new each time without one."""

    def __init__(self) -> None:
        self.numbers = count()
        self.seeds: list[int | None] = []

    async def __call__(self, seen: Seen) -> None:
        body = json.loads(seen.body)
        self.seeds.append(body.get("seed"))
        roll = next(self.numbers) if body.get("seed") is None else body["seed"]
        if "response_format" in body:
            await seen.answer(said(json.dumps({"step": "guess" if roll % 2 else "calc"})))
        elif asked(seen) == "plan" or not body.get("stream"):
            await seen.answer(said(f"planned {roll}"))
        else:
            await seen.begin_stream()
            event = {"choices": [{"index": 0, "delta": {"content": f"{asked(seen)} {roll}"}}]}
            usage = {"choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": 2}}
            for part in (event, usage):
                await seen.chunk(b"data: " + json.dumps(part).encode() + b"\n\n")
            for data in (b"data: [DONE]\n\n", b""):
                await seen.chunk(data)


def counting() -> Callable[[Seen], Awaitable[None]]:
    """A tool that never says the same again."""
    numbers = count()

    async def tool(seen: Seen) -> None:
        await seen.answer(json.dumps({"number": next(numbers)}).encode())

    return tool


async def finished(here: Place, **body: Any) -> str:
    begun = await here.client.post(RUNS, json={"input": {}, **body})
    assert begun.status_code == 202, begun.text
    run = str(begun.json()["id"])
    await here.client.get(f"{RUNS}/{run}/events")
    state = (await here.client.get(f"{RUNS}/{run}")).json()
    assert state["phase"] == "Succeeded", state
    return run


async def replay(here: Place, run: str, *options: str) -> int:
    url = f"http://127.0.0.1:{here.router.port}"
    return await asyncio.to_thread(workflow_command.run, ["replay", run, "--url", url, *options])


@pytest.mark.traffic
async def test_a_run_with_a_seed_is_replayed_to_the_same_result_without_its_tools(
    place: Start, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    dice = Dice()
    here = await place(CHOOSING, engine=dice, tool=counting(), store=f"sqlite:///{tmp_path}/runs.db")
    run = await finished(here, seed=7)
    first, calls = list(dice.seeds), len(here.tool.requests)
    assert calls == 3

    assert await replay(here, run) == 0

    assert "the same result" in capsys.readouterr().out
    assert len(here.tool.requests) == calls
    assert dice.seeds == first * 2
    assert len(set(first)) == len(first)  # each call has its own
    states = [json.loads((await here.client.get(f"{RUNS}/{one}")).text) for one in await ids(here)]
    assert states[0]["output"] == states[1]["output"]

    assert await replay(here, run, "-o", "json") == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["run"], told["same"], told["phase"], told["differs"]) == (run, True, "Succeeded", [])


async def ids(here: Place) -> list[str]:
    return [one["id"] for one in (await here.client.get(RUNS)).json()["data"]]


@pytest.mark.traffic
async def test_a_replay_that_comes_out_otherwise_says_where(
    place: Start, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    here = await place(CHOOSING, engine=Dice(), tool=counting(), store=f"sqlite:///{tmp_path}/runs.db")
    run = await finished(here)  # the engine rolls on: the other pick, of a tool that was not called then

    assert await replay(here, run) == 1

    told = capsys.readouterr().out
    assert "; another result: look, " in told
    assert " plan, write, " in told
    assert f"{run} did not make this call" in told
    assert "it has no seed" in told
    assert len(here.tool.requests) == 3
    assert await replay(here, "run-0") == 2


def test_what_is_recorded_are_the_answers_of_tools_wherever_they_ran() -> None:
    inner = planned({"name": "get"}, {"name": "think", "llm": {"pools": [{"name": "p"}]}})
    plan = planned(
        {"name": "sub", "withItems": [1], "workflow": {"name": "inner"}},
        {"name": "look", "choose": {"pools": [{"name": "p"}], "among": ["calc"]}},
        {"name": "calc"},
    )
    tools = (Key("get", None, "sub[0]#1/"), Key("calc", None, "look.1/"))
    others = (Key("sub", 0), Key("think", None, "sub[0]#1/"), Key("look"), Key("look", None, "look.1/"))
    endings = {key: Ending(Phase.SUCCEEDED, output=Output("x")) for key in (*tools, *others)}

    assert tuple(of_tools(endings, plan, {"inner": inner})) == tools


def test_steps_differ_by_what_they_made_and_not_by_what_it_took() -> None:
    first = {Key("a"): Ending(Phase.SUCCEEDED, "", Output("x", None, 5)), Key("b"): Ending(Phase.FAILED, "no")}
    second = {Key("a"): Ending(Phase.SUCCEEDED, "", Output("x", None, 9)), Key("c"): Ending(Phase.FAILED, "no")}

    assert differing(first, second) == ["b", "c"]


def test_a_try_that_did_not_fit_is_made_again_with_another_seed() -> None:
    first, second = (seed_of(7, Call(Key("a"), attempt, 1.0)) for attempt in (1, 2))

    assert first != second
    assert seed_of(7, Call(Key("a"), 1, 9.0)) == first


@pytest.mark.parametrize("pool", ["small", "large"])
async def test_who_answered_then_answers_again(pool: str) -> None:
    asked_models = []

    class Client:
        async def post(self, path: str, headers: Any, body: bytes, on_bytes: Any) -> tuple[int, bytes, float]:
            asked_models.append(json.loads(body)["model"])
            return 200, said("x"), 0.0

    speed = SimpleNamespace(prefill=SimpleNamespace(slope=0.001))
    states = {
        name: SimpleNamespace(config=SimpleNamespace(models=[name]), routing=Routing(), speed=speed)
        for name in ("small", "large")
    }
    fleet: Any = SimpleNamespace(pools=states, route=states.get)
    client: Any = Client()
    llm = Llm.model_validate({"pools": [{"name": "small", "quality": 0.1}, {"name": "large", "quality": 0.9}]})
    then = replay_of("run-1", {Key("a"): Ending(Phase.SUCCEEDED, output=Output("x", None, 1, pool, 3))})
    only, seed = then.asked["a"]
    message = [{"role": "user", "content": "x"}]

    said_now = await Models(client, fleet, Profiles()).ask(
        "a", llm, message, Asking("r", "s", Standing(), {}, "", seed=seed, only=only), None
    )

    assert (asked_models, said_now.pool) == ([pool], pool)
