"""An engine that dies after its answer has begun: an error of the API's own shape, once. Report 19."""

import json
from typing import Any

import pytest

from fakes.faults import Fault, Wrong
from scripted.clients import RawClient, chat, post
from scripted.later import anthropic, openai

_BODIES = {
    b"/v1/chat/completions": chat(stream=True, max_tokens=20),
    b"/v1/completions": json.dumps({"model": "tiny", "prompt": "a", "stream": True, "max_tokens": 20}).encode(),
    b"/v1/responses": json.dumps({"model": "tiny", "input": "a", "stream": True}).encode(),
    b"/v1/messages": chat(stream=True, max_tokens=20),
}
_ENDS = (b"[DONE]", b"message_stop", b"response.completed")


def last_event(body: bytes) -> tuple[bytes, Any]:
    """Name and JSON of the last event."""
    lines = body.rstrip(b"\n").split(b"\n\n")[-1].split(b"\n")
    named = [line.removeprefix(b"event: ") for line in lines if line.startswith(b"event: ")]
    data = b"".join(line.removeprefix(b"data: ") for line in lines if line.startswith(b"data: "))
    return (named[0] if named else b""), json.loads(data)


@pytest.mark.parametrize("wrong", [Wrong.RESET_MID_STREAM, Wrong.CLOSE_MID_STREAM])
@pytest.mark.parametrize("path", list(_BODIES))
async def test_a_stream_whose_engine_dies_ends_with_an_error_and_never_with_a_success(
    system: Any, path: bytes, wrong: Wrong
) -> None:
    """Report 19 (Open WebUI #29628, talon PR #254): a stream that broke off was closed with [DONE]."""
    running = await system(pods=2)
    for engine in running.engines:
        engine.order(Fault(wrong, times=None, path="/v1/", after_tokens=3))
    async with RawClient(running.port) as client:
        answer = await client.ask(post(_BODIES[path], path))

    assert answer.status == 200
    assert not any(end in answer.body for end in _ENDS)
    name, event = last_event(answer.body)
    if path == b"/v1/messages":
        assert (name, event["type"], event["error"]["type"]) == (b"error", "error", "api_error")
    elif path == b"/v1/responses":
        assert (name, event["type"]) == (b"error", "error")
        assert {"code", "message", "param", "sequence_number"} <= event.keys()
    else:
        assert (name, event["error"]["type"]) == (b"", "server_error")
    # After the first byte nothing is tried again: the client has half an answer of the first engine.
    assert sum(engine.faults.met for engine in running.engines) == 1
    # The sidecar's answer was whole, with an error at its end; the gateway must not count it as a success.
    page = running.gateway.state.metrics.registry.render().decode()
    assert 'outcome="error"} 1' in page
    assert 'code="200",outcome="ok"}' not in page


@pytest.mark.traffic
async def test_the_openai_client_raises_when_the_engine_dies(system: Any) -> None:
    """Report 19, as a program sees it: half an answer must not look like a whole one."""
    running = await system()
    running.engines[0].order(Fault(Wrong.RESET_MID_STREAM, after_tokens=3))
    async with openai.AsyncOpenAI(
        base_url=f"http://127.0.0.1:{running.port}/v1", api_key="none", max_retries=0
    ) as client:
        stream = await client.chat.completions.create(
            model="tiny", messages=[{"role": "user", "content": "a"}], stream=True
        )
        with pytest.raises(openai.APIError, match="not complete"):
            async for _ in stream:
                pass


@pytest.mark.traffic
async def test_the_anthropic_client_raises_when_the_engine_dies(system: Any) -> None:
    """Report 19, in the messages API."""
    running = await system()
    running.engines[0].order(Fault(Wrong.RESET_MID_STREAM, path="/v1/messages", after_tokens=3))
    async with anthropic.AsyncAnthropic(
        base_url=f"http://127.0.0.1:{running.port}", api_key="none", max_retries=0
    ) as client:
        stream = await client.messages.create(
            model="tiny", messages=[{"role": "user", "content": "a"}], stream=True, max_tokens=20
        )
        with pytest.raises(anthropic.APIStatusError, match="not complete"):
            async for _ in stream:
                pass
