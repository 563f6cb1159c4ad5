"""The token bucket, whatever is taken when."""

from hypothesis import given
from hypothesis import strategies as st

from tidepool_router.keys import Bucket

AMOUNTS = st.floats(min_value=0.0, max_value=1e6)
STEPS = st.lists(st.tuples(st.floats(min_value=0.0, max_value=1e4), AMOUNTS), max_size=60)
SIZES = st.floats(min_value=0.01, max_value=1e6)


@given(SIZES, STEPS)
def test_no_more_is_taken_than_a_bucketful_and_the_rate_but_for_one_excess(
    size: float, steps: list[tuple[float, float]]
) -> None:
    bucket, now, taken, largest = Bucket(size, 0.0), 0.0, 0.0, 0.0
    for pause, amount in steps:
        now += pause
        if bucket.wait_seconds(amount, now) == 0.0:
            bucket.take(amount)
            taken += amount
            largest = max(largest, amount)

    assert taken <= (size + size / 60.0 * now + max(0.0, largest - size)) * (1 + 1e-4) + 1e-6


@given(SIZES, STEPS, AMOUNTS)
def test_the_wait_that_is_told_is_enough(size: float, steps: list[tuple[float, float]], amount: float) -> None:
    bucket, now = Bucket(size, 0.0), 0.0
    for pause, taken in steps:
        now += pause
        if bucket.wait_seconds(taken, now) == 0.0:
            bucket.take(taken)
    wait = bucket.wait_seconds(amount, now)

    assert bucket.wait_seconds(amount, now + wait * (1 + 1e-9)) == 0.0


@given(SIZES, AMOUNTS)
def test_what_is_given_back_can_be_taken_and_no_more(size: float, amount: float) -> None:
    bucket = Bucket(size, 0.0)
    bucket.take(amount)
    bucket.take(-amount)
    assert bucket.wait_seconds(size, 0.0) == 0.0
    bucket.take(-size)
    bucket.take(size)

    assert bucket.wait_seconds(size, 0.0) > 0.0


def test_a_clock_that_steps_back_gives_nothing() -> None:
    bucket = Bucket(60.0, 100.0)
    bucket.take(60.0)
    assert bucket.wait_seconds(1.0, 50.0) > 0.0
    assert bucket.wait_seconds(1.0, 101.0) == 0.0


def test_another_size_keeps_the_share_that_is_used_up() -> None:
    bucket = Bucket(100.0, 0.0)
    bucket.take(50.0)
    bucket.resize(10.0)
    assert bucket.wait_seconds(5.0, 0.0) == 0.0
    assert bucket.wait_seconds(6.0, 0.0) > 0.0
