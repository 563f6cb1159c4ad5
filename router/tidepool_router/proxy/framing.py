"""Heads as they go on: a request's to the engine, and what an answer's says of its body."""

from typing import Final

from tidepool_router.wire.answers import AnswerReader
from tidepool_router.wire.messages import Request

_CHUNKED: Final = b"transfer-encoding: chunked\r\n"
_WITHOUT_BODY: Final = frozenset((204, 304))


def request_head(request: Request, lines: bytes, request_id: bytes, mark: bytes, proof: bytes) -> bytes:
    """The head of a request, up to its empty line; `lines` are the client's, `mark` and `proof` lines of ours."""
    target, method = request.target, request.method
    if target[:1] != b"/":  # as a client writes to a proxy
        target = b"/" + target.split(b"/", 3)[-1]
    parts = [method, b" ", target, b" HTTP/1.1\r\n", lines, b"x-request-id: ", request_id]
    size = len(request.body)
    if request.feed is not None:
        parts.append(request.feed.framing(size))
    elif size or method == b"POST":
        parts += (b"\r\ncontent-length: ", str(size).encode())
    parts += (b"\r\n", mark, proof, b"\r\n")
    return b"".join(parts)


def frame(answer: AnswerReader, request: Request, out: list[bytes], *, dropping: bool, last: bool) -> bool:
    """Write the lines that say how long the body is (as upstream said, in chunks, or until the connection closes)
    and what becomes of the connection; whether it goes in chunks.

    `dropping`: something will be taken out of the body. `last`: the connection ends with this answer, which
    `request.keep_alive` then says.
    """
    length = answer.special.get(b"content-length")
    chunked = False
    if length is not None and not dropping:
        out += (b"content-length: ", length, b"\r\n")
    elif request.method == b"HEAD" or answer.status in _WITHOUT_BODY:
        pass
    elif request.http10:
        request.keep_alive = False
    else:
        chunked = True
        out.append(_CHUNKED)
    if last:
        request.keep_alive = False
    if not request.keep_alive:
        out.append(b"connection: close\r\n")
    elif request.http10:
        out.append(b"connection: keep-alive\r\n")
    return chunked
