"""What a run does without when its budget is spent, and what becomes of that when it is taken over."""

import pytest

from tidepool_api.workflow import Measure
from tidepool_router.workflow.core.run import Entry, Run
from tidepool_router.workflow.core.states import (
    Call,
    Compose,
    Ending,
    Finish,
    Key,
    Output,
    Phase,
    Save,
    Stop,
    Verdict,
)
from workflows.graphs import begun, called, planned

DONE = Ending(Phase.SUCCEEDED)
BROKEN = Ending(Phase.FAILED, "no answer")


def test_a_spent_budget_skips_soft_steps_and_asks_for_the_cheapest() -> None:
    steps = ({"name": "a"}, {"name": "nice", "depends": "a", "dependency": "Soft"}, {"name": "b", "depends": "a"})
    run, _ = begun(*steps, budget={"tokens": 100})
    run.used(100, 1.0)

    effects = run.ended(Key("a"), DONE, 1.0)

    assert [effect.cheap for effect in effects if isinstance(effect, Call)] == [True]
    assert run.works["nice"].reason == "left out for the budget: the step is Soft"


def test_a_spent_budget_leaves_out_items_that_have_not_begun_and_the_run_says_so() -> None:
    fan = {"name": "a", "withItems": [1, 2, 3], "maxParallel": 1}
    run, _ = begun(
        fan,
        {"name": "b", "depends": "a", "withItems": [1, 2]},
        {"name": "nice", "depends": "b", "dependency": "Soft"},
        budget={"tokens": 100},
    )
    run.used(120, 1.0)

    effects = run.ended(Key("a", 0), DONE, 1.0)
    assert called(effects) == ["b[0]"]  # the first one, for b would be nothing without
    assert run.ended(Key("b", 0), DONE, 2.0) == [Compose()]
    run.composed("x", 3.0)

    assert [unit.phase for unit in run.works["a"].units] == [Phase.SUCCEEDED, Phase.OMITTED, Phase.OMITTED]
    assert run.verdict is Verdict.SUCCEEDED
    assert run.reason == (
        "degraded for the budget: all but the pools of least quality from 120 tokens on, 2 of 3 items of a, "
        "the step nice, 1 of 2 items of b"
    )


def test_a_budget_degrades_in_the_order_that_is_declared() -> None:
    order = [("SkipSoft", 50), ("FewerBranches", 80), ("SmallerModel", 120)]
    degrade = [{"measure": measure, "atPercent": at} for measure, at in order]
    run, _ = begun(
        {"name": "a", "withItems": [1, 2, 3, 4], "maxParallel": 1},
        {"name": "nice", "depends": "a", "dependency": "Soft"},
        {"name": "b", "depends": "a"},
        budget={"tokens": 100, "degrade": degrade},
    )

    assert run.used(49, 1.0) == []
    assert run.used(1, 1.0) == [Save(Measure.SKIP_SOFT, 50)]
    assert run.works["nice"].phase is Phase.OMITTED
    assert called(run.ended(Key("a", 0), DONE, 1.0)) == ["a[1]"]  # all branches still
    assert run.used(31, 1.0) == [Save(Measure.FEWER_BRANCHES, 81)]
    [call] = run.ended(Key("a", 1), DONE, 1.0)
    assert isinstance(call, Call)
    assert (call.key, call.cheap) == (Key("b"), False)
    assert run.used(60, 1.0) == [Save(Measure.SMALLER_MODEL, 141)]
    assert run.measures == {Measure.SKIP_SOFT: 50, Measure.FEWER_BRANCHES: 81, Measure.SMALLER_MODEL: 141}

    # What it did without is told also where it fails.
    run.ended(Key("b"), Ending(Phase.FAILED, "no"), 2.0)
    assert run.reason == (
        "b Failed: no; degraded for the budget: the step nice, 2 of 4 items of a, all but the pools of least "
        "quality from 141 tokens on"
    )


def test_what_runs_inside_does_without_for_the_outer_budget() -> None:
    inner = planned(
        {"name": "i", "withItems": [1, 2], "maxParallel": 1}, {"name": "n", "dependency": "Soft", "depends": "i"}
    )
    run, _ = begun({"name": "sub", "workflow": {"name": "inner"}}, budget={"tokens": 100})
    [call] = run.entered(Key("sub"), 1, Entry(inner), 0.0)
    run.used(100, 1.0, "sub#1/")

    assert isinstance(call, Call)
    assert run.ended(call.key, DONE, 1.0) == [Compose("sub#1/")]
    run.composed("x", 1.0, "sub#1/")
    run.ended(Key("sub"), DONE, 1.0)
    run.composed("x", 1.0)
    assert run.reason == (
        "degraded for the budget: all but the pools of least quality from 100 tokens on, "
        "1 of 2 items of sub#1/i, the step sub#1/n"
    )


def test_an_exit_step_does_without_nothing_whatever_was_used() -> None:
    run, _ = begun({"name": "a"}, {"name": "bye", "withItems": [1, 2]}, budget={"tokens": 100}, onExit="bye")
    run.used(120, 1.0)
    run.ended(Key("a"), DONE, 1.0)

    effects = run.composed("x", 1.0)

    assert called(effects) == ["bye[0]", "bye[1]"]
    assert not any(effect.cheap for effect in effects if isinstance(effect, Call))


def test_a_run_that_is_taken_over_goes_on_doing_without() -> None:
    plan = planned({"name": "a"}, {"name": "b", "depends": "a", "dependency": "Soft"}, budget={"tokens": 5})
    known = {Key("a"): Ending(Phase.SUCCEEDED, output=Output("x", tokens=7))}
    run = Run(plan, deadline=60.0, ended_before=known)

    assert run.begin(0.0) == [Compose()]
    assert run.works["b"].phase is Phase.OMITTED
    assert run.measures[Measure.SKIP_SOFT] == 7


def test_a_run_that_is_taken_over_keeps_what_had_begun_before_its_budget_was_spent() -> None:
    fan = {"withItems": [1, 2, 3], "maxParallel": 3}
    plan = planned(
        {"name": "nice", "dependency": "Soft"},
        {"name": "sub", "workflow": {"name": "inner"}, **fan},
        {"name": "look", "choose": {"pools": [{"name": "p"}], "among": ["lookup"]}},
        {"name": "lookup"},
        budget={"tokens": 5},
    )
    pick = Ending(Phase.SUCCEEDED, output=Output("", {"step": "lookup"}))
    known = {
        Key("nice"): Ending(Phase.SUCCEEDED, output=Output("x", tokens=7)),
        Key("i", None, "sub[1]#1/"): DONE,
        Key("look", None, "look.1/"): pick,
        Key("lookup", None, "look.1/"): DONE,
        Key("look", None, "look.2/"): pick,
    }
    run = Run(plan, deadline=60.0, ended_before=known)

    assert called(run.begin(0.0)) == ["sub[1]", "look"]  # of the items that which had begun
    assert run.works["nice"].phase is Phase.SUCCEEDED
    assert called(run.entered(Key("look"), 1, Entry(), 0.0)) == ["look.2/lookup"]


@pytest.mark.parametrize(("used", "used_last", "verdict"), [(7, 0, "Failed"), (4, 9, "Succeeded")])
def test_a_run_that_is_taken_over_has_failed_where_its_budget_was_spent(
    used: int, used_last: int, verdict: str
) -> None:
    plan = planned(
        {"name": "a"},
        {"name": "bye", "withItems": [1, 2]},
        budget={"tokens": 5, "onExceeded": "Fail"},
        onExit="bye",
    )
    known = {
        Key("a"): Ending(Phase.SUCCEEDED, output=Output("x", tokens=used)),
        Key("bye", 0): Ending(Phase.SUCCEEDED, output=Output("x", tokens=used_last)),
    }
    run = Run(plan, deadline=60.0, ended_before=known)
    run.begin(0.0)
    run.composed("x", 0.0)

    assert run.verdict == verdict
    assert run.tokens == used + used_last


def test_a_spent_budget_fails_the_run_where_it_shall() -> None:
    run, _ = begun({"name": "a"}, budget={"tokens": 100, "onExceeded": "Fail"})

    assert run.used(100, 1.0) == [Stop(Key("a")), Finish()]
    assert run.reason == "BudgetExceeded: 100 tokens of 100 are used"
