"""Every API through a gateway and a sidecar to the engine double: the model is found, the answer stays as is."""

import gzip
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from fakes.engine import EngineDouble
from fakes.faults import Fault, Wrong
from fakes.settings import EngineSettings
from scripted.clients import Answer, RawClient, chat, post
from scripted.routers import RunningRouter
from scripted.upstreams import ScriptedEngine, Seen
from tidepool_api.routing import SidecarSettings

_SETTINGS = SidecarSettings(pool="pool", model="tiny", aliases=("alias",))
_TALK = [{"role": "user", "content": "hello"}]
_BODIES: dict[bytes, dict[str, Any]] = {
    b"/v1/chat/completions": {"messages": _TALK, "max_tokens": 3},
    b"/v1/completions": {"prompt": "hello", "max_tokens": 3},
    b"/v1/responses": {"input": "hello", "max_output_tokens": 3},
    b"/v1/messages": {"messages": _TALK, "max_tokens": 3},
    b"/v1/messages/count_tokens": {"messages": _TALK},
    b"/v1/embeddings": {"input": ["hello", "there"]},
    b"/v2/embed": {"texts": ["hello"], "input_type": "query", "embedding_types": ["float"]},
    b"/v1/rerank": {"query": "hello", "documents": ["a", "b"]},
    b"/v2/rerank": {"query": "hello", "documents": ["a", "b"]},
    b"/rerank": {"query": "hello", "documents": ["a", "b"]},
    b"/v1/score": {"text_1": "hello", "text_2": ["a", "b"]},
    b"/score": {"text_1": "hello", "text_2": "a"},
    b"/classify": {"input": "hello"},
    b"/pooling": {"input": "hello"},
    b"/tokenize": {"prompt": "hello"},
    b"/detokenize": {"tokens": [1, 2]},
}
_STREAMS = [b"/v1/chat/completions", b"/v1/completions", b"/v1/responses", b"/v1/messages"]
_ANTHROPIC = (b"/v1/messages", b"/v1/messages/count_tokens")
_TYPE = b"Content-Type: multipart/form-data; boundary=xYz\r\n"


def _form(model: bytes, *, stream: bool = False) -> bytes:
    audio = b"RIFF" + bytes(range(256)) * 200
    return (
        b'--xYz\r\nContent-Disposition: form-data; name="file"; filename="a.wav"\r\n'
        b'Content-Type: audio/wav\r\n\r\n%b\r\n--xYz\r\nContent-Disposition: form-data; name="model"\r\n\r\n%b\r\n'
        b'--xYz\r\nContent-Disposition: form-data; name="stream"\r\n\r\n%b\r\n--xYz--\r\n'
    ) % (audio, model, b"true" if stream else b"false")


def _post_form(body: bytes) -> bytes:
    head = b"POST /v1/audio/transcriptions HTTP/1.1\r\nHost: test\r\n%bContent-Length: %d\r\n\r\n%b"
    return head % (_TYPE, len(body), body)


@pytest.fixture
async def engine() -> AsyncIterator[EngineDouble]:
    async with EngineDouble(EngineSettings(prompt_tokens_details=True)) as engine:
        yield engine


@pytest.fixture
async def behind(engine: EngineDouble, sidecar: Any) -> RunningRouter:
    router: RunningRouter = await sidecar(engine.url, settings=_SETTINGS)
    return router


@pytest.fixture
async def front(behind: RunningRouter, gateway: Any) -> RunningRouter:
    router: RunningRouter = await gateway(f"http://127.0.0.1:{behind.port}")
    return router


async def _ask(router: RunningRouter, wire: bytes) -> Answer:
    async with RawClient(router.port) as client:
        return await client.ask(wire)


@pytest.mark.parametrize("path", list(_BODIES), ids=bytes.decode)
async def test_whole_answers(front: RunningRouter, engine: EngineDouble, path: bytes) -> None:
    body = json.dumps(_BODIES[path] | {"model": "tiny"}).encode()
    direct = await _ask_engine(engine, path, body)
    answer = await _ask(front, post(body, path))

    assert answer.status == direct.status == 200
    assert answer.headers[b"content-type"] == direct.headers[b"content-type"]
    assert _stable(answer.json()) == _stable(direct.json())
    assert engine.journal.records[-1].body == body
    assert answer.headers[b"x-tidepool-pod"] == b"pod-1"


async def _ask_engine(engine: EngineDouble, path: bytes, body: bytes) -> Answer:
    async with RawClient(engine.port) as client:
        return await client.ask(post(body, path))


def _stable(answer: dict[str, Any]) -> dict[str, Any]:
    """Without ids, times, and what the prefix cache did between two requests."""
    answer = {
        name: value for name, value in answer.items() if name not in ("id", "created", "created_at", "usage")
    }
    return json.loads(json.dumps(answer).replace(answer.get("id", "\0"), "")) | {"output": None}


@pytest.mark.parametrize("path", list(_BODIES), ids=bytes.decode)
async def test_an_alias_is_replaced_wherever_the_api_has_it(
    front: RunningRouter, engine: EngineDouble, path: bytes
) -> None:
    body = json.dumps(_BODIES[path] | {"model": "alias"}).encode()
    answer = await _ask(front, post(body, path))

    assert answer.status == 200
    assert json.loads(engine.journal.records[-1].body) == _BODIES[path] | {"model": "tiny"}


@pytest.mark.parametrize("path", list(_BODIES), ids=bytes.decode)
async def test_errors_of_the_router_have_the_shape_of_the_api(front: RunningRouter, path: bytes) -> None:
    answer = await _ask(front, post(json.dumps(_BODIES[path] | {"model": "nobody"}).encode(), path))

    assert answer.status == 404
    error = answer.json()["error"]
    assert "nobody" in error["message"]
    if path in _ANTHROPIC:
        assert (answer.json()["type"], error["type"]) == ("error", "not_found_error")
    else:
        assert error["code"] == "model_not_found"


@pytest.mark.parametrize("path", _STREAMS, ids=bytes.decode)
async def test_streams_end_as_the_api_ends_them(front: RunningRouter, engine: EngineDouble, path: bytes) -> None:
    answer = await _ask(front, post(json.dumps(_BODIES[path] | {"model": "tiny", "stream": True}).encode(), path))

    assert answer.status == 200
    last = answer.body.rstrip().rsplit(b"\n\n", 1)[-1]
    ends = {b"/v1/responses": b"event: response.completed", b"/v1/messages": b"event: message_stop"}
    assert last.startswith(ends.get(path, b"data: [DONE]"))
    assert answer.body.count(b'"choices":[]') == 0  # the usage that the sidecar asked for


@pytest.mark.interpreted
@pytest.mark.parametrize("path", _STREAMS, ids=bytes.decode)
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
async def test_the_ledger_learns_the_whole_prompt_also_where_it_was_cached(
    behind: RunningRouter, engine: EngineDouble, path: bytes, stream: bool
) -> None:
    seen: list[tuple[int, int]] = []
    behind.state.estimator.learn = lambda facts, prompt, output: seen.append((prompt, output))
    long = "hello " * 200
    body = _BODIES[path] | {"model": "tiny", "stream": stream}
    body |= {name: long if body[name] == "hello" else [_TALK[0] | {"content": long}]
             for name in ("prompt", "input", "messages") if name in body}  # fmt: skip
    for _ in range(2):
        assert (await _ask(behind, post(json.dumps(body).encode(), path))).status == 200

    prompt = seen[0][0]
    assert prompt >= 300
    assert seen == [(prompt, 3)] * 2


@pytest.mark.parametrize("path", _STREAMS, ids=bytes.decode)
async def test_an_engine_that_dies_ends_the_stream_with_an_error_of_the_api(
    front: RunningRouter, engine: EngineDouble, path: bytes
) -> None:
    engine.order(Fault(Wrong.RESET_MID_STREAM, after_tokens=2, path=path.decode()))
    answer = await _ask(front, post(json.dumps(_BODIES[path] | {"model": "tiny", "stream": True}).encode(), path))

    head, _, data = answer.body.rstrip().rsplit(b"\n\n", 1)[-1].rpartition(b"data: ")
    error = json.loads(data)
    if path == b"/v1/messages":
        assert (head, error["type"], error["error"]["type"]) == (b"event: error\n", "error", "api_error")
    elif path == b"/v1/responses":
        assert (head, error["type"], error["code"]) == (b"event: error\n", "error", "server_error")
        numbers = [
            json.loads(line[6:])["sequence_number"] for line in answer.body.splitlines() if line[:5] == b"data:"
        ]
        assert numbers == list(range(len(numbers)))
    else:
        assert (head, error["error"]["code"]) == (b"", "upstream_error")
    assert b"[DONE]" not in answer.body


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
async def test_audio_goes_where_its_form_says(front: RunningRouter, engine: EngineDouble, stream: bool) -> None:
    answer = await _ask(front, _post_form(_form(b"tiny", stream=stream)))

    assert answer.status == 200
    assert engine.journal.records[-1].body == _form(b"tiny", stream=stream)
    if stream:
        assert answer.body.endswith(b"data: [DONE]\n\n")
    else:
        assert answer.json()["text"].split() == ["reef", "tide", "pool", "wave", "kelp"]


async def test_an_alias_is_replaced_in_a_form(front: RunningRouter, engine: EngineDouble) -> None:
    answer = await _ask(front, _post_form(_form(b"alias")))

    assert answer.status == 200
    assert engine.journal.records[-1].body == _form(b"tiny")


async def test_a_form_for_nobody_names_the_models(front: RunningRouter) -> None:
    answer = await _ask(front, _post_form(_form(b"nobody")))

    assert (answer.status, answer.json()["error"]["code"]) == (404, "model_not_found")
    assert "tiny" in answer.json()["error"]["message"]


# Compressed.

_GZIP = b"Content-Encoding: gzip\r\n"


@pytest.mark.parametrize("role", ["gateway", "sidecar"])
async def test_a_compressed_request_is_routed_by_what_is_in_it_and_arrives_untouched(
    role: str, gateway: Any, sidecar: Any
) -> None:
    body = gzip.compress(chat(stream=True))
    async with ScriptedEngine() as engine:
        router = await (gateway if role == "gateway" else sidecar)(engine.url)
        answer = await _ask(router, post(body, extra=_GZIP))

    assert answer.status == 200
    assert engine.requests[0].body == body
    assert engine.requests[0].headers[b"content-encoding"] == b"gzip"


async def test_a_compressed_answer_arrives_untouched_whole_and_as_a_stream(
    front: RunningRouter, gateway: Any
) -> None:
    events = gzip.compress(b'data: {"choices":[{"delta":{}}],"usage":{}}\n\ndata: [DONE]\n\n')

    async def script(seen: Seen) -> None:
        kind = b"text/event-stream" if b"true" in seen.body else b"application/json"
        await seen.send(
            b"HTTP/1.1 200 OK\r\ncontent-type: %b\r\ncontent-encoding: gzip\r\ntransfer-encoding: chunked\r\n\r\n"
            % kind
        )
        for part in (events[:9], events[9:], b""):
            await seen.chunk(part)

    async with ScriptedEngine(script) as engine:
        router = await gateway(engine.url)
        for stream in (False, True):
            answer = await _ask(router, post(chat(stream=stream), extra=b"Accept-Encoding: gzip\r\n"))
            assert (answer.body, answer.headers[b"content-encoding"]) == (events, b"gzip")
        assert engine.requests[0].headers[b"accept-encoding"] == b"gzip"


@pytest.mark.parametrize(
    ("body", "coding", "status"),
    [(gzip.compress(chat("alias")), b"gzip", 415), (b"{}", b"br", 415), (b"{}", b"gzip", 400)],
    ids=["an alias in it", "a coding that is not read", "not what it says"],
)
async def test_a_compressed_request_that_cannot_be_served_says_what_would_be(
    front: RunningRouter, body: bytes, coding: bytes, status: int
) -> None:
    answer = await _ask(front, post(body, extra=b"Content-Encoding: %b\r\n" % coding))

    assert answer.status == status
    if status == 415:
        assert "plain" in answer.json()["error"]["message"]


# Methods and models.


@pytest.mark.parametrize("role", ["front", "behind"])
async def test_options_tells_the_methods(request: pytest.FixtureRequest, front: RunningRouter, role: str) -> None:
    router = request.getfixturevalue(role)
    async with RawClient(router.port) as client:
        await client.send(b"OPTIONS /v1/responses HTTP/1.1\r\nHost: a\r\n\r\n")
        status, headers = await client.head()
        after = await client.ask(post(chat()))

    assert (status, headers[b"allow"]) == (204, b"POST, OPTIONS")
    assert b"content-length" not in headers
    assert after.status == 200


async def test_options_of_a_closed_path_tells_nothing(front: RunningRouter) -> None:
    answer = await _ask(front, b"OPTIONS /sleep HTTP/1.1\r\nHost: a\r\n\r\n")

    assert (answer.status, answer.json()["error"]["code"]) == (403, "path_closed")


async def test_a_method_that_is_not_taken_is_answered_with_those_that_are(front: RunningRouter) -> None:
    answer = await _ask(front, b"PUT /v1/chat/completions HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n")

    assert (answer.status, answer.headers[b"allow"]) == (405, b"POST, OPTIONS")


@pytest.mark.parametrize("role", ["front", "behind"])
@pytest.mark.parametrize("name", ["tiny", "alias"])
async def test_one_model_is_a_card_of_the_list(
    request: pytest.FixtureRequest, front: RunningRouter, role: str, name: str
) -> None:
    router = request.getfixturevalue(role)
    async with RawClient(router.port) as client:
        cards = (await client.ask(b"GET /v1/models HTTP/1.1\r\nHost: a\r\n\r\n")).json()["data"]
        one = await client.ask(b"GET /v1/models/%b HTTP/1.1\r\nHost: a\r\n\r\n" % name.encode())
        none = await client.ask(b"GET /v1/models/..%2Fsleep HTTP/1.1\r\nHost: a\r\n\r\n")

    assert (one.status, one.json()) == (200, next(card for card in cards if card["id"] == name))
    assert (none.status, none.json()["error"]["code"]) == (404, "model_not_found")
