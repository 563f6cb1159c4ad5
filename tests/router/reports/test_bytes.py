"""What passes is the bytes that came: bodies, events, sizes. Reports 15, 16 and 20."""

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scripted.clients import RawClient, chat, post
from scripted.upstreams import ScriptedEngine, Seen
from tidepool_router.facts import Api
from tidepool_router.wire.sse import SseObserver

# Fields that routers with types of their own for requests lost, in a form that no encoder would give back.
_ODD_BODY = (
    b'{"model" : "tiny",\n "return_token_ids":true, "chat_template_kwargs":{"enable_thinking":false},\n'
    b' "messages":[{"role":"assistant","content":null,"tool_calls":[{"id":"c1","type":"function",'
    b'"function":{"name":"f","arguments":"{\\"a\\": 1}"}}]},'
    b'{"role":"tool","tool_call_id":"c1","content":"\\u00e9\xc3\xa9"}],'
    b' "x_unknown":{"b":1,"a":2,"b":3}, "seed":123456789012345678901234567890, "temperature":1.0e-1 }\n'
)


@pytest.fixture
async def engine() -> Any:
    async with ScriptedEngine() as engine:
        yield engine


async def test_a_body_arrives_byte_for_byte_whatever_fields_it_has(
    sidecar: Any, gateway: Any, engine: ScriptedEngine
) -> None:
    """Report 15 (vLLM router #161, #110; Dynamo PR #11991): re-serialised bodies lost fields."""
    side = await sidecar(engine.url)
    door = await gateway(f"http://127.0.0.1:{side.port}")
    async with RawClient(door.port) as client:
        await client.ask(post(_ODD_BODY))

    assert engine.requests[0].body == _ODD_BODY


async def test_an_alias_changes_the_models_name_and_not_one_other_byte(
    gateway: Any, engine: ScriptedEngine
) -> None:
    """Report 15: the one change that there is, is made in place."""
    door = await gateway(engine.url)
    async with RawClient(door.port) as client:
        await client.ask(post(_ODD_BODY.replace(b'"tiny"', b'"alias"')))

    assert engine.requests[0].body == _ODD_BODY


_USAGE = b'data: {"choices":[],"usage":{"prompt_tokens":11,"completion_tokens":2}}\n\n'
_STREAM = (
    b'data: {"choices":[{"delta":{"role":"assistant"}}]}\n\n'
    b'data: {"choices":[{"delta":{"content":"\xc3\xa9\\n\\n"}}]}\n\n'
    b'data: {"choices":[{"delta":{"content":"b"},"finish_reason":"stop"}]}\n\n' + _USAGE + b"data: [DONE]\n\n"
)


@pytest.mark.parametrize("size", [1, 2, 7, 64])
async def test_events_cut_anywhere_pass_as_they_are_and_their_usage_is_read(sidecar: Any, size: int) -> None:
    """Report 16 (AIBrix PR #2653, Envoy AI Gateway #2162): half an event was bad JSON, and its usage was lost."""

    async def script(seen: Seen) -> None:
        await seen.begin_stream()
        for start in range(0, len(_STREAM), size):
            await seen.chunk(_STREAM[start : start + size])
        await seen.chunk(b"")

    async with ScriptedEngine(script) as engine:
        side = await sidecar(engine.url)
        async with RawClient(side.port) as client:
            answer = await client.ask(post(chat(stream=True, stream_options={"include_usage": True})))

    assert answer.body == _STREAM
    sums = side.state.ledger.sums()
    assert (sums.prompt_tokens_total, sums.output_tokens_total) == (11, 2)


@given(st.lists(st.integers(0, len(_STREAM)), max_size=12), st.booleans())
def test_any_cuts_give_the_same_bytes_tokens_and_usage(cuts: list[int], drop: bool) -> None:
    """Report 16: for every way to cut a stream, and also where the usage event is taken out."""
    observer = SseObserver(Api.CHAT, drop_usage=drop)
    borders = [0, *sorted(cuts), len(_STREAM)]
    pieces = [_STREAM[start:end] for start, end in pairwise(borders)]

    passed = b"".join(observer.feed(piece) for piece in pieces if piece) + observer.end()

    assert passed == (_STREAM.replace(_USAGE, b"") if drop else _STREAM)
    assert observer.tokens == 2
    assert observer.usage is not None
    assert (observer.usage.prompt_tokens, observer.usage.output_tokens) == (11, 2)
    assert observer.complete


async def test_an_event_that_is_no_json_passes_too(sidecar: Any) -> None:
    """Read in AIBrix's code: an event that could not be parsed became an error in the middle of a stream."""
    odd = b'data: {not json "usage"\n\n: a comment\n\nevent: ping\n\n'

    async def script(seen: Seen) -> None:
        await seen.begin_stream()
        await seen.chunk(odd + _STREAM)
        await seen.chunk(b"")

    async with ScriptedEngine(script) as engine:
        side = await sidecar(engine.url)
        async with RawClient(side.port) as client:
            answer = await client.ask(post(chat(stream=True, stream_options={"include_usage": True})))

    assert answer.body == odd + _STREAM


async def test_a_body_of_images_passes_and_one_beyond_the_limit_is_413_at_once(
    gateway: Any, engine: ScriptedEngine
) -> None:
    """Report 20 (Envoy AI Gateway #1209, llm-d PR #1362, SGLang #6622): bodies over 4 MiB failed."""
    door = await gateway(engine.url, max_body_bytes=6 << 20)
    image = "data:image/png;base64," + "A" * (5 << 20)
    body = json.dumps({"model": "tiny", "messages": [{"role": "user", "content": image}]}).encode()
    async with RawClient(door.port) as client:
        assert (await client.ask(post(body))).status == 200
    assert engine.requests[0].body == body

    head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: t\r\nContent-Length: %d\r\n\r\n" % (7 << 20)
    async with RawClient(door.port) as client:
        await client.send(head)  # and not one byte of the body
        answer = await client.answer()
    assert (answer.status, answer.json()["error"]["code"]) == (413, "body_too_large")
    assert str(6 << 20) in answer.json()["error"]["message"]
    assert len(engine.requests) == 1
