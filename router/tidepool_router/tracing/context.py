"""W3C Trace Context, level 2 (https://www.w3.org/TR/trace-context-2/): who is traced, and as whose child. PURE."""

import re
from typing import Final, NamedTuple

TRACEPARENT: Final = b"traceparent"
TRACESTATE: Final = b"tracestate"
_SAMPLED: Final = 1
_WIDTH: Final = 4  # of a header line in Request.lines
# Version 00 ends with the flags; a later one may go on after another dash, with the same four fields at first.
_PARENT: Final = re.compile(rb"(?!ff)([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?", re.DOTALL)
_LOWER_64_BITS: Final = (1 << 64) - 1


class Parent(NamedTuple):
    """The caller's span, as its traceparent tells it."""

    trace_id: int
    span_id: int
    sampled: bool


def parse(value: bytes) -> Parent | None:
    """A traceparent's value; None when it is none, and then a trace begins anew, as the standard wants it."""
    match = _PARENT.fullmatch(value.strip())
    if match is None or (match[1] == b"00" and match[5] is not None):
        return None
    trace_id, span_id = int(match[2], 16), int(match[3], 16)
    if not trace_id or not span_id:
        return None
    return Parent(trace_id, span_id, bool(int(match[4], 16) & _SAMPLED))


def parent_of(lines: list[bytes]) -> Parent | None:
    """The parent in a request's header lines (flat, as in Request.lines); two traceparents are as good as none."""
    names = lines[::_WIDTH]
    if names.count(TRACEPARENT) != 1:
        return None
    return parse(lines[names.index(TRACEPARENT) * _WIDTH + 2])


def written(trace_id: int, span_id: int, *, sampled: bool) -> bytes:
    """A traceparent's value. The flag for random ids is left out: the client chose the id, or nobody asks."""
    return b"00-%032x-%016x-%02x" % (trace_id, span_id, _SAMPLED if sampled else 0)


def with_parent(lines: list[bytes], traceparent: bytes, *, keep_state: bool) -> list[bytes]:
    """Header lines with this traceparent instead of any other; a tracestate stays only with the trace it is of."""
    kept: list[bytes] = []
    for at in range(0, len(lines), _WIDTH):
        name = lines[at]
        if name != TRACEPARENT and (keep_state or name != TRACESTATE):
            kept += lines[at : at + _WIDTH]
    kept += (TRACEPARENT, b": ", traceparent, b"\r\n")
    return kept


def chosen(trace_id: int, ratio: float) -> bool:
    """Whether a trace that begins here is sampled: as OpenTelemetry's TraceIdRatioBased, by the id's lower half.

    So whoever samples by the same ratio keeps the same traces.
    """
    return (trace_id & _LOWER_64_BITS) < round(ratio * (_LOWER_64_BITS + 1))
