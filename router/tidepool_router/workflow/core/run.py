"""One run: events in, effects out.

Invariants, which the property tests hold over random graphs:
- every step ends exactly once, and what does not run says why;
- a unit of work (`Key`) is called only after all that its step needs has ended, never while it is called already,
  and never after it has ended;
- after `cancel` or the deadline nothing new is called but the exit step, whose time is bounded by itself;
- which steps run and how they end depends on answers alone, not on the order in which they come.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from tidepool_router.workflow.core.dependencies import holds, told
from tidepool_router.workflow.core.plan import Plan
from tidepool_router.workflow.core.states import (
    BROKEN,
    ENDED,
    Call,
    Compose,
    Effect,
    Ending,
    Expand,
    Finish,
    Key,
    Phase,
    Stop,
    TimeOut,
    Verdict,
)
from tidepool_router.workflow.core.work import StepWork, Unit

MAX_ITEMS: Final = 256
_FAST: Final = "stopped, since {} failed and failFast is set"


class Run:
    """`ended_before` are the endings of an earlier life of this run, by key: they stand for calls."""

    def __init__(self, plan: Plan, *, deadline: float, ended_before: Mapping[Key, Ending] | None = None) -> None:
        self.plan = plan
        self.deadline = deadline
        self.verdict = Verdict.RUNNING
        self.reason = ""
        self.answer: str | None = None
        self._known = dict(ended_before or {})
        self.tokens = sum(ending.output.tokens for ending in self._known.values())
        self.degraded = plan.degrades and self._spent()
        self.finished = False
        self.works = {name: StepWork(step) for name, step in plan.steps.items()}
        self.exit_work = None if plan.exit is None else StepWork(plan.exit)
        self._composing = False
        self._effects: list[Effect] = []
        self._out_of_time_at = deadline
        self._failed: str | None = None  # the first hard step that failed, where the others go on

    # Events. Each returns what to do now, in this order.

    def begin(self, now: float) -> list[Effect]:
        """Start."""
        for work in self.works.values():
            self._advance(work, now)
        self._settle(now)
        return self._taken()

    def expanded(self, step: str, items: Sequence[Any], now: float) -> list[Effect]:
        """The items of a step."""
        work = self._work(step)
        if work is None or work.ended or not work.expanding:
            return []
        if len(items) > MAX_ITEMS:
            return self.unexpandable(step, f"{len(items)} items are more than {MAX_ITEMS}; take fewer", now)
        work.expanding = False
        self._open(work, items, now)
        self._settle(now)
        return self._taken()

    def unexpandable(self, step: str, why: str, now: float) -> list[Effect]:
        """The step's items cannot be made."""
        work = self._work(step)
        if work is None or work.ended or not work.expanding:
            return []
        work.expanding = False
        self._end_step(work, Phase.ERRORED, f"withParam: {why}", now)
        self._settle(now)
        return self._taken()

    def ended(self, key: Key, ending: Ending, now: float) -> list[Effect]:
        """A unit of work is over for good."""
        unit = self._unit(key)
        if unit is None or unit.phase is not Phase.RUNNING:
            return []
        self._end_unit(key, unit, ending, now)
        self._settle(now)
        return self._taken()

    def retry_at(self, key: Key, attempt: int, now: float) -> float | None:
        """When a try that failed at `now` is made again; None: it is not, and the failure stands."""
        work, unit = self._work(key.step), self._unit(key)
        if work is None or unit is None or unit.attempt != attempt or attempt > work.plan.retry.limit:
            return None
        at = now + work.plan.retry.wait_seconds(attempt)
        # A try that could only begin after the end is none; the step's own error says more than the deadline.
        return at if at < self._out_of_time_at else None

    def failed(self, key: Key, attempt: int, at: float) -> list[Effect]:
        """A try failed, and is made again at the time that `retry_at` told."""
        unit = self._unit(key)
        if unit is not None and unit.phase is Phase.RUNNING and unit.attempt == attempt:
            unit.phase, unit.wake_at = Phase.WAITING, at
        return []

    def used(self, tokens: int, now: float) -> list[Effect]:
        """Tokens that a call has used, whether it succeeded or not."""
        self.tokens += tokens
        budget = self.plan.budget_tokens
        if not self._spent() or self.degraded or self.verdict is not Verdict.RUNNING:
            return []
        if not self.plan.degrades:
            self._stop(Verdict.FAILED, f"BudgetExceeded: {self.tokens} tokens of {budget} are used", now)
            return self._taken()
        self.degraded = True
        for work in self.works.values():
            if work.plan.soft and work.phase is Phase.PENDING:
                self._end_step(work, Phase.OMITTED, "the budget is spent, and the step is Soft", now)
        self._settle(now)
        return self._taken()

    def composed(self, answer: str, now: float) -> list[Effect]:
        """The answer of the run."""
        if self._composing:
            self._composing = False
            self.answer = answer
            self._conclude(Verdict.SUCCEEDED, "", now)
        return self._taken()

    def uncomposable(self, why: str, now: float) -> list[Effect]:
        """The answer cannot be made."""
        if self._composing:
            self._composing = False
            self._conclude(Verdict.FAILED, f"output: {why}", now)
        return self._taken()

    def cancel(self, reason: str, now: float) -> list[Effect]:
        """End now. Without effect when the run is over and only its exit step runs."""
        if self.verdict is Verdict.RUNNING:
            self._stop(Verdict.CANCELLED, reason, now)
        return self._taken()

    def tick(self, now: float) -> list[Effect]:
        """Time has passed: deadlines, timeouts, waits between tries."""
        if now >= self._out_of_time_at:
            self._out_of_time(now)
        for work in self._live():
            self._call_waiting(work, now)
            for key, unit in work.running():
                if now >= unit.until and not unit.timed_out:
                    unit.timed_out = True
                    self._effects.append(TimeOut(key, unit.attempt))
        return self._taken()

    def next_wake(self) -> float | None:
        """When `tick` has something to do at the latest; None: the run is over."""
        if self.finished:
            return None
        times = [self._out_of_time_at]
        for work in self._live():
            times += [unit.until for _, unit in work.running() if not unit.timed_out]
            times += [unit.wake_at for unit in work.units if unit.phase is Phase.WAITING]
        return min(times)

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
        elif self.degraded and work.plan.soft:
            self._end_step(work, Phase.OMITTED, "the budget is spent, and the step is Soft", now)
        else:
            self._start(work, now)

    def _start(self, work: StepWork, now: float) -> None:
        step = work.plan.step
        if step.with_items is not None:
            self._open(work, step.with_items, now)
        elif step.with_param is not None:
            work.phase, work.expanding = Phase.RUNNING, True
            self._effects.append(Expand(step.name))
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
        room = (step.step.max_parallel if step.fans_out else 1) - sum(
            unit.phase in (Phase.RUNNING, Phase.WAITING) for unit in work.units
        )
        for key, unit in work.keyed():
            if work.ended:
                return
            if unit.phase is Phase.WAITING and now >= unit.wake_at:
                self._call(work, key, unit, now)
            elif unit.phase is Phase.PENDING and unit.ready and room > 0:
                before = self._known.pop(key, None)
                if before is not None:
                    unit.phase = Phase.RUNNING
                    self._end_unit(key, unit, before, now)
                else:
                    room -= 1
                    self._call(work, key, unit, now)

    def _call(self, work: StepWork, key: Key, unit: Unit, now: float) -> None:
        timeout = work.plan.timeout_seconds
        unit.phase, unit.timed_out = Phase.RUNNING, False
        unit.attempt += 1
        unit.until = self._out_of_time_at if timeout is None else min(self._out_of_time_at, now + timeout)
        self._effects.append(Call(key, unit.attempt, unit.until, unit.value, self.degraded))

    def _flow(self, work: StepWork, index: int, source: Unit, now: float) -> None:
        """One item of the step's source has ended: it is this step's item now."""
        unit = work.units[index]
        if source.phase is Phase.SUCCEEDED:
            unit.value, unit.ready = source.output, True
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
        self._close(work, phase, reason)
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

    # The run.

    def _spent(self) -> bool:
        budget = self.plan.budget_tokens
        return budget is not None and self.tokens >= budget

    def _settle(self, now: float) -> None:
        """Look whether the run, or its exit step, is done."""
        if self.verdict is Verdict.RUNNING:
            if self._composing or not all(work.ended for work in self.works.values()):
                return
            if self._failed is not None:
                self._conclude(Verdict.FAILED, self._failed, now)
            else:
                self._composing = True
                self._effects.append(Compose())
        elif not self.finished and (self.exit_work is None or self.exit_work.ended):
            self.finished = True
            self._effects.append(Finish())

    def _stop(self, verdict: Verdict, reason: str, now: float, why: str = "") -> None:
        """End all that is under way, and omit the rest."""
        self._composing = False
        for work in self.works.values():
            if not work.ended:
                self._close(work, Phase.OMITTED, why or reason)
        self._conclude(verdict, reason, now)

    def _close(self, work: StepWork, phase: Phase, reason: str) -> None:
        """End a step, and stop what it has under way."""
        for key, unit in work.keyed():
            if unit.phase is Phase.RUNNING:
                self._effects.append(Stop(key))
            if unit.phase not in ENDED:
                unit.phase, unit.reason = Phase.OMITTED, reason
        work.end(phase, reason)

    def _conclude(self, verdict: Verdict, reason: str, now: float) -> None:
        """The run has its verdict; what is left is the exit step, on time of its own."""
        self.verdict, self.reason = verdict, reason
        work = self.exit_work
        if work is not None and not work.ended:
            self._out_of_time_at = now + self.plan.exit_seconds
            self._start(work, now)
        self._settle(now)

    def _out_of_time(self, now: float) -> None:
        if self.verdict is Verdict.RUNNING:
            self._stop(Verdict.FAILED, f"DeadlineExceeded: not done within {self.plan.spec.deadline}", now)
        elif self.exit_work is not None and not self.exit_work.ended:
            self._end_step(self.exit_work, Phase.FAILED, f"not done within {self.plan.exit_seconds:g} s", now)
            self._settle(now)

    def _taken(self) -> list[Effect]:
        effects, self._effects = self._effects, []
        stopped = {effect.key for effect in effects if isinstance(effect, Stop)}
        called = {effect.key for effect in effects if isinstance(effect, Call) and effect.key in stopped}
        if not called:
            return effects
        # Begun and stopped by one event: never begun.
        return [one for one in effects if not (isinstance(one, Call | Stop) and one.key in called)]


def _with_key(key: Key, reason: str) -> str:
    return reason if key.item is None else f"item {key.item}: {reason}"
