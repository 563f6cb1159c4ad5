"""Heads that repeat: whatever a connection learned, each message reads as a new connection would read it."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidepool_router.errors import Refused
from tidepool_router.wire.answers import AnswerReader
from tidepool_router.wire.messages import Request, RequestReader
from tidepool_router.wire.repeats import repeat_of

_HEAD = (
    b"POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nX-Request-Id: %b\r\n"
    b"Content-Length: %d\r\nX-Tidepool-Session: %b\r\n\r\n"
)
_ANSWER = b"HTTP/1.1 200 OK\r\nDate: %b\r\nserver: uvicorn\r\nx-tidepool-load: %b\r\ncontent-length: %d\r\n\r\n"
_VARIES = frozenset((b"content-length", b"x-request-id"))


def _shape(request: Request) -> tuple[object, ...]:
    special = {name: value for name, value in request.special.items() if name != b"content-length"}
    return request.method, request.target, request.body, request.joined, special, request.keep_alive


def _alone(wire: bytes) -> Request:
    reader = RequestReader(4096, 100_000)
    reader.feed(wire)
    (request,) = reader.ready
    return request


_values = st.sampled_from((b"a", b"req-1", b"0123456789abcdef", b"x" * 300, b"with space", b"\xff", b"a\tb"))
_one = st.tuples(_values, st.sampled_from((b"s1", b"s2")), st.binary(max_size=60))


def _wire(one: tuple[bytes, bytes, bytes]) -> bytes:
    name, session, body = one
    return _HEAD % (name, len(body), session) + body


@given(st.lists(_one, min_size=1, max_size=12), st.data())
def test_requests_on_one_connection_read_as_on_new_ones(
    ones: list[tuple[bytes, bytes, bytes]], data: st.DataObject
) -> None:
    wires = [_wire(one) for one in ones]
    whole = b"".join(wires)
    cuts = data.draw(st.lists(st.integers(0, len(whole)), max_size=6), label="cuts")
    ends = [sum(map(len, wires[: number + 1])) for number in range(len(wires))]
    edges = sorted({0, len(whole), *cuts, *(ends if data.draw(st.booleans(), label="one by one") else ())})
    reader = RequestReader(4096, 100_000)
    for start, end in itertools.pairwise(edges):
        reader.feed(whole[start:end])
    assert [_shape(request) for request in reader.ready] == [_shape(_alone(wire)) for wire in wires]


def _warm() -> RequestReader:
    reader = RequestReader(4096, 1000)
    for _ in range(4):
        reader.feed(_wire((b"id", b"s1", b"hello")))
    reader.ready.clear()
    return reader


_LIKE = _wire((b"id", b"s1", b"hello"))


@pytest.mark.parametrize(
    ("wire", "why"),
    [
        (_LIKE.replace(b"th: 5", b"th: -5"), "a negative length"),
        (_LIKE.replace(b"th: 5", b"th: 5, 5"), "two lengths in one"),
        (_LIKE.replace(b"th: 5", b"th: 0x5"), "a length in hexadecimal"),
        (_LIKE.replace(b"th: 5", b"th: 99999999999999999999"), "a length that no integer holds"),
        (_LIKE.replace(b"th: 5", b"th: 5000"), "a body above the limit"),
        (_LIKE.replace(b"Id: id", b"Id: i\nEvil: 1"), "a header smuggled into a value by a bare LF"),
        (_LIKE.replace(b"Id: id", b"Id: i\x00d"), "a NUL in a value"),
        (_LIKE.replace(b"\r\nContent", b"\r\nTransfer-Encoding: chunked\r\nContent"), "two framings"),
    ],
)
def test_what_a_new_connection_refuses_a_warm_one_refuses_too(wire: bytes, why: str) -> None:
    del why  # the reason stands beside the case
    with pytest.raises(Refused):
        _alone(wire) if b"5000" not in wire else RequestReader(4096, 1000).feed(wire)
    with pytest.raises(Refused):
        _warm().feed(wire)


def test_a_close_is_seen_although_the_head_was_known() -> None:
    reader = _warm()
    reader.feed(_LIKE.replace(b"Host: a", b"Host: a\r\nConnection: close"))
    assert not reader.ready[-1].keep_alive


def test_a_body_in_pieces_waits_for_its_rest() -> None:
    reader = _warm()
    reader.feed(_LIKE[:-2])
    assert not reader.ready
    assert reader.reading_body
    reader.feed(_LIKE[-2:])
    assert reader.ready[0].body == b"hello"


@pytest.mark.parametrize("reading", ["date", "load", "length"])
def test_answers_on_one_connection_read_as_on_new_ones(reading: str) -> None:
    reader = AnswerReader(4096)
    for number in range(20):
        date = b"Mon, 30 Nov 2026 02:00:%02d GMT" % (number if reading == "date" else 0)
        load = b"boot;%d;0" % (number if reading == "load" else 0)
        body = b"x" * (number if reading == "length" else 7)
        wire = _ANSWER % (date, load, len(body)) + body
        fresh = AnswerReader(4096)
        fresh.feed(wire)
        reader.reset(no_body=False)
        reader.feed(wire)
        assert (reader.status, b"".join(reader.lines), reader.special) == (
            fresh.status,
            b"".join(fresh.lines),
            fresh.special,
        )
        assert b"".join(reader.parts) == body
        assert reader.complete
        assert reader.reusable


def test_an_answer_of_another_shape_is_parsed() -> None:
    reader = AnswerReader(4096)
    for _ in range(4):
        reader.reset(no_body=False)
        reader.feed(_ANSWER % (b"now", b"b;1", 5) + b"hello")
    reader.reset(no_body=False)
    reader.feed(b"HTTP/1.1 503 Service Unavailable\r\nconnection: close\r\ncontent-length: 2\r\n\r\nno")
    assert (reader.status, reader.parts, reader.reusable) == (503, [b"no"], False)


def test_the_answer_to_head_is_not_taken_for_a_known_one() -> None:
    reader = AnswerReader(4096)
    for _ in range(4):
        reader.reset(no_body=False)
        reader.feed(_ANSWER % (b"now", b"b;1", 5) + b"hello")
    reader.reset(no_body=True)
    reader.feed(_ANSWER % (b"now", b"b;1", 5))
    assert reader.complete
    assert reader.parts == []


def test_only_what_varies_may_differ() -> None:
    repeat = repeat_of(_HEAD % (b"id", 5, b"s1"), _VARIES)
    assert repeat is not None
    assert repeat.match(_HEAD % (b"other", 7, b"s1") + b"hello w") == [b"other", b"7"]
    assert repeat.match(_HEAD % (b"other", 7, b"s2") + b"hello w") is None
    assert repeat_of(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n", _VARIES) is None  # nothing says where its body ends


def test_a_repeated_head_is_taken_without_the_parser() -> None:
    requests = _warm()
    requests._parser = None  # it would fail, were it asked
    requests.feed(_wire((b"another", b"s1", b"hello again")) * 2)
    assert [request.body for request in requests.ready] == [b"hello again"] * 2

    answers = AnswerReader(4096)
    for _ in range(4):
        answers.reset(no_body=False)
        answers.feed(_ANSWER % (b"now", b"b;1", 5) + b"hello")
    answers._parser = None
    answers.reset(no_body=False)
    answers.feed(_ANSWER % (b"later", b"b;2", 2) + b"ok")
    assert (answers.status, answers.parts, answers.special[b"x-tidepool-load"]) == (200, [b"ok"], b"b;2")


def test_what_two_heads_differ_in_may_differ_in_the_third() -> None:
    """A trace's context, a client's own counter: nobody knows their names beforehand."""
    head = b"POST /v1/completions HTTP/1.1\r\nTraceparent: %b\r\nX-Seq: %d\r\nContent-Length: 2\r\n\r\nok"
    reader = RequestReader(4096, 1000)
    for number in range(2):
        reader.feed(head % (b"00-%032x-01" % number, number))
    reader._parser = None  # it would fail, were it asked
    reader.feed(head % (b"00-abc-01", 17))
    assert reader.ready[-1].headers() == [(b"traceparent", b"00-abc-01"), (b"x-seq", b"17")]
    assert reader.ready[0].headers()[1] == (b"x-seq", b"0")  # each has its own


@pytest.mark.parametrize(
    ("first", "second", "third", "why"),
    [
        (b"Authorization: a", b"Authorization: b", b"Authorization: c", "the router acts on it"),
        (b"X-A: 1\r\nX-A: 2", b"X-A: 1\r\nX-A: 3", b"X-A: 1\r\nX-A: 4", "which of the two varies is not known"),
        (b"X-A: 1", b"X-B: 1", b"X-C: 1", "the name is another one"),
        (b"X-A: 1", b"X-A: 2\r\nX-B: 2", b"X-A: 3", "a line more"),
    ],
)
def test_what_does_not_vary_alone_is_parsed(first: bytes, second: bytes, third: bytes, why: str) -> None:
    del why  # the reason stands beside the case
    wires = [
        b"POST /v1/completions HTTP/1.1\r\n%b\r\nContent-Length: 0\r\n\r\n" % lines
        for lines in (first, second, third)
    ]
    reader = RequestReader(4096, 1000)
    for wire in wires:
        reader.feed(wire)
        assert _shape(reader.ready[-1]) == _shape(_alone(wire))
    if len(first) == len(second) == len(third):
        assert reader._repeat is None or reader._repeat.hits == 0


@pytest.mark.parametrize("value", [b"", b" ", b"a ", b" a", b"a b"])
def test_spaces_around_a_value_that_varies_are_none_of_it(value: bytes) -> None:
    head = b"POST /v1/completions HTTP/1.1\r\nX-Seq: %b\r\nContent-Length: 2\r\n\r\nok"
    reader = RequestReader(4096, 1000)
    for seen in (b"1", b"2", b"3", value):
        reader.feed(head % seen)
    assert _shape(reader.ready[-1]) == _shape(_alone(head % value))


@pytest.mark.parametrize("trace", [False, True], ids=["nothing that is passed on varies", "a line varies"])
def test_what_is_done_to_a_request_is_not_done_to_the_next_one_on_its_connection(trace: bool) -> None:
    reader = RequestReader(4096, 1000)
    for number in range(6):
        varies = b"traceparent: 00-%d\r\n" % (number if trace else 0)
        wire = (
            b"POST /v1/completions HTTP/1.1\r\nx-tidepool-deadline: 30\r\n%bauthorization: Bearer x\r\n" % varies
        )
        wire += b"x-tidepool-facts: {}\r\ncontent-length: 2\r\n\r\n{}"
        reader.feed(wire)
        request = reader.ready.popleft()
        assert _shape(request) == _shape(_alone(wire))
        # As those who serve it do: what is left of its deadline, no word of an unproven caller, another path.
        request.rewrite((b"x-tidepool-deadline",), [b"x-tidepool-deadline", b": ", b"%d" % number, b"\r\n"])
        request.special.pop(b"x-tidepool-facts", None)
        request.target = b"/v1/models"
