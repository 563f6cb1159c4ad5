"""What a run does next, case by case. Cases of public reports carry their numbers (docs/workflows.md)."""

import random
from typing import Any

import pytest

from tidepool_api.workflow import Measure
from tidepool_router.workflow.core.board import EXIT_CALLS, MAX_CALLS
from tidepool_router.workflow.core.run import Entry, Run
from tidepool_router.workflow.core.states import (
    Call,
    Compose,
    Effect,
    Ending,
    Expand,
    Finish,
    Keep,
    Key,
    Output,
    Phase,
    Save,
    Stop,
    TimeOut,
    Verdict,
)
from tidepool_router.workflow.core.values import steps_read
from workflows.graphs import Rim, planned

DONE = Ending(Phase.SUCCEEDED)
BROKEN = Ending(Phase.FAILED, "no answer")


def begun(*steps: dict[str, Any], deadline: float = 60.0, **more: Any) -> tuple[Run, list[Effect]]:
    run = Run(planned(*steps, **more), deadline=deadline)
    return run, run.begin(0.0)


def called(effects: list[Effect]) -> list[str]:
    return [str(effect.key) for effect in effects if isinstance(effect, Call)]


def test_a_step_starts_as_soon_as_its_own_needs_are_done() -> None:
    run, first = begun({"name": "a"}, {"name": "slow"}, {"name": "b", "depends": "a"})

    assert called(first) == ["a", "slow"]
    assert called(run.ended(Key("a"), DONE, 1.0)) == ["b"]


def test_a_join_runs_once_when_the_last_of_its_needs_ends() -> None:
    run, _ = begun({"name": "a"}, {"name": "b"}, {"name": "join", "depends": "a && b"})

    assert called(run.ended(Key("a"), DONE, 1.0)) == []
    assert called(run.ended(Key("b"), DONE, 1.0)) == ["join"]
    assert run.ended(Key("b"), DONE, 1.0) == []  # told twice


def test_items_flow_on_one_by_one_to_a_step_that_takes_them() -> None:
    run, first = begun(
        {"name": "search", "withItems": ["x", "y"]},
        {"name": "read", "depends": "search", "withParam": "{{ steps.search.results }}"},
        {
            "name": "all",
            "depends": "search",
            "withItems": [1],
            "http": {"url": "http://t/{{ steps.search.text }}"},
        },
    )

    assert called(first) == ["search[0]", "search[1]"]
    effects = run.ended(Key("search", 1), Ending(Phase.SUCCEEDED, output=Output("found")), 1.0)
    assert called(effects) == ["read[1]"]
    assert next(effect for effect in effects if isinstance(effect, Call)).value == {
        "text": "found",
        "json": None,
        "status": "Succeeded",
    }
    assert called(run.ended(Key("search", 0), DONE, 2.0)) == ["read[0]", "all[0]"]


def test_what_an_item_that_failed_would_have_led_to_is_skipped_all_along() -> None:
    run, _ = begun(
        {"name": "a", "withItems": [1, 2], "dependency": "Soft"},
        {"name": "b", "depends": "a", "withParam": "{{ steps.a.results }}"},
        {"name": "c", "depends": "b", "withParam": "{{ steps.b.results }}"},
    )
    run.ended(Key("a", 0), BROKEN, 1.0)
    for name in ("a", "b", "c"):
        effects = run.ended(Key(name, 1), DONE, 1.0)

    assert effects == [Compose()]
    assert [unit.reason for unit in run.works["c"].units] == ["b[0] is Skipped", ""]


def test_a_step_that_reads_all_results_elsewhere_waits_for_them_all() -> None:
    run, _ = begun(
        {"name": "search", "withItems": ["x", "y"]},
        {
            "name": "read",
            "depends": "search",
            "withParam": "{{ steps.search.results }}",
            "http": {"url": "http://t/{{ steps.search.text }}"},
        },
    )

    assert called(run.ended(Key("search", 1), DONE, 1.0)) == []
    assert run.ended(Key("search", 0), DONE, 1.0) == [Expand("read")]


def test_no_more_items_run_at_a_time_than_max_parallel() -> None:
    run, first = begun({"name": "a", "withItems": [1, 2, 3], "maxParallel": 2})

    assert called(first) == ["a[0]", "a[1]"]
    assert called(run.ended(Key("a", 1), DONE, 1.0)) == ["a[2]"]


def test_an_item_that_waits_for_its_next_try_keeps_its_place() -> None:
    retry = {"limit": 1, "backoff": {"duration": "2s"}}
    run, _ = begun({"name": "a", "withItems": [1, 2, 3], "maxParallel": 2, "retryStrategy": retry})
    run.failed(Key("a", 0), 1, 9.0)

    assert called(run.ended(Key("a", 1), DONE, 1.0)) == ["a[2]"]
    assert called(run.ended(Key("a", 2), DONE, 1.0)) == []
    assert called(run.tick(9.0)) == ["a[0]"]


def test_what_has_ended_stays_as_it_ended() -> None:
    run, _ = begun({"name": "a", "dependency": "Soft", "withItems": [1, 2]})
    run.ended(Key("a", 0), DONE, 1.0)

    assert run.ended(Key("a", 0), BROKEN, 2.0) == []
    assert run.works["a"].units[0].phase is Phase.SUCCEEDED


def test_only_the_failed_item_is_tried_again_argo_9190() -> None:
    retry = {"limit": 1, "backoff": {"duration": "2s"}}
    run, _ = begun({"name": "a", "withItems": [1, 2], "retryStrategy": retry})
    run.ended(Key("a", 0), DONE, 1.0)

    again = run.retry_at(Key("a", 1), 1, 1.0)
    assert again == 3.0
    run.failed(Key("a", 1), 1, again)

    assert run.next_wake() == 3.0
    assert called(run.tick(2.9)) == []
    assert called(run.tick(3.0)) == ["a[1]"]
    assert run.retry_at(Key("a", 1), 2, 4.0) is None
    assert run.ended(Key("a", 1), DONE, 4.0) == [Compose()]
    assert [unit.phase for unit in run.works["a"].units] == [Phase.SUCCEEDED, Phase.SUCCEEDED]


def test_whoever_joins_items_gets_each_once_in_the_order_of_the_input_argo_7617() -> None:
    retry = {"limit": 2, "backoff": {"duration": "1s"}}
    run, _ = begun(
        {"name": "a", "withItems": ["x", "y", "z"], "retryStrategy": retry}, {"name": "b", "depends": "a"}
    )
    for attempt in (1, 2):
        again = run.retry_at(Key("a", 1), attempt, float(attempt))
        assert again is not None
        run.failed(Key("a", 1), attempt, again)
        run.tick(again)
    for item in (2, 1, 0):
        effects = run.ended(Key("a", item), Ending(Phase.SUCCEEDED, output=Output(f"r{item}")), 9.0)

    assert called(effects) == ["b"]
    read = steps_read(run.works)["a"]
    assert [one["text"] for one in read["results"]] == ["r0", "r1", "r2"]
    assert read["text"] == "r0\nr1\nr2"


def test_an_answer_that_cannot_be_composed_fails_the_run_argo_14337() -> None:
    run, _ = begun({"name": "a"})

    assert run.ended(Key("a"), DONE, 1.0) == [Compose()]
    assert run.uncomposable("steps.a.json is not there", 1.0) == [Finish()]
    assert (run.verdict, run.reason) == (Verdict.FAILED, "output: steps.a.json is not there")


def test_a_step_whose_items_cannot_be_made_fails_and_its_follower_does_not_hang_argo_14337() -> None:
    run, effects = begun({"name": "a", "withParam": "{{ input.x }}"}, {"name": "b", "depends": "a"})

    assert effects == [Expand("a")]
    assert run.unexpandable("a", "is no list", 1.0) == [Finish()]
    assert run.verdict is Verdict.FAILED
    assert run.works["b"].phase is Phase.OMITTED


def test_the_deadline_is_not_retried_and_the_exit_step_has_time_of_its_own_argo_3244() -> None:
    retry = {"limit": 5, "backoff": {"duration": "1s"}}
    run, _ = begun({"name": "a", "retryStrategy": retry}, {"name": "bye"}, onExit="bye", deadline=10.0)

    effects = run.tick(10.0)

    assert effects[0] == Stop(Key("a"))
    assert called(effects) == ["bye"]
    assert run.reason.startswith("DeadlineExceeded")
    assert run.tick(39.0) == []
    assert run.ended(Key("bye"), DONE, 39.0) == [Finish()]


def test_an_exit_step_that_hangs_ends_too() -> None:
    run, _ = begun({"name": "a"}, {"name": "bye", "timeout": "5s"}, onExit="bye")
    run.cancel("asked to", 1.0)

    assert run.tick(6.0) == [Stop(Key("bye")), Finish()]
    assert run.verdict is Verdict.CANCELLED


def test_a_cancelled_run_tries_nothing_again_argo_1620() -> None:
    run, _ = begun({"name": "a", "retryStrategy": {"limit": 5}})
    again = run.retry_at(Key("a"), 1, 1.0)
    assert again is not None
    run.failed(Key("a"), 1, again)

    assert run.cancel("the client has gone", 1.5) == [Finish()]
    assert run.tick(100.0) == []
    assert run.works["a"].reason == "the client has gone"


def test_a_try_that_could_only_begin_after_the_deadline_is_not_made() -> None:
    run, _ = begun({"name": "a", "retryStrategy": {"limit": 5, "backoff": {"duration": "10s"}}}, deadline=10.0)

    assert run.retry_at(Key("a"), 1, 1.0) is None


def test_a_try_that_takes_too_long_is_stopped_once() -> None:
    run, _ = begun({"name": "a", "timeout": "5s"})

    assert run.tick(5.0) == [TimeOut(Key("a"), 1)]
    assert run.tick(5.1) == []


def test_a_hard_failure_fails_the_run_and_names_itself_kserve_2484() -> None:
    run, _ = begun({"name": "a"}, {"name": "b"}, {"name": "c", "depends": "a"})

    assert run.ended(Key("a"), BROKEN, 1.0) == [Stop(Key("b")), Finish()]
    assert (run.verdict, run.reason) == (Verdict.FAILED, "a Failed: no answer")
    assert run.works["c"].reason == "stopped, since a failed and failFast is set"


def test_without_fail_fast_the_others_end_first() -> None:
    run, _ = begun({"name": "a"}, {"name": "b"}, {"name": "c", "depends": "a.Failed"}, failFast=False)

    assert called(run.ended(Key("a"), BROKEN, 1.0)) == ["c"]
    run.ended(Key("b"), DONE, 2.0)
    assert run.ended(Key("c"), DONE, 2.0) == [Finish()]
    assert run.verdict is Verdict.FAILED


def test_the_run_goes_on_after_a_soft_failure() -> None:
    run, _ = begun({"name": "a", "dependency": "Soft"}, {"name": "b", "depends": "a || a.Failed"})

    assert called(run.ended(Key("a"), BROKEN, 1.0)) == ["b"]


@pytest.mark.parametrize(
    ("expression", "runs"),
    [
        ("a", True),  # skipped counts as done, as in Argo
        ("a.Succeeded", False),
        ("a.Skipped", True),
        ("!a.Skipped", False),
        ("a.Failed || a.Skipped", True),
        ("a && a.Omitted", False),
    ],
)
def test_depends_on_a_skipped_step(expression: str, runs: bool) -> None:
    run, _ = begun({"name": "a"}, {"name": "b", "depends": expression})

    effects = run.ended(Key("a"), Ending(Phase.SKIPPED, "when is false"), 1.0)

    assert called(effects) == (["b"] if runs else [])
    assert runs or "a is Skipped" in run.works["b"].reason


@pytest.mark.parametrize(
    ("second", "any_succeeded", "all_failed"), [(DONE, True, False), (BROKEN, False, True)], ids=["one", "none"]
)
def test_depends_looks_at_items(second: Ending, any_succeeded: bool, all_failed: bool) -> None:
    fan = {"name": "a", "withItems": [1, 2], "dependency": "Soft"}
    run, _ = begun(fan, {"name": "some", "depends": "a.AnySucceeded"}, {"name": "none", "depends": "a.AllFailed"})
    run.ended(Key("a", 0), BROKEN, 1.0)

    started = called(run.ended(Key("a", 1), second, 1.0))

    assert started == [name for name, wanted in (("some", any_succeeded), ("none", all_failed)) if wanted]


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


def test_a_run_that_is_taken_over_calls_only_what_had_not_ended() -> None:
    plan = planned({"name": "a", "withItems": [1, 2]}, {"name": "b", "depends": "a"})
    run = Run(
        plan, deadline=60.0, ended_before={Key("a", 1): Ending(Phase.SUCCEEDED, output=Output("x", tokens=7))}
    )

    assert called(run.begin(0.0)) == ["a[0]"]
    assert run.tokens == 7
    assert called(run.ended(Key("a", 0), DONE, 1.0)) == ["b"]


def test_the_longest_run_is_restored_without_deep_recursion() -> None:
    steps = [{"name": "s0", "withItems": list(range(20)), "maxParallel": 1}]
    for index in range(1, 64):
        before = f"s{index - 1}"
        steps.append({"name": f"s{index}", "depends": before, "withParam": f"{{{{ steps.{before}.results }}}}"})
    plan = planned(*steps)
    known = {Key(name, index): DONE for name in plan.steps for index in range(20)}

    assert Run(plan, deadline=60.0, ended_before=known).begin(0.0) == [Compose()]


def test_a_run_makes_no_more_calls_than_its_bound_however_its_parts_multiply_sr_1456() -> None:
    width, most = 24, 600
    assert MAX_CALLS == 10_000  # what a run has unless a test says otherwise
    fan = {"withItems": list(range(width)), "maxParallel": width, "dependency": "Soft"}
    inner = planned({"name": "i", **fan}, {"name": "more", "depends": "i", **fan})
    plan = planned(
        {"name": "sub", "workflow": {"name": "inner"}, **fan},
        {"name": "bye", "workflow": {"name": "inner"}},
        failFast=False,
        onExit="bye",
    )
    run = Run(plan, deadline=60.0, most_calls=most)
    effects = run.begin(0.0)
    calls = 0
    while effects:
        effect = effects.pop(0)
        calls += isinstance(effect, Call)
        match effect:
            case Call(key, attempt) if key.within:
                effects += run.ended(key, DONE, 1.0)
            case Call(key, attempt):
                effects += run.entered(key, attempt, Entry(inner), 1.0)
            case Keep(key, ending):
                effects += run.ended(key, ending, 1.0)
            case Stop(key):
                effects = [one for one in effects if getattr(one, "key", None) != key]
            case Compose(within):
                effects += run.composed("x", 1.0, within)

    assert run.finished
    assert run.verdict is Verdict.FAILED
    assert run.reason == f"CallsExceeded: {most} calls are made"
    # Of 1,200 that it would come to; those that the bound stops as they begin are not made.
    assert most - width <= calls <= most + EXIT_CALLS


def test_two_runs_share_nothing_kagent_2137() -> None:
    plan = planned({"name": "a", "withItems": [1, 2]}, {"name": "b", "depends": "a"})
    one = Rim(plan, luck=1, order=random.Random(1)).go()
    other = Run(plan, deadline=60.0)

    assert called(other.begin(0.0)) == ["a[0]", "a[1]"]
    assert one.finishes == 1
