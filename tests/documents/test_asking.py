"""The requests that the pages show, sent by curl as they stand there, to a gateway that has what they ask for."""

import asyncio
import json
import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from documents.blocks import Command, typed
from documents.programs import GATEWAY, run_by
from documents.serving import address, serving

pytestmark = [
    pytest.mark.traffic,
    pytest.mark.skipif(shutil.which("curl") is None, reason="there is no curl"),
]

FOUND = [pytest.param(each, id=f"{block.page}:{each.line}") for block, each in typed(run_by(__file__))]
_QUIET = ("-sS", "--noproxy", "*", "--max-time", "60", "-w", "\n%{http_code}")


@pytest.fixture
async def gateway(tmp_path: Path) -> AsyncIterator[str]:
    """Its address."""
    async with serving(tmp_path) as place:
        yield address(place)


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
