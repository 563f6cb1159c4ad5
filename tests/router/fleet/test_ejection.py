"""A pod that fails is left out for a while and comes back slowly."""

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from scripted.examples import examples
from tidepool_router.errors import FailureKind
from tidepool_router.fleet.ejection import Ejection

KINDS: tuple[FailureKind, ...] = ("connect", "first_byte_timeout", "reset", "http_5xx")


def come_back(ejection: Ejection, now: float) -> list[int]:
    """Let everything go well until the pod is trusted; how many requests it could have at each step."""
    allowed = []
    while ejection.on_trial:
        allowed.append(next(n for n in range(200) if not ejection.allows(now, in_flight=n)))
        ejection.succeeded(now)
        now += 0.25
    return allowed


@pytest.mark.parametrize(
    ("kind", "failures"),
    [("connect", 1), ("first_byte_timeout", 2), ("reset", 3), ("http_5xx", 5)],
)
def test_how_many_failures_in_a_row_eject(kind: FailureKind, failures: int) -> None:
    ejection = Ejection()

    verdicts = [ejection.failed(kind, 0.0) for _ in range(failures)]

    assert verdicts == [False] * (failures - 1) + [True]
    assert not ejection.allows(0.5, in_flight=0)


def test_a_success_between_failures_wipes_them() -> None:
    ejection = Ejection()
    for _ in range(20):
        for _ in range(4):
            assert ejection.failed("http_5xx", 0.0, usual_share=0.8) is False
        ejection.succeeded(0.0)

    assert ejection.allows(0.0, in_flight=1000)


def test_a_pod_that_fails_every_other_request_is_ejected_though_never_five_in_a_row() -> None:
    """It answers its errors at once, so it is always the least loaded and would get most of the traffic."""
    ejection = Ejection()
    for _ in range(40):
        if ejection.failed("http_5xx", 0.0):
            return
        ejection.succeeded(0.0)

    pytest.fail("still trusted after 40 failures of 80")


@pytest.mark.parametrize(
    ("failures_of_ten", "usual_share", "why"),
    [(1, 0.0, "a tenth is below the limit"), (4, 0.4, "all pods fail as often: the requests are at fault")],
)
def test_a_pod_that_fails_no_more_than_is_usual_stays(failures_of_ten: int, usual_share: float, why: str) -> None:
    ejection = Ejection()
    for number in range(1000):
        if number % 10 < failures_of_ten:
            assert ejection.failed("http_5xx", 0.0, usual_share) is False, why
        else:
            ejection.succeeded(0.0)


def test_ejections_grow_from_one_to_thirty_seconds() -> None:
    ejection = Ejection()
    now, spans = 100.0, []
    for _ in range(8):
        ejection.failed("connect", now)
        spans.append(ejection.until - now)
        now = ejection.until

    assert spans == [1, 2, 4, 8, 16, 30, 30, 30]


def test_failures_of_requests_sent_before_do_not_lengthen_it() -> None:
    ejection = Ejection()
    ejection.failed("connect", 0.0)
    for _ in range(100):
        assert ejection.failed("connect", 0.1) is False

    assert ejection.until == 1.0


def test_the_way_back_is_one_request_then_twice_as_many() -> None:
    ejection = Ejection()
    ejection.failed("connect", 0.0)

    assert come_back(ejection, 5.0) == [1, 2, 4, 8, 16, 32, 64]
    assert ejection.allows(5.0, in_flight=10_000)


def test_a_hundred_quick_answers_are_one_step_back() -> None:
    """A pod that answers within a millisecond must not be back within ten."""
    ejection = Ejection()
    ejection.failed("connect", 0.0)
    for _ in range(100):
        ejection.succeeded(1.0)

    assert ejection.allows(1.0, in_flight=1)
    assert not ejection.allows(1.0, in_flight=2)


def test_a_pod_that_came_all_the_way_back_has_a_clean_record() -> None:
    ejection = Ejection()
    for now in (0.0, 1.0, 3.0):
        ejection.failed("connect", now)
    come_back(ejection, 10.0)
    ejection.failed("connect", 20.0)

    assert ejection.until == 21.0


def test_one_failure_on_the_way_back_ejects_again_and_longer() -> None:
    ejection = Ejection()
    ejection.failed("connect", 0.0)
    ejection.succeeded(1.5)

    assert ejection.failed("http_5xx", 1.6) is True
    assert ejection.until == pytest.approx(3.6)


def test_a_late_success_of_a_request_sent_before_does_not_bring_it_back() -> None:
    ejection = Ejection()
    ejection.failed("connect", 0.0)
    ejection.succeeded(0.5)

    assert not ejection.allows(1.0, in_flight=1)


class EjectionMachine(RuleBasedStateMachine):
    """Any order of answers: never out for good, never back at once, never out for what is usual."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 1000.0
        self.ejection = Ejection()
        self.ejected_at = float("-inf")
        self.successes_since = 0
        self.in_a_row = 0

    def allowance(self) -> int:
        """Requests that it may have at once; 65 stands for any number."""
        return next((n for n in range(65) if not self.ejection.allows(self.now, n)), 65)

    @rule(seconds=st.floats(0, 40))
    def time_passes(self, seconds: float) -> None:
        before = self.allowance()
        self.now += seconds
        assert self.allowance() >= before

    @rule(kind=st.sampled_from(KINDS), usual=st.floats(0, 1))
    def fail(self, kind: FailureKind, usual: float) -> None:
        out = self.now < self.ejection.until
        trial = self.ejection.on_trial
        ejected = self.ejection.failed(kind, self.now, usual)
        self.in_a_row += not out
        assert not (out and ejected)
        assert ejected or out or not trial, "one failure on trial is enough"
        assert ejected or out or kind != "connect", "so is one refused connection"
        if ejected:
            assert 1.0 <= self.ejection.until - self.now <= 30.0
            self.ejected_at, self.successes_since, self.in_a_row = self.now, 0, 0
        elif not out:
            assert self.in_a_row < 5, "five in a row eject whatever they are"

    @rule()
    def succeed(self) -> None:
        before = self.allowance()
        self.ejection.succeeded(self.now)
        if self.now >= self.ejection.until:
            self.successes_since += 1
            self.in_a_row = 0
        assert before <= self.allowance() <= max(1, 2 * before)

    @precondition(lambda self: self.ejection.on_trial)
    @rule()
    def a_new_process_comes(self) -> None:
        self.ejection.forgive()
        self.ejected_at, self.in_a_row = float("-inf"), 0
        assert self.allowance() == 65

    @invariant()
    def it_is_out_for_at_most_thirty_seconds(self) -> None:
        assert self.ejection.until <= self.ejected_at + 30.0 or self.ejected_at == float("-inf")
        if self.now >= self.ejection.until:
            assert self.allowance() >= 1

    @invariant()
    def trust_takes_seven_steps_and_their_time(self) -> None:
        if self.ejected_at > float("-inf") and not self.ejection.on_trial:
            assert self.successes_since >= 7
            assert self.now - self.ejected_at >= 1.0 + 6 * 0.25

    @invariant()
    def the_share_is_one(self) -> None:
        assert 0.0 <= self.ejection.failure_share <= 1.0


EjectionMachine.TestCase.settings = examples(20, stateful_step_count=60)
TestEjectionMachine = EjectionMachine.TestCase
