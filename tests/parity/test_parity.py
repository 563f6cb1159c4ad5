"""The engine double beside a real vLLM: whatever the router's fast tests lean on must be the engine's own way."""

import asyncio
import json
import os
import random
import re
import secrets
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from cluster.engine import Engine
from fakes.engine import EngineDouble
from fakes.settings import EngineSettings
from parity.cases import ANSWERS, CHAT, REFUSALS, STREAMS, Case, chat
from parity.compare import Stream, buckets, families, label_names, send, shape
from parity.names import READ
from scripted.clients import RawClient, post
from scripted.peers import counted
from scripted.routers import RunningRouter, start_sidecar
from tidepool_api import contract
from tidepool_api.routing import SidecarSettings

pytestmark = pytest.mark.engine


@pytest.fixture(scope="module")
def real() -> Iterator[str]:
    """A real engine; TIDEPOOL_ENGINE_URL names one that runs already with the same arguments."""
    running = os.environ.get("TIDEPOOL_ENGINE_URL")
    if running:
        yield running
        return
    with Engine(extra_arguments=["--enable-prompt-tokens-details"]) as engine:
        yield engine.url


@pytest.fixture(scope="module")
def double() -> Iterator[str]:
    settings = EngineSettings(
        max_num_seqs=8,
        num_gpu_blocks=80,
        block_size=128,
        prompt_tokens_details=True,
        runtime_lora=False,
        development_paths=False,
    )
    with served(settings) as url:
        yield url


@contextmanager
def served(settings: EngineSettings) -> Iterator[str]:
    """A double in a loop of its own, so that both engines are asked by the same blocking client."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="engine double")
    thread.start()
    engine = EngineDouble(settings)
    try:
        asyncio.run_coroutine_threadsafe(engine.__aenter__(), loop).result(10)
        yield engine.url
    finally:
        asyncio.run_coroutine_threadsafe(engine.__aexit__(None, None, None), loop).result(10)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)
        loop.close()


@pytest.mark.parametrize("case", ANSWERS, ids=str)
def test_answers_have_the_same_fields_and_types(real: str, double: str, case: Case) -> None:
    theirs, ours = send(real, case), send(double, case)
    assert theirs.status_code == ours.status_code == 200
    assert theirs.headers.get("content-type") == ours.headers.get("content-type")
    if not theirs.content:
        assert not ours.content
        return
    assert shape(theirs.json()) == shape(ours.json())
    for field in ("object", "model", "version"):
        assert theirs.json().get(field) == ours.json().get(field)
    for path in ("usage.completion_tokens", "usage.output_tokens", "stop_reason", "status"):
        assert _at(theirs.json(), path) == _at(ours.json(), path)
    reasons = [[c["finish_reason"] for c in answer.json().get("choices", [])] for answer in (theirs, ours)]
    assert reasons[0] == reasons[1]


def _at(value: Any, path: str) -> Any:
    for name in path.split("."):
        value = value.get(name) if isinstance(value, dict) else None
    return value


@pytest.mark.parametrize("case", STREAMS, ids=str)
def test_streams_have_the_same_framing(real: str, double: str, case: Case) -> None:
    theirs, ours = send(real, case), send(double, case)
    assert theirs.status_code == ours.status_code == 200
    for header in ("content-type", "transfer-encoding", "content-length"):
        assert theirs.headers.get(header) == ours.headers.get(header)
    mine, its = Stream.of(ours.text), Stream.of(theirs.text)
    assert mine.separators_right
    assert its.separators_right
    assert _kinds(its.outline()) == _kinds(mine.outline())
    if '"n": 2' not in str(case.content) and "two tides" not in str(case.content):
        assert its.outline() == mine.outline()  # of several choices the order is the scheduler's


def _kinds(outline: list[Any]) -> set[str]:
    return {json.dumps(event, sort_keys=True) for event in outline}


@pytest.mark.parametrize("case", REFUSALS, ids=str)
def test_bad_input_is_refused_alike(real: str, double: str, case: Case) -> None:
    theirs, ours = send(real, case), send(double, case)
    assert (ours.status_code, ours.headers.get("content-type")) == (
        theirs.status_code,
        theirs.headers.get("content-type"),
    )
    assert shape(theirs.json()) == shape(ours.json())
    if "error" in theirs.json():
        for field in ("type", "code", "param"):
            assert theirs.json()["error"].get(field) == ours.json()["error"].get(field), field


@pytest.fixture(scope="module")
def pages(real: str, double: str) -> tuple[str, str]:
    """Both metrics pages, after a chat each."""
    found = []
    for url in (real, double):
        assert send(url, Case("chat", CHAT, chat())).status_code == 200
        answer = send(url, Case("metrics", "/metrics", method="GET"))
        assert answer.headers["content-type"].startswith("text/plain")
        found.append(answer.text)
    return found[0], found[1]


@pytest.mark.parametrize("family", READ)
def test_metrics_have_the_same_types_labels_and_buckets(pages: tuple[str, str], family: str) -> None:
    real_page, double_page = pages
    assert family in families(real_page), f"vLLM has no {family}: the product reads a name that is gone"
    assert families(double_page)[family] == families(real_page)[family]
    assert label_names(double_page, family) == label_names(real_page, family)
    assert buckets(double_page, family) == buckets(real_page, family)


def test_the_double_has_no_family_that_vllm_lacks(pages: tuple[str, str]) -> None:
    real_page, double_page = pages
    missing = families(double_page).items() - families(real_page).items()
    assert not missing


def test_the_kv_size_is_told_alike(pages: tuple[str, str]) -> None:
    told = []
    for page in pages:
        line = next(line for line in page.splitlines() if line.startswith("vllm:cache_config_info{"))
        labels = dict(re.findall(r'(\w+)="([^"]*)"', line))
        told.append({name: labels[name] for name in ("block_size", "num_gpu_blocks", "engine")})
    assert told[0] == told[1] == {"block_size": "128", "num_gpu_blocks": "80", "engine": "0"}


def test_a_prompt_again_is_counted_as_cached(real: str, double: str) -> None:
    """Full blocks of 128 tokens are found again, but for the block with the last token."""
    ids = [7 + byte for byte in secrets.token_bytes(300)]  # never asked before, also of an engine that was there
    for url in (real, double):
        before, _ = _hits(url), send(url, Case("cold", "/v1/completions", _of(ids)))
        cold, _ = _hits(url), send(url, Case("warm", "/v1/completions", _of(ids)))
        assert (cold - before, _hits(url) - cold) == (0, 256)


def _of(ids: list[int]) -> dict[str, object]:
    return {"model": "tiny", "prompt": ids, "max_tokens": 1}


def _hits(url: str) -> float:
    page = send(url, Case("metrics", "/metrics", method="GET")).text
    return sum(
        float(line.split()[-1]) for line in page.splitlines() if line.startswith("vllm:prefix_cache_hits_total{")
    )


def test_the_answers_of_a_stream_are_json_of_one_request(real: str, double: str) -> None:
    """All events of a stream carry one id, and it has the prefix of its API."""
    for url in (real, double):
        events = Stream.of(send(url, STREAMS[0]).text).events[:-1]
        ids = {json.loads(event)["id"] for event in events}
        assert len(ids) == 1
        assert ids.pop().startswith("chatcmpl-")


# Cached tokens as a sidecar predicts them beside those that the engine reports: in blocks of 128 on the CPU.
_WORDS = [
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
]
_BLOCK_TOKENS = 128


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
