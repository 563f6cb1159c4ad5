"""Requests that the router answers itself, by an async handler: control, metrics, load reports."""

import asyncio
import logging
from collections.abc import AsyncIterator
from typing import Final

from tidepool_api import contract
from tidepool_router.control import Handler, Response, StreamResponse
from tidepool_router.errors import Refusal, Refused
from tidepool_router.facts import Api
from tidepool_router.proxy.active import ActiveExchange
from tidepool_router.proxy.server import ServerConnection
from tidepool_router.proxy.services import Services
from tidepool_router.wire.errors import REASONS, refusal_answer
from tidepool_router.wire.headers import PROOF
from tidepool_router.wire.messages import Request
from tidepool_router.wire.paths import path_of

_log: Final = logging.getLogger("tidepool.router")


class HandlerApplication:
    """Serves a handler on a port of its own."""

    def __init__(self, services: Services, handler: Handler) -> None:
        self.services = services
        self._handler = handler

    def begin(self, request: Request, connection: ServerConnection) -> ActiveExchange:
        """Application."""
        return Handled(self.services, self._handler, request, connection)


class Handled:
    """One request that a handler answers in a task; the task ends when the client goes."""

    def __init__(self, services: Services, handler: Handler, request: Request, client: ServerConnection) -> None:
        self._request = request
        self._client = client
        self._writable = asyncio.Event()
        self._writable.set()
        self._task = services.spawn(self._run(handler))

    holds_drain = False

    def client_gone(self) -> None:
        """ActiveExchange."""
        self._task.cancel()

    def pause(self) -> None:
        """ActiveExchange."""
        self._writable.clear()

    def resume(self) -> None:
        """ActiveExchange."""
        self._writable.set()

    def check(self, now: float) -> None:
        """ActiveExchange: handlers bound their own waits."""

    async def _run(self, handler: Handler) -> None:
        request = self._request
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in request.headers()}
        proof = request.special.get(PROOF)
        if proof is not None:
            headers[contract.HEADER_PROOF] = proof.decode("latin-1")
        try:
            answer = await handler.handle(
                request.method.decode("latin-1"), path_of(request.target).decode("latin-1"), headers, request.body
            )
            if isinstance(answer, StreamResponse):
                await self._stream(answer)
            else:
                self._whole(answer)
        except Refused as refused:
            self._refuse(refused.refusal)
        except Exception:
            _log.exception("a handler failed; this is a fault of the router, please report it")
            message = "the router failed on this request; its log says why"
            self._refuse(Refusal(500, "server_error", "internal_error", message))

    def _whole(self, answer: Response) -> None:
        close = self._closes()
        head = self._head(answer.status, answer.content_type, close=close)
        head += b"content-length: %d\r\n\r\n" % len(answer.body)
        self._client.write(head if self._request.method == b"HEAD" else head + answer.body)
        self._client.finished(keep_alive=not close)

    async def _stream(self, answer: StreamResponse) -> None:
        chunks = answer.chunks
        chunked = not self._request.http10
        close = not chunked or self._closes()
        head = self._head(answer.status, answer.content_type, close=close)
        self._client.write(head + (b"transfer-encoding: chunked\r\n\r\n" if chunked else b"\r\n"))
        try:
            async for chunk in chunks:
                if chunk:
                    self._client.write(b"%x\r\n%b\r\n" % (len(chunk), chunk) if chunked else chunk)
                await self._writable.wait()
        except Exception:
            _log.exception("a stream of the router's own failed")
            self._client.abort()
            return
        finally:
            await _close(chunks)
        if chunked:
            self._client.write(b"0\r\n\r\n")
        self._client.finished(keep_alive=not close)

    def _closes(self) -> bool:
        return not self._request.keep_alive or self._client.last_answer

    def _head(self, status: int, content_type: str, *, close: bool) -> bytes:
        reason = REASONS.get(status, b"Unknown")
        head = b"HTTP/1.1 %d %b\r\ncontent-type: %b\r\n" % (status, reason, content_type.encode("latin-1"))
        return head + b"connection: close\r\n" if close else head

    def _refuse(self, refusal: Refusal) -> None:
        close = self._closes()
        head_only = self._request.method == b"HEAD"
        self._client.write(refusal_answer(Api.OTHER, refusal, close=close, head_only=head_only))
        self._client.finished(keep_alive=not close)


async def _close(chunks: AsyncIterator[bytes]) -> None:
    aclose = getattr(chunks, "aclose", None)
    if aclose is not None:
        await aclose()
