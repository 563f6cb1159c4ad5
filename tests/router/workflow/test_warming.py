"""The beginning of a step's prompt is computed while what comes before it runs, where that pays."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest

from scripted.upstreams import Seen
from tidepool_router.workflow.core.choice import Offer
from tidepool_router.workflow.core.profiles import Profiles
from tidepool_router.workflow.core.run import Run
from tidepool_router.workflow.core.warming import next_steps, pays
from workflows.graphs import planned
from workflows.rooms import Place, echo

Start = Callable[..., Awaitable[Place]]
LONG = "tides " * 1000
IDLE = Offer("p", None, 0.0, 1500.0, 100.0, 1e-4, 0.01)


@pytest.mark.parametrize(
    ("offer", "seconds", "warm"),
    [
        (IDLE, 1.0, True),
        (IDLE, 0.1, False),  # it would not be done by then
        (replace(IDLE, uncached_tokens=400.0), 1.0, False),  # short, or cached
        (replace(IDLE, wait_seconds=0.01), 1.0, False),  # somebody waits for the pod
        (replace(IDLE, ready=False), 1.0, False),  # nobody is woken for it
    ],
)
def test_it_pays_on_an_idle_pod_that_has_the_time(offer: Offer, seconds: float, warm: bool) -> None:
    assert pays(offer, seconds) is warm


def llm(name: str, *pools: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "llm": {"pools": [{"name": pool} for pool in pools]}, **more}


def prepared(*steps: dict[str, Any], after: str = "a", seldom: str = "", **more: Any) -> list[str]:
    profiles = Profiles()
    for _ in range(9):
        profiles.ended("test", seldom, 0, 1.0)
    run = Run(planned(*steps, **more), deadline=60.0)
    run.begin(0.0)
    return [step.name for step in next_steps(run.root, after, profiles)]


@pytest.mark.parametrize(
    ("steps", "more", "found"),
    [
        (({"name": "a"}, llm("b", "p", depends="a")), {}, ["b"]),
        (({"name": "a"}, llm("b", "p", depends="a", withItems=[1, 2])), {}, ["b"]),
        ((llm("a", "q"), llm("b", "p", depends="a")), {}, ["b"]),  # another model, which is idle meanwhile
        ((llm("a", "p"), llm("b", "p", depends="a")), {}, []),  # its own pool is at work
        (({"name": "a"}, llm("b", "p", "q", depends="a")), {}, []),  # who will answer is not known yet
        (({"name": "a"}, llm("b", "p", depends="a"), llm("c", "p", depends="b")), {}, ["b"]),  # c is far away
        (({"name": "a"}, llm("b", "p", depends="a")), {"budget": {"tokens": 9000}}, []),  # tokens are counted
        (({"name": "a"}, llm("b", "p", depends="a")), {"seldom": "b"}, []),
    ],
)
def test_what_begins_next_is_prepared(steps: Any, more: dict[str, Any], found: list[str]) -> None:
    assert prepared(*steps, **more) == found


@pytest.mark.traffic
async def test_a_prompt_is_computed_while_a_tool_works(place: Start) -> None:
    warmed = asyncio.Event()

    async def engine(seen: Seen) -> None:
        if json.loads(seen.body).get("max_tokens") == 1:
            warmed.set()
        await echo(seen)

    async def tool(seen: Seen) -> None:
        async with asyncio.timeout(20.0):
            await warmed.wait()
        await seen.answer(b'"found"')

    messages = [
        {"role": "system", "content": LONG},
        {"role": "user", "content": "{{ input.text }}: {{ steps.a.text }}"},
    ]
    spec = {
        "steps": [
            {"name": "a", "http": {"url": "http://tool/"}},
            {"name": "b", "depends": "a", "llm": {"pools": [{"name": "pool"}], "messages": messages}},
        ]
    }
    here = await place(spec, engine=engine, tool=tool)

    answer = await here.chat("why")

    assert answer.json()["choices"][0]["message"]["content"] == '<why: "found">'
    ahead, own = [json.loads(seen.body)["messages"] for seen in here.engine.requests]
    assert ahead == [messages[0], {"role": "user", "content": "why: "}]
    assert own[0] == ahead[0]
    assert len({seen.headers[b"x-tidepool-session"] for seen in here.engine.requests}) == 1  # the same pod
    assert answer.json()["usage"]["total_tokens"] == 14  # what it took is told
