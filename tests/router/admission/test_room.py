"""When one more request would only wait in the engine: sequences, prefill, KV cache, each as looks at it teach."""

from math import exp

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidepool_router.admission import Load, Room
from tidepool_router.admission.room import peak_tokens

CAPACITY = 100_000


def busy(requests: int, **more: int) -> Load:
    """An engine in whose queue nothing is known to wait: all have started."""
    return Load(requests, **more)


def room_after(*looks: tuple[int, int], kv_usage: float = 0.5) -> Room:
    """Looks at (running, waiting), with as many sent."""
    room = Room()
    for running, waiting in looks:
        room.looked(busy(running + waiting), running, waiting, kv_usage, None)
    return room


def test_an_engine_that_nobody_has_seen_full_takes_everything() -> None:
    room = room_after((3, 0), (200, 0))

    assert room.unlimited
    assert room.takes(busy(5000), 1, 1)
    assert room.limit(busy(5000)) is None


def test_figures_that_are_missing_teach_nothing() -> None:
    room = Room()
    room.looked(busy(900), None, 700, None, None)
    room.looked(busy(900), 100, None, None, None)

    assert room.unlimited


def test_an_engine_at_its_limit_of_sequences_gets_what_it_runs_and_a_few_more() -> None:
    room = room_after((64, 10), (64, 30), (64, 8))

    assert room.takes(busy(65), 1000, 100)
    assert not room.takes(busy(68), 1000, 100)  # 64, two, and one in 32 of them
    assert room.limit(busy(40)) == 68
    assert room.limit(busy(70)) == 70  # full as it is: one that ends makes room for none


def test_an_idle_engine_always_gets_one() -> None:
    room = room_after((1, 10), (1, 10), (1, 10))
    room.kv_capacity_tokens = 1000

    assert room.takes(Load(), 5000, 5000)


def test_an_engine_busy_with_prefill_gets_what_fills_two_steps() -> None:
    """Few run and many wait, and how many run says nothing of what it could run."""
    room = room_after((40, 3), (3, 9), (5, 9))

    assert room.takes(Load(20, unstarted=1, queued_tokens=12_000), 30_000, 100)  # one alone may be of any size
    assert room.takes(Load(20, unstarted=30, queued_tokens=10_000), 300, 100)
    assert not room.takes(Load(20, unstarted=2, queued_tokens=12_000), 8_000, 100)


def test_an_engine_that_could_run_more_is_given_more() -> None:
    """Answers that do not stream show no first token: then looks alone tell, and a few must do."""
    room = room_after((3, 5))
    sent = 3 + 5
    looks = 0
    while not room.takes(Load(200, unstarted=200, queued_tokens=200_000), 1000, 100):
        while room.takes(Load(sent, unstarted=sent, queued_tokens=1000 * sent), 1000, 100):
            sent += 1
        room.looked(Load(sent, unstarted=sent), sent, 0, None, None)  # it runs all of them
        looks += 1

    assert looks <= 7  # under two seconds at four looks a second


def test_a_smaller_engine_at_the_same_address_is_learned_anew() -> None:
    room = Room()
    room.looked(busy(90), 60, 30, 0.9, CAPACITY)
    room.looked(busy(0), 0, 0, 0.0, CAPACITY // 2)

    assert room.takes(Load(500, held_tokens=1000), 10, 10)


@pytest.mark.parametrize(
    ("held", "expected", "takes", "why"),
    [
        (60_000, 59_000, True, "those that end give back what the others take"),
        (94_000, 20_000, True, "95,000, and 4,200 in case that fewer end than expected"),
        (94_000, 30_000, False, "95,000, and 6,200 in that case"),
        (99_000, 0, False, "it is full"),
        (20_000, 150_000, True, "much is expected, but not at once: 94,000"),
        (20_000, 210_000, False, "all are young: 86,000 before enough of them end, and 42,000 if not"),
    ],
)
def test_the_kv_cache_must_have_room_while_answers_grow(held: int, expected: int, takes: bool, why: str) -> None:
    room = Room()
    room.looked(Load(), 0, 0, 0.0, CAPACITY)

    assert room.takes(Load(10, held_tokens=held, expected_tokens=expected), 1000, 1000) is takes, why


@given(
    requests=st.integers(1, 200),
    held=st.integers(1, 5000),
    mean=st.integers(2, 2000),
    steps=st.integers(0, 4000),
)
def test_the_peak_is_not_below_what_requests_that_end_evenly_use_at_any_time(
    requests: int, held: int, mean: int, steps: int
) -> None:
    """Each step one in `mean` of those that are left ends, and each of the others takes one more token."""
    later = requests * exp(-steps / mean) * (held + steps)

    assert peak_tokens(requests * held, requests * mean) >= later


def test_prefixes_that_are_shared_take_room_once() -> None:
    """Ten agents with one prefix of 20,000 tokens hold 21,000, not 210,000."""
    room = Room()
    ten = Load(10, held_tokens=210_000)
    room.looked(ten, 10, 0, 0.21, CAPACITY)

    assert room.takes(ten, 21_000, 100)
    assert not room.takes(Load(47, held_tokens=987_000), 21_000, 10_000)


@given(
    load=st.builds(Load, st.integers(0, 99), st.integers(0, 9), *[st.integers(0, 90_000)] * 3),
    capacity=st.none() | st.integers(1, 100_000),
    slots=st.integers(1, 99),
)
def test_what_is_taken_at_a_glance_is_taken(load: Load, capacity: int | None, slots: int) -> None:
    room = Room()
    room.looked(load, slots, 1, None, capacity)
    tokens = load.queued_tokens + load.held_tokens + load.expected_tokens + 30

    assert not room.surely_takes(load.requests, tokens) or room.takes(load, 10, 20)


@given(
    looks=st.lists(st.tuples(st.integers(0, 300), st.integers(0, 300), st.integers(0, 5)), max_size=20),
    slots=st.integers(1, 128),
)
def test_whatever_was_seen_no_engine_of_sequences_idles_and_its_queue_stays_short(
    looks: list[tuple[int, int, int]], slots: int
) -> None:
    """After any history, requests of 500 tokens come without end to an engine that runs `slots` at once."""
    room = Room()
    for running, waiting, unstarted in looks:
        room.looked(Load(running + waiting, unstarted=unstarted), running, waiting, None, None)
    sent = 0
    for _ in range(12):
        sent = fill(room, sent, slots)
        running = min(slots, sent)
        room.looked(Load(sent, unstarted=sent - running), running, sent - running, None, None)
        sent = slots // 2  # the others have ended before the next look

    sent = fill(room, sent, slots)
    assert slots <= sent <= slots + 3 + slots // 32


def fill(room: Room, sent: int, slots: int) -> int:
    """Send until the room says no, or far too much."""
    while sent < 2_000:
        unstarted = max(0, sent - slots)
        if not room.takes(Load(sent, unstarted=unstarted, queued_tokens=500 * unstarted), 500, 100):
            break
        sent += 1
    return sent
