"""Calls that runs will make soon: what of them is announced, and when."""

import math
import random
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scripted.examples import examples
from tidepool_router.workflow.core.coming import (
    HORIZON_SECONDS,
    MOST_CALLS,
    SPAN_SECONDS,
    Course,
    Stay,
    announced,
    course,
)
from tidepool_router.workflow.core.plan import Plan
from tidepool_router.workflow.core.profiles import Figure, Profiles
from tidepool_router.workflow.core.run import Entry, Run
from tidepool_router.workflow.core.states import Effect, Ending, Key, Output, Phase
from tidepool_router.workflow.foretelling import LOOK_SECONDS, MOST_RUNS, Foretelling
from workflows.graphs import SUB, Rim, planned, workflows

DONE = Ending(Phase.SUCCEEDED, output=Output("x", None, 100))


def asks(name: str, *pools: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "llm": {"pools": [{"name": pool} for pool in pools or ("p",)]}, **more}


def taking(workflow: str = "test", **seconds: float) -> Profiles:
    """Steps that have taken so long, seen often."""
    profiles = Profiles()
    for name, each in seconds.items():
        for _ in range(2000):
            profiles.worked(workflow, name, tokens=100, seconds=each, now=0.0)
    return profiles


def often(profiles: Profiles, step: str, units: int) -> Profiles:
    for _ in range(2000):
        profiles.ended("test", step, units, 0.0)
    return profiles


def begun(plan: Plan) -> Run:
    run = Run(plan, deadline=3600.0)
    run.begin(0.0)
    return run


def told(
    plan: Plan,
    profiles: Profiles,
    runs: int = 10,
    now: float = 0.0,
    ended: Sequence[str] = (),
    began: Mapping[Key, float] | None = None,
    plans: Mapping[str, Plan] | None = None,
) -> dict[str, int]:
    """What so many runs announce of which these steps have ended."""
    run = begun(plan)
    for name in ended:
        run.ended(Key(name), DONE, now)
    return announced([course(run, plans or {}, profiles, began or {}, now)] * runs, now)


TWO = planned({"name": "tool"}, asks("b", depends="tool"))
TWICE = planned(asks("a"), asks("b", depends="a"))
APART = planned(asks("a", "q"), asks("b", depends="a"))
EITHER = planned({"name": "tool"}, asks("b", "p", "q", depends="tool"))
MANY = planned({"name": "tool"}, asks("b", depends="tool", withItems=[1] * 6, maxParallel=2))
FLOWS = planned(
    {"name": "tool", "withItems": [1] * 6, "maxParallel": 1},
    asks("b", depends="tool", withParam="{{ steps.tool.results }}"),
)
INNER = replace(planned({"name": "tool"}, asks("i", "deep", depends="tool")), name="inner")
OUTER = planned({"name": "first"}, {"name": "sub", "depends": "first", "workflow": {"name": "inner"}})
CHOOSES = planned(
    {"name": "tool"},
    {"name": "look", "depends": "tool", "choose": {"pools": [{"name": "p"}], "among": ["find"]}},
    {"name": "find"},
)


@pytest.mark.parametrize(
    ("plan", "profiles", "more", "expected", "why"),
    [
        (TWO, taking(tool=30.0, b=20.0), {}, {"p": 10}, "all of them arrive together"),
        (TWO, taking(tool=30.0, b=20.0), {"runs": 0}, {}, "nobody runs"),
        (TWO, taking(tool=300.0, b=20.0), {}, {}, "a pod that is asked for later would be there in time"),
        (TWO, taking(tool=30.0, b=1.0), {}, {"p": 1}, "what is short finds a place soon: a tenth of ten seconds"),
        (TWO, taking(tool=30.0, b=20.0), {"ended": ["tool"]}, {}, "they are in flight, and count there"),
        (TWICE, taking(a=20.0, b=20.0), {}, {}, "the second call takes the place of the first"),
        (APART, taking(a=20.0, b=20.0), {}, {"p": 10}, "the first call is another pool's"),
        (TWO, often(taking(tool=30.0, b=20.0), "b", 0), {}, {}, "a step that never ran"),
        (MANY, often(taking(tool=30.0, b=20.0), "b", 6), {}, {"p": 20}, "two items at once"),
        (
            FLOWS,
            often(taking(tool=20.0, b=20.0), "b", 6),
            {},
            {"p": 10},
            "items flow on from the first, one at a time",
        ),
        (
            FLOWS,
            often(taking(tool=20.0, b=60.0), "b", 6),
            {},
            {"p": 30},
            "three come while one is worked on",
        ),
        (FLOWS, often(taking(tool=130.0, b=20.0), "b", 6), {}, {}, "the first of them comes late"),
        (EITHER, taking(tool=30.0, b=20.0), {}, {}, "nobody knows yet whom it asks"),
        (
            OUTER,
            taking("inner", tool=30.0, i=40.0),
            {"plans": {"inner": INNER}},
            {"deep": 10},
            "steps of a workflow inside",
        ),
        (OUTER, taking("inner", tool=30.0, i=20.0), {}, {}, "a workflow inside that nobody knows"),
        (
            TWO,
            taking(tool=30.0, b=20.0),
            {"now": 40.0, "began": {Key("tool"): 0.0}},
            {"p": 10},
            "ten seconds late",
        ),
        (TWO, taking(tool=30.0, b=20.0), {"now": 400.0, "began": {Key("tool"): 0.0}}, {}, "a tool that hangs"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_is_announced(
    plan: Plan, profiles: Profiles, more: dict[str, Any], expected: dict[str, int], why: str
) -> None:
    assert told(plan, profiles, **more) == expected, why


def test_a_step_that_seldom_runs_weighs_by_its_share() -> None:
    profiles = taking(tool=30.0, b=20.0)
    for number in range(400):
        profiles.ended("test", "b", number % 4 == 0, 0.0)

    assert told(TWO, profiles, runs=100)["p"] == pytest.approx(25, abs=8)


def test_of_several_pools_each_weighs_by_what_was_asked_of_it_lately() -> None:
    profiles = taking(tool=30.0, b=20.0)
    for number in range(40):
        pool, seen = ("q", 0.0) if number < 10 else ("p", 0.0)
        profiles.called("test", "b", pool, prompt_tokens=1, output_tokens=1, seconds=1.0, succeeded=True, now=seen)

    assert told(EITHER, profiles, runs=40) == {"p": 30, "q": 10}


def test_what_was_asked_long_ago_weighs_little() -> None:
    figure = Figure()
    for _ in range(4):
        figure.learn(1.0, 0.0)

    assert (figure.seen(0.0), figure.seen(2 * 3600.0)) == (4.0, 1.0)


def test_a_chooser_is_foreseen_by_one_question_and_counts_by_question_under_way() -> None:
    profiles = taking(tool=30.0, look=60.0)
    for _ in range(200):
        profiles.called(
            "test", "look", "p", prompt_tokens=1, output_tokens=1, seconds=5.0, succeeded=True, now=0.0
        )
    run = begun(CHOOSES)

    assert announced([course(run, {}, profiles, {}, 0.0)] * 10, 0.0) == {"p": 4}
    run.ended(Key("tool"), DONE, 30.0)
    run.entered(Key("look"), 1, Entry(), 30.0)
    assert [(stay.calls, stay.begun) for stay in course(run, {}, profiles, {}, 30.0)] == [(1.0, 1.0)]


def test_pools_are_those_of_the_workflows_namespace() -> None:
    assert {stay.pool for stay in course(begun(TWO), {}, Profiles(), {}, 0.0, "team")} == {"team/p"}


def test_a_run_that_is_over_or_cancelled_announces_nothing() -> None:
    run = begun(TWO)
    run.cancel("asked to", 1.0)

    assert course(run, {}, taking(tool=30.0, b=20.0), {}, 1.0) == ()


def test_runs_of_many_steps_are_looked_at_in_part() -> None:
    inner = replace(planned(*(asks(f"s{number}") for number in range(60))), name="inner")
    waits = {"depends": "tool", "workflow": {"name": "inner"}}
    plan = planned({"name": "tool"}, *({"name": f"w{number}", **waits} for number in range(60)))

    assert 60 <= len(course(begun(plan), {"inner": inner}, Profiles(), {}, 0.0)) <= 128


def test_calls_that_are_late_are_in_flight_for_as_long_again() -> None:
    late = Stay("p", -60.0, 30.0, 10.0, begun=10.0)
    others = Stay("p", 10.0, 40.0, 10.0)

    assert announced([(late,), (others,)], 0.0) == {"p": 10}


@pytest.mark.parametrize("every", [0.5, 1.0, 3.0])
def test_a_steady_state_of_runs_announces_about_nothing(every: float) -> None:
    """Of a tool for 20 s, and then a call for 30 s, a run begins every so many seconds."""
    profiles = taking(tool=20.0, b=30.0)
    courses = []
    for number in range(int(50 / every)):
        age = number * every
        run = begun(TWO)
        if age >= 20.0:
            run.ended(Key("tool"), DONE, 0.0)
            courses.append(course(run, {}, profiles, {Key("b"): 100.0 - age + 20.0}, 100.0))
        else:
            courses.append(course(run, {}, profiles, {Key("tool"): 100.0 - age}, 100.0))

    assert announced(courses, 100.0).get("p", 0) <= 0.1 * 30.0 / every
    without = announced(courses[: int(20 / every)], 100.0)["p"]
    assert without == pytest.approx(20 / every, rel=0.15)  # where those in flight were not there


def test_chance_announces_little() -> None:
    """Steps of lengths that vary by half, from figures of what was seen of them: of 30 calls in flight a tenth."""
    luck = random.Random(1)

    def took(mean: float) -> float:
        return mean * math.exp(luck.gauss(-0.125, 0.5))

    calls, flying = [], []
    for _ in range(40):
        profiles = Profiles()
        for _ in range(100):
            profiles.worked("test", "tool", tokens=0, seconds=took(60.0), now=0.0)
            profiles.worked("test", "b", tokens=1, seconds=took(30.0), now=0.0)
        courses, began = [], -600.0
        while (began := began + luck.expovariate(1.0)) < 0.0:
            second = began + took(60.0)
            if second >= 0.0:
                courses.append(course(begun(TWO), {}, profiles, {Key("tool"): began}, 0.0))
            elif second + took(30.0) >= 0.0:
                run = begun(TWO)
                run.ended(Key("tool"), DONE, second)
                courses.append(course(run, {}, profiles, {Key("b"): second}, 0.0))
        calls.append(announced(courses, 0.0).get("p", 0))
        flying.append(sum(stay.begun for one in courses for stay in one))

    assert statistics.mean(flying) == pytest.approx(30.0, rel=0.15)
    assert statistics.mean(calls) <= 0.15 * statistics.mean(flying)


stays = st.builds(
    Stay,
    st.sampled_from(["p", "q"]),
    st.floats(-300.0, 300.0),
    st.floats(0.0, 300.0),
    st.floats(0.0, 50.0),
)
flying = st.builds(
    lambda stay, begun: replace(stay, calls=max(stay.calls, begun), begun=begun),
    stays,
    stays.map(lambda stay: stay.calls),
)
courses = st.lists(st.lists(stays, max_size=4).map(tuple), max_size=6)
mixed = st.lists(st.lists(st.one_of(stays, flying), max_size=4).map(tuple), max_size=6)


def total(some: Sequence[Course], pool: str) -> float:
    """What is in flight, and what is announced beside it."""
    return sum(stay.begun for one in some for stay in one if stay.pool == pool) + announced(some, 0.0).get(pool, 0)


@examples(60)
@given(mixed, courses)
def test_more_runs_that_have_nothing_in_flight_never_announce_less(some: list[Course], more: list[Course]) -> None:
    before, after = announced(some, 0.0), announced([*some, *more], 0.0)

    assert all(after.get(pool, 0) >= calls for pool, calls in before.items())


@examples(60)
@given(mixed, mixed)
def test_more_runs_never_ask_for_less_with_what_they_have_in_flight(
    some: list[Course], more: list[Course]
) -> None:
    for pool in ("p", "q"):
        assert total([*some, *more], pool) >= total(some, pool) - 1.0  # each is rounded


@given(mixed)
def test_what_is_announced_is_bounded_and_no_more_than_is_expected(some: list[Course]) -> None:
    for pool, calls in announced(some, 0.0, runs=10**9).items():
        assert 0 < calls <= MOST_CALLS, pool
    for pool, calls in announced(some, 0.0).items():
        assert calls <= sum(stay.calls for one in some for stay in one if stay.pool == pool) + 0.5


class Watched(Rim):
    """Looks at what comes after each event."""

    def _take(self, effects: list[Effect]) -> None:
        super()._take(effects)
        found = course(self.run, {"sub": SUB}, Profiles(), {}, self.now)
        assert all(stay.calls >= stay.begun >= 0.0 <= stay.seconds for stay in found)
        assert not (self.run.finished and found)


@pytest.mark.traffic  # long, for what it looks for is rare
@examples(300)
@given(workflows(), st.integers(), st.randoms(use_true_random=False), st.none() | st.integers(0, 12))
def test_any_run_can_be_looked_at_at_any_moment(
    plan: Plan, luck: int, order: random.Random, cancel_after: int | None
) -> None:
    assert Watched(plan, luck, order, cancel_after).go().run.finished


def test_spans_fill_the_horizon() -> None:
    assert HORIZON_SECONDS % SPAN_SECONDS == 0.0


class Foreseen:
    def __init__(self) -> None:
        self.looks = 0

    def course(self) -> Course:
        self.looks += 1
        return (Stay("p", 0.0, 1e9, 1.0),)


def test_runs_are_looked_at_once_a_second_and_of_very_many_some_stand_for_all() -> None:
    now = [100.0]
    active = {str(number): Foreseen() for number in range(1000)}
    foretelling = Foretelling(active, lambda: now[0])

    def looks() -> int:
        return sum(one.looks for one in active.values())

    assert foretelling.coming() == {"p": 1000}
    first = looks()
    assert first <= MOST_RUNS
    now[0] += 0.9 * LOOK_SECONDS
    foretelling.coming()
    assert looks() == first
    active.clear()
    now[0] += LOOK_SECONDS
    assert foretelling.coming() == {}


def test_a_defect_in_what_is_foreseen_keeps_no_report_back(caplog: pytest.LogCaptureFixture) -> None:
    class Broken:
        def course(self) -> Course:
            raise RuntimeError("a defect")

    assert Foretelling({"r1": Broken()}, lambda: 0.0).coming() == {}
    assert "is not known" in caplog.text
