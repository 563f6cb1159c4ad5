"""Two real vLLMs on the CPU behind our routers: NIXL moves the blocks of prompts from the one to the other."""

import asyncio
import json
import re
import urllib.request
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import pytest

from cluster.engine import Engine
from cluster.ports import free_ports
from scripted.clients import RawClient, post
from scripted.peers import counted
from scripted.routers import RunningRouter, start_gateway, start_sidecar, until
from tidepool_api import contract
from tidepool_api.routing import FleetPrefill, SidecarSettings

pytestmark = [pytest.mark.engine, pytest.mark.soak, pytest.mark.timeout(900)]

# Some 700 tokens of the tiny model, in blocks of 128; each its own, so that nothing is cached.
PROMPT = "number {number} of the tides that come in and go out again under the quick brown foxes " * 40


def _engine(role: str, port: int) -> Engine:
    setting = {"kv_connector": "NixlConnector", "kv_role": role, "kv_load_failure_policy": "recompute"}
    return Engine(
        extra_arguments=["--enable-prompt-tokens-details", f"--kv-transfer-config={json.dumps(setting)}"],
        environment={
            "VLLM_NIXL_SIDE_CHANNEL_HOST": "127.0.0.1",
            "VLLM_NIXL_SIDE_CHANNEL_PORT": str(port),
        },
        hands_over=True,
    )


@pytest.fixture(scope="module")
def engines() -> Iterator[tuple[Engine, Engine]]:
    """A prefill and a decode engine."""
    made = [_engine(role, port) for role, port in zip(("kv_producer", "kv_consumer"), free_ports(2), strict=True)]
    with ExitStack() as stack, ThreadPoolExecutor(2) as threads:
        for engine in made:
            stack.callback(engine.stop)
        for started in [threads.submit(engine.start, 600.0) for engine in made]:
            started.result()
        yield made[0], made[1]


@pytest.fixture
async def routers(engines: tuple[Engine, Engine]) -> AsyncIterator[list[RunningRouter]]:
    """The sidecars of both, and a gateway."""
    started = []
    for role, engine in zip(("prefill", "decode"), engines, strict=True):
        settings = SidecarSettings(pool="pool", model="tiny")
        started.append(await start_sidecar(engine.url, settings=settings, pod=role, hands_over=True))
    urls = [f"http://127.0.0.1:{router.port}" for router in started]
    started.append(
        await start_gateway(urls[1], prefill=FleetPrefill(endpoints=(urls[0],)), first_byte_seconds=60.0)
    )
    yield started
    for router in reversed(started):
        await router.settled()
        await router.stop()


def figure(engine: Engine, name: str) -> float:
    """The sum of a family of the engine's own page."""
    with urllib.request.urlopen(f"{engine.url}/metrics", timeout=10) as answer:
        page = answer.read().decode()
    return sum(float(value) for value in re.findall(rf"^{re.escape(name)}(?:{{[^}}]*}})? (\S+)$", page, re.M))


def body(path: str, number: int, **more: Any) -> bytes:
    text = PROMPT.format(number=number)
    asked: dict[str, Any] = {"model": "tiny", "max_tokens": 12, "temperature": 0, **more}
    asked |= {"prompt": text} if path == "/v1/completions" else {"messages": [{"role": "user", "content": text}]}
    return json.dumps(asked).encode()


def said(answer: dict[str, Any]) -> Any:
    """The text, wherever the API has it."""
    if "content" in answer:
        return [part.get("text") for part in answer["content"]]
    return [choice.get("text") or choice["message"]["content"] for choice in answer["choices"]]


async def plainly(engine: Engine, path: str, request: bytes) -> dict[str, Any]:
    """The engine's own answer, of blocks that it computes itself."""
    salted = json.dumps(json.loads(request) | ({} if path == "/v1/messages" else {"cache_salt": "plain"})).encode()
    async with RawClient(engine.port) as client:
        answer: dict[str, Any] = (await client.ask(post(salted, path.encode()))).json()
        return answer


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions", "/v1/messages"])
async def test_the_decode_engine_fetches_the_prompt_and_says_what_it_would_have_said_alone(
    engines: tuple[Engine, Engine], routers: list[RunningRouter], path: str
) -> None:
    prefill, decode = engines
    names = ("vllm:external_prefix_cache_hits_total", "vllm:nixl_xfer_time_seconds_count")
    before = [figure(decode, name) for name in names]
    generated = figure(prefill, "vllm:generation_tokens_total")
    request = body(path, len(path))
    async with RawClient(routers[2].port) as client:
        answer = await client.ask(post(request, path.encode()))
    assert answer.status == 200, answer.body
    fetched, moves = (figure(decode, name) - was for name, was in zip(names, before, strict=True))
    told = answer.json()

    assert answer.headers[b"x-tidepool-pod"] == b"decode"
    assert moves >= 1
    prompt_tokens = told["usage"].get("prompt_tokens") or told["usage"]["input_tokens"]
    assert prompt_tokens - 128 <= fetched <= prompt_tokens
    assert figure(prefill, "vllm:generation_tokens_total") - generated == 1
    assert said(told) == said(await plainly(prefill, path, request))


async def test_a_stream_is_one_like_any_other(
    engines: tuple[Engine, Engine], routers: list[RunningRouter]
) -> None:
    fetched = figure(engines[1], "vllm:external_prefix_cache_hits_total")
    request = body("/v1/chat/completions", 77, stream=True)
    async with RawClient(routers[2].port) as client:
        answer = await client.ask(post(request))
    events = [json.loads(line[6:]) for line in answer.body.decode().splitlines() if line.startswith("data: {")]
    text = "".join(event["choices"][0]["delta"].get("content") or "" for event in events)

    assert figure(engines[1], "vllm:external_prefix_cache_hits_total") > fetched
    assert answer.body.rstrip().endswith(b"[DONE]")
    alone = await plainly(engines[0], "/v1/chat/completions", body("/v1/chat/completions", 77))
    assert [text] == said(alone)


async def test_whoever_leaves_ends_the_work_of_both(
    engines: tuple[Engine, Engine], routers: list[RunningRouter]
) -> None:
    for delay in (0.01, 0.1, 0.4):
        async with RawClient(routers[2].port) as client:
            asked = body("/v1/completions", int(1000 * delay), max_tokens=1200, stream=True)
            await client.send(post(asked, b"/v1/completions"))
            await asyncio.sleep(delay)
    await routers[2].settled()
    await until(lambda: not any(router.live() for router in routers))
    for engine in engines:
        await until(lambda engine=engine: figure(engine, "vllm:num_requests_running") == 0)


async def test_a_prefill_engine_that_is_gone_costs_no_request(
    engines: tuple[Engine, Engine], routers: list[RunningRouter]
) -> None:
    """The last test: it leaves one engine."""
    engines[0].stop()
    async with RawClient(routers[2].port) as client:
        for number in range(3):
            answer = await client.ask(post(body("/v1/completions", 500 + number), b"/v1/completions"))
            assert answer.status == 200, answer.body
    outcomes = counted(routers[2], contract.METRIC_GATEWAY_PREFILLS)
    assert any("failed" in labels or "no_pod" in labels for labels in outcomes)
