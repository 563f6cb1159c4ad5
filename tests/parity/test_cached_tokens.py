"""Cached tokens as a sidecar predicts them beside those that a real vLLM reports: in blocks of 128 on the CPU."""

import json
import os
import random
from collections.abc import Iterator

import pytest

from cluster.engine import Engine
from scripted.clients import RawClient, post
from scripted.peers import counted
from scripted.routers import RunningRouter, start_sidecar
from tidepool_api import contract
from tidepool_api.routing import SidecarSettings

pytestmark = pytest.mark.engine

_WORDS = (
    "quick",
    "brown",
    "foxes",
    "jump",
    "over",
    "seven",
    "pods",
    "that",
    "serve",
    "tokens",
    "to",
    "many",
    "clients",
)
_BLOCK_TOKENS = 128


@pytest.fixture(scope="module")
def real() -> Iterator[str]:
    """A real engine; TIDEPOOL_ENGINE_URL names one that runs already with the same arguments."""
    running = os.environ.get("TIDEPOOL_ENGINE_URL")
    if running:
        yield running
        return
    with Engine(extra_arguments=["--enable-prompt-tokens-details"]) as engine:
        yield engine.url


class Asking:
    """One client of a sidecar, with texts of its own."""

    def __init__(self, router: RunningRouter, client: RawClient) -> None:
        self._router = router
        self._client = client
        self._draw = random.Random(7)

    def text(self, words: int) -> str:
        return " ".join(self._draw.choice(_WORDS) for _ in range(words))

    async def error(self, prompt: str) -> float:
        """How far the predicted cached tokens were off, in tokens."""
        before = self._errors()
        answer = await self._client.ask(
            post(json.dumps({"model": "tiny", "prompt": prompt, "max_tokens": 1}).encode(), b"/v1/completions")
        )
        assert answer.status == 200, answer.body
        tokens: int = answer.json()["usage"]["prompt_tokens"]
        return (self._errors() - before) * tokens

    def _errors(self) -> float:
        return counted(self._router, contract.METRIC_CACHED_ERROR + "_sum").get("", 0.0)


async def test_predicted_cached_tokens_are_those_that_the_engine_reports(real: str) -> None:
    router = await start_sidecar(real, settings=SidecarSettings(pool="pool", model="tiny"))
    try:
        async with RawClient(router.port) as client:
            asking = Asking(router, client)
            for _ in range(60):  # bytes per token are learned first
                await asking.error(asking.text(150))
            again, grown = [], []
            for words in range(100, 300, 15):
                prompt = asking.text(words)
                assert await asking.error(prompt) == 0.0  # nothing is predicted of what is new
                again.append(await asking.error(prompt))
                grown.append(await asking.error(f"{prompt} {asking.text(40)}"))
    finally:
        await router.stop()

    for errors in (again, grown):
        exact = sum(error < 0.5 for error in errors)
        assert exact >= len(errors) / 2, errors  # the others lie at the edge of a block
        assert max(errors) < _BLOCK_TOKENS + 1
