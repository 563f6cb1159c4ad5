"""Bounds by the clock: which schedule holds at a time, through changes of the clock, and what decisions say."""

from datetime import datetime, timedelta
from itertools import takewhile
from zoneinfo import ZoneInfo

import pytest
from cronsim import CronSim
from hypothesis import given
from hypothesis import strategies as st

from scripted.examples import examples
from tidepool_api.scaling import Scaling
from tidepool_operator.scaling.decide import decide
from tidepool_operator.scaling.model import (
    Demand,
    Known,
    LivePod,
    Memory,
    PodReading,
    PodState,
    PoolReading,
    ScalingSpec,
    Schedule,
)
from tidepool_operator.scaling.schedules import began, bounded, faults
from tidepool_operator.scaling.spec import from_api

BERLIN = "Europe/Berlin"
DAY = Schedule("0 8 * * 1-5", BERLIN, min_replicas=4)
NIGHT = Schedule("0 20 * * *", BERLIN, min_replicas=0)


def at(text: str, zone: str = BERLIN, fold: int = 0) -> float:
    return datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(zone), fold=fold).timestamp()


def bounds(now: float, *schedules: Schedule, lead: float = 0.0) -> tuple[int, int]:
    held = bounded(now, ScalingSpec(1, 8, schedules=schedules), lead)
    return held.min_replicas, held.max_replicas


@pytest.mark.parametrize(
    ("now", "lowest", "why"),
    [
        ("2026-03-23T07:59:59", 0, "the last evening's holds until the morning's begins"),
        ("2026-03-23T08:00:00", 4, "it holds from its very minute on"),
        ("2026-03-23T20:00:00", 0, "the one that began last decides"),
        ("2026-03-28T12:00:00", 0, "no morning on a Saturday: Friday evening's holds on"),
    ],
)
def test_the_schedule_that_began_last_decides(now: str, lowest: int, why: str) -> None:
    assert bounds(at(now), DAY, NIGHT) == (lowest, 8), why


def test_a_schedule_that_ends_leaves_the_bound_to_the_one_before_it() -> None:
    lunch = Schedule("0 12 * * *", BERLIN, min_replicas=6, duration_seconds=3600)

    assert bounds(at("2026-03-23T12:59:59"), DAY, lunch) == (6, 8)
    assert bounds(at("2026-03-23T13:00:00"), DAY, lunch) == (4, 8)
    assert bounds(at("2026-03-23T13:00:00"), lunch) == (1, 8)


def test_each_bound_has_its_own_schedule() -> None:
    cheap = Schedule("0 18 * * *", BERLIN, max_replicas=3)

    assert bounds(at("2026-03-23T19:00"), DAY, cheap) == (3, 3), "the maximum holds where the two contradict"
    assert bounds(at("2026-03-23T21:00"), DAY, NIGHT, cheap) == (0, 3)


def test_of_two_that_begin_together_the_later_in_the_list_decides() -> None:
    low, high = Schedule("0 8 * * *", min_replicas=2), Schedule("0 8 * * *", min_replicas=5)
    now = at("2026-03-23T09:00", "UTC")

    assert (bounds(now, low, high), bounds(now, high, low)) == ((5, 8), (2, 8))


@pytest.mark.parametrize(
    ("cron", "now", "fold", "start", "why"),
    [
        ("30 2 * * *", "2026-03-29T04:00", 0, "2026-03-29T03:00", "02:30 is left out: it begins right after"),
        (
            "30 2 * * *",
            "2026-10-25T02:45",
            0,
            "2026-10-25T02:30",
            "the hour comes twice: it begins the first time",
        ),
        ("30 2 * * *", "2026-10-25T02:15", 1, "2026-10-25T02:30", "and is not over when the clock is put back"),
        ("30 2 * * *", "2026-10-25T02:45", 1, "2026-10-25T02:30", "nor does it begin again"),
        ("0 8 * * *", "2026-03-29T09:00", 0, "2026-03-29T08:00", "the clock on the wall counts, in summer"),
        ("0 8 * * *", "2026-10-25T09:00", 0, "2026-10-25T08:00", "as in winter"),
    ],
)
def test_a_start_follows_the_clock_on_the_wall(cron: str, now: str, fold: int, start: str, why: str) -> None:
    assert began(Schedule(cron, BERLIN), at(now, fold=fold)) == at(start), why


# With days within which each has begun.
CRONS = {
    "0 8 * * 1-5": 4,
    "30 2 * * *": 2,
    "15,45 1-3 * * *": 2,
    "0 */6 * * *": 1,
    "*/20 * * * *": 1,
    "5 0 1 * *": 32,
    "59 23 * * SUN": 8,
}
crons = st.sampled_from(sorted(CRONS))
zones = st.sampled_from(["UTC", BERLIN, "America/New_York", "Australia/Lord_Howe", "Asia/Kolkata"])
# Days about the changes of the clock in those zones, and one without.
days = st.sampled_from(
    ["2026-03-08", "2026-03-29", "2026-10-25", "2026-11-01", "2026-04-05", "2026-10-04", "2026-07-01"]
)
minutes = st.integers(-180, 36 * 60)


@examples(20)
@given(crons, zones, days, minutes, st.integers(0, 59))
def test_the_last_start_is_the_last_of_all_counted_forwards(
    cron: str, zone: str, day: str, minute: int, second: int
) -> None:
    now = at(day, zone) + 60 * minute + second
    forwards = CronSim(cron, datetime.fromtimestamp(now, ZoneInfo(zone)) - timedelta(days=CRONS[cron]))
    starts = list(takewhile(lambda at: at <= now, (start.timestamp() for start in forwards)))

    assert began(Schedule(cron, zone), now) == starts[-1]


schedules = st.builds(
    Schedule,
    crons,
    zones,
    st.one_of(st.none(), st.integers(0, 9)),
    st.one_of(st.none(), st.integers(0, 9)),
    st.sampled_from([60.0, 3600.0, 86_400.0, float("inf")]),
)


@given(st.lists(schedules, max_size=4).map(tuple), days, minutes, st.floats(0, 7200), st.integers(0, 12))
def test_decisions_stay_within_the_bounds_of_the_time(
    given_schedules: tuple[Schedule, ...], day: str, minute: int, lead: float, replicas: int
) -> None:
    spec = ScalingSpec(1, 8, schedules=given_schedules)
    now = at(day) + 60 * minute
    memory = Memory(startups=(("a", lead),))

    decision, _ = decide(now, PoolReading("n/p"), spec, replicas, memory)

    held, ahead = bounded(now, spec, 0.0), bounded(now, spec, lead)
    assert held.min_replicas <= ahead.min_replicas <= ahead.max_replicas == held.max_replicas
    assert ahead.min_replicas <= decision.replicas <= held.max_replicas


def test_a_raised_minimum_is_met_a_start_up_ahead() -> None:
    early = at("2026-03-23T07:57:00")

    assert bounds(early, DAY, NIGHT, lead=179) == (0, 8)
    assert bounds(early, DAY, NIGHT, lead=180) == (4, 8)
    short = Schedule("58 7 * * *", BERLIN, min_replicas=5, duration_seconds=60)
    assert bounds(early, short, lead=600) == (5, 8), "also when it is over before a pod could be ready"


def test_a_lowered_maximum_is_not_met_ahead() -> None:
    cheap = Schedule("0 8 * * *", BERLIN, max_replicas=2, duration_seconds=3600)

    assert bounds(at("2026-03-23T07:59"), cheap, lead=600) == (1, 8)


def reading(ready: int) -> PoolReading:
    idle = Known(0.0)
    pod = PodReading("a", PodState.READY, idle, idle, idle, idle, idle, idle, idle)
    return PoolReading("n/p", (pod,) * ready, Demand(idle, idle, idle, gateways=1))


def test_a_decision_names_the_schedule_that_binds() -> None:
    spec = ScalingSpec(0, 8, schedules=(DAY, NIGHT))
    memory = Memory(startups=(("a", 225.0),))

    raised, _ = decide(at("2026-03-23T07:58"), reading(1), spec, 1, memory)
    held, _ = decide(at("2026-03-23T12:00"), reading(4), spec, 4, memory)

    assert raised.message == (
        '1 -> 4: minReplicas is 4, bounded by schedule "0 8 * * 1-5" Europe/Berlin from 08:00 on, 120 s ahead'
    )
    assert (raised.reason, raised.binding) == ("BelowMinimum", "bounds")
    assert held.reason == "WithinTargets"
    assert held.message.endswith(
        '0 would do, minReplicas is 4, bounded by schedule "0 8 * * 1-5" Europe/Berlin from 08:00 on'
    )


def test_requests_do_not_wake_a_pool_that_a_schedule_closes() -> None:
    closed = Schedule("0 20 * * *", BERLIN, min_replicas=0, max_replicas=0, duration_seconds=36_000)
    asked = PoolReading("n/p", demand=Demand(Known(3.0), Known(0.0), Known(0.0), gateways=1))

    decision, _ = decide(at("2026-03-23T21:00"), asked, ScalingSpec(0, 8, schedules=(closed,)), 0, Memory())

    assert (decision.replicas, decision.reason) == (0, "AtMaximum")
    assert "maxReplicas is 0, bounded by schedule" in decision.message


@pytest.mark.parametrize(
    ("schedule", "said"),
    [
        (
            {"cron": "0 25 * * *"},
            "spec.scaling.schedules[0].cron: '0 25 * * *' never begins (bad hour); write it like 0 8 * * 1-5",
        ),
        (
            {"cron": "0 0 31 2 *"},
            "spec.scaling.schedules[0].cron: '0 0 31 2 *' never begins (bad day-of-month); write it like",
        ),
        (
            {"cron": "0 8 * * *", "timeZone": "Europe/Berln"},
            "spec.scaling.schedules[0].timeZone: Europe/Berln is no known time zone; write one like Europe/Berlin",
        ),
        (
            {"cron": "0 8 * * *", "timeZone": "Europe"},
            "spec.scaling.schedules[0].timeZone: Europe is no known time",
        ),
    ],
)
def test_a_schedule_that_never_begins_is_named(schedule: dict[str, str], said: str) -> None:
    scaling = Scaling.model_validate({"maxReplicas": 4, "schedules": [{**schedule, "minReplicas": 1}]})

    assert [fault for fault in faults(scaling) if fault.startswith(said)]
    with pytest.raises(ValueError, match=r"spec\.scaling\.schedules"):
        from_api(scaling)


def test_a_schedule_arrives_in_its_units() -> None:
    written = {"cron": "0 8 * * *", "timeZone": BERLIN, "maxReplicas": 6, "duration": "10h"}

    spec = from_api(Scaling.model_validate({"maxReplicas": 4, "schedules": [written]}))

    assert spec.schedules == (Schedule("0 8 * * *", BERLIN, None, 6, 36_000.0),)


def test_start_ups_are_what_the_pool_itself_took() -> None:
    """Without any the default of two minutes is the lead."""
    spec = ScalingSpec(0, 8, schedules=(DAY, NIGHT))

    early, _ = decide(at("2026-03-23T07:57:59"), reading(1), spec, 1, Memory())
    late, _ = decide(at("2026-03-23T07:58:00"), reading(1), spec, 1, Memory())

    assert (early.replicas, late.replicas) == (1, 4)
    assert LivePod("a", PodState.READY, 3.0).startup_seconds == 3.0
