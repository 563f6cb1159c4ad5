"""A connection that remembers the shape of a head reads every message as one that remembers nothing."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scripted.examples import examples
from tidepool_router.errors import Refused
from tidepool_router.wire.answers import AnswerReader
from tidepool_router.wire.messages import RequestReader

_LIMIT = 10_000
_names = st.sampled_from([b"Host", b"X-A", b"Accept", b"Connection", b"X-Request-Id", b"Date", b"X-Tidepool-Load"])
_values = st.sampled_from([b"a", b"keep-alive", b"b c", b"1-2;q=0.5", b"x" * 40])
_lines = st.lists(st.tuples(_names, _values), max_size=5)
# Whose values are others each time: one that the router knows to vary, and one that it has to see vary.
_CHANGING = (b"X-Request-Id", b"X-A")
_damage = st.tuples(
    st.integers(0, 400),
    st.sampled_from(
        [b"", b"\r", b"\n", b" ", b":", b"0", b"_", b"+", b"-", b"\r\n", b"\r\n\r\n", b"\xb2", b"close"]
    )
    | st.sampled_from([b"Content-Length: 3\r\n", b"Transfer-Encoding: chunked\r\n", b"Connection: close\r\n"])
    | st.binary(min_size=1, max_size=2),
    st.integers(0, 4),
)


def _damaged(wire: bytes, damage: list[tuple[int, bytes, int]]) -> bytes:
    for at, new, size in damage:
        place = at % (len(wire) or 1)
        wire = wire[:place] + new + wire[place + size :]
    return wire


def _message(first: bytes, lines: list[tuple[bytes, bytes]], number: int, body: bytes) -> bytes:
    """One of a row: lengths and what is changing differ, all else is the same."""
    head = b"".join(
        b"%b: %b\r\n" % (name, b"%b%d" % (value, number) if name in _CHANGING else value) for name, value in lines
    )
    return b"%b\r\n%bContent-Length: %d\r\n\r\n%b" % (first, head, len(body), body)


def _read_requests(reader: RequestReader, wire: bytes) -> object:
    try:
        reader.feed(wire)
    except Refused as refused:
        return refused.refusal.status
    seen = [
        (request.method, request.target, request.body, request.headers(), request.special, request.keep_alive,
         request.http10)
        for request in reader.ready
    ]  # fmt: skip
    reader.ready.clear()
    return seen


@examples(100)
@given(_lines, st.lists(st.binary(max_size=30), min_size=3, max_size=5), st.lists(_damage, max_size=2))
def test_requests(
    lines: list[tuple[bytes, bytes]], bodies: list[bytes], damage: list[tuple[int, bytes, int]]
) -> None:
    first = b"POST /v1/completions HTTP/1.1"
    row = [_message(first, lines, number, body) for number, body in enumerate(bodies)]
    reader = RequestReader(_LIMIT, _LIMIT)
    for wire in row:
        assert _read_requests(reader, wire) == _read_requests(RequestReader(_LIMIT, _LIMIT), wire)
    wire = _damaged(row[-1], damage) + row[0]

    assert _read_requests(reader, wire) == _read_requests(RequestReader(_LIMIT, _LIMIT), wire)


def _read_answer(reader: AnswerReader, wire: bytes) -> object:
    try:
        reader.feed(wire)
    except ValueError:
        return None
    return (
        reader.head_ready, reader.complete, reader.complete and reader.reusable, reader.status, reader.special,
        b"".join(reader.lines), b"".join(reader.parts),
    )  # fmt: skip


@examples(100)
@given(_lines, st.lists(st.binary(max_size=30), min_size=3, max_size=5), st.lists(_damage, max_size=2))
def test_answers(
    lines: list[tuple[bytes, bytes]], bodies: list[bytes], damage: list[tuple[int, bytes, int]]
) -> None:
    row = [_message(b"HTTP/1.1 200 OK", lines, number, body) for number, body in enumerate(bodies)]
    reader = AnswerReader(_LIMIT)
    for wire in row:
        assert _read_answer(reader, wire) == _read_answer(AnswerReader(_LIMIT), wire)
        if not reader.reusable:
            return
        reader.reset(no_body=False)
    wire = _damaged(row[-1], damage)

    assert _read_answer(reader, wire) == _read_answer(AnswerReader(_LIMIT), wire)


@pytest.mark.parametrize("length", [b"+5", b"5_0", b" 5", b"\xb2", b"-5", b"0x5", b"99999999999"])
def test_a_length_that_is_no_number_is_never_taken_on_memory(length: bytes) -> None:
    reader = RequestReader(_LIMIT, _LIMIT)
    for body in (b"aaaaa", b"bbbbb", b"ccccc"):
        reader.feed(_message(b"POST / HTTP/1.1", [], 0, body))
    wire = b"POST / HTTP/1.1\r\nContent-Length: %b\r\n\r\naaaaa" % length

    assert _read_requests(RequestReader(_LIMIT, _LIMIT), wire) == _outcome(reader, wire)


def _outcome(reader: RequestReader, wire: bytes) -> object:
    reader.ready.clear()
    return _read_requests(reader, wire)
