"""Calls that runs will make soon, by pool: what the autoscaler is told before they come.

From the graph that is left of a run, and what steps like its own have taken: when each of them begins, how many of
its calls run at once, and for how long. What is late by so much is taken to be late by as much again, so that a
step that hangs soon announces nothing more.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from tidepool_router.workflow.core.board import MAX_DEPTH
from tidepool_router.workflow.core.frame import Frame
from tidepool_router.workflow.core.plan import Plan, StepPlan
from tidepool_router.workflow.core.profiles import STEP_SECONDS, Profiles
from tidepool_router.workflow.core.run import Run
from tidepool_router.workflow.core.states import Key, Phase
from tidepool_router.workflow.core.work import StepWork

# Within so long a pod that is asked for now could be ready, as the operator takes it before it has seen one start.
HORIZON_SECONDS: Final = 120.0
# Calls at once are counted as means over so long: what is shorter waits for a place that soon is free.
SPAN_SECONDS: Final = 10.0
# What is expected is counted for this part of its time, since chance and figures that are a little too long would
# else announce a part of all that goes on; who arrive together are all counted even so.
SURE_SHARE: Final = 0.75
_SPANS: Final = int(HORIZON_SECONDS / SPAN_SECONDS)
# Steps of one run that are looked at, those of workflows inside among them.
_MOST_STEPS: Final = 128
# Of one pool at one gateway.
MOST_CALLS: Final = 10_000


@dataclass(frozen=True, slots=True)
class Stay:
    """So many `calls` at once at a pool, from `begins` on and for so long; `begun` of them are in flight."""

    pool: str
    begins: float
    seconds: float
    calls: float
    begun: float = 0.0


Course = tuple[Stay, ...]


def course(
    run: Run,
    plans: Mapping[str, Plan],
    profiles: Profiles,
    began: Mapping[Key, float],
    now: float,
    namespace: str = "",
) -> Course:
    """The calls of a run from now on. `plans`: of workflows that its steps run; `began`: when units in flight did.

    Its exit step is left out: it is short, and seldom asks a model.
    """
    walk = _Walk(profiles, plans, began, now, f"{namespace}/" if namespace else "")
    for frame in run.frames():
        walk.frame(frame)
    return tuple(walk.found)


def announced(courses: Sequence[Course], now: float, runs: int = 0) -> dict[str, int]:
    """By pool, the most calls at once within the horizon, less those in flight; of `runs`, if they are more."""
    loads: dict[str, list[float]] = {}
    begun: dict[str, float] = {}
    for one in courses:
        late = max((now - stay.begins for stay in one if not stay.begun), default=0.0)
        for stay in one:
            if stay.begun:
                first, last = 0.0, abs(stay.begins + stay.seconds - now)
                begun[stay.pool] = begun.get(stay.pool, 0.0) + stay.begun
            else:
                first = max(0.0, stay.begins + 2.0 * max(0.0, late) - now)
                last = first + SURE_SHARE * stay.seconds
            _add(loads.setdefault(stay.pool, [0.0] * _SPANS), stay.calls, first, last)
    scale = max(1.0, runs / len(courses)) if courses else 1.0
    more = {pool: int(scale * (max(load) - begun.get(pool, 0.0)) + 0.5) for pool, load in loads.items()}
    return {pool: min(calls, MOST_CALLS) for pool, calls in more.items() if calls > 0}


def _add(spans: list[float], calls: float, first: float, last: float) -> None:
    at = int(first / SPAN_SECONDS)
    while at < _SPANS and (begins := at * SPAN_SECONDS) < last:
        spans[at] += calls * (min(last, begins + SPAN_SECONDS) - max(first, begins)) / SPAN_SECONDS
        at += 1


@dataclass(slots=True)
class _Walk:
    """Through the steps of a run, in the order of their dependencies."""

    profiles: Profiles
    plans: Mapping[str, Plan]
    began: Mapping[Key, float]
    now: float
    prefix: str
    found: list[Stay] = field(default_factory=list)
    steps_left: int = _MOST_STEPS

    def frame(self, frame: Frame) -> None:
        """One that is under way. What its units are made of are frames of their own."""
        ends: dict[str, float] = {}
        for name in frame.plan.ordered:
            if self.steps_left <= 0:
                return
            work = frame.works[name]
            if work.ended:
                ends[name] = self.now
            elif work.opened:
                ends[name] = self._opened(frame, work)
            else:
                ends[name] = self._expected(frame.plan, work.plan, _after(work.plan, ends, self.now), 1.0, 0)

    def _opened(self, frame: Frame, work: StepWork) -> float:
        """A step whose units are known: when the last of them ends."""
        self.steps_left -= 1 + len(work.units) // 8
        plan, step = frame.plan, work.plan
        since, running, left = self.now, 0, 0
        wakes: list[float] = []
        for key, unit in work.keyed():
            if unit.phase is Phase.RUNNING:
                running += 1
                since = min(since, self.began.get(key, self.now))
            elif unit.phase is Phase.WAITING:
                left += 1
                wakes.append(unit.wake_at)
            elif unit.phase is Phase.PENDING:
                left += 1
        begins = since if running or not wakes else max(self.now, min(wakes))
        if step.source is not None and not any(unit.ready for unit in work.units):
            begins += self._seconds(plan, plan.steps[step.source])
        seconds = self._seconds(plan, step)
        width = self._width(plan, step, seconds)
        rounds = max(1.0, (running + left) / width)
        # A unit that chooses is made of turns, and each question of them is a frame with one call.
        if step.kind == "llm" or (step.kind == "choose" and frame.place.turn):
            at_once = min(float(running + left), width)
            for pool, share in self._pools(plan, step):
                each = self._each(plan, step, pool, seconds)
                self._stay(pool, begins, each * rounds, share * at_once, share * running)
        elif left:
            self._inside(step, begins + (seconds if running else 0.0), min(float(left), width), 0)
        return begins + seconds * rounds

    def _expected(self, plan: Plan, step: StepPlan, begins: float, share: float, depth: int) -> float:
        """A step that has not begun, in such a share of the cases: when it ends."""
        self.steps_left -= 1
        units = self.profiles.step(plan.name, step.name).units.or_else(1.0)
        seconds = self._seconds(plan, step)
        width = self._width(plan, step, seconds)
        calls, rounds = share * min(units, width), max(1.0, units / width)
        if step.kind in ("llm", "choose"):
            for pool, part in self._pools(plan, step):
                self._stay(pool, begins, self._each(plan, step, pool, seconds) * rounds, part * calls)
        else:
            self._inside(step, begins, calls, depth)
        return begins + seconds * (rounds if units >= 1.0 else units)

    def _inside(self, step: StepPlan, begins: float, share: float, depth: int) -> None:
        """What a step runs that runs a workflow."""
        plan = None if step.step.workflow is None else self.plans.get(step.step.workflow.name)
        if plan is None or depth >= MAX_DEPTH:
            return
        ends: dict[str, float] = {}
        for name in plan.ordered:
            if self.steps_left <= 0:
                return
            inner = plan.steps[name]
            ends[name] = self._expected(plan, inner, _after(inner, ends, begins), share, depth + 1)

    def _width(self, plan: Plan, step: StepPlan, seconds: float) -> float:
        """How many of its units run at once; of items that flow on, as many as come while one is worked on."""
        if not step.fans_out:
            return 1.0
        most = float(step.step.max_parallel)
        if step.source is None:
            return most
        source = plan.steps[step.source]
        return min(most, source.step.max_parallel * max(1.0, seconds / self._seconds(plan, source)))

    def _seconds(self, plan: Plan, step: StepPlan) -> float:
        return self.profiles.step(plan.name, step.name).seconds.or_else(STEP_SECONDS)

    def _each(self, plan: Plan, step: StepPlan, pool: str, seconds: float) -> float:
        """Of one call: a step that chooses takes longer than its question."""
        if step.kind != "choose":
            return seconds
        return min(seconds, self.profiles.call(plan.name, step.name, pool).seconds.or_else(STEP_SECONDS))

    def _pools(self, plan: Plan, step: StepPlan) -> Iterator[tuple[str, float]]:
        """Whom a step asks: its one pool, or each by its share of what was asked lately; nobody before that."""
        asked = step.step.llm or step.step.choose
        names = [] if asked is None else [choice.name for choice in asked.pools]
        if len(names) == 1:
            yield names[0], 1.0
            return
        seen = [self.profiles.call(plan.name, step.name, name).success.seen(self.now) for name in names]
        whole = sum(seen)
        yield from ((name, part / whole) for name, part in zip(names, seen, strict=True) if part)

    def _stay(self, pool: str, begins: float, seconds: float, calls: float, begun: float = 0.0) -> None:
        self.found.append(Stay(self.prefix + pool, begins, seconds, calls, begun))


def _after(step: StepPlan, ends: Mapping[str, float], first: float) -> float:
    """When a step begins: after all that it needs."""
    return max((ends[need] for need in step.needs), default=first)
