"""Our reading of HTTP beside h11's: two that read the same bytes differently are how requests get smuggled.

Streams of requests and answers are made by hypothesis, cut anywhere, and then damaged. What both readers take for
whole messages must be the same messages; one of them may well refuse what the other still takes.
"""

from collections.abc import Callable
from itertools import pairwise, zip_longest
from typing import NamedTuple

import h11
from hypothesis import example, given
from hypothesis import strategies as st

from scripted.examples import examples
from tidepool_router.errors import Refused
from tidepool_router.wire.answers import AnswerReader
from tidepool_router.wire.messages import RequestReader

_LIMIT = 1 << 20


class Message(NamedTuple):
    """What matters of a message: where it begins and ends decides the rest."""

    first: bytes  # method and target, or status
    body: bytes


# Makers.

_tokens = st.text("abcdefghijklmnopqrstuvwxyz-", min_size=1, max_size=8).map(lambda name: b"x-" + name.encode())
_values = st.text('abc ,;="1:/', max_size=12).map(lambda value: value.strip().encode())
_headers = st.lists(st.tuples(_tokens, _values), max_size=4).map(
    lambda pairs: b"".join(b"%b: %b\r\n" % pair for pair in pairs)
)
_extensions = st.sampled_from([b"", b";a", b";a=b", b';a="b"'])
_trailers = st.sampled_from([b"", b"X-T: 1\r\n", b"X-T: 1\r\nX-U:\r\n"])


@st.composite
def _framed(draw: st.DrawFn) -> tuple[bytes, bytes, bytes]:
    """Framing header, bytes on the wire, and the body that they mean."""
    if draw(st.booleans()):
        body = draw(st.binary(max_size=60))
        return b"Content-Length: %d\r\n" % len(body), body, body
    pieces = draw(st.lists(st.binary(min_size=1, max_size=30), max_size=4))
    size = draw(st.sampled_from([b"%x", b"%X", b"0%x"]))
    wire = b"".join(b"%b%b\r\n%b\r\n" % (size % len(piece), draw(_extensions), piece) for piece in pieces)
    return b"Transfer-Encoding: chunked\r\n", b"%b0\r\n%b\r\n" % (wire, draw(_trailers)), b"".join(pieces)


@st.composite
def _requests(draw: st.DrawFn) -> tuple[bytes, list[Message]]:
    """Requests in a row, and what they are."""
    wire, messages = b"", []
    for _ in range(draw(st.integers(1, 4))):
        target = draw(st.sampled_from([b"/v1/completions", b"/a?b=c", b"/x%20y"]))
        if draw(st.booleans()):
            framing, body, meant = draw(_framed())
            wire += b"POST %b HTTP/1.1\r\nHost: a\r\n%b%b\r\n%b" % (target, draw(_headers), framing, body)
            messages.append(Message(b"POST " + target, meant))
        else:
            wire += b"GET %b HTTP/1.1\r\nHost: a\r\n%b\r\n" % (target, draw(_headers))
            messages.append(Message(b"GET " + target, b""))
    return wire, messages


@st.composite
def _answer(draw: st.DrawFn) -> tuple[bytes, Message]:
    """An answer, maybe after an informational one."""
    early = draw(
        st.sampled_from([b"", b"HTTP/1.1 100 Continue\r\n\r\n", b"HTTP/1.1 103 Early Hints\r\nX-A: b\r\n\r\n"])
    )
    status = draw(st.sampled_from([200, 400, 503]))
    framing, body, meant = draw(_framed())
    wire = b"%bHTTP/1.1 %d X\r\n%b%b\r\n%b" % (early, status, draw(_headers), framing, body)
    return wire, Message(b"%d" % status, meant)


def _cut(wire: bytes, places: list[int]) -> list[bytes]:
    edges = [0, *sorted(place % (len(wire) + 1) for place in places), len(wire)]
    return [wire[start:end] for start, end in pairwise(edges) if start < end]


_places = st.lists(st.integers(0, 4000), max_size=8)


def _replace(wire: bytes, at: int, new: bytes, size: int) -> bytes:
    at %= len(wire)
    return wire[:at] + new + wire[at + size :]


_damage = st.lists(
    st.tuples(
        st.integers(0, 4000),
        st.binary(max_size=3)
        | st.sampled_from([b"\r", b"\n", b"\0", b" ", b"\t", b":", b"0", b"\r\n", b"\r\n\r\n", b";"])
        | st.sampled_from(
            [b"Content-Length: 5\r\n", b"Transfer-Encoding: chunked\r\n", b"Transfer-Encoding:x\r\n"]
        ),
        st.integers(0, 5),
    ),
    min_size=1,
    max_size=3,
)


# Readers.


def _ours(pieces: list[bytes]) -> tuple[list[Message], bool]:
    """Whole requests, and whether the rest was refused."""
    reader = RequestReader(_LIMIT, _LIMIT)
    refused = False
    try:
        for piece in pieces:
            reader.feed(piece)
    except Refused:
        refused = True
    return [Message(b"%b %b" % (seen.method, seen.target), seen.body) for seen in reader.ready], refused


def _theirs(wire: bytes) -> list[Message]:
    connection = h11.Connection(h11.SERVER)
    connection.receive_data(wire)
    messages: list[Message] = []
    first, body = b"", b""
    try:
        while True:
            event = connection.next_event()
            if isinstance(event, h11.Request):
                first, body = b"%b %b" % (bytes(event.method), bytes(event.target)), b""
            elif isinstance(event, h11.Data):
                body += bytes(event.data)
            elif isinstance(event, h11.EndOfMessage):
                messages.append(Message(first, body))
                connection.send(h11.Response(status_code=200, headers=[("Content-Length", "0")]))
                connection.send(h11.EndOfMessage())
                connection.start_next_cycle()
            else:
                return messages
    except (h11.RemoteProtocolError, h11.LocalProtocolError):
        return messages


def _our_answer(pieces: list[bytes]) -> Message | None:
    reader = AnswerReader(_LIMIT)
    try:
        for piece in pieces:
            reader.feed(piece)
    except ValueError:
        return None
    return Message(b"%d" % reader.status, b"".join(reader.parts)) if reader.complete else None


def _their_answer(wire: bytes) -> Message | None:
    connection = h11.Connection(h11.CLIENT)
    connection.send(h11.Request(method="GET", target="/", headers=[("Host", "a")]))
    connection.send(h11.EndOfMessage())
    connection.receive_data(wire)
    status, body = b"", b""
    try:
        while True:
            event = connection.next_event()
            if isinstance(event, h11.Response):
                status = b"%d" % event.status_code
            elif isinstance(event, h11.Data):
                body += bytes(event.data)
            elif isinstance(event, h11.EndOfMessage):
                return Message(status, body)
            elif not isinstance(event, h11.InformationalResponse):
                return None
    except h11.RemoteProtocolError:
        return None


# Properties.


@given(_requests(), _places)
def test_requests_are_read_as_they_were_made_however_they_are_cut(
    made: tuple[bytes, list[Message]], places: list[int]
) -> None:
    wire, messages = made

    assert _ours(_cut(wire, places)) == (messages, False)
    assert _theirs(wire) == messages


@examples(100)
@given(_requests(), _places, _damage)
@example(
    (b"POST /a HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n\r\n", []),
    [],
    [(64, b"", 1)],
)
def test_damaged_requests_are_read_as_h11_reads_them_or_refused(
    made: tuple[bytes, list[Message]], places: list[int], damage: list[tuple[int, bytes, int]]
) -> None:
    wire = made[0]
    for at, new, size in damage:
        wire = _replace(wire, at, new, size)
    ours, refused = _ours(_cut(wire, places))
    theirs = _theirs(wire)

    for one, other in zip_longest(ours, theirs):
        if one is None or other is None:  # one of the two has stopped
            break
        assert one == other
    assert _ours([wire]) == (ours, refused)  # the cuts change nothing


@given(_answer(), _places)
def test_answers_are_read_as_they_were_made_however_they_are_cut(
    made: tuple[bytes, Message], places: list[int]
) -> None:
    wire, message = made

    assert _our_answer(_cut(wire, places)) == message
    assert _their_answer(wire) == message


@examples(100)
@given(_answer(), _places, _damage)
def test_damaged_answers_are_read_as_h11_reads_them_or_not_at_all(
    made: tuple[bytes, Message], places: list[int], damage: list[tuple[int, bytes, int]]
) -> None:
    wire = made[0]
    for at, new, size in damage:
        wire = _replace(wire, at, new, size)
    ours, theirs = _our_answer(_cut(wire, places)), _their_answer(wire)

    if ours is not None and theirs is not None:
        assert ours == theirs


def _bytewise(read: Callable[[list[bytes]], object], wire: bytes) -> None:
    assert read([bytes([byte]) for byte in wire]) == read([wire])


@given(_requests())
def test_requests_byte_by_byte(made: tuple[bytes, list[Message]]) -> None:
    _bytewise(_ours, made[0])


@given(_answer())
def test_answers_byte_by_byte(made: tuple[bytes, Message]) -> None:
    _bytewise(_our_answer, made[0])
