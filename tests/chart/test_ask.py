"""The script of `helm test`, against a scripted server: it passes when the path works, and only then."""

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from chart.programs import CHART

SCRIPT = CHART / "files" / "tests" / "ask.py"
MODELS = b'{"object": "list", "data": [{"id": "small"}]}'


def _chunk(body: str) -> bytes:
    return f"data: {body}\n\n".encode()


WORD = _chunk('{"choices": [{"delta": {"content": "Hello"}, "finish_reason": null}]}')
STOP = _chunk('{"choices": [{"delta": {}, "finish_reason": "stop"}]}')
DONE = _chunk("[DONE]")


@dataclass
class Gateway:
    """Answers by path; `asked` holds the bodies that came."""

    url: str = ""
    answers: dict[str, tuple[int, bytes]] = field(default_factory=dict)
    asked: list[bytes] = field(default_factory=list)


@pytest.fixture
def gateway() -> Iterator[Gateway]:
    state = Gateway(answers={"/v1/models": (200, MODELS), "/v1/chat/completions": (200, WORD + STOP + DONE)})

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            state.asked.append(self.rfile.read(int(self.headers.get("content-length", 0))))
            status, body = state.answers[self.path]
            self.send_response(status)
            self.send_header("x-tidepool-pod", "small-0")
            self.end_headers()
            self.wfile.write(body)

        do_POST = do_GET  # noqa: N815, the library's own name

        def log_message(self, *arguments: object) -> None:
            """Quiet."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        state.url = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield state
        server.shutdown()
        thread.join()


def _ask(url: str, model: str = "", timeout_seconds: float = 20) -> subprocess.CompletedProcess[str]:
    settings = {"TIDEPOOL_URL": url, "TIDEPOOL_MODEL": model, "TIDEPOOL_TIMEOUT_SECONDS": str(timeout_seconds)}
    return subprocess.run(
        [sys.executable, "-c", SCRIPT.read_text()],
        env={**os.environ, **settings},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_a_streamed_answer_passes(gateway: Gateway) -> None:
    done = _ask(gateway.url, "small")

    assert (done.returncode, done.stderr) == (0, "")
    assert "ok: small on pod small-0: 2 chunks" in done.stdout
    assert b'"stream": true' in gateway.asked[-1]


def test_without_a_model_the_list_is_enough(gateway: Gateway) -> None:
    gateway.answers["/v1/models"] = (200, b'{"object": "list", "data": []}')

    done = _ask(gateway.url)

    assert done.returncode == 0, done.stderr
    assert "none yet" in done.stdout


@pytest.mark.parametrize(
    ("path", "answer", "words"),
    [
        ("/v1/models", (200, b"{}"), "no list of models"),
        ("/v1/models", (503, b"not yet"), "answered 503: not yet"),
        ("/v1/models", (200, b'{"object": "list", "data": [{"id": "other"}]}'), "does not know 'small'"),
        ("/v1/chat/completions", (429, b"queue full"), "answered 429: queue full"),
        ("/v1/chat/completions", (200, WORD + STOP), "without [DONE]"),
        ("/v1/chat/completions", (200, WORD + DONE), "without a finish_reason"),
        ("/v1/chat/completions", (200, WORD + _chunk('{"error": {"message": "engine lost"}}')), "engine lost"),
    ],
)
def test_anything_less_fails_and_says_why(
    gateway: Gateway, path: str, answer: tuple[int, bytes], words: str
) -> None:
    gateway.answers[path] = answer

    done = _ask(gateway.url, "small")

    assert done.returncode == 1
    assert words in done.stderr


def test_nobody_there_fails_in_time() -> None:
    done = _ask("http://127.0.0.1:1", timeout_seconds=0.2)

    assert done.returncode == 1
    assert "no answer from http://127.0.0.1:1/v1/models in time" in done.stderr
