"""A host that fails again and again is left alone, longer each time."""

import pytest

from tidepool_router.workflow.breakers import BREAKS_AFTER, CAP_SECONDS, FIRST_SECONDS, Breakers
from tidepool_router.workflow.failures import StepFailed


def failing(times: int, now: float = 0.0) -> Breakers:
    breakers = Breakers()
    for _ in range(times):
        breakers.count("tool:80", now, failed=True)
    return breakers


def test_a_breaker_opens_after_failures_in_a_row_alone() -> None:
    breakers = failing(BREAKS_AFTER - 1)
    breakers.count("tool:80", 0.0, failed=False)
    breakers.count("tool:80", 0.0, failed=True)

    breakers.require("tool:80", 0.0)


def test_one_call_finds_out_whether_the_host_is_back_and_the_others_wait_for_it() -> None:
    breakers = failing(BREAKS_AFTER)
    with pytest.raises(StepFailed, match="left alone for 10 s"):
        breakers.require("tool:80", 0.0)
    breakers.require("other:80", 0.0)

    breakers.require("tool:80", FIRST_SECONDS)
    with pytest.raises(StepFailed):
        breakers.require("tool:80", FIRST_SECONDS)
    breakers.count("tool:80", FIRST_SECONDS, failed=False)
    breakers.require("tool:80", FIRST_SECONDS)


@pytest.mark.parametrize(("more", "seconds"), [(1, 20.0), (2, 40.0), (100, CAP_SECONDS)])
def test_a_host_that_stays_away_is_left_alone_longer_each_time(more: int, seconds: float) -> None:
    breakers = failing(BREAKS_AFTER + more)

    with pytest.raises(StepFailed):
        breakers.require("tool:80", seconds - 0.1)
    breakers.require("tool:80", seconds)
