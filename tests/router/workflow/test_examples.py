"""The examples of docs/workflows.md run, over a scripted engine and scripted tools."""

import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from scripted.upstreams import Seen
from workflows.examples import spec_of
from workflows.rooms import Place, asked, echo, said

Start = Callable[..., Awaitable[Place]]
pytestmark = pytest.mark.traffic


async def answer_of(place: Place, **more: Any) -> str:
    answer = await place.chat("why", **more)
    assert answer.status_code == 200, answer.text
    return str(answer.json()["choices"][0]["message"]["content"])


async def test_digest(place: Start) -> None:
    here = await place(spec_of("digest-workflow.yaml"))

    assert await answer_of(here) == "<Text: why\n\nSummary: <Sum up in three sentences: why>>"


async def test_search(place: Start) -> None:
    async def engine(seen: Seen) -> None:
        if asked(seen).startswith("List up to five"):
            await seen.answer(said('["a", "b c"]'))
        elif asked(seen).startswith("What does this say"):
            await seen.answer(said("b c" if "b%20c" in asked(seen) else "a"))
        else:
            await echo(seen)

    async def tool(seen: Seen) -> None:
        path = seen.line.split(b" ")[1].decode()
        await seen.answer(json.dumps({"path": path}).encode())

    here = await place(spec_of("search-workflow.yaml"), engine=engine, tool=tool)

    # In the order of the queries, whichever came first.
    assert await answer_of(here) == "<Answer why from these notes: a\nb c>"
    assert await answer_of(here, input={"question": "how"}) == "<Answer how from these notes: a\nb c>"


@pytest.mark.parametrize(
    ("allowed", "answer"), [(True, "<why>"), (False, "<Decline politely, in the language of: why>")]
)
async def test_guarded(place: Start, allowed: bool, answer: str) -> None:
    async def tool(seen: Seen) -> None:
        await seen.answer(json.dumps({"allowed": allowed}).encode())

    here = await place(spec_of("guarded-workflow.yaml"), tool=tool)

    assert await answer_of(here) == answer
    assert here.tool.requests[-1].line.startswith(b"POST /done")
    assert here.tool.requests[-1].body == b"Succeeded"
