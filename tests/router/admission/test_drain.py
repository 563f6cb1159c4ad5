"""The measured drain rate and the times that are told from it."""

from itertools import pairwise

import pytest

from tidepool_router.admission import DrainRate


def drained(rate: float, seconds: float, step: float = 0.1) -> DrainRate:
    drain = DrainRate()
    drain.waiting(0.0)
    now = 0.0
    while now < seconds:
        now += step
        drain.left(round(rate * step), now, empty=False)
    return drain


def test_nothing_is_known_before_something_has_drained() -> None:
    assert DrainRate().seconds(1000) is None


def test_the_rate_is_what_leaves_while_something_waits() -> None:
    drain = drained(rate=5000, seconds=5.0)

    assert drain.tokens_per_second == pytest.approx(5000, rel=0.01)
    assert drain.seconds(10_000) == pytest.approx(2.0, rel=0.01)


def test_a_time_without_a_queue_does_not_count() -> None:
    """At night little is asked for, which says nothing of what the pods can do."""
    drain = DrainRate()
    now = 0.0
    for _ in range(20):
        drain.waiting(now)
        drain.left(500, now + 0.1, empty=True)
        now += 60.0

    assert drain.tokens_per_second == pytest.approx(5000, rel=0.01)


def test_the_rate_follows_pods_that_come() -> None:
    drain = drained(rate=1000, seconds=30.0)
    now = 30.0
    for _ in range(400):
        now += 0.1
        drain.left(400, now, empty=False)

    assert drain.tokens_per_second == pytest.approx(4000, rel=0.1)  # 94 % of the way after four half-lives


@pytest.mark.parametrize(
    ("held_tokens", "low", "high", "why"),
    [
        (20_000, 2.0, 4.0, "the second half of the 4 s in which it drains"),
        (10, 1.0, 1.0, "sooner is of no use"),
        (10_000_000, 59.9, 60.0, "later nobody waits for"),
    ],
)
def test_retry_after_is_when_there_is_room_again(held_tokens: int, low: float, high: float, why: str) -> None:
    drain = drained(rate=5000, seconds=5.0)

    told = [drain.retry_after_seconds(held_tokens) for _ in range(100)]

    assert min(told) >= low * 0.99, why
    assert max(told) <= high * 1.01, why


def test_who_is_refused_together_does_not_come_back_together() -> None:
    drain = drained(rate=5000, seconds=5.0)

    told = sorted(drain.retry_after_seconds(100_000) for _ in range(100))

    assert told[-1] - told[0] > 9.0  # of the 10 s between half and the whole of the drain
    assert max(after - before for before, after in pairwise(told)) < 0.5


def test_without_a_rate_a_moment_is_told() -> None:
    assert 1.0 <= DrainRate().retry_after_seconds(1 << 40) <= 2.0
