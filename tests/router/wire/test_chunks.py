"""Chunks of answers: whole ones are taken without the parser, and read as the parser would read them."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidepool_router.wire.answers import AnswerReader

_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
_sizes = st.sampled_from((b"%x", b"%X", b"0%x", b"%x;name=value", b"%x "))
_chunk = st.builds(
    lambda size, data: size % len(data) + b"\r\n" + data + b"\r\n",
    _sizes,
    st.binary(min_size=1, max_size=40) | st.sampled_from((b"\r\n", b"5\r\nhello\r\n", b"0\r\n\r\n")),
)
_damage = st.tuples(st.integers(0, 400), st.sampled_from((b"", b"\r", b"\n", b"g", b"-", b"_1", b"0x", b"\r\n")))


class _ParserAlone(AnswerReader):
    """Never takes anything without the parser."""

    def _feed_chunks(self, data: bytes) -> bytes:
        return data


def _read(reader: AnswerReader, pieces: list[bytes]) -> tuple[bool | str, bool, bytes]:
    reader.feed(_HEAD)
    body: list[bytes] = []
    try:
        for piece in pieces:
            reader.feed(piece)
            body += reader.parts
            reader.parts = []
    except ValueError:
        return "refused", False, b"".join(body)
    return reader.complete, reader.reusable, b"".join(body)


@pytest.mark.interpreted
@given(st.lists(_chunk, max_size=6), st.lists(_damage, max_size=1), st.data())
def test_cut_anywhere_they_read_as_the_parser_reads_them(
    chunks: list[bytes], damage: list[tuple[int, bytes]], data: st.DataObject
) -> None:
    wire = b"".join(chunks) + b"0\r\n\r\n"
    for at, new in damage:
        wire = wire[: at % len(wire)] + new + wire[at % len(wire) + 1 :]
    ends = list(itertools.accumulate(map(len, chunks)))
    cuts = data.draw(st.lists(st.integers(0, len(wire)), max_size=5), label="cuts")
    edges = sorted({0, len(wire), *cuts, *(ends if data.draw(st.booleans(), label="at ends") else ())})
    pieces = [wire[start:end] for start, end in itertools.pairwise(edges)]

    *ended, body = _read(AnswerReader(4096), pieces)
    *ended_alone, body_alone = _read(_ParserAlone(4096), pieces)
    assert ended == ended_alone
    if ended[0] is True:
        assert body == body_alone
    else:  # a chunk whose end never came may be missing, and nothing else
        assert body_alone.startswith(body)
        assert len(body_alone) - len(body) <= 2048


def _warm() -> AnswerReader:
    reader = AnswerReader(4096)
    reader.feed(_HEAD)
    reader.feed(b"2\r\nab\r\n")
    reader.parts, reader.framed = [], b""
    return reader


def test_whole_chunks_are_passed_on_as_they_came() -> None:
    reader = _warm()
    reader._parser = None  # it would fail, were it asked
    reader.feed(b"005\r\nhello\r\n1\r\n!\r\n")
    assert (reader.parts, reader.framed) == ([b"hello", b"!"], b"005\r\nhello\r\n1\r\n!\r\n")


@pytest.mark.parametrize("cut_at", range(1, 11))
def test_a_short_chunk_that_a_read_cut_waits_for_its_end(cut_at: int) -> None:
    reader = _warm()
    reader._parser = None  # it would fail, were it asked
    whole, cut = b"5\r\nhello\r\n", b"6\r\nworld!\r\n"
    reader.feed(whole + cut[:cut_at])
    assert (reader.parts, reader.framed) == ([b"hello"], whole)
    reader.parts, reader.framed = [], b""
    reader.feed(cut[cut_at:] + whole)
    assert (reader.parts, reader.framed) == ([b"world!", b"hello"], cut + whole)


@pytest.mark.parametrize(
    ("piece", "why"),
    [
        (b"5\r\nhello\r\n801\r\nab", "a long chunk is passed on as it comes"),
        (b"5;a=b\r\nhello\r\n", "an extension is between us and the engine"),
        (b"1\r\n!\r\n0\r\n\r\n", "the end is the exchange's to write"),
    ],
)
def test_other_chunks_are_framed_anew(piece: bytes, why: str) -> None:
    del why  # the reason stands beside the case
    reader = _warm()
    reader.feed(piece)
    assert reader.parts
    assert reader.framed == b""


def test_what_was_not_taken_yet_is_not_left_out_of_the_frame() -> None:
    reader = _warm()
    reader.feed(b"5\r\nhello\r\n")
    reader.feed(b"1\r\n!\r\n")
    assert (b"".join(reader.parts), reader.framed) == (b"hello!", b"")


def test_a_size_cut_in_two_is_not_read_by_its_second_half() -> None:
    reader = _warm()
    reader.feed(b"1;x\r\n!\r\n1")
    reader.feed(b"2\r\nab\r\n" + b"x" * 14 + b"\r\n")
    assert b"".join(reader.parts) == b"!ab\r\n" + b"x" * 14
