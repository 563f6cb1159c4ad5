"""W3C Trace Context: what is a parent, what is none, and what goes on."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidepool_router.tracing.context import Parent, chosen, parent_of, parse, with_parent, written

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
EXAMPLE = f"00-{TRACE}-{SPAN}-01".encode()


def lines(**headers: bytes) -> list[bytes]:
    flat: list[bytes] = []
    for name, value in headers.items():
        flat += (name.encode(), b": ", value, b"\r\n")
    return flat


def test_the_standards_own_example() -> None:
    assert parse(EXAMPLE) == Parent(int(TRACE, 16), int(SPAN, 16), sampled=True)


@pytest.mark.parametrize(
    ("value", "sampled", "why"),
    [
        (f"00-{TRACE}-{SPAN}-00", False, "not sampled"),
        (f"00-{TRACE}-{SPAN}-03", True, "the flag for random ids beside the one for sampled"),
        (f"00-{TRACE}-{SPAN}-02", False, "the flag for random ids alone"),
        (f"cc-{TRACE}-{SPAN}-01", True, "a later version"),
        (f"cc-{TRACE}-{SPAN}-01-what-comes", True, "a later version with more fields"),
        (f" 00-{TRACE}-{SPAN}-01\t", True, "white space around a header's value"),
    ],
)
def test_what_is_a_parent(value: str, sampled: bool, why: str) -> None:
    parent = parse(value.encode())

    assert parent is not None, why
    assert parent.sampled is sampled, why


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ("", "nothing"),
        (f"ff-{TRACE}-{SPAN}-01", "the version that is none"),
        (f"00-{'0' * 32}-{SPAN}-01", "no trace id"),
        (f"00-{TRACE}-{'0' * 16}-01", "no span id"),
        (f"00-{TRACE.upper()}-{SPAN}-01", "upper case"),
        (f"00-{TRACE}-{SPAN}-01-more", "version 00 ends with the flags"),
        (f"00-{TRACE}-{SPAN}-1", "flags too short"),
        (f"00-{TRACE[1:]}-{SPAN}-01", "trace id too short"),
        (f"cc-{TRACE}-{SPAN}-01more", "a later version without a dash"),
        (f"00_{TRACE}_{SPAN}_01", "other separators"),
    ],
)
def test_what_is_no_parent(value: str, why: str) -> None:
    assert parse(value.encode()) is None, why


@given(st.binary(max_size=80))
def test_no_bytes_break_the_reader(value: bytes) -> None:
    parse(value)


@given(st.integers(1, (1 << 128) - 1), st.integers(1, (1 << 64) - 1), st.booleans())
def test_what_is_written_is_read(trace_id: int, span_id: int, sampled: bool) -> None:
    value = written(trace_id, span_id, sampled=sampled)

    assert parse(value) == Parent(trace_id, span_id, sampled)


def test_two_parents_are_none() -> None:
    twice = lines(traceparent=EXAMPLE) * 2

    assert parent_of(twice) is None
    assert parent_of(lines(host=b"x", traceparent=EXAMPLE)) == parse(EXAMPLE)
    assert parent_of(lines(host=b"traceparent")) is None


def test_the_parent_is_replaced_and_the_state_kept_with_its_trace_only() -> None:
    given_lines = lines(host=b"x", traceparent=EXAMPLE, tracestate=b"a=1", accept=b"*/*")

    kept = with_parent(given_lines, b"new", keep_state=True)
    dropped = with_parent(given_lines, b"new", keep_state=False)

    assert kept == lines(host=b"x", tracestate=b"a=1", accept=b"*/*", traceparent=b"new")
    assert dropped == lines(host=b"x", accept=b"*/*", traceparent=b"new")


@pytest.mark.parametrize("ratio", [0.0, 0.01, 0.5, 0.999, 1.0])
def test_sampling_is_opentelemetrys(ratio: float) -> None:
    sampling = pytest.importorskip("opentelemetry.sdk.trace.sampling")
    theirs = sampling.TraceIdRatioBased(ratio)
    edge = theirs.bound
    ids = [1, edge - 1, edge, edge + 1, (1 << 64) - 1, (7 << 64) | 5, int(TRACE, 16)]

    for trace_id in (each for each in ids if each >= 0):
        decision = theirs.should_sample(None, trace_id, "x").decision.is_sampled()
        assert chosen(trace_id, ratio) is decision, hex(trace_id)
