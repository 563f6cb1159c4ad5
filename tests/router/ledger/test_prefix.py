"""The prefix index: which pod holds which beginning, bounded, in the order in which engines evict."""

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from scripted.examples import examples
from tidepool_router.ledger import PrefixIndex
from tidepool_router.ledger import prefix as module
from tidepool_router.ledger.chain import BORDERS


def chain_of(*names: int) -> tuple[int, ...]:
    """Each hash covers all names before it."""
    return tuple(hash(names[: end + 1]) & 0xFFFFFFFF for end in range(len(names)))


def test_each_pod_matches_as_far_as_it_was_sent() -> None:
    index = PrefixIndex()
    a, b, c = index.join(), index.join(), index.join()
    index.sent(a, chain_of(1, 2, 3, 4))
    index.sent(b, chain_of(1, 2, 9))

    assert dict(index.match(chain_of(1, 2, 3, 5))) == {a: BORDERS[2], b: BORDERS[1]}
    assert dict(index.match(chain_of(1, 2, 3, 4, 5))) == {a: BORDERS[3], b: BORDERS[1]}
    assert dict(index.match(chain_of(7))) == {}
    assert dict(index.match(())) == {}
    assert c not in index.match(chain_of(1))


def test_the_tail_goes_first_and_the_beginning_last() -> None:
    index = PrefixIndex()
    pod = index.join()
    index.resize(pod, BORDERS[3])
    index.sent(pod, chain_of(1, 2, 3))
    index.sent(pod, chain_of(1, 8, 9))  # five blocks, where four fit

    assert dict(index.match(chain_of(1, 2, 3))) == {pod: BORDERS[1]}
    assert dict(index.match(chain_of(1, 8, 9))) == {pod: BORDERS[2]}


def test_what_is_used_again_stays() -> None:
    index = PrefixIndex()
    pod = index.join()
    index.resize(pod, 2 * BORDERS[0])
    index.sent(pod, chain_of(1))
    index.sent(pod, chain_of(2))
    index.sent(pod, chain_of(1))
    index.sent(pod, chain_of(3))

    assert index.match(chain_of(1))
    assert not index.match(chain_of(2))


def test_outputs_take_room_too() -> None:
    index = PrefixIndex()
    pod = index.join()
    index.resize(pod, 10_000)
    index.sent(pod, chain_of(1))
    index.filled(pod, 9_900)

    assert not index.match(chain_of(1))


def test_a_new_process_has_nothing_and_a_slot_is_used_again() -> None:
    index = PrefixIndex()
    a, b = index.join(), index.join()
    index.sent(a, chain_of(1))
    index.sent(b, chain_of(1))
    index.forget(a)
    assert dict(index.match(chain_of(1))) == {b: BORDERS[0]}

    index.leave(b)
    assert len(index) == 0
    assert index.join() == b


def test_misses_that_engines_report_shrink_the_record_and_the_trust() -> None:
    index = PrefixIndex()
    pod = index.join()
    index.resize(pod, 4 * BORDERS[0])
    index.sent(pod, chain_of(1, 2, 3, 4))
    for _ in range(60):
        index.corrected(pod, predicted_tokens=1000, cached_tokens=0)

    assert index.trust(pod) < 0.1
    assert len(index.match(chain_of(1))) == 0

    for _ in range(300):  # where nothing of little was cached, that is no reason to trust
        index.corrected(pod, predicted_tokens=100, cached_tokens=0)
    assert index.trust(pod) < 0.1

    for _ in range(300):
        index.corrected(pod, predicted_tokens=1000, cached_tokens=1000)
    index.sent(pod, chain_of(1, 2, 3, 4))
    assert index.trust(pod) > 0.9
    assert dict(index.match(chain_of(1, 2, 3, 4))) == {pod: BORDERS[3]}


@pytest.mark.parametrize(
    ("predicted", "counted", "trust", "why"),
    [
        (128, 0, 1.0, "a block that was on the edge is no miss"),
        (1000, 900, 1.0, "less than the way between two borders"),
        (1000, 600, 0.6, "that is missed"),
    ],
)
def test_what_is_off_by_less_than_a_match_is_known_to_is_no_miss(
    predicted: int, counted: int, trust: float, why: str
) -> None:
    index = PrefixIndex()
    pod = index.join()
    for _ in range(200):
        index.corrected(pod, predicted_tokens=predicted, cached_tokens=counted)

    assert index.trust(pod) == pytest.approx(trust, abs=0.01), why


def test_hashes_in_memory_are_bounded_whatever_the_pods(monkeypatch: object) -> None:
    index = PrefixIndex()
    pods = [index.join() for _ in range(100)]
    for pod in pods:
        index.resize(pod, 1e12)
        for at in range(50):
            index.sent(pod, chain_of(*range(at * 1000, at * 1000 + 100)))

    assert len(index) <= module._MOST_HASHES


names = st.lists(st.integers(0, 2), min_size=1, max_size=5)
slots = st.integers(0, 2)


class IndexMachine(RuleBasedStateMachine):
    """Against pods that keep whole prompts: a match is never longer than what was sent, and room is kept."""

    def __init__(self) -> None:
        super().__init__()
        self.index = PrefixIndex()
        self.sent: list[set[tuple[int, ...]]] = [set() for _ in range(3)]
        for slot in range(3):
            assert self.index.join() == slot
            self.index.resize(slot, 8 * BORDERS[0])

    @rule(slot=slots, prompt=names)
    def send(self, slot: int, prompt: list[int]) -> None:
        self.index.sent(slot, chain_of(*prompt))
        self.sent[slot].add(tuple(prompt))
        assert self.index.match(chain_of(*prompt))[slot] == BORDERS[len(prompt) - 1]

    @rule(slot=slots)
    def forget(self, slot: int) -> None:
        self.index.forget(slot)
        self.index.resize(slot, 8 * BORDERS[0])
        self.sent[slot].clear()

    @rule(slot=slots, size=st.integers(0, 3000))
    def fill(self, slot: int, size: int) -> None:
        self.index.filled(slot, size)

    @precondition(lambda self: any(self.sent))
    @rule(prompt=names)
    def match(self, prompt: list[int]) -> None:
        for slot, size in self.index.match(chain_of(*prompt)).items():
            depth = BORDERS.index(size) + 1
            assert any(other[:depth] == tuple(prompt[:depth]) for other in self.sent[slot])

    @invariant()
    def records_and_table_agree(self) -> None:
        held: dict[int, int] = {}
        for slot, record in enumerate(self.index._records):
            assert record is not None
            assert record.used_bytes == sum(map(module._size_of, record.blocks.values())) <= record.capacity_bytes
            for value in record.blocks:
                if value >= 0:
                    held[value] = held.get(value, 0) | 1 << slot
        assert held == self.index._holders


IndexMachine.TestCase.settings = examples(20, stateful_step_count=30)
TestIndex = IndexMachine.TestCase
