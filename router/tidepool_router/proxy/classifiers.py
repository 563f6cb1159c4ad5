"""Asks the classifier endpoints that rules name.

The request waits no longer than the rule's timeout; whatever goes wrong, the rules after it decide.
"""

import asyncio
import importlib
from time import monotonic
from typing import TYPE_CHECKING, Any, Final

import msgspec

from tidepool_router.errors import UpstreamError
from tidepool_router.fleet.gateway_metrics import GatewayMetrics
from tidepool_router.fleet.pool import PoolState
from tidepool_router.governance import ClassifierTable
from tidepool_router.wire.messages import Request

if TYPE_CHECKING:
    import httpx

_MOST_AT_ONCE: Final = 64
_MOST_BODY_BYTES: Final = 1024 * 1024
_MOST_ANSWER_BYTES: Final = 64 * 1024
# After so many failures in a row a classifier is left alone for a while, and one request tries it again.
_FAILURES: Final = 5
_PAUSE_SECONDS: Final = 2.0
_MOST_ENDPOINTS: Final = 1024
_PASSED_ON: Final = (b"content-type", b"content-encoding")


class _Answer(msgspec.Struct):
    name: str = msgspec.field(name="class")


_decode: Final = msgspec.json.Decoder(_Answer).decode


class _Standing:
    __slots__ = ("failures", "until")

    def __init__(self) -> None:
        self.failures = 0
        self.until = 0.0


class Classifiers:
    """One client for all of them, made when the first rule asks."""

    def __init__(self, metrics: GatewayMetrics) -> None:
        self._metrics = metrics
        self._client: httpx.AsyncClient | None = None
        self._standings: dict[str, _Standing] = {}
        self._asking = 0

    async def ask(
        self, owner: str, classifier: ClassifierTable[PoolState], request: Request, request_id: bytes
    ) -> PoolState | None:
        """The pool of the request's class; None when there is no answer of use in time."""
        outcome, pool = await self._ask(classifier, request, request_id)
        self._metrics.classified.labels(owner, outcome).inc()
        return pool

    async def close(self) -> None:
        """Close its connections."""
        if self._client is not None:
            await self._client.aclose()

    async def _ask(
        self, classifier: ClassifierTable[PoolState], request: Request, request_id: bytes
    ) -> tuple[str, PoolState | None]:
        standing = self._standing(classifier.url)
        if len(request.body) > _MOST_BODY_BYTES:
            return "too_large", None
        if self._asking >= _MOST_AT_ONCE or monotonic() < standing.until:
            return "busy", None
        if standing.failures >= _FAILURES:
            standing.until = monotonic() + _PAUSE_SECONDS  # this request tries; the others go on without
        self._asking += 1
        try:
            if self._client is None:  # outside of the timeout, which reading the modules may exceed
                await asyncio.to_thread(importlib.import_module, "httpx")
            async with asyncio.timeout(classifier.timeout_seconds):
                name = await self._post(classifier.url, request, request_id)
        except TimeoutError:
            outcome = "timeout"
        except UpstreamError:
            outcome = "error"
        else:
            standing.failures, standing.until = 0, 0.0
            pool = classifier.classes.get(name)
            return ("ok" if pool is not None else "unknown_class"), pool
        finally:
            self._asking -= 1
        standing.failures += 1
        if standing.failures >= _FAILURES:
            standing.until = monotonic() + _PAUSE_SECONDS
        return outcome, None

    async def _post(self, url: str, request: Request, request_id: bytes) -> str:
        import httpx

        if self._client is None:
            limits = httpx.Limits(max_connections=_MOST_AT_ONCE, max_keepalive_connections=16)
            # The whole is bounded by the rule's timeout.
            self._client = httpx.AsyncClient(timeout=None, limits=limits, trust_env=False)  # noqa: S113
        headers: list[tuple[bytes, bytes]] = [(b"x-request-id", request_id), (b"accept", b"application/json")]
        headers += [(name, request.special[name]) for name in _PASSED_ON if name in request.special]
        content = b""
        options: dict[str, Any] = {"content": request.body, "headers": headers}
        try:
            async with self._client.stream("POST", url, **options) as answer:
                if answer.status_code != 200:
                    raise UpstreamError("http_5xx", f"the classifier answered {answer.status_code}")
                async for part in answer.aiter_bytes():
                    content += part
                    if len(content) > _MOST_ANSWER_BYTES:
                        raise UpstreamError("reset", "the classifier's answer is too long")
            return _decode(content).name
        except (httpx.HTTPError, httpx.InvalidURL, msgspec.DecodeError) as error:
            raise UpstreamError("reset", f"the classifier cannot be used: {type(error).__name__}") from error

    def _standing(self, url: str) -> _Standing:
        standing = self._standings.get(url)
        if standing is None:
            if len(self._standings) >= _MOST_ENDPOINTS:
                self._standings.clear()
            standing = self._standings[url] = _Standing()
        return standing
