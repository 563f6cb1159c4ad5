"""Which of a step's pools answers in the end, where the first one fails, hangs, or says what is of no use."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from scripted.upstreams import Seen
from workflows.rooms import END, USAGE, Place, delta, http, llm, said

Start = Callable[..., Awaitable[Place]]
Answers = Callable[[Seen], Awaitable[None]]
pytestmark = pytest.mark.traffic
_RETRY = {"limit": 4, "backoff": {"duration": "10ms"}}


def step(**more: Any) -> dict[str, Any]:
    """Either pool is as good; without any reason the first one is asked."""
    found = llm("a", "x", **more)
    found["llm"]["pools"] = [{"name": "pool", "quality": 0.5}, {"name": "other", "quality": 0.5}]
    return found


async def well(seen: Seen) -> None:
    if json.loads(seen.body).get("stream"):
        await seen.begin_stream()
        for data in (delta('{"n": 1}'), USAGE, END, b""):
            await seen.chunk(data)
    else:
        await seen.answer(said('{"n": 1}'))


def first(fails: Answers) -> Answers:
    """An engine of both pools, the first of which answers so."""

    async def engine(seen: Seen) -> None:
        await (well if json.loads(seen.body)["model"] == "other" else fails)(seen)

    return engine


async def breaks_off(seen: Seen) -> None:
    await seen.begin_stream()
    await seen.chunk(b'{"choices": [')
    seen.reset()


async def gives_up(seen: Seen) -> None:
    """It had read the prompt, and tells so."""
    await seen.begin_stream()
    await seen.chunk(b'data: {"choices":[],"usage":{"prompt_tokens":5,"completion_tokens":0}}\n\n')
    await seen.chunk(b'data: {"error": {"message": "no memory is left"}}\n\n')
    await seen.chunk(b"")


async def nonsense(seen: Seen) -> None:
    await asyncio.sleep(0.1)
    await seen.answer(said("well, one"))


async def hangs(seen: Seen) -> None:
    await seen.closed.wait()


def models(here: Place) -> list[str]:
    return [str(json.loads(seen.body)["model"]) for seen in here.engine.requests]


async def test_the_next_pool_is_asked_where_an_answer_breaks_off(place: Start) -> None:
    here = await place({"steps": [step()]}, engine=first(breaks_off), pools=["other"])

    assert (await here.chat()).json()["choices"][0]["message"]["content"] == '{"n": 1}'
    assert models(here)[-1] == "other"


async def test_the_next_pool_is_asked_where_a_stream_ends_before_its_first_token(place: Start) -> None:
    here = await place({"steps": [step()]}, engine=first(gives_up), pools=["other"])

    answer = await here.chat(stream=True, stream_options={"include_usage": True})

    chunks = [json.loads(line[6:]) for line in answer.text.splitlines() if line.startswith("data: {")]
    assert models(here) == ["tiny", "other"]
    assert chunks[-1]["usage"]["total_tokens"] == 12  # what the first one read is counted too


@pytest.mark.parametrize("fails", [nonsense, hangs])
async def test_another_try_asks_the_pool_whose_answers_are_of_use(place: Start, fails: Answers) -> None:
    one = step(retryStrategy=_RETRY, timeout="1s")
    one["llm"]["responseFormat"] = {"type": "object"}
    here = await place({"steps": [one], "output": "done"}, engine=first(fails), pools=["other"])

    answer = await here.chat()

    assert (answer.status_code, models(here)[0], models(here)[-1]) == (200, "tiny", "other")


async def test_a_tool_that_hangs_is_left_alone_kagent_1530(place: Start) -> None:
    retry = {"limit": 8, "backoff": {"duration": "1ms", "factor": 1}}
    here = await place({"steps": [http("a", "http://tool/", timeout="50ms", retryStrategy=retry)]}, tool=hangs)

    answer = await here.chat()

    assert "left alone" in answer.json()["error"]["message"]
    assert len(here.tool.requests) <= 5  # one may be timed out before it is on its way
