"""A gateway in the test's own process that has what the pages ask a gateway for."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Final

from scripted.routers import start_gateway, starting
from scripted.upstreams import JSON_ANSWER, Seen
from tidepool_api.contract import HEADER_POD
from workflows.examples import spec_of
from workflows.rooms import Place, echo, start_rooms

MODELS: Final = ("llama-8b", "llama-3.1-8b", "qwen-cpu")


@asynccontextmanager
async def serving(folder: Path) -> AsyncIterator[Place]:
    """With the models and workflows of the examples, and a store of runs in `folder`."""
    async with AsyncExitStack() as stack:
        start = partial(await stack.enter_async_context(starting(start_gateway)), models=MODELS)
        store = f"sqlite:///{folder}/runs.db"
        research, digest = (spec_of(f"{name}-workflow.yaml") for name in ("research", "digest"))
        yield await start_rooms(stack, start, research, engine=_answer, store=store, others={"digest": digest})


async def _answer(seen: Seen) -> None:
    """As an engine behind a sidecar, which names its pod."""
    if b"/v1/completions" in seen.line:
        await seen.answer(JSON_ANSWER, extra=f"{HEADER_POD}: pod-1\r\n".encode())
    else:
        await echo(seen)


def address(place: Place) -> str:
    """Where the gateway answers."""
    return f"http://127.0.0.1:{place.router.port}"
