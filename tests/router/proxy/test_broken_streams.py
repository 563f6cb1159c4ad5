"""Streams that end without being whole: the client is told, and the pod is held to account."""

import json
from typing import Any

import pytest

from scripted.clients import RawClient, chat, post
from scripted.routers import until
from scripted.upstreams import ScriptedEngine, Seen
from tidepool_router.fleet.pod import PodState

_EVENT = b'data: {"choices":[{"delta":{"content":"x"}}]}\n\n'
_DONE = b"data: [DONE]\n\n"
_VLLM_ERROR = (
    b'data: {"error":{"message":"EngineCore died","type":"InternalServerError","param":null,"code":500}}\n\n'
)
_CLIENTS_ERROR = b'data: {"error":{"message":"bad grammar","type":"BadRequestError","param":null,"code":400}}\n\n'


@pytest.fixture(params=["gateway", "sidecar"])
async def start(request: pytest.FixtureRequest, gateway: Any, sidecar: Any) -> Any:
    return gateway if request.param == "gateway" else sidecar


def stream_of(*events: bytes) -> Any:
    async def script(seen: Seen) -> None:
        await seen.begin_stream()
        for event in events:
            await seen.chunk(event)
        await seen.chunk(b"")

    return script


def ends(router: Any) -> dict[str, float]:
    """How requests ended, by outcome."""
    page = router.state.metrics.registry.render().decode()
    names = ("tidepool_gateway_requests_total{", "tidepool_requests_total{")
    lines = [line for line in page.splitlines() if line.startswith(names)]
    return {line.split('outcome="')[1].split('"')[0]: float(line.split()[-1]) for line in lines}


_UNFINISHED = {
    b"/v1/chat/completions": _EVENT,
    b"/v1/completions": b'data: {"choices":[{"text":"x"}]}\n\n',
    b"/v1/responses": b'event: response.output_text.delta\ndata: {"delta":"x"}\n\n',
    b"/v1/messages": b'event: content_block_delta\ndata: {"type":"content_block_delta"}\n\n',
}


@pytest.mark.parametrize("path", list(_UNFINISHED))
async def test_an_orderly_end_without_the_last_event_is_no_success(start: Any, path: bytes) -> None:
    """An API server whose engine died may end its chunked body in good order: a client would take it for whole."""
    event = _UNFINISHED[path]
    async with ScriptedEngine(stream_of(event)) as engine:
        router = await start(engine.url)
        async with RawClient(router.port) as client:
            answer = await client.ask(post(chat(stream=True), path))

    assert answer.body.startswith(event)
    told = answer.body[len(event) :]
    assert b"error" in told and told.endswith(b"\n\n")  # noqa: PT018 - one sentence
    assert json.loads(told[told.index(b"data: ") + 6 :])
    assert b"[DONE]" not in told
    assert ends(router) == {"error": 1}


@pytest.mark.parametrize(
    ("path", "last"),
    [
        (b"/v1/chat/completions", _DONE),
        (b"/v1/completions", b"data:[DONE]\n\n"),
        (b"/v1/chat/completions", b"data: [DONE]"),
        (b"/v1/responses", b'event: response.incomplete\ndata: {"type":"response.incomplete"}\n\n'),
        (b"/v1/messages", b'event:message_stop\ndata:{"type":"message_stop"}\n\n'),
        (b"/v1/audio/transcriptions", _DONE),
        (b"/v1/embeddings", b""),
    ],
)
async def test_whatever_the_api_ends_with_is_a_good_end(start: Any, path: bytes, last: bytes) -> None:
    async with ScriptedEngine(stream_of(_EVENT, *([last] if last else []))) as engine:
        router = await start(engine.url)
        async with RawClient(router.port) as client:
            answer = await client.ask(post(chat(stream=True), path))

    assert answer.body == _EVENT + last
    assert ends(router) == {"ok": 1}


async def test_text_about_the_last_event_is_not_the_last_event(start: Any) -> None:
    text = b'data: {"choices":[{"delta":{"content":"a stream ends with data: [DONE] or \\"message_stop\\""}}]}\n\n'
    async with ScriptedEngine(stream_of(text)) as engine:
        router = await start(engine.url)
        async with RawClient(router.port) as client:
            answer = await client.ask(post(chat(stream=True)))

    assert b'"error"' in answer.body


@pytest.mark.parametrize("separate", [True, False])
async def test_the_engines_own_error_event_passes_once_and_counts_as_an_error(start: Any, separate: bool) -> None:
    """vLLM tells a dead engine core by an error event and closes with [DONE]."""
    rest = (_VLLM_ERROR, _DONE) if separate else (_VLLM_ERROR + _DONE,)
    async with ScriptedEngine(stream_of(_EVENT, *rest)) as engine:
        router = await start(engine.url)
        async with RawClient(router.port) as client:
            answer = await client.ask(post(chat(stream=True)))

    assert answer.body == _EVENT + _VLLM_ERROR + _DONE
    assert ends(router) == {"error": 1}


async def test_an_answer_about_errors_is_no_error(start: Any) -> None:
    text = b'data: {"choices":[{"delta":{"content":"{\\"error\\": 1}"}}]}\n\n'
    usage = b'data: {"choices":[],"error":null,"usage":{"prompt_tokens":1,"completion_tokens":1}}\n\n'
    async with ScriptedEngine(stream_of(text, usage + _DONE)) as engine:
        router = await start(engine.url)
        async with RawClient(router.port) as client:
            await client.ask(post(chat(stream=True, stream_options={"include_usage": True})))

    assert ends(router) == {"ok": 1}


async def _break_streams(gateway: Any, events: tuple[bytes, ...], *, reset: bool) -> Any:
    """Three broken streams from the one pod; the state in which it is then."""

    async def script(seen: Seen) -> None:
        await seen.begin_stream()
        for event in events:
            await seen.chunk(event)
        if reset:
            seen.reset()
        await seen.chunk(b"")

    async with ScriptedEngine(script) as engine:
        router = await gateway(engine.url)
        for _ in range(3):
            async with RawClient(router.port) as client:
                await client.ask(post(chat(stream=True)))
        (pod,) = router.state.pools["default/pool"].pods.values()
        await until(lambda: pod.ledger.running == 0)
        return pod.state(router.state.pools["default/pool"].now())


@pytest.mark.parametrize(
    ("events", "reset", "state", "why"),
    [
        ((_EVENT,), True, PodState.EJECTED, "the connection breaks after the first token"),
        ((_EVENT,), False, PodState.EJECTED, "the stream ends in good order, but too soon"),
        ((_EVENT, _VLLM_ERROR, _DONE), False, PodState.EJECTED, "the engine tells its own death"),
        ((_EVENT, _CLIENTS_ERROR, _DONE), False, PodState.READY, "the request was at fault"),
    ],
)
async def test_a_pod_that_breaks_streams_attracts_no_more(
    gateway: Any, events: tuple[bytes, ...], reset: bool, state: PodState, why: str
) -> None:
    """Its streams are short, so it always looks less loaded than the others."""
    assert await _break_streams(gateway, events, reset=reset) is state, why
