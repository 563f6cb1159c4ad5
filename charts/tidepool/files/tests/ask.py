"""Asks the gateway for its models and, where one is named, for a streamed chat; run by `helm test`.

Standard library only: it runs with the image's own Python. TIDEPOOL_URL, TIDEPOOL_MODEL, TIDEPOOL_TIMEOUT_SECONDS.
"""

import json
import os
import ssl
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterable, Iterator
from http.client import HTTPResponse
from typing import Any

MAX_TOKENS = 16


def main() -> str:
    """What was seen, in a line. Raises SystemExit with the reason when an answer is not as it must be."""
    url = os.environ["TIDEPOOL_URL"].rstrip("/")
    model = os.environ.get("TIDEPOOL_MODEL", "")
    deadline = time.monotonic() + float(os.environ.get("TIDEPOOL_TIMEOUT_SECONDS", "600"))
    names = _models(url, deadline)
    print(f"models at {url}: {', '.join(names) or 'none yet'}", flush=True)
    if not model:
        return "ok: the gateway lists its models (set test.model to have one asked)"
    if model not in names:
        sys.exit(f"FAILED: the gateway does not know {model!r}; apply its ModelPool, or correct test.model")
    return _chat(url, model, deadline)


def _models(url: str, deadline: float) -> list[str]:
    with _open(f"{url}/v1/models", None, deadline) as answer:
        page = json.load(answer)
    if page.get("object") != "list" or not all("id" in card for card in page.get("data", [{}])):
        sys.exit(f"FAILED: /v1/models answered no list of models: {json.dumps(page)[:500]}")
    return [card["id"] for card in page["data"]]


def _chat(url: str, model: str, deadline: float) -> str:
    messages = [{"role": "user", "content": "Say hello."}]
    body = {"model": model, "messages": messages, "max_tokens": MAX_TOKENS, "stream": True}
    started = time.monotonic()
    with _open(f"{url}/v1/chat/completions", body, deadline) as answer:
        pod = answer.headers.get("x-tidepool-pod", "unknown")
        chunks = [(time.monotonic() - started, event) for event in _events(answer)]
    finished = [
        choice for _, event in chunks for choice in event.get("choices", ()) if choice.get("finish_reason")
    ]
    if not finished:
        sys.exit(f"FAILED: the stream of {model!r} ended after {len(chunks)} chunks without a finish_reason")
    return f"ok: {model} on pod {pod}: {len(chunks)} chunks, the first after {chunks[0][0]:.2f} s"


def _events(answer: Iterable[bytes]) -> Iterator[dict[str, Any]]:
    for line in answer:
        if not line.startswith(b"data:"):
            continue
        data = line.removeprefix(b"data:").strip()
        if data == b"[DONE]":
            return
        event = json.loads(data)
        if "error" in event:
            sys.exit(f"FAILED: the stream broke off: {json.dumps(event['error'])[:500]}")
        yield event
    sys.exit("FAILED: the stream ended without [DONE]")


def _open(url: str, body: dict[str, Any] | None, deadline: float) -> HTTPResponse:
    """Tries again while nothing listens yet, until the deadline."""
    data = None if body is None else json.dumps(body).encode()
    # The address is the chart's own.
    request = urllib.request.Request(url, data, {"content-type": "application/json"})  # noqa: S310
    while True:
        left = deadline - time.monotonic()
        if left <= 0:
            sys.exit(f"FAILED: no answer from {url} in time")
        try:
            answer: HTTPResponse = urllib.request.urlopen(request, timeout=left, context=_tls(url))  # noqa: S310
        except urllib.error.HTTPError as error:
            sys.exit(f"FAILED: {url} answered {error.code}: {error.read(500).decode(errors='replace')}")
        except OSError as error:
            print(f"{url}: {error}; trying again", flush=True)
            time.sleep(min(1.0, left))
        else:
            return answer


def _tls(url: str) -> ssl.SSLContext | None:
    """The path is tested and nothing is told: the certificate need not name the Service, nor be known here."""
    if not url.startswith("https:"):
        return None
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


if __name__ == "__main__":
    print(main())
