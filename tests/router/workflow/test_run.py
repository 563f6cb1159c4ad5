"""What a run does next, case by case. Cases of public reports carry their numbers (docs/workflows.md)."""

import random

import pytest

from tidepool_router.workflow.core.board import EXIT_CALLS, MAX_CALLS
from tidepool_router.workflow.core.run import Entry, Run
from tidepool_router.workflow.core.states import (
    Call,
    Compose,
    Ending,
    Expand,
    Finish,
    Keep,
    Key,
    Output,
    Phase,
    Stop,
    TimeOut,
    Verdict,
)
from tidepool_router.workflow.core.values import steps_read
from workflows.graphs import Rim, begun, called, planned

DONE = Ending(Phase.SUCCEEDED)
BROKEN = Ending(Phase.FAILED, "no answer")


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
