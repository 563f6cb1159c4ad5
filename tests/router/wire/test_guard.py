"""A name of the outermost object is kept from the engine, and every other byte stays."""

import json
import time
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scripted.examples import examples
from tidepool_router.wire.guard import NameGuard

_keys = st.text(max_size=4) | st.sampled_from(["priority", 'x"priority', "priority\\", '\\"priority"', "priorit"])
_values = st.recursive(
    st.none() | st.booleans() | st.integers() | _keys | st.text(alphabet='"\\{}[]:, p', max_size=12),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(_keys, inner, max_size=4),
    max_leaves=8,
)
_dumps = st.sampled_from(
    [
        lambda value: json.dumps(value).encode(),
        lambda value: json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode(),
        lambda value: json.dumps(value, indent=2, separators=(" ,", " :\r\n")).encode(),
        lambda value: json.dumps(value).replace("rior", "\\u0072ior").encode(),  # not the r of true
    ]
)


def guarded(*pieces: bytes) -> bytes:
    guard = NameGuard(b"priority")
    out = b"".join(guard.feed(piece) for piece in pieces)
    return out + guard.end()


def split(body: bytes, cuts: list[int]) -> list[bytes]:
    places = sorted({cut % (len(body) + 1) for cut in cuts} | {0, len(body)})
    return [body[start:end] for start, end in pairwise(places)]


@examples(20)
@given(st.dictionaries(_keys, _values, max_size=6), _dumps, st.lists(st.integers(0, 10_000), max_size=12))
def test_the_outermost_name_alone_changes_however_the_body_is_cut(
    value: dict[str, Any], dumps: Any, cuts: Any
) -> None:
    body = dumps(value)
    out = guarded(*split(body, cuts))

    assert len(out) == len(body)
    expected = {("priorit_" if key == "priority" else key): item for key, item in value.items()}
    assert json.loads(out) == expected
    changed = [at for at in range(len(body)) if body[at] != out[at]]
    assert len(changed) == ("priority" in value)


@examples(10)
@given(st.dictionaries(_keys, _values, max_size=4), _dumps)
def test_it_is_the_same_byte_by_byte(value: dict[str, Any], dumps: Any) -> None:
    body = dumps(value)
    assert guarded(*(body[at : at + 1] for at in range(len(body)))) == guarded(body)


@pytest.mark.parametrize(
    ("body", "out", "why"),
    [
        (b'{"priority":1}', b'{"priorit_":1}', "the name"),
        (b'{"a":1,"priority" \t:1}', b'{"a":1,"priorit_" \t:1}', "with space behind it"),
        (b'{"priorit\\u0079":1}', b'{"priorit\\u007a":1}', "the last letter escaped"),
        (b'{"\\u0050riority":1}', b'{"\\u0050riority":1}', "another name: with a capital letter"),
        (b'{"priority":1,"priority":2}', b'{"priorit_":1,"priorit_":2}', "each of them"),
        (b'{"a":{"priority":1},"b":[{"priority":1}]}', b'{"a":{"priority":1},"b":[{"priority":1}]}', "inner ones"),
        (b'{"a":"priority"}', b'{"a":"priority"}', "a value"),
        (b'{"a":"\\"priority\\":1"}', b'{"a":"\\"priority\\":1"}', "text"),
        (b'{"a":"\\\\","priority":1}', b'{"a":"\\\\","priorit_":1}', "a string that ends with a backslash"),
        (b'{"a":"' + b"x" * 500 + b'","priority":1}', b'{"a":"' + b"x" * 500 + b'","priorit_":1}', "long strings"),
    ],
)
def test_what_is_the_name_and_what_is_not(body: bytes, out: bytes, why: str) -> None:
    for size in (1, 3, 7, len(body)):
        assert guarded(*(body[at : at + size] for at in range(0, len(body), size))) == out, why


@given(st.binary(max_size=300) | st.text(alphabet='"\\{}[]: priorty', max_size=200).map(str.encode))
def test_what_is_no_json_comes_out_as_long_as_it_came(junk: bytes) -> None:
    assert len(guarded(*(junk[at : at + 5] for at in range(0, len(junk), 5)))) == len(junk)


@pytest.mark.parametrize(
    "hostile",
    [
        b'{"a":"' + b'\\"' * 130_000,
        b'{"priority":1,' * 18_000,
        b'{"a":["priority"' + b',"priority"' * 23_000,
        b'{"priority"' + b" " * 260_000,
        b"[" * 260_000,
        b'""' * 130_000,
        b'{"a' * 86_000,
    ],
    ids=["escaped quotes", "names", "values", "space", "depth", "strings", "quotes"],
)
def test_hostile_pieces_take_no_longer_than_others(hostile: bytes) -> None:
    """Work that grows with the square of a piece would take minutes; no figure of the machine's is meant."""
    began = time.process_time()
    guard = NameGuard(b"priority")
    for at in range(0, len(hostile), 65_536):
        guard.feed(hostile[at : at + 65_536])
    assert time.process_time() - began < 5.0
