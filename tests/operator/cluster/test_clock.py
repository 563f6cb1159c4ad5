"""The API server's clock: taken where this machine's is wrong, and let be where the two agree."""

from email.utils import formatdate

import pytest

from tidepool_operator.cluster.clock import ServerClock

SERVER = 1_700_000_000.0


class Local:
    """This machine's clock, `ahead` of the server's."""

    def __init__(self, ahead: float) -> None:
        self.ahead = ahead
        self.passed = 0.0

    def __call__(self) -> float:
        return SERVER + self.passed + self.ahead


def date(seconds: float) -> str:
    return formatdate(seconds, usegmt=True)


@pytest.mark.parametrize("ahead", [7200.0, -7200.0, 30.0])
def test_another_time_is_taken_from_the_first_answer_on(ahead: float) -> None:
    local = Local(ahead)
    clock = ServerClock(local)
    clock.heard(date(SERVER), clock.begin())
    local.passed += 100.0

    assert abs(clock.now() - (SERVER + 100.0)) < 1.0


def test_what_a_header_cannot_tell_apart_is_the_same_time() -> None:
    local = Local(3.0)
    clock = ServerClock(local)
    clock.heard(date(SERVER), clock.begin())

    assert clock.now() == local()


def test_time_does_not_jitter_with_the_answers() -> None:
    local = Local(7200.0)
    clock = ServerClock(local)
    found = []
    for _ in range(50):
        clock.heard(date(SERVER + local.passed), clock.begin())
        found.append(clock.now() - local.passed)
        local.passed += 0.37

    assert max(found) - min(found) < 1e-6


def test_a_clock_that_is_set_right_is_believed_again() -> None:
    local = Local(7200.0)
    clock = ServerClock(local)
    clock.heard(date(SERVER), clock.begin())
    local.ahead = 0.0
    clock.heard(date(SERVER), clock.begin())

    assert clock.now() == local()


@pytest.mark.parametrize(
    ("header", "took", "why"),
    [
        (None, 0.0, "an answer without a date"),
        ("yesterday", 0.0, "no date"),
        (date(SERVER - 60.0), 30.0, "an answer that took long says little of when it was written"),
        (date(SERVER - 60.0), -30.0, "the clock was set while the answer came"),
    ],
)
def test_what_says_nothing_of_the_time_changes_nothing(header: str | None, took: float, why: str) -> None:
    local = Local(0.0)
    clock = ServerClock(local)
    begun = clock.begin()
    local.passed += took
    clock.heard(header, begun)

    assert clock.now() == local(), why
