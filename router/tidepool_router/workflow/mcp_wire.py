"""The wire beneath the MCP library: requests go to the address that was judged, and answers are bounded."""

import ssl
from collections.abc import AsyncIterator, Mapping, Sequence
from functools import lru_cache
from urllib.parse import urlsplit

import httpx2

from tidepool_router.workflow.failures import StepFailed
from tidepool_router.workflow.hosts import Hosts, NotAllowed, Unresolved
from tidepool_router.workflow.tools import PLAIN, require_plain

# A step's own time bounds the whole.
_TIMEOUT = httpx2.Timeout(None, connect=5.0, pool=5.0)


class Pinned(httpx2.AsyncBaseTransport):
    """One call's. `failure`: why a request was refused or went wrong; `broken`: the server is the reason."""

    def __init__(self, hosts: Hosts, more_hosts: Sequence[str], max_bytes: int) -> None:
        self.failure: StepFailed | None = None
        self.broken = False
        self._hosts = hosts
        self._more_hosts = more_hosts
        self._left = max_bytes
        self._inner = httpx2.AsyncHTTPTransport(verify=_tls(), trust_env=False)

    @staticmethod
    def host_of(url: str) -> str:
        """The host of a URL that has been judged."""
        return urlsplit(url).hostname or ""

    def client(self, headers: Mapping[str, str]) -> httpx2.AsyncClient:
        """A client on this wire."""
        return httpx2.AsyncClient(transport=self, headers=dict(headers), timeout=_TIMEOUT, trust_env=False)

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """AsyncBaseTransport."""
        url = str(request.url)
        self.failure, self.broken = None, False  # of the request before: the library has gone on from it
        try:
            parts, address, port = await self._hosts.pinned(url, self._more_hosts)
        except NotAllowed as error:
            self.failure = StepFailed(str(error), again=isinstance(error, Unresolved))
            raise
        pinned = httpx2.Request(
            request.method,
            request.url.copy_with(host=address, port=port),
            headers=httpx2.Headers({**request.headers, **PLAIN}),
            stream=request.stream,
            extensions={**request.extensions, "sni_hostname": parts.hostname or ""},
        )
        try:
            response = await self._inner.handle_async_request(pinned)
        except httpx2.HTTPError as error:
            self._break(f"{parts.hostname}: {type(error).__name__} {error}".rstrip())
            raise
        if response.status_code >= 500:
            self._break(f"{parts.hostname} answered {response.status_code}")
        try:
            require_plain(parts.hostname or "", response.headers)
        except StepFailed as failure:
            self.failure = failure
            await response.aclose()
            raise
        stream = response.stream
        assert isinstance(stream, httpx2.AsyncByteStream)  # noqa: S101 - of an asynchronous transport
        return httpx2.Response(
            response.status_code,
            headers=response.headers,
            stream=_Bounded(stream, self),
            extensions=response.extensions,
        )

    async def aclose(self) -> None:
        """AsyncBaseTransport."""
        await self._inner.aclose()

    def take(self, size: int) -> None:
        """Bytes of an answer have come. Raises StepFailed when they are too many."""
        self._left -= size
        if self._left < 0:
            self.failure = StepFailed("the answers are longer than a step may read; ask for less", again=False)
            raise self.failure

    def _break(self, why: str) -> None:
        self.broken = True
        self.failure = StepFailed(why, again=True)


class _Bounded(httpx2.AsyncByteStream):
    def __init__(self, inner: httpx2.AsyncByteStream, wire: Pinned) -> None:
        self._inner = inner
        self._wire = wire

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for part in self._inner:
            self._wire.take(len(part))
            yield part

    async def aclose(self) -> None:
        await self._inner.aclose()


@lru_cache(maxsize=1)
def _tls() -> ssl.SSLContext:
    return ssl.create_default_context()
