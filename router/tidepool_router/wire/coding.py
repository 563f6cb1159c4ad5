"""Compressed bodies: they are passed on as they came, and opened only to read what they ask for."""

import zlib
from typing import Final

from tidepool_router.errors import Refusal, Refused

_GZIP: Final = frozenset((b"gzip", b"x-gzip"))
_PLAIN: Final = b"identity"
# zlib's own number for "a gzip header or a zlib header".
_ANY_HEADER: Final = zlib.MAX_WBITS | 32
# Opened bodies are gone when they have been read, so this is memory and time of one at once: some 50 ms.
_LIMIT_BYTES: Final = 32 << 20


def opened(body: bytes, coding: bytes) -> bytes:
    """The body without its content coding: gzip and deflate are read, in one layer.

    Raises Refused: 415 for another coding, 400 for a body that is not in it, 413 for one that grows beyond 32 MiB.
    """
    name = coding.strip().lower()
    if name == _PLAIN:
        return body
    if name not in _GZIP and name != b"deflate":
        message = (
            f"the content-encoding {coding.decode('latin-1')[:40]!r} cannot be read here; "
            "send the body plain, or in gzip or deflate"
        )
        raise Refused(Refusal(415, "invalid_request_error", "unsupported_encoding", message))
    inflating = zlib.decompressobj(_ANY_HEADER)
    try:
        plain = inflating.decompress(body, _LIMIT_BYTES)
    except zlib.error as error:
        raise _broken(f"the body is not what its content-encoding says: {error}") from error
    if not inflating.eof:
        if len(plain) < _LIMIT_BYTES:
            raise _broken("the compressed body has no end")
        message = f"the body is larger than {_LIMIT_BYTES} bytes when it is opened; send it plain"
        raise Refused(Refusal(413, "invalid_request_error", "body_too_large", message))
    return plain


def _broken(message: str) -> Refused:
    return Refused(Refusal(400, "invalid_request_error", "invalid_encoding", message))
