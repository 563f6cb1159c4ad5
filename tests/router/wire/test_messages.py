"""HTTP from the wire: the same requests whatever the pieces, and clear refusals for what is none."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidepool_router.errors import Refused
from tidepool_router.wire.answers import AnswerReader
from tidepool_router.wire.messages import Request, RequestReader

_HEAD_LIMIT, _BODY_LIMIT = 4096, 10_000
_WIRE = (
    b"POST /v1/chat/completions?x=1 HTTP/1.1\r\nHost: a\r\nX-Request-Id: id\r\n"
    b"Connection: keep-alive, X-Hop\r\n"
    b"X-Hop: 1\r\nTE: trailers\r\nContent-Length: 5\r\nCookie: a=b; c=\xff\r\n\r\nhello"
    b"POST /v1/completions HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n"
    b"3;ext=1\r\nabc\r\n4\r\ndefg\r\n0\r\nX-T: 1\r\n\r\n"
    b"GET /v1/models HTTP/1.0\r\n\r\n"
)
_HEADERS = [(b"host", b"a"), (b"cookie", b"a=b; c=\xff")]
_SEEN = [
    (b"POST", b"/v1/chat/completions?x=1", b"hello", _HEADERS, True),
    (b"POST", b"/v1/completions", b"abcdefg", [], True),
    (b"GET", b"/v1/models", b"", [], False),
]


def _read(pieces: list[bytes], body_limit: int = _BODY_LIMIT) -> list[Request]:
    reader = RequestReader(_HEAD_LIMIT, body_limit)
    for piece in pieces:
        reader.feed(piece)
    return list(reader.ready)


def _shape(request: Request) -> tuple[bytes, bytes, bytes, list[tuple[bytes, bytes]], bool]:
    return request.method, request.target, request.body, request.headers(), request.keep_alive


def test_split_at_every_byte_the_requests_are_the_same() -> None:
    for cut in range(len(_WIRE)):
        assert [_shape(request) for request in _read([_WIRE[:cut], _WIRE[cut:]])] == _SEEN, cut


def test_byte_by_byte_the_requests_are_the_same() -> None:
    assert [_shape(request) for request in _read([bytes([byte]) for byte in _WIRE])] == _SEEN


_tokens = st.text("abcdefghijklmnopqrstuvwxyzABCDEFGHIJ0123456789-_!#$%&'*+.^`|~", min_size=1, max_size=20)
_field_values = st.binary(max_size=40).map(
    lambda raw: bytes(byte for byte in raw if byte >= 0x20 and byte != 0x7F).strip()
)


@given(
    st.lists(st.tuples(_tokens.map(lambda name: "x-" + name), _field_values), max_size=20), st.binary(max_size=500)
)
def test_headers_and_body_come_out_as_they_went_in(headers: list[tuple[str, bytes]], body: bytes) -> None:
    lines = b"".join(b"%b: %b\r\n" % (name.encode(), value) for name, value in headers)
    wire = b"POST /v1/completions HTTP/1.1\r\n%bcontent-length: %d\r\n\r\n%b" % (lines, len(body), body)
    (request,) = _read([wire])

    ours = (b"x-tidepool-gateway", b"x-tidepool-handed-on", b"x-tidepool-load")
    assert request.headers() == [(n.lower().encode(), v) for n, v in headers if n.lower().encode() not in ours]
    assert request.body == body


_fragments = st.sampled_from([_WIRE[:40], b"\r\n", b"GET / HTTP/1.1", b":", b"\r\n\r\n"])


@given(st.binary(max_size=300) | st.lists(_fragments).map(b"".join))
def test_any_bytes_end_in_requests_or_in_a_refusal(data: bytes) -> None:
    try:
        requests = _read([data[: len(data) // 2], data[len(data) // 2 :]])
    except Refused as refused:
        status, values = refused.refusal.status, []
    else:
        status, values = 400, [value for request in requests for _, value in request.headers()]

    assert 400 <= status < 500
    assert not any(b"\r" in value or b"\n" in value for value in values)


@pytest.mark.parametrize(
    ("wire", "status", "why"),
    [
        (b"GARBAGE\r\n\r\n", 400, "no request line"),
        (b"GET / HTTP/1.1\r\nno colon\r\n\r\n", 400, "no header line"),
        (b"GET / HTTP/1.1\r\nA: b\r\n folded\r\n\r\n", 400, "a folded line hides what another server would read"),
        (b"POST / HTTP/1.1\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\n", 400, "two lengths"),
        (b"POST / HTTP/1.1\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n", 400, "two framings"),
        (b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", 400, "no chunk size"),
        (
            b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nContent-Length: 3\r\n\r\n",
            400,
            "a late length",
        ),
        (b"POST / HTTP/1.1\r\nContent-Length: -1\r\n\r\n", 400, "no length"),
        (b"CONNECT a:80 HTTP/1.1\r\n\r\n", 405, "this is no forward proxy"),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400, "HTTP/2 by prior knowledge"),
        (b"GET /" + b"x" * _HEAD_LIMIT + b" HTTP/1.1\r\n\r\n", 431, "a target without end"),
        (b"GET / HTTP/1.1\r\nA: " + b"x" * _HEAD_LIMIT + b"\r\n\r\n", 431, "a value over the limit, in one piece"),
        (b"GET / HTTP/1.1\r\n" + b"A: b\r\n" * 1000 + b"\r\n", 431, "many headers"),
        (b"GET / HTTP/1.1\r\n" + b"A: b\r\n" * 1000, 431, "a head without an end"),
        (b"POST / HTTP/1.1\r\nContent-Length: 10001\r\n\r\n", 413, "an announced body over the limit"),
        (
            b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n2711\r\n" + b"x" * 10_001,
            413,
            "an unannounced one",
        ),
    ],
)
def test_refusals(wire: bytes, status: int, why: str) -> None:
    with pytest.raises(Refused) as caught:
        _read([wire])

    assert caught.value.refusal.status == status, why


def test_http_2_by_prior_knowledge_is_told_what_is_spoken() -> None:
    with pytest.raises(Refused, match=r"HTTP/1\.1 is spoken"):
        _read([b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"])


@pytest.mark.parametrize("flood", [b"A: b\r\n" * 1000, b"A: " + b"x" * 5000])
def test_a_trailer_without_an_end_is_refused(flood: bytes) -> None:
    with pytest.raises(Refused) as caught:
        _read([b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n", flood])

    assert caught.value.refusal.status == 431


def test_a_body_that_was_kept_elsewhere_counts_no_more_when_it_is_over() -> None:
    reader = RequestReader(4096, 1000, front_bytes=500, large_bytes=500)
    for _ in range(3):
        reader.feed(b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n258\r\n" + bytes(600) + b"\r\n")
        assert reader.arrived_bytes == 600
        reader.take_parts()
        reader.feed(b"0\r\n\r\n")  # its end comes alone
        assert reader.arrived_bytes == 0

    reader.feed(b"POST / HTTP/1.1\r\nContent-Length: 900\r\n\r\nx")
    assert not reader.may_open


@pytest.mark.parametrize("pieces", [1, 7])
def test_a_wish_to_upgrade_is_declined_and_the_request_served(pieces: int) -> None:
    wire = (
        b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\n"
        b"HTTP2-Settings: AAA\r\nContent-Length: 5\r\n\r\nhello" + _WIRE
    )
    step = len(wire) // pieces + 1
    requests = _read([wire[at : at + step] for at in range(0, len(wire), step)])

    assert [_shape(request) for request in requests] == [
        (b"POST", b"/v1/completions", b"hello", [(b"host", b"a")], True),
        *_SEEN,
    ]


def test_only_a_reader_that_waits_for_a_body_wants_to_say_continue() -> None:
    reader = RequestReader(_HEAD_LIMIT, _BODY_LIMIT)
    head = b"POST / HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n"
    reader.feed(head)
    assert reader.wants_continue

    reader.feed(b"ok")
    assert not reader.wants_continue
    assert reader.ready.popleft().headers() == []


_ANSWER = (
    b"HTTP/1.1 100 Continue\r\nX-Early: 1\r\n\r\n"
    b"HTTP/1.1 200 OK\r\nServer: uvicorn\r\nConnection: close, X-Hop\r\nX-Hop: 1\r\nKeep-Alive: timeout=5\r\n"
    b"Transfer-Encoding: chunked\r\nX-Tidepool-Load: 1\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n"
)


def test_answers_split_at_every_byte_are_the_same() -> None:
    for cut in range(len(_ANSWER)):
        reader = AnswerReader(_HEAD_LIMIT)
        reader.feed(_ANSWER[:cut])
        reader.feed(_ANSWER[cut:])

        seen = (reader.status, b"".join(reader.parts), reader.complete, reader.reusable)
        assert seen == (200, b"abcde", True, False), cut
        assert reader.lines == [b"server", b": ", b"uvicorn", b"\r\n"]
        assert reader.special[b"x-tidepool-load"] == b"1"


@pytest.mark.parametrize(
    "wire",
    [b"HTTP/1.1 OK\r\n\r\n", b"SSH-2.0-x\r\n", b"HTTP/1.1 200 OK\r\n" + b"A: b\r\n" * 1000,
     b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: h2c\r\nConnection: upgrade\r\n\r\n"],
)  # fmt: skip
def test_what_is_no_answer_is_an_error(wire: bytes) -> None:
    with pytest.raises(ValueError, match=r"answer|head"):
        AnswerReader(_HEAD_LIMIT).feed(wire)


def test_the_answer_to_head_has_no_body_whatever_it_announces() -> None:
    reader = AnswerReader(_HEAD_LIMIT)
    reader.reset(no_body=True)
    reader.feed(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n")

    assert reader.complete
    assert not reader.reusable
