"""What the handlers of the control, metrics and load endpoints answer; the server that frames it is proxy's."""

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Protocol

TEXT = "text/plain; charset=utf-8"
JSON = "application/json"
JSON_LINES = "application/x-ndjson"


@dataclass(frozen=True, slots=True)
class Response:
    """A whole answer; the server adds content-length."""

    status: int
    body: bytes = b""
    content_type: str = TEXT


@dataclass(frozen=True, slots=True)
class StreamResponse:
    """An answer of unknown length, sent chunked, each chunk at once.

    The server owns `chunks`: it closes the iterator (`aclose`) when the client goes or the stream ends.
    """

    status: int
    chunks: AsyncIterator[bytes]
    content_type: str = JSON_LINES


class Handler(Protocol):
    """One port's or one group of paths' answers. Header names come in lower case; no exception leaves it."""

    async def handle(
        self, method: str, path: str, headers: Mapping[str, str], body: bytes
    ) -> Response | StreamResponse:
        """`path` is without the query."""
