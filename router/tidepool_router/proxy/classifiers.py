"""Asks the classifier endpoints that rules name.

They are at hosts that an administrator allowed, as the tools of workflows are. The request waits no longer than
the rule's timeout; whatever goes wrong, the rules after it decide.
"""

import asyncio
import importlib
from dataclasses import dataclass
from time import monotonic
from typing import TYPE_CHECKING, Any, Final

import msgspec

from tidepool_api.routing import FleetPool
from tidepool_router.errors import UpstreamError
from tidepool_router.fleet.gateway_metrics import GatewayMetrics
from tidepool_router.fleet.pool import PoolState
from tidepool_router.governance import ClassifierTable
from tidepool_router.proxy.services import Services
from tidepool_router.wire.messages import Request
from tidepool_router.workflow.hosts import Hosts, NotAllowed, Unresolved, pinned_url

if TYPE_CHECKING:
    import httpx

_MOST_AT_ONCE: Final = 64
_MOST_BODY_BYTES: Final = 1024 * 1024
_MOST_ANSWER_BYTES: Final = 64 * 1024
# After so many failures in a row a classifier is left alone for a while, and one request tries it again.
_FAILURES: Final = 5
_PAUSE_SECONDS: Final = 2.0
_MOST_ENDPOINTS: Final = 1024
# A name is looked up, and judged, once in so long.
_PLACE_SECONDS: Final = 5.0
_PASSED_ON: Final = (b"content-type", b"content-encoding")
# As it is: what is compressed may be a thousand times as large when it is not.
_ASKED_FOR: Final = ((b"accept", b"application/json"), (b"accept-encoding", b"identity"))


class _Answer(msgspec.Struct):
    name: str = msgspec.field(name="class")


_decode: Final = msgspec.json.Decoder(_Answer).decode


class _Standing:
    __slots__ = ("failures", "told", "until")

    def __init__(self) -> None:
        self.failures = 0
        self.until = 0.0
        self.told = False  # that it may not be asked


@dataclass(frozen=True, slots=True)
class _Place:
    """A URL that was judged, with the address in place of its host, which is told beside it."""

    url: str
    netloc: str
    host: str
    until: float


class Classifiers:
    """One client for all of them, made when the first rule asks."""

    def __init__(self, services: Services, metrics: GatewayMetrics, hosts: Hosts) -> None:
        self._services = services
        self._metrics = metrics
        self._hosts = hosts
        self._places: dict[tuple[str, tuple[str, ...]], _Place] = {}
        self._client: httpx.AsyncClient | None = None
        self._standings: dict[str, _Standing] = {}
        self._asking = 0

    async def ask(
        self, owner: FleetPool, classifier: ClassifierTable[PoolState], request: Request, request_id: bytes
    ) -> PoolState | None:
        """The pool of the request's class; None when there is no answer of use in time."""
        try:
            outcome, pool = await self._ask(owner.hosts, classifier, request, request_id)
        except NotAllowed as error:
            outcome, pool = "not_allowed", None
            standing = self._standing(classifier.url)
            if not standing.told:  # each request comes here
                standing.told = True
                self._services.warn("a classifier may not be asked", pool=owner.name, reason=str(error))
        self._metrics.classified.labels(owner.name, outcome).inc()
        return pool

    async def close(self) -> None:
        """Close its connections."""
        if self._client is not None:
            await self._client.aclose()

    async def _ask(
        self, hosts: tuple[str, ...], classifier: ClassifierTable[PoolState], request: Request, request_id: bytes
    ) -> tuple[str, PoolState | None]:
        """Raises NotAllowed."""
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
                name = await self._post(await self._place(classifier.url, hosts), request, request_id)
        except TimeoutError:
            outcome = "timeout"
        except UpstreamError:
            outcome = "error"
        else:
            standing.failures, standing.until, standing.told = 0, 0.0, False
            pool = classifier.classes.get(name)
            return ("ok" if pool is not None else "unknown_class"), pool
        finally:
            self._asking -= 1
        standing.failures += 1
        if standing.failures >= _FAILURES:
            standing.until = monotonic() + _PAUSE_SECONDS
        return outcome, None

    async def _place(self, url: str, hosts: tuple[str, ...]) -> _Place:
        """Where the URL leads, as it was found in the last seconds, or is found now. Raises NotAllowed."""
        now = monotonic()
        known = self._places.get((url, hosts))
        if known is None or now >= known.until:
            try:
                parts, address, port = await self._hosts.pinned(url, hosts)
            except Unresolved as error:
                raise UpstreamError("connect", str(error)) from error
            if len(self._places) >= _MOST_ENDPOINTS:
                self._places.clear()
            known = _Place(
                pinned_url(parts, address, port), parts.netloc, parts.hostname or "", now + _PLACE_SECONDS
            )
            self._places[url, hosts] = known
        return known

    async def _post(self, place: _Place, request: Request, request_id: bytes) -> str:
        import httpx

        if self._client is None:
            limits = httpx.Limits(max_connections=_MOST_AT_ONCE, max_keepalive_connections=16)
            # The whole is bounded by the rule's timeout.
            self._client = httpx.AsyncClient(timeout=None, limits=limits, trust_env=False)  # noqa: S113
        headers: list[tuple[bytes, bytes]] = [
            (b"host", place.netloc.encode()),
            (b"x-request-id", request_id),
            *_ASKED_FOR,
        ]
        headers += [(name, request.special[name]) for name in _PASSED_ON if name in request.special]
        content = b""
        options: dict[str, Any] = {"content": request.body, "headers": headers}
        options["extensions"] = {"sni_hostname": place.host}
        try:
            async with self._client.stream("POST", place.url, **options) as answer:
                if answer.headers.get("content-encoding", "identity").lower() != "identity":
                    raise UpstreamError("reset", "the classifier's answer is compressed")
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
