"""The programs of examples/clients, as they stand there, each against a gateway."""

import asyncio
import os
import re
import sys
from pathlib import Path

import pytest

from documents.blocks import ROOT
from scripted.stacks import Stack

EXAMPLES = ROOT / "examples" / "clients"
# An environment of its own: it wants another release of OpenAI's client than the tests have.
LLAMAINDEX = ROOT / "build" / "llamaindex" / "bin" / "python"

pytestmark = pytest.mark.traffic  # whole programs, whose imports take their time


async def _printed(name: str, stack: Stack, python: str = sys.executable) -> str:
    """What an example prints against the stack's gateway; it must end well."""
    environment = {**os.environ, "TIDEPOOL_URL": f"{stack.url}/v1", "TIDEPOOL_MODEL": "alias", "NO_PROXY": "*"}
    process = await asyncio.create_subprocess_exec(
        python,
        str(EXAMPLES / name),
        env=environment,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    async with asyncio.timeout(250):  # thousands of modules are compiled at the first start
        out, err = await process.communicate()
    assert process.returncode == 0, err.decode()
    assert err == b""
    return out.decode()


def _said(printed: str, how: str) -> list[str]:
    return [text.strip() for text in re.findall(rf"^{how}: (.*)$", printed, re.M)]


async def test_openai(stack: Stack) -> None:
    printed = await _printed("openai_sdk.py", stack)

    assert _said(printed, "models") == ["tiny, alias"]
    assert _said(printed, "whole") == _said(printed, "streamed")
    assert _said(printed, "whole")[0].startswith("reef tide pool")
    assert _said(printed, "tokens") == ["64"]
    (first, _) = [seen for seen in stack.engine.journal.records if seen.path == "/v1/chat/completions"]
    assert b'"tiny"' in first.body


@pytest.mark.soak  # seconds of imports
async def test_langchain(stack: Stack) -> None:
    printed = await _printed("langchain_chat.py", stack)

    assert _said(printed, "whole") == _said(printed, "streamed")
    assert len(_said(printed, "of a batch")) == 3
    assert _said(printed, "whole")[0].startswith("reef tide pool")


@pytest.mark.soak
@pytest.mark.skipif(not LLAMAINDEX.exists(), reason="make soak installs LlamaIndex")
async def test_llamaindex(stack: Stack) -> None:
    printed = await _printed("llamaindex_chat.py", stack, str(LLAMAINDEX))

    assert _said(printed, "whole") == _said(printed, "streamed")
    assert _said(printed, "whole")[0].startswith("reef tide pool")


def test_there_is_a_test_of_each() -> None:
    tested = set(re.findall(r'_printed\("(\w+\.py)"', Path(__file__).read_text()))

    assert tested == {path.name for path in EXAMPLES.glob("*.py")}
