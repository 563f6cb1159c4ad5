"""The requests that the pages show, sent by curl as they stand there, to a gateway that has what they ask for."""

import asyncio
import json
import shutil
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path

import pytest

from documents.blocks import Command, blocks, commands
from documents.programs import GATEWAY
from scripted.routers import start_gateway, starting
from workflows.examples import spec_of
from workflows.rooms import start_rooms

pytestmark = [
    pytest.mark.traffic,
    pytest.mark.skipif(shutil.which("curl") is None, reason="there is no curl"),
]

FOUND = [
    pytest.param(command, id=str(block))
    for block in blocks()
    if block.language == "sh"
    for command in commands(block)
    if command.program == "curl"
]
MODELS = ("llama-8b", "llama-3.1-8b", "qwen-cpu")
_QUIET = ("-sS", "--noproxy", "*", "--max-time", "60", "-w", "\n%{http_code}")


@pytest.fixture
async def gateway(tmp_path: Path) -> AsyncIterator[str]:
    """Its address."""
    async with AsyncExitStack() as stack:
        start = partial(await stack.enter_async_context(starting(start_gateway)), models=MODELS)
        store = f"sqlite:///{tmp_path}/runs.db"
        spec = spec_of("digest-workflow.yaml")
        place = await start_rooms(stack, start, spec, store=store, others={"digest": spec})
        yield f"http://127.0.0.1:{place.router.port}"


@pytest.mark.parametrize("command", FOUND)
async def test_it_is_answered(command: Command, gateway: str) -> None:
    words = [word.replace(GATEWAY, gateway).replace("http://127.0.0.1:8080", gateway) for word in command.words]
    process = await asyncio.create_subprocess_exec(*words, *_QUIET, stdout=asyncio.subprocess.PIPE)
    out, _ = await process.communicate()
    body, _, status = out.decode().rpartition("\n")

    assert process.returncode == 0
    assert int(status) in {200, 202}, body
    if '"stream": true' in " ".join(words):
        assert body.endswith("data: [DONE]\n\n")
    else:
        assert json.loads(body)
