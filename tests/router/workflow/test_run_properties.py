"""What holds for every run of every workflow."""

import random
from collections.abc import Iterable

from hypothesis import given, settings
from hypothesis import strategies as st

from tidepool_router.workflow.core.plan import Plan
from tidepool_router.workflow.core.states import ENDED, Key, Phase, Verdict
from workflows.graphs import Rim, workflows

LUCK = st.integers(0, 1000)


def units(rim: Rim) -> Iterable[tuple[Key, Phase, str]]:
    works = [*rim.run.works.values(), *([rim.run.exit_work] if rim.run.exit_work else [])]
    return [(key, unit.phase, unit.reason) for work in works for key, unit in work.keyed()]


@settings(max_examples=25)
@given(workflows(), LUCK, LUCK)
def test_each_step_ends_once_and_says_why_it_did_not_run(plan: Plan, luck: int, order: int) -> None:
    rim = Rim(plan, luck, random.Random(order)).go()

    assert rim.finishes == 1
    assert not rim.run.reason.startswith("DeadlineExceeded"), "it would have hung"
    assert all(count == 1 for count in rim.calls.values())
    assert not rim.open
    for work in rim.run.works.values():
        assert work.phase in ENDED
        assert work.reason or work.phase is Phase.SUCCEEDED
    for key, phase, reason in units(rim):
        assert phase in ENDED
        assert reason or phase is Phase.SUCCEEDED
        assert (key in rim.journal) == (
            phase not in (Phase.OMITTED,) and not reason.endswith(("Skipped", "Failed"))
        )
    if rim.run.exit_work is not None:
        assert Key("bye") in rim.journal


@settings(max_examples=25)
@given(workflows(), LUCK, LUCK)
def test_a_step_that_is_picked_runs_once_a_turn(plan: Plan, luck: int, order: int) -> None:
    rim = Rim(plan, luck, random.Random(order)).go()

    for key, ending in rim.journal.items():
        if key.within or key.step not in plan.asking:
            continue
        turns = ending.output.data or []
        inside = [one for one in rim.journal if one.within.startswith(f"{key}.") and one.within.count("/") == 1]
        questions = [one.within for one in inside if one.step == key.step]
        ran = {one.within: one.step for one in inside if one.step != key.step}
        assert [turn["step"] for turn in turns] == [ran[f"{key}.{at + 1}/"] for at in range(len(turns))]
        assert len(set(questions)) == len(questions)
        assert len(turns) <= len(questions) <= len(turns) + 1
        choose = plan.asking[key.step].steps[key.step].step.choose
        assert choose is not None
        assert len(turns) <= choose.max_turns


@settings(max_examples=25)
@given(workflows(), LUCK, LUCK, LUCK)
def test_what_becomes_of_a_run_does_not_depend_on_timing(plan: Plan, luck: int, order: int, other: int) -> None:
    one = Rim(plan, luck, random.Random(order)).go()
    two = Rim(plan, luck, random.Random(other)).go()

    assert one.run.verdict == two.run.verdict
    # Where the first hard failure stops the rest, timing decides how far the rest had come.
    if not plan.spec.fail_fast or one.run.verdict is Verdict.SUCCEEDED:
        assert one.result() == two.result()


@settings(max_examples=25)
@given(workflows(), LUCK, LUCK, st.integers(0, 30))
def test_a_cancelled_run_ends_and_starts_nothing_but_its_exit_step(
    plan: Plan, luck: int, order: int, after: int
) -> None:
    rim = Rim(plan, luck, random.Random(order), cancel_after=after).go()

    assert rim.finishes == 1
    assert not rim.open
    assert not list(rim.run.frames())
    if rim.run.verdict is Verdict.CANCELLED:
        for work in rim.run.works.values():
            assert work.phase in ENDED
        assert (rim.run.exit_work is None) or Key("bye") in rim.journal


@settings(max_examples=25)
@given(workflows(), LUCK, LUCK, st.integers(0, 30))
def test_a_run_that_another_gateway_takes_over_ends_as_it_would_have(
    plan: Plan, luck: int, order: int, after: int
) -> None:
    whole = Rim(plan, luck, random.Random(order)).go()
    taken_over = Rim(plan, luck, random.Random(order), restart_after=after).go()  # commits nothing twice

    assert taken_over.run.verdict == whole.run.verdict
    if not plan.spec.fail_fast or whole.run.verdict is Verdict.SUCCEEDED:
        assert taken_over.result() == whole.result()


@settings(max_examples=15)
@given(workflows(), LUCK, st.floats(0, 5))
def test_the_deadline_always_fires(plan: Plan, luck: int, deadline: float) -> None:
    class Silent(Rim):
        """Answers nothing but what the exit step asks."""

        def _answer(self, call: object) -> None:
            super()._answer(call) if call.key.step == "bye" else self.wait()  # type: ignore[attr-defined, arg-type]

        def wait(self) -> None:
            wake = self.run.next_wake()
            assert wake is not None
            self.now = max(self.now, wake)
            self._take(self.run.tick(self.now))

    rim = Silent(plan, luck, random.Random(0), deadline=deadline).go()

    assert rim.finishes == 1
    assert rim.run.verdict is Verdict.SUCCEEDED or rim.run.reason.startswith("DeadlineExceeded")
