"""Where the time of a step goes: told by what took it, and in all as long as the step."""

import asyncio
import json
import re
from collections.abc import Awaitable, Callable

import pytest

from scripted.upstreams import Seen
from tidepool_router.workflow.core.spent import Part, Spent
from workflows.rooms import END, USAGE, Place, delta, http, llm, said

Start = Callable[..., Awaitable[Place]]
_PART = re.compile(r'step_seconds_total\{workflow="default/research",step="(\w+)",part="(\w+)"\} (\S+)')
_WHOLE = re.compile(r'step_duration_seconds_sum\{workflow="default/research",step="(\w+)"\} (\S+)')


def test_what_nothing_else_took_is_overhead() -> None:
    spent = Spent(10.0)
    spent.tried(10.0)
    spent.called(2.0)
    spent.pauses(12.5)
    spent.tried(13.5)
    spent.asked(4.0, queue_seconds=1.0, prefill_seconds=0.5)

    assert spent.parts(18.0) == {
        Part.QUEUE: 1.0,
        Part.PREFILL: 0.5,
        Part.DECODE: 2.5,
        Part.TOOL: 2.0,
        Part.PAUSE: 1.0,
        Part.OVERHEAD: 1.0,
    }
    assert sum(spent.parts(18.0).values()) == 8.0


@pytest.mark.parametrize(
    ("queue", "prefill", "parts"),
    [
        (9.0, 1.0, {Part.QUEUE: 4.0}),  # told in whole milliseconds, and may come out longer than all
        (1.0, float("inf"), {Part.QUEUE: 1.0, Part.PREFILL: 3.0}),
        (1.0, -0.001, {Part.QUEUE: 1.0, Part.DECODE: 3.0}),
    ],
)
def test_parts_are_never_longer_than_the_whole(queue: float, prefill: float, parts: dict[Part, float]) -> None:
    spent = Spent(0.0)
    spent.asked(4.0, queue, prefill)

    assert spent.parts(4.0) == parts


def test_what_runs_inside_tells_of_its_own_time() -> None:
    spent = Spent(0.0)
    spent.inside = True

    assert spent.parts(9.0) == {}


@pytest.mark.traffic
async def test_a_gateway_tells_where_the_time_of_steps_went(place: Start) -> None:
    async def engine(seen: Seen) -> None:
        await asyncio.sleep(0.1)
        if not json.loads(seen.body).get("stream"):
            await seen.answer(said("whole"))
            return
        await seen.begin_stream()
        await seen.chunk(delta("Once"))
        await asyncio.sleep(0.2)
        for data in (delta(" upon"), USAGE, END, b""):
            await seen.chunk(data)

    async def tool(seen: Seen) -> None:
        await asyncio.sleep(0.1)
        await seen.answer(b"{}", b"503 Service Unavailable" if len(here.tool.requests) == 1 else b"200 OK")

    retry = {"limit": 1, "backoff": {"duration": "100ms"}}
    look = http("look", "http://tool/", retryStrategy=retry)
    here = await place(
        {"steps": [look, llm("whole", "x", depends="look"), llm("live", "x", depends="whole")]},
        engine=engine,
        tool=tool,
    )

    assert (await here.chat(stream=True)).status_code == 200

    page = here.router.state.metrics.registry.render().decode()
    seconds = {(step, part): float(took) for step, part, took in _PART.findall(page)}
    assert seconds["look", "tool"] > 0.19
    assert seconds["look", "pause"] > 0.09
    assert seconds["whole", "prefill"] + seconds["whole", "decode"] > 0.09
    assert seconds["live", "prefill"] > 0.09
    assert seconds["live", "decode"] > 0.19
    for step, whole in _WHOLE.findall(page):
        assert sum(took for (name, _), took in seconds.items() if name == step) == pytest.approx(float(whole))
