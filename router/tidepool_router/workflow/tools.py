"""HTTP steps: to allowed hosts, bounded in time and size, with a breaker for each host.

Answers are asked for as they are: a small one that is compressed may be a thousand times as large when it is not.
"""

import asyncio
import json
from collections.abc import Mapping, Sequence
from time import monotonic
from typing import Any, Final
from urllib.parse import urljoin

import httpx

from tidepool_router.workflow.breakers import Breakers
from tidepool_router.workflow.failures import StepFailed, timed_out
from tidepool_router.workflow.hosts import Hosts, NotAllowed, Unresolved, pinned_url

MAX_ANSWER_BYTES: Final = 1 << 20
_MOST_REDIRECTS: Final = 3
_REDIRECTS: Final = frozenset((301, 302, 303, 307, 308))
PLAIN: Final = {"accept-encoding": "identity"}
_AGAIN: Final = frozenset((408, 425, 429))


class Tools:
    """One client for all runs of a process."""

    def __init__(self, hosts: Hosts, breakers: Breakers) -> None:
        self._hosts = hosts
        self._breakers = breakers
        limits = httpx.Limits(max_connections=256, max_keepalive_connections=64, keepalive_expiry=30.0)
        timeout = httpx.Timeout(None, connect=5.0, pool=30.0)  # a step's own time bounds the whole
        self._client = httpx.AsyncClient(limits=limits, timeout=timeout, trust_env=False)

    async def close(self) -> None:
        """Close all connections."""
        await self._client.aclose()

    async def call(
        self, method: str, url: str, body: str | None, key: str, more_hosts: Sequence[str] = ()
    ) -> tuple[str, Any]:
        """Text of the answer, and its JSON where it is some. `key`: of idempotency, the same in every try.

        Raises StepFailed.
        """
        content = None if body is None else body.encode("utf-8", "replace")
        for _ in range(_MOST_REDIRECTS + 1):
            status, headers, answer = await self._once(method, url, content, key, more_hosts)
            location = headers.get("location")
            if status not in _REDIRECTS or location is None:
                return _told(status, answer)
            url = _redirected(url, location)
            if status not in (307, 308):
                method, content = "GET", None
        raise StepFailed(f"more than {_MOST_REDIRECTS} redirects", again=False)

    async def _once(
        self, method: str, url: str, content: bytes | None, key: str, more_hosts: Sequence[str]
    ) -> tuple[int, Mapping[str, str], bytes]:
        try:
            parts, address, port = await self._hosts.pinned(url, more_hosts)
        except NotAllowed as error:
            raise StepFailed(str(error), again=isinstance(error, Unresolved)) from error
        host = parts.hostname or ""
        place = f"{host}:{port}"
        self._breakers.require(place, monotonic())
        pinned = pinned_url(parts, address, port)
        headers = {"host": parts.netloc, "idempotency-key": key, "user-agent": "tidepool", **PLAIN}
        if content is not None:
            headers["content-type"] = "application/json" if _is_json(content) else "text/plain; charset=utf-8"
        extensions = {"sni_hostname": host}
        try:
            async with self._client.stream(
                method, pinned, content=content, headers=headers, extensions=extensions
            ) as answer:
                require_plain(host, answer.headers)
                body = await _bounded(answer)
        except (httpx.InvalidURL, UnicodeError) as error:
            raise StepFailed(f"{url[:200]!r} is no URL: {error}", again=False) from error
        except asyncio.CancelledError as cut:
            if timed_out(cut):
                self._breakers.count(place, monotonic(), failed=True)
            raise
        except httpx.HTTPError as error:
            self._breakers.count(place, monotonic(), failed=True)
            raise StepFailed(f"{method} {host}: {type(error).__name__} {error}".rstrip(), again=True) from error
        self._breakers.count(place, monotonic(), failed=answer.status_code >= 500)
        return answer.status_code, answer.headers, body


def require_plain(host: str, headers: Mapping[str, str]) -> None:
    """Raises StepFailed for an answer that is compressed although nobody asked for it."""
    coding = headers.get("content-encoding", "").strip().lower()
    if coding not in ("", "identity"):
        message = f"{host} answers in {coding[:40]!r}, which it was not asked for; have it answer as it is"
        raise StepFailed(message, again=False)


def _redirected(url: str, location: str) -> str:
    try:
        return urljoin(url, location)
    except ValueError as error:
        raise StepFailed(f"redirected to {location[:200]!r}, which is no URL", again=False) from error


async def _bounded(answer: httpx.Response) -> bytes:
    parts, size = [], 0
    async for part in answer.aiter_bytes():
        size += len(part)
        if size > MAX_ANSWER_BYTES:
            raise StepFailed(f"the answer is longer than {MAX_ANSWER_BYTES} bytes", again=False)
        parts.append(part)
    return b"".join(parts)


def _told(status: int, body: bytes) -> tuple[str, Any]:
    text = body.decode("utf-8", "replace")
    if not 200 <= status < 300:
        again = status >= 500 or status in _AGAIN
        raise StepFailed(f"answered {status}: {text[:300]}".rstrip(": "), again=again)
    try:
        return text, json.loads(text)
    except (ValueError, RecursionError):
        return text, None


def _is_json(content: bytes) -> bool:
    try:
        json.loads(content)
    except (ValueError, RecursionError):
        return False
    return True
