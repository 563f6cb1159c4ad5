"""One graph of steps inside a run: the workflow's own, that of a workflow in it, or a single step that was picked.

Invariants, which the property tests hold over random graphs:
- every step ends exactly once, and what does not run says why;
- a unit of work (`Key`) is called only after all that its step needs has ended, never while it is called already,
  and never after it has ended;
- after `cancel` or the deadline nothing new is called but the exit step, whose time is bounded by itself;
- which steps run and how they end depends on answers alone, not on the order in which they come;
- it has finished only when all that is nested in it has.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from tidepool_api.workflow import Measure
from tidepool_router.workflow.core.board import EXIT_CALLS, MAX_DEPTH, Board, Entry, Nest, Place, spent
from tidepool_router.workflow.core.dependencies import holds, told
from tidepool_router.workflow.core.plan import Plan, StepPlan
from tidepool_router.workflow.core.saving import Saving
from tidepool_router.workflow.core.states import (
    BROKEN,
    ENDED,
    Call,
    Compose,
    Ending,
    Expand,
    Keep,
    Key,
    Output,
    Phase,
    Stop,
    TimeOut,
    Verdict,
)
from tidepool_router.workflow.core.texts import data_of
from tidepool_router.workflow.core.values import item_read, steps_read
from tidepool_router.workflow.core.work import StepWork, Unit

MAX_ITEMS: Final = 256
_FAST: Final = "stopped, since {} failed and failFast is set"


class Frame:
    """`deadline` bounds all but the exit step. `nesting` makes what a unit is made of, which ends by then, too."""

    def __init__(self, plan: Plan, board: Board, place: Place, deadline: float, nesting: "Nesting") -> None:
        board.frames[place.scope] = self
        self.board = board
        self.plan = plan
        self.place = place
        self.scope = place.scope
        self.verdict = Verdict.RUNNING
        self.reason = ""
        self.answer: str | None = None
        self.tokens = spent(board.known, place.scope)
        self.saving = Saving(plan, board, place.scope, self.tokens)
        self.finished = False
        self.works = {name: StepWork(step, place.scope) for name, step in plan.steps.items()}
        self.exit_work = None if plan.exit is None else StepWork(plan.exit, place.scope)
        self.nests: dict[Key, Nest] = {}
        self.nesting = nesting
        self._composing = False
        self._out_of_time_at = deadline
        self._failed: str | None = None  # the first hard step that failed, where the others go on

    def saves(self, measure: Measure) -> bool:
        """Whether it does without this by now, for its own budget or one above, but in its exit step."""
        outer = self.place.outer
        due = measure in self.saving.measures or (outer is not None and outer.saves(measure))
        return due and self.verdict is Verdict.RUNNING

    def step(self, name: str) -> StepPlan:
        """One of its steps. Raises KeyError."""
        if self.exit_work is not None and name == self.exit_work.plan.name:
            return self.exit_work.plan
        return self.works[name].plan

    def values(self) -> dict[str, Any]:
        """What templates in it read."""
        if self.place.above is not None:
            return self.place.above
        return {"input": self.place.given, "steps": steps_read(self.works)}

    def ending(self) -> Ending:
        """How the workflow has ended that it is."""
        answer = self.answer or ""
        if self.verdict is Verdict.SUCCEEDED:
            return Ending(Phase.SUCCEEDED, "", Output(answer, data_of(answer), self.tokens))
        return Ending(Phase.FAILED, f"{self.plan.name}: {self.reason}", Output(tokens=self.tokens))

    # Events.

    def begin(self, now: float) -> None:
        """Start."""
        for work in self.works.values():
            self._advance(work, now)
        if self.saving.overspent and self.verdict is Verdict.RUNNING:
            self._stop(Verdict.FAILED, self.saving.overspent, now)
        self._settle(now)

    def expanded(self, step: str, items: Sequence[Any], now: float) -> None:
        """The items of a step."""
        work = self._work(step)
        if work is None or work.ended or not work.expanding:
            return
        if len(items) > MAX_ITEMS:
            self.unexpandable(step, f"{len(items)} items are more than {MAX_ITEMS}; take fewer", now)
            return
        work.expanding = False
        self._open(work, items, now)
        self._settle(now)

    def unexpandable(self, step: str, why: str, now: float) -> None:
        """The step's items cannot be made."""
        work = self._work(step)
        if work is None or work.ended or not work.expanding:
            return
        work.expanding = False
        self._end_step(work, Phase.ERRORED, f"withParam: {why}", now)
        self._settle(now)

    def ended(self, key: Key, ending: Ending, now: float) -> None:
        """A unit of work is over for good."""
        unit = self._unit(key)
        if unit is None or unit.phase is not Phase.RUNNING:
            return
        self._end_unit(key, unit, ending, now)
        self._settle(now)

    def retry_at(self, key: Key, attempt: int, now: float) -> float | None:
        """When a try that failed at `now` is made again; None: it is not, and the failure stands."""
        work, unit = self._work(key.step), self._unit(key)
        if work is None or unit is None or unit.attempt != attempt or attempt > work.plan.retry.limit:
            return None
        at = now + work.plan.retry.wait_seconds(attempt)
        # A try that could only begin after the end is none; the step's own error says more than the deadline.
        return at if at < self._out_of_time_at else None

    def failed(self, key: Key, attempt: int, at: float) -> None:
        """A try failed, and is made again at the time that `retry_at` told."""
        unit = self._unit(key)
        if unit is not None and unit.phase is Phase.RUNNING and unit.attempt == attempt:
            unit.phase, unit.wake_at = Phase.WAITING, at

    def used(self, tokens: int, now: float) -> None:
        """Tokens that a call in it has used, whether it succeeded or not."""
        self.tokens += tokens
        if self.verdict is Verdict.RUNNING:
            self._save(now)
        if self.place.outer is not None:
            self.place.outer.used(tokens, now)

    def composed(self, answer: str, now: float) -> None:
        """The answer of the run."""
        if self._composing:
            self._composing = False
            self.answer = answer
            self._conclude(Verdict.SUCCEEDED, "", now)

    def uncomposable(self, why: str, now: float) -> None:
        """The answer cannot be made."""
        if self._composing:
            self._composing = False
            self._conclude(Verdict.FAILED, f"output: {why}", now)

    def entered(self, key: Key, attempt: int, entry: "Entry", now: float) -> None:
        """A unit goes on as what it is made of: the steps of a workflow, or turns."""
        unit = self._unit(key)
        if unit is None or unit.phase is not Phase.RUNNING or unit.attempt != attempt or key in self.nests:
            return
        if self.scope.count("/") >= MAX_DEPTH:
            deep = f"nested deeper than {MAX_DEPTH}: workflows that run workflows, or picks of picks"
            self.board.effects.append(Keep(key, Ending(Phase.FAILED, deep)))
            return
        # From here on it bounds its time itself; the timeout of a step that chooses is that of each question.
        until = self._out_of_time_at if entry.plan is None else unit.until
        unit.until = math.inf
        nest = self.nests[key] = self.nesting(self, key, unit, entry, until, now)
        nest.begin(now)

    def nest_over(self, key: Key, now: float) -> None:
        """What a unit is made of is over."""
        nest = self.nests.pop(key)
        work, unit = self._work(key.step), self._unit(key)
        if work is not None and unit is not None and unit.phase is Phase.RUNNING:
            ending = nest.ending()
            unit.tokens += nest.tokens
            again = ending.phase is Phase.FAILED and work.plan.kind != "choose"
            at = self.retry_at(key, unit.attempt, now) if again else None
            if at is not None:
                self.failed(key, unit.attempt, at)
            else:
                output = Output(ending.output.text, ending.output.data, unit.tokens)
                self.board.effects.append(Keep(key, Ending(ending.phase, ending.reason, output)))
        elif self.verdict is not Verdict.RUNNING:
            self._settle(now)

    def stop(self, reason: str, now: float) -> None:
        """End now. Without effect when it is over and only its exit step runs."""
        if self.verdict is Verdict.RUNNING:
            self._stop(Verdict.CANCELLED, reason, now)

    def tick(self, now: float) -> None:
        """Time has passed: deadlines, timeouts, waits between tries."""
        if now >= self._out_of_time_at:
            self._out_of_time(now)
        for work in self._live():
            self._call_waiting(work, now)
            for key, unit in work.running():
                if now >= unit.until and not unit.timed_out:
                    unit.timed_out = True
                    self.board.effects.append(TimeOut(key, unit.attempt))

    def wakes(self) -> Iterator[float]:
        """When `tick` has something to do."""
        if self.verdict is Verdict.RUNNING or (self.exit_work is not None and not self.exit_work.ended):
            yield self._out_of_time_at
        for work in self._live():
            for unit in work.units:
                if unit.phase is Phase.RUNNING and not unit.timed_out:
                    yield unit.until
                elif unit.phase is Phase.WAITING:
                    yield unit.wake_at

    # Steps.

    def _live(self) -> list[StepWork]:
        works = [work for work in self.works.values() if work.phase is Phase.RUNNING]
        if self.exit_work is not None and self.exit_work.phase is Phase.RUNNING:
            works.append(self.exit_work)
        return works

    def _work(self, step: str) -> StepWork | None:
        if self.exit_work is not None and step == self.exit_work.plan.name:
            return self.exit_work
        return self.works.get(step)

    def _unit(self, key: Key) -> Unit | None:
        work = self._work(key.step)
        return None if work is None else work.unit(key)

    def _advance(self, work: StepWork, now: float) -> None:
        """Start or omit a step whose time has come."""
        if work.phase is not Phase.PENDING or self.verdict is not Verdict.RUNNING:
            return
        source = None if work.plan.source is None else self.works[work.plan.source]
        if source is not None and source.opened:
            self._open(work, [None] * len(source.units), now)
            return
        if not all(self.works[need].ended for need in work.plan.needs):
            return
        if work.plan.expression is not None and not holds(work.plan.expression, self.works):
            self._end_step(work, Phase.OMITTED, told(work.plan.expression, self.works), now)
        elif work.plan.soft and self.saves(Measure.SKIP_SOFT) and not self.board.began(work.path):
            self._skip_soft(work, now)
        else:
            self._start(work, now)

    def _start(self, work: StepWork, now: float) -> None:
        step = work.plan.step
        if step.with_items is not None:
            self._open(work, step.with_items, now)
        elif step.with_param is not None:
            work.phase, work.expanding = Phase.RUNNING, True
            self.board.effects.append(Expand(step.name, self.scope))
        else:
            self._open(work, None, now)

    def _open(self, work: StepWork, items: Sequence[Any] | None, now: float) -> None:
        """The step's units are known."""
        work.open(items)
        source = None if work.plan.source is None else self.works[work.plan.source]
        if source is not None:
            for index, unit in enumerate(source.units):
                if unit.phase in ENDED:
                    self._flow(work, index, unit, now)
        self._call_waiting(work, now)
        self._close_if_done(work, now)
        # Whoever takes the items of this step may begin with the first of them.
        for name in self.plan.followers.get(work.plan.name, ()):
            if self.works[name].plan.source == work.plan.name:
                self._advance(self.works[name], now)

    def _call_waiting(self, work: StepWork, now: float) -> None:
        """Call as many units as may run at a time, in their order; one that waits for its next try counts."""
        if work.calling:  # a known ending leads here again; the loop that met it goes on
            return
        work.calling = True
        try:
            self._call_ready(work, now)
        finally:
            work.calling = False

    def _call_ready(self, work: StepWork, now: float) -> None:
        step = work.plan
        if step.fans_out and self.saves(Measure.FEWER_BRANCHES):
            self._leave_out(work, now)
        room = (step.step.max_parallel if step.fans_out else 1) - sum(
            unit.phase in (Phase.RUNNING, Phase.WAITING) for unit in work.units
        )
        for key, unit in work.keyed():
            if work.ended:
                return
            if unit.phase is Phase.WAITING and now >= unit.wake_at:
                self._call(work, key, unit, now)
            elif unit.phase is Phase.PENDING and unit.ready and room > 0:
                before = self.board.known.pop(key, None)
                if before is not None:
                    unit.phase = Phase.RUNNING
                    self._end_unit(key, unit, before, now)
                else:
                    room -= 1
                    self._call(work, key, unit, now)

    def _leave_out(self, work: StepWork, now: float) -> None:
        """Fewer branches: of the items that have not begun none begins but the first, if it is the first."""
        pending = [
            (key, unit)
            for key, unit in work.keyed()
            if unit.phase is Phase.PENDING and not self.board.began(str(key))
        ]
        if len(pending) == len(work.units):
            del pending[0]
        if not pending:
            return
        self.board.saved.append(f"{len(pending)} of {len(work.units)} items of {self.scope}{work.plan.name}")
        for key, unit in pending:
            unit.phase, unit.reason = Phase.OMITTED, "left out for the budget: other items have begun"
            self._pass_on(work, key.item or 0, unit, now)

    def _call(self, work: StepWork, key: Key, unit: Unit, now: float) -> None:
        if self.board.calls_left <= 0:
            self.board.frames[""].out_of("CallsExceeded", f"{self.board.most_calls} calls are made", now)
            return
        self.board.calls_left -= 1
        timeout = work.plan.timeout_seconds
        unit.phase, unit.timed_out = Phase.RUNNING, False
        unit.attempt += 1
        unit.until = self._out_of_time_at if timeout is None else min(self._out_of_time_at, now + timeout)
        cheap = self.saves(Measure.SMALLER_MODEL)
        self.board.effects.append(Call(key, unit.attempt, unit.until, unit.value, cheap, self.place.turn))

    def _flow(self, work: StepWork, index: int, source: Unit, now: float) -> None:
        """One item of the step's source has ended: it is this step's item now."""
        unit = work.units[index]
        if source.phase is Phase.SUCCEEDED:
            unit.value, unit.ready = item_read(source), True
        elif unit.phase is Phase.PENDING:
            unit.phase = Phase.SKIPPED
            unit.reason = f"{work.plan.source}[{index}] is {source.phase}"
            self._pass_on(work, index, unit, now)

    def _pass_on(self, work: StepWork, index: int, unit: Unit, now: float) -> None:
        """An item has ended: whoever takes the items of this step may go on with it."""
        for name in self.plan.followers.get(work.plan.name, ()):
            follower = self.works[name]
            if follower.plan.source == work.plan.name and follower.opened:
                self._flow(follower, index, unit, now)
                self._call_waiting(follower, now)
                self._close_if_done(follower, now)

    def _end_unit(self, key: Key, unit: Unit, ending: Ending, now: float) -> None:
        work = self._work(key.step)
        assert work is not None  # noqa: S101 - the unit is its own
        unit.phase, unit.reason, unit.output = ending.phase, ending.reason, ending.output
        if unit.phase in BROKEN and self._stops_at_once(work):
            phase = Phase.FAILED if work.plan.fans_out else ending.phase
            self._end_step(work, phase, _with_key(key, ending.reason), now)
            return
        self._pass_on(work, key.item or 0, unit, now)
        self._call_waiting(work, now)
        self._close_if_done(work, now)

    def _stops_at_once(self, work: StepWork) -> bool:
        return not work.plan.soft and self.plan.spec.fail_fast and work is not self.exit_work

    def _close_if_done(self, work: StepWork, now: float) -> None:
        if work.phase is Phase.RUNNING and work.opened and all(unit.phase in ENDED for unit in work.units):
            self._end_step(work, *work.judge(), now)

    def _end_step(self, work: StepWork, phase: Phase, reason: str, now: float) -> None:
        self._close(work, phase, reason, now)
        if work is self.exit_work:
            return
        if phase in BROKEN and not work.plan.soft:
            failure = f"{work.plan.name} {phase}: {reason}"
            if self.plan.spec.fail_fast:
                self._stop(Verdict.FAILED, failure, now, _FAST.format(work.plan.name))
                return
            self._failed = self._failed or failure
        for name in self.plan.followers[work.plan.name]:
            self._advance(self.works[name], now)

    # The whole.

    def _save(self, now: float) -> None:
        """Do without what is due at the tokens used by now, or fail where the budget is one that fails."""
        failure = self.saving.failure(self.tokens)
        if failure:
            self._stop(Verdict.FAILED, failure, now)
            return
        begun = False
        for measure in self.saving.begun(self.tokens):
            begun = True
            self._take_up(measure, now)
        if begun:
            self._settle(now)

    def _take_up(self, measure: Measure, now: float) -> None:
        """What has not begun is looked at anew; calls that are made from now on see the rest."""
        for work in self.works.values():
            if measure is Measure.FEWER_BRANCHES and work.phase is Phase.RUNNING and work.opened:
                self._call_waiting(work, now)
                self._close_if_done(work, now)
            elif measure is Measure.SKIP_SOFT and work.plan.soft and work.phase is Phase.PENDING:
                self._skip_soft(work, now)

    def _skip_soft(self, work: StepWork, now: float) -> None:
        self.board.saved.append(f"the step {self.scope}{work.plan.name}")
        self._end_step(work, Phase.OMITTED, "left out for the budget: the step is Soft", now)

    def _settle(self, now: float) -> None:
        """Look whether the run, or its exit step, is done."""
        if self.verdict is Verdict.RUNNING:
            if self._composing or not all(work.ended for work in self.works.values()):
                return
            if self._failed is not None:
                self._conclude(Verdict.FAILED, self._failed, now)
            elif self.place.above is not None:
                self._conclude(Verdict.SUCCEEDED, "", now)
            else:
                self._composing = True
                self.board.effects.append(Compose(self.scope))
        elif not self.finished and not self.nests and (self.exit_work is None or self.exit_work.ended):
            self.finished = True
            del self.board.frames[self.scope]
            self.place.over(now)

    def _stop(self, verdict: Verdict, reason: str, now: float, why: str = "") -> None:
        """End all that is under way, and omit the rest."""
        self._composing = False
        for work in self.works.values():
            if not work.ended:
                self._close(work, Phase.OMITTED, why or reason, now)
        self._conclude(verdict, reason, now)

    def _close(self, work: StepWork, phase: Phase, reason: str, now: float) -> None:
        """End a step, and stop what it has under way."""
        stopped: list[Key] = []
        for key, unit in work.keyed():
            if unit.phase is Phase.RUNNING:
                stopped.append(key)
            if unit.phase not in ENDED:
                unit.phase, unit.reason = Phase.OMITTED, reason
        work.end(phase, reason)
        for key in stopped:
            nest = self.nests.get(key)
            if nest is None:
                self.board.effects.append(Stop(key))
            else:
                nest.stop(reason, now)

    def _conclude(self, verdict: Verdict, reason: str, now: float) -> None:
        """The run has its verdict; what is left is the exit step, on time of its own."""
        # What it had to do without is told by the whole run, whether it succeeded so or not.
        told = "" if self.place.outer is not None else self.board.told()
        self.verdict, self.reason = verdict, "; ".join(part for part in (reason, told) if part)
        if self.place.outer is None:
            self.board.calls_left = EXIT_CALLS
        work = self.exit_work
        if work is not None and not work.ended:
            self._out_of_time_at = now + self.plan.exit_seconds
            self._start(work, now)
        self._settle(now)

    def _out_of_time(self, now: float) -> None:
        if self.verdict is Verdict.RUNNING:
            self.out_of("DeadlineExceeded", f"not done within {self.place.bound or self.plan.spec.deadline}", now)
        else:
            self.out_of("", f"not done within {self.plan.exit_seconds:g} s", now)

    def out_of(self, what: str, told: str, now: float) -> None:
        """A bound is reached: the end of the run; in its exit step, of that."""
        if self.verdict is Verdict.RUNNING:
            self._stop(Verdict.FAILED, f"{what}: {told}", now)
        elif self.exit_work is not None and not self.exit_work.ended:
            self._end_step(self.exit_work, Phase.FAILED, told, now)
            self._settle(now)


# What a unit is made of: of this frame, with this entry, until then at the latest, beginning now.
Nesting = Callable[[Frame, Key, Unit, Entry, float, float], Nest]


def _with_key(key: Key, reason: str) -> str:
    return reason if key.item is None else f"item {key.item}: {reason}"
