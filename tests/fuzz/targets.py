"""What fuzzers call: bytes in, an AssertionError where a reader breaks a promise. The first bytes say how to cut.

Each promise is one that the data path rests on: bytes in other pieces mean the same, nothing is lost or made up,
and nothing but the reader's own refusal is raised.
"""

from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import pairwise
from typing import Final

from tidepool_router.errors import Refused
from tidepool_router.facts import Api
from tidepool_router.wire.answers import AnswerReader
from tidepool_router.wire.body import inspect
from tidepool_router.wire.front import read_front, rename_front
from tidepool_router.wire.guard import NameGuard
from tidepool_router.wire.messages import RequestReader
from tidepool_router.wire.sse import SseObserver

_LIMIT_BYTES: Final = 4096
_CUTS: Final = 4
_APIS: Final = tuple(Api)
_FORM: Final = b"multipart/form-data; boundary=b"


def requests(data: bytes) -> None:
    """Requests mean the same however they come; one that is refused is refused alike."""
    cuts, wire = _cuts(data)
    assert _requests([wire]) == _requests(_pieces(wire, cuts))


def answers(data: bytes) -> None:
    """An answer means the same however it comes; what comes after its end is nobody's."""
    cuts, wire = _cuts(data)
    in_pieces = _answer(_pieces(wire, cuts))
    if in_pieces is not None:
        assert _answer([wire]) == in_pieces


def events(data: bytes) -> None:
    """A client gets every byte of a stream in its order; where usage is taken out it gets no byte twice."""
    cuts, wire = _cuts(data)
    api = _APIS[cuts[0] % len(_APIS)]
    passing, dropping = SseObserver(api), SseObserver(api, drop_usage=True)
    passed = b"".join(passing.feed(piece) for piece in _pieces(wire, cuts)) + passing.end()
    dropped = b"".join(dropping.feed(piece) for piece in _pieces(wire, cuts)) + dropping.end()
    assert passed == wire
    assert len(dropped) <= len(wire)
    assert b'"usage"' in wire or dropped == wire
    assert isinstance(passing.complete, bool)


def bodies(data: bytes) -> None:
    """A front says no more than the whole body, and a name that is kept from the engine changes no length."""
    cuts, body = _cuts(data)
    guard = NameGuard(b"priority")
    out = b"".join(guard.feed(piece) for piece in _pieces(body, cuts)) + guard.end()
    assert len(out) == len(body)
    again = NameGuard(b"priority")
    assert out == again.feed(body) + again.end()
    content_type = _FORM if cuts[0] % 4 == 0 else b""
    front = body[: cuts[1] % (len(body) + 1)]
    found = read_front(Api.CHAT, "/v1/chat/completions", front, len(body), content_type)
    if found is not None:
        rename_front(front, "other", found.model_at, content_type)
    with suppress(Refused):
        inspect(Api.CHAT, "/v1/chat/completions", body, content_type=content_type)


TARGETS: Final[dict[str, Callable[[bytes], None]]] = {
    "requests": requests,
    "answers": answers,
    "events": events,
    "bodies": bodies,
}

# What a fuzzer begins with, behind the bytes that cut.
SEEDS: Final[dict[str, tuple[bytes, ...]]] = {
    "requests": (
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\n{}GET / HTTP/1.1\r\n\r\n",
        b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\nTrailer: x\r\n\r\n2;a=b\r\n{}\r\n0\r\nx: y\r\n\r\n",
        b"POST / HTTP/1.1\r\nUpgrade: websocket\r\nConnection: Upgrade, x-a\r\nContent-Length: 1\r\n\r\na",
    ),
    "answers": (
        b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\nA\r\n0123456789\r\n0\r\n\r\n",
        b"HTTP/1.0 200 OK\r\nConnection: close\r\n\r\nuntil the end",
    ),
    "events": (
        b'data: {"choices":[{"delta":{"content":"a"}}]}\n\ndata: {"choices":[],"usage":{"prompt_tokens":1}}\n\n',
        b'event: message_delta\r\ndata: {"usage":{"output_tokens":3}}\r\n\r\nevent: message_stop\r\ndata: {}\r\n',
        b'data: {"error":{"message":"x"}}\n\ndata: [DONE]\n\n: comment\n\n',
    ),
    "bodies": (
        b'{"model":"a","messages":[{"content":"x"}],"priority":1,"tools":[{"priority":"priority"}]}',
        b'{"messages":"\\"priority\\":\\\\","pri\\u006frity" : -5,"model":"\\u00e9"}',
        b'--b\r\nContent-Disposition: form-data; name="model"\r\n\r\na\r\n--b--\r\n',
    ),
}


def _cuts(data: bytes) -> tuple[list[int], bytes]:
    head = data[: 2 * _CUTS].ljust(2 * _CUTS, b"\0")
    return [int.from_bytes(head[at : at + 2]) for at in range(0, 2 * _CUTS, 2)], data[2 * _CUTS :]


def _pieces(wire: bytes, cuts: list[int]) -> Iterator[bytes]:
    places = sorted({0, len(wire), *(cut % (len(wire) + 1) for cut in cuts)})
    return (wire[start:end] for start, end in pairwise(places))


def _requests(pieces: Iterator[bytes] | list[bytes]) -> list[object]:
    reader = RequestReader(_LIMIT_BYTES, _LIMIT_BYTES)
    seen: list[object] = []
    for piece in pieces:
        try:
            reader.feed(piece)
        except Refused as refused:
            return [*seen, *_taken(reader), refused.refusal.status]
        seen += _taken(reader)
    return [*seen, reader.reading_head, reader.reading_body]


def _taken(reader: RequestReader) -> list[object]:
    taken: list[object] = [
        (one.method, one.target, one.body, one.headers(), one.special, one.keep_alive, one.http10)
        for one in reader.ready
    ]
    reader.ready.clear()
    return taken


def _answer(pieces: Iterator[bytes] | list[bytes]) -> object:
    """None: it was whole before the last piece."""
    reader = AnswerReader(_LIMIT_BYTES)
    for piece in pieces:
        if reader.complete:
            return None
        try:
            reader.feed(piece)
        except ValueError:
            return "refused"
    return reader.status, reader.complete, reader.special, b"".join(reader.lines), b"".join(reader.parts)
