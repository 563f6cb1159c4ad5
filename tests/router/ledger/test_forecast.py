"""The forecast of KV use against the plainest model there is: a step at a time, a token a request."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidepool_router.ledger import foresee

_STEP, _MORE = 0.01, 0.001
requests = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 50)), max_size=8)


def played(used: int, running: list[tuple[int, int]], capacity: int) -> tuple[float | None, int]:
    """When as much as the capacity was in use, in seconds at the end of a step, and the highest use."""
    live = [[remaining, own] for remaining, own in running]
    peak, seconds, exhausted = used, 0.0, 0.0 if used >= capacity else None
    while live:
        over = [one for one in live if one[0] == 0]
        used -= sum(own for _, own in over)
        live = [one for one in live if one[0] > 0]
        seconds += _STEP + len(live) * _MORE
        for one in live:
            one[0] -= 1
            one[1] += 1
        used += len(live)
        peak = max(peak, used)
        if exhausted is None and used >= capacity and live:
            exhausted = seconds
    return exhausted, peak


@given(requests, st.integers(0, 100), st.integers(1, 600))
def test_it_is_what_comes_when_everything_goes_as_expected(
    running: list[tuple[int, int]], beyond: int, capacity: int
) -> None:
    used = beyond + sum(own for _, own in running)
    forecast = foresee(used, running, capacity, _STEP, _MORE)
    exhausted, peak = played(used, running, capacity)

    assert forecast.peak_tokens == peak
    assert (forecast.exhausted_seconds is None) == (exhausted is None)
    if forecast.exhausted_seconds is not None and exhausted is not None:
        # Room that ends within a step is used up in that step.
        assert exhausted - _STEP - 8 * _MORE - 1e-9 <= forecast.exhausted_seconds <= exhausted + 1e-9


@pytest.mark.parametrize(
    ("used", "running", "capacity", "seconds", "why"),
    [
        (800, [(500, 400), (500, 400)], 1000, 1.0, "200 tokens of room, two a step of 10 ms"),
        (800, [(50, 600), (500, 200)], 1000, None, "the first one's end gives back more than the other takes"),
        (800, [(50, 100), (500, 700)], 1000, 3.0, "50 steps of two, an end that leaves 250, 250 steps of one"),
        (800, [(0, 800)], 1000, None, "it is about to end"),
        (1000, [(10, 1000)], 1000, 0.0, "it is so now"),
        (800, [], 1000, None, "nobody grows"),
    ],
)
def test_exhaustion(
    used: int, running: list[tuple[int, int]], capacity: int, seconds: float | None, why: str
) -> None:
    assert foresee(used, running, capacity, 0.01).exhausted_seconds == pytest.approx(seconds), why


def test_the_order_of_the_requests_does_not_matter() -> None:
    running = [(30, 10), (5, 200), (80, 40)]

    assert foresee(250, running, 400, _STEP) == foresee(250, running[::-1], 400, _STEP)
