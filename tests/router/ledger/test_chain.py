"""Hashes of a prompt's beginnings: two texts share as many of them as they share borders."""

import json
from itertools import pairwise
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from scripted.examples import examples
from tidepool_router.facts import Api, RequestFacts
from tidepool_router.ledger.chain import BORDERS, LONGEST_BYTES, canonical, chain, seed_of, with_adapter
from tidepool_router.wire.body import inspect
from tidepool_router.wire.front import read_front

SALT = b"abcdefghijklmnopqrstuvwxyz0123456789"


def common(left: tuple[int, ...], right: tuple[int, ...]) -> int:
    count = 0
    while count < min(len(left), len(right)) and left[count] == right[count]:
        count += 1
    return count


@given(st.integers(0, 40_000), st.binary(max_size=3000), st.binary(max_size=3000))
def test_as_many_hashes_are_common_as_borders_are(shared: int, left: bytes, right: bytes) -> None:
    beginning = (SALT * (shared // len(SALT) + 1))[:shared]
    parting = shared + next((i for i, (a, b) in enumerate(zip(left, right, strict=False)) if a != b), 10**9)
    parting = min(parting, shared + min(len(left), len(right)))

    found = common(chain(beginning + left), chain(beginning + right))

    assert found == sum(border <= parting for border in BORDERS)


def test_borders_are_fine_at_first_and_few_in_the_end() -> None:
    steps = [(end - start) / end for start, end in pairwise(BORDERS) if end > 4096]

    assert BORDERS[:16] == tuple(range(256, 4097, 256))
    assert max(steps) <= 1 / 16  # what a match may be short by
    assert len(BORDERS) < 150
    assert BORDERS[-1] >= LONGEST_BYTES


def test_a_text_that_never_ends_is_not_read_to_its_end() -> None:
    assert chain(bytes(4 * LONGEST_BYTES)) == chain(bytes(LONGEST_BYTES + 1))


def test_what_shares_no_cache_has_no_hash_in_common() -> None:
    text = SALT * 100
    plain, salted, adapted = chain(text), chain(text, seed_of("tenant")), with_adapter(chain(text), "sql")

    assert not set(plain) & set(salted)
    assert not set(plain) & set(adapted)
    assert not set(adapted) & set(with_adapter(plain, "law"))


def facts(body: bytes) -> RequestFacts:
    return inspect(Api.CHAT, "/v1/chat/completions", body)


def test_clients_that_write_json_differently_share_their_prefix() -> None:
    text = "word " * 500
    compact = b'{"model":"m","messages":[{"role":"user","content":"%b"}]}' % text.encode()
    spaced = b'{"model": "m", "messages": [{"role": "user", "content": "%b"}]}' % text.encode()

    assert facts(compact).prefix == facts(spaced).prefix != ()


_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(alphabet='"\\ \n,:{}[]ü', max_size=12),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4),
    max_leaves=8,
)


@examples(20)
@given(_values, st.integers(0, 10_000), st.sampled_from([None, 2]))
def test_half_a_text_loses_the_same_spaces_as_all_of_it(value: Any, cut: int, indent: int | None) -> None:
    text = json.dumps(value, indent=indent).encode()
    whole, half = bytes(canonical(text)), bytes(canonical(text[: cut % (len(text) + 1)]))

    assert whole == json.dumps(value, separators=(",", ":")).encode()
    assert whole.startswith(half)


def test_a_long_prompt_that_is_written_with_spaces_begins_like_one_without() -> None:
    messages = [
        {"role": "user", "content": f"message {number} says as much as people say"} for number in range(9000)
    ]
    body = {"messages": messages, "model": "m"}
    spaced, compact = (json.dumps(body, separators=how).encode() for how in ((", ", ": "), (",", ":")))

    assert len(compact) > LONGEST_BYTES
    assert facts(spaced).prefix == facts(compact).prefix
    front = read_front(Api.CHAT, "/v1/chat/completions", spaced[:300_000], len(spaced))
    assert front is not None
    assert front.facts.prefix == facts(compact).prefix[: len(front.facts.prefix)] != ()


def test_the_next_turn_begins_with_the_one_before() -> None:
    turn = b'{"role":"user","content":"%b"}' % (b"tell me more " * 100)
    first = facts(b'{"model":"m","messages":[%b]}' % turn).prefix
    second = facts(b'{"model":"m","messages":[%b,{"role":"assistant","content":"yes"},%b]}' % (turn, turn)).prefix

    assert second[: len(first)] == first


def test_tools_salt_and_pictures_are_part_of_the_beginning() -> None:
    messages = b'"messages":[{"role":"user","content":"%b"}]' % (b"word " * 200)
    picture = messages.replace(b'"word ', b'[{"type":"image_url","image_url":{"url":"data:,X"}},"word ').replace(
        b'"}]', b'"]}]'
    )
    plain = facts(b'{"model":"m",%b}' % messages).prefix
    others = [
        facts(b'{"model":"m","tools":[{"type":"function"}],%b}' % messages).prefix,
        facts(b'{"model":"m","cache_salt":"s",%b}' % messages).prefix,
        facts(b'{"model":"m",%b}' % picture).prefix,
    ]

    assert plain
    assert all(other and other[0] != plain[0] for other in others)


def test_a_short_prompt_has_no_prefix_worth_a_table() -> None:
    assert facts(b'{"model":"m","messages":[{"role":"user","content":"hi"}]}').prefix == ()
