"""The fuzzers' targets hold for what they begin with, damaged anywhere, and would see a promise that is broken."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fuzz import targets
from fuzz.targets import SEEDS, TARGETS
from scripted.examples import examples


@pytest.mark.parametrize("name", TARGETS)
@examples(15)
@given(data=st.data())
def test_seeds_and_what_damage_makes_of_them(name: str, data: st.DataObject) -> None:
    seed = data.draw(st.sampled_from(SEEDS[name]))
    at, size = data.draw(st.integers(0, len(seed))), data.draw(st.integers(0, 4))
    new = data.draw(st.sampled_from([b"", b"\r\n", b'"', b"\\", b"{", b"0"]) | st.binary(max_size=4))
    TARGETS[name](data.draw(st.binary(min_size=8, max_size=8)) + seed[:at] + new + seed[at + size :])


def test_a_reader_that_loses_a_byte_at_a_cut_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = targets._pieces

    def losing(wire: bytes, cuts: list[int]) -> list[bytes]:
        first, *rest = whole(wire, cuts)
        return [first[:-1], *rest]

    monkeypatch.setattr(targets, "_pieces", losing)
    for name in ("requests", "answers", "events"):
        with pytest.raises(AssertionError):
            TARGETS[name](b"\0\x20" * 4 + SEEDS[name][0])
