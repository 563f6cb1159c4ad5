"""A pod that fails is left out for a while and comes back slowly."""

import pytest

from tidepool_router.errors import FailureKind
from tidepool_router.fleet.ejection import Ejection


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
            assert ejection.failed("http_5xx", 0.0) is False
        ejection.succeeded(0.0)

    assert ejection.allows(0.0, in_flight=1000)


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
    allowed = []
    while ejection.on_trial:
        allowed.append(next(n for n in range(200) if not ejection.allows(5.0, in_flight=n)))
        ejection.succeeded(5.0)

    assert allowed == [1, 2, 4, 8, 16, 32, 64]
    assert ejection.allows(5.0, in_flight=10_000)


def test_a_pod_that_came_all_the_way_back_has_a_clean_record() -> None:
    ejection = Ejection()
    for now in (0.0, 1.0, 3.0):
        ejection.failed("connect", now)
    while ejection.on_trial:
        ejection.succeeded(10.0)
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
