"""Answers of the router's own, as the control, metrics and load endpoints give them."""

from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass

Headers = list[tuple[bytes, bytes]]


@dataclass(frozen=True, slots=True)
class Response:
    """A whole answer; `headers` beyond content-type and content-length."""

    status: int = 200
    body: bytes = b""
    content_type: str = "text/plain; charset=utf-8"
    headers: tuple[tuple[bytes, bytes], ...] = ()


@dataclass(frozen=True, slots=True)
class StreamResponse:
    """An answer without a known end: each item goes out at once as a chunk.

    The iterator is closed (`aclose`) when the client leaves, and gets asyncio.CancelledError where it waits.
    """

    chunks: AsyncIterator[bytes]
    status: int = 200
    content_type: str = "application/x-ndjson"


# Path is without the query; header names are lower case.
Handler = Callable[[str, str, Headers, bytes], Awaitable[Response | StreamResponse]]
