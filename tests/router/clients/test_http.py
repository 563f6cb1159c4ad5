"""HTTP clients of several makes: httpx, aiohttp and curl, with what each does in its own way."""

import asyncio
import json
import shutil
from pathlib import Path
from typing import Any

import aiohttp
import httpx
import pytest

from scripted.plain import plain
from scripted.stacks import Stack

_CHAT: dict[str, Any] = {"model": "alias", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 3}
_PATH = "/v1/chat/completions"


def _texts(stream: str) -> str:
    events = [line[6:] for line in stream.splitlines() if line.startswith("data: {")]
    return "".join(json.loads(event)["choices"][0]["delta"].get("content") or "" for event in events)


# httpx.


async def test_httpx_keeps_its_connection_over_streams_and_answers(stack: Stack) -> None:
    async with plain(stack.url, limits=httpx.Limits(max_connections=1)) as client:
        for stream in (True, False, True):
            answer = await client.post(_PATH, json=_CHAT | {"stream": stream})
            assert answer.status_code == 200
        assert _texts(answer.text) == " reef tide pool"
        connections = len(stack.gateway.server.connections)

    assert connections == 1


async def test_httpx_may_send_chunks_and_leave_in_the_middle(stack: Stack) -> None:
    async def pieces() -> Any:
        body = json.dumps(_CHAT).encode()
        for at in range(0, len(body), 7):
            yield body[at : at + 7]

    async with plain(stack.url) as client:
        answer = await client.post(_PATH, content=pieces(), headers={"content-type": "application/json"})
        async with client.stream("POST", _PATH, json=_CHAT | {"stream": True, "max_tokens": 1000}) as stream:
            await anext(stream.aiter_bytes())

    assert answer.json()["choices"][0]["message"]["content"] == " reef tide pool"
    await stack.engine.until(lambda: stack.engine.running == 0)


# aiohttp.


async def test_aiohttp_streams_lines_and_uploads_forms(stack: Stack) -> None:
    form = aiohttp.FormData()
    form.add_field("file", bytes(range(256)) * 100, filename="a.mp3", content_type="audio/mpeg")
    form.add_field("model", "alias")
    async with aiohttp.ClientSession(stack.url) as session:
        async with session.post(_PATH, json=_CHAT | {"stream": True}) as answer:
            lines = [line async for line in answer.content]
        async with session.post("/v1/audio/transcriptions", data=form) as answer:
            heard = await answer.json()

    assert lines[-2:] == [b"data: [DONE]\n", b"\n"]
    assert heard["text"] == " reef tide"


async def test_aiohttp_may_ask_before_it_sends_and_compress(stack: Stack) -> None:
    body = _CHAT | {"model": "tiny"}
    async with aiohttp.ClientSession(stack.url) as session:
        async with session.post(_PATH, json=body, expect100=True) as answer:
            assert answer.status == 200
        async with session.post(_PATH, json=body, compress="gzip") as answer:
            assert (
                answer.status == 200
            )  # the double's server opens it; that it comes there closed is test_apis' part

    seen = stack.engine.journal.records[-1]
    assert seen.header("content-encoding") == "gzip"
    assert json.loads(seen.body) == body


# curl.

_CURL = shutil.which("curl")


async def _curl(*arguments: str, stdin: bytes = b"") -> tuple[int, str, str]:
    """Exit status, what it printed, what it told about the connection."""
    assert _CURL is not None
    process = await asyncio.create_subprocess_exec(
        _CURL, "-sS", "-v", "--max-time", "10", *arguments,
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    out, err = await process.communicate(stdin)
    return process.returncode or 0, out.decode(), err.decode()


needs_curl = pytest.mark.skipif(_CURL is None, reason="there is no curl")
_JSON = ("-H", "content-type: application/json", "-d", json.dumps(_CHAT))
_STREAM = ("-N", "-H", "content-type: application/json", "-d", json.dumps(_CHAT | {"stream": True}))


@needs_curl
@pytest.mark.parametrize("version", ["--http1.0", "--http1.1", "--http2"])
async def test_curl_speaks_many_versions(stack: Stack, version: str) -> None:
    """--http2 asks for an upgrade, which may be declined."""
    status, out, _ = await _curl(version, *_JSON, stack.url + _PATH)
    streaming, events, _ = await _curl(version, *_STREAM, stack.url + _PATH)

    assert (status, streaming) == (0, 0)
    assert json.loads(out)["choices"][0]["message"]["content"] == " reef tide pool"
    assert _texts(events) == " reef tide pool"
    assert events.endswith("data: [DONE]\n\n")


@needs_curl
async def test_curl_that_speaks_http2_unasked_is_told_so(stack: Stack) -> None:
    status, out, err = await _curl("--http2-prior-knowledge", *_JSON, stack.url + _PATH)

    assert status != 0
    assert not out
    assert "HTTP/2" in err or "http2" in err.lower()


@needs_curl
async def test_curl_waits_for_a_hundred_before_a_large_body(stack: Stack, tmp_path: Path) -> None:
    body = tmp_path / "body.json"
    body.write_text(json.dumps(_CHAT | {"user": "x" * (900 << 10)}))
    status, out, err = await _curl("-H", "Expect: 100-continue", "-H", "content-type: application/json",
                                   "--data-binary", f"@{body}", stack.url + _PATH)  # fmt: skip

    assert status == 0
    assert "100 Continue" in err
    assert json.loads(out)["usage"]["completion_tokens"] == 3


@needs_curl
async def test_curl_does_not_send_what_is_refused_before(stack: Stack, tmp_path: Path) -> None:
    body = tmp_path / "body.json"
    body.write_bytes(b" " * (5 << 20))
    status, out, err = await _curl("-H", "Expect: 100-continue", "--data-binary", f"@{body}", stack.url + _PATH)

    assert "100 Continue" not in err
    assert status == 0
    assert json.loads(out)["error"]["code"] == "body_too_large"


@needs_curl
async def test_curl_uploads_a_form_and_reads_headers_alone(stack: Stack, tmp_path: Path) -> None:
    audio = tmp_path / "a.wav"
    audio.write_bytes(bytes(range(256)) * 100)
    _, out, _ = await _curl("-F", f"file=@{audio}", "-F", "model=alias", f"{stack.url}/v1/audio/transcriptions")
    status, head, _ = await _curl("-I", f"{stack.url}/v1/models")

    assert json.loads(out)["text"] == " reef tide"
    assert status == 0
    assert head.startswith("HTTP/1.1 200 OK")


@needs_curl
async def test_curl_sends_chunks_from_a_pipe_and_asks_on_one_connection(stack: Stack) -> None:
    body = json.dumps(_CHAT).encode()
    _, out, _ = await _curl("-H", "Transfer-Encoding: chunked", "-H", "content-type: application/json",
                            "--data-binary", "@-", stack.url + _PATH, stdin=body)  # fmt: skip
    _, twice, err = await _curl(f"{stack.url}/v1/models", f"{stack.url}/v1/models/alias")

    assert json.loads(out)["usage"]["completion_tokens"] == 3
    assert '"alias"' in twice
    assert "Re-using existing" in err or "Reusing existing" in err
