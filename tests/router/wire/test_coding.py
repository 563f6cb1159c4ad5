"""Compressed bodies are opened within bounds, and refused with a remedy where they cannot be."""

import contextlib
import gzip
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidepool_router.errors import Refused
from tidepool_router.wire.coding import opened

_BOMB = gzip.compress(b"\0" * (64 << 20), 1)


@given(st.binary(max_size=5000))
def test_what_was_compressed_comes_out_again(body: bytes) -> None:
    assert opened(gzip.compress(body), b"gzip") == body
    assert opened(zlib.compress(body), b" Deflate ") == body
    assert opened(body, b"identity") == body


@given(st.binary(max_size=300), st.sampled_from([b"gzip", b"deflate"]))
def test_any_bytes_come_out_or_are_refused(body: bytes, coding: bytes) -> None:
    with contextlib.suppress(Refused):
        opened(body, coding)


@pytest.mark.parametrize(
    ("body", "coding", "status", "remedy"),
    [
        (b"{}", b"br", 415, "send the body plain"),
        (b"{}", b"gzip, gzip", 415, "send the body plain"),
        (b"{}", b"gzip", 400, "not what its content-encoding says"),
        (gzip.compress(b"x" * 1000, mtime=0)[:-9], b"gzip", 400, "no end"),
        (_BOMB, b"gzip", 413, "send it plain"),
    ],
)
def test_what_cannot_be_opened_is_refused(body: bytes, coding: bytes, status: int, remedy: str) -> None:
    with pytest.raises(Refused, match=remedy) as caught:
        opened(body, coding)

    assert caught.value.refusal.status == status


def test_a_large_body_that_compresses_well_is_read() -> None:
    body = b'{"messages":"' + b"hello hello " * 200_000 + b'"}'

    assert opened(gzip.compress(body), b"gzip") == body
