"""A workflow's spec, read once for all of its runs."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Final

from tidepool_api.language import depends
from tidepool_api.language.steps import Step as Written
from tidepool_api.language.templates import References, inspect, is_template
from tidepool_api.units import duration_seconds
from tidepool_api.workflow import AgentWorkflowSpec, Degradation, Measure, OnExceeded
from tidepool_api.workflow_steps import KINDS, Dependency, RetryStrategy, Step

# `steps.NAME.results` of a step that fans out: what flows on, one by one, to a step that takes items.
_FLOWS: Final = "results"
_EXIT_SECONDS: Final = 30.0


@dataclass(frozen=True, slots=True)
class Retry:
    """Tries after the first, and the waits between them in seconds."""

    limit: int = 0
    first_seconds: float = 0.0
    factor: float = 1.0
    cap_seconds: float = 0.0

    def wait_seconds(self, tries: int) -> float:
        """How long to wait when so many tries have failed, one or more."""
        return min(self.cap_seconds, self.first_seconds * self.factor ** (tries - 1))


@dataclass(frozen=True)
class StepPlan:
    """One step. `source`: the step whose items it takes as they come; None: it waits for all that it needs.

    `options`: of one question to a step that chooses, the steps that it may pick, and what their templates read of
    the pick.
    """

    step: Step
    expression: depends.Expression | None
    retry: Retry
    source: str | None
    options: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    @cached_property
    def name(self) -> str:
        """Its name."""
        return self.step.name

    @cached_property
    def kind(self) -> str:
        """Which of llm, http, mcp, workflow and choose."""
        return next(kind for kind in KINDS if getattr(self.step, kind) is not None)

    @cached_property
    def needs(self) -> tuple[str, ...]:
        """Steps that must have ended before, in the order in which `depends` names them."""
        if self.expression is None:
            return ()
        return tuple(dict.fromkeys(end.step for end in depends.ends(self.expression)))

    @cached_property
    def fans_out(self) -> bool:
        """Whether it runs once an item."""
        return self.step.with_items is not None or self.step.with_param is not None

    @cached_property
    def soft(self) -> bool:
        """Whether the run goes on when it fails."""
        return self.step.dependency is Dependency.SOFT

    @cached_property
    def timeout_seconds(self) -> float | None:
        """Longest time of one try; None: what is left of the deadline."""
        return None if self.step.timeout is None else duration_seconds(self.step.timeout)


@dataclass(frozen=True)
class Plan:
    """A workflow: `steps` in the order of the resource, without `exit`, which runs last, and without those that
    run only when they are picked. `hosts`: what its steps may call beside what all may.
    """

    name: str
    spec: AgentWorkflowSpec
    steps: Mapping[str, StepPlan]
    exit: StepPlan | None
    picked: Mapping[str, StepPlan] = field(default_factory=dict)
    hosts: tuple[str, ...] = ()

    @cached_property
    def deadline_seconds(self) -> float:
        """Longest time of a run, its exit step not counted."""
        return duration_seconds(self.spec.deadline)

    @cached_property
    def exit_seconds(self) -> float:
        """Longest time of the exit step."""
        exit_seconds = None if self.exit is None else self.exit.timeout_seconds
        return _EXIT_SECONDS if exit_seconds is None else exit_seconds

    @cached_property
    def budget_tokens(self) -> int | None:
        """Tokens that a run may use; None: no bound."""
        return None if self.spec.budget is None else self.spec.budget.tokens

    @cached_property
    def measures(self) -> tuple[tuple[Measure, float], ...]:
        """What a run does without from so many tokens on, in the order of the spec. None: it fails instead."""
        budget = self.spec.budget
        if budget is None or budget.on_exceeded is OnExceeded.FAIL:
            return ()
        declared = budget.degrade or tuple(Degradation(measure=measure) for measure in Measure)
        return tuple((one.measure, budget.tokens * one.at_percent / 100) for one in declared)

    @cached_property
    def followers(self) -> Mapping[str, tuple[str, ...]]:
        """For each step, those that wait for it."""
        found: dict[str, list[str]] = {name: [] for name in self.steps}
        for step in self.steps.values():
            for need in step.needs:
                found[need].append(step.name)
        return {name: tuple(names) for name, names in found.items()}

    @cached_property
    def ordered(self) -> tuple[str, ...]:
        """Its steps, each after all that it needs."""
        found: dict[str, None] = {}
        while len(found) < len(self.steps):
            ready = [name for name, step in self.steps.items() if found.keys() >= set(step.needs)]
            found.update(dict.fromkeys(ready))
        return tuple(found)

    @cached_property
    def last(self) -> str:
        """The step whose text is the answer where the workflow says nothing else."""
        return list(self.steps)[-1]

    @cached_property
    def alone(self) -> Mapping[str, "Plan"]:
        """For each step that runs only when it is picked, a plan of it alone."""
        return {name: self._only(picked) for name, picked in self.picked.items()}

    @cached_property
    def asking(self) -> Mapping[str, "Plan"]:
        """For each step that chooses, a plan of one question to it: what comes before is settled by then."""
        every = (*self.steps.values(), *self.picked.values(), *(() if self.exit is None else (self.exit,)))
        settled = {"when": None, "with_items": None, "with_param": None}
        return {
            one.name: self._only(
                StepPlan(one.step.model_copy(update=settled), None, one.retry, None, self._options(one.step))
            )
            for one in every
            if one.kind == "choose"
        }

    def _options(self, step: Step) -> Mapping[str, tuple[str, ...]]:
        among = () if step.choose is None else step.choose.among
        return {name: _read_of_pick(self.picked[name].step) for name in among if name in self.picked}

    def _only(self, step: StepPlan) -> "Plan":
        spec = self.spec.model_copy(update={"budget": None, "on_exit": None, "output": None})
        return replace(self, spec=spec, steps={step.name: step}, exit=None)


def plan_of(name: str, spec: AgentWorkflowSpec, hosts: Sequence[str] = ()) -> Plan:
    """The plan of a spec that the review has found sound."""
    planned = {step.name: _planned(step, spec.steps) for step in spec.steps}
    exit_step = planned.pop(spec.on_exit) if spec.on_exit else None
    among = {name for step in spec.steps if step.choose is not None for name in step.choose.among}
    picked = {name: planned.pop(name) for name in list(planned) if name in among}
    return Plan(name, spec, planned, exit_step, picked, tuple(hosts))


def _planned(step: Step, steps: Sequence[Step]) -> StepPlan:
    expression = None if step.depends is None else depends.parse(step.depends)
    return StepPlan(step, expression, _retry(step.retry_strategy), _source(step, expression, steps))


def _retry(strategy: RetryStrategy | None) -> Retry:
    if strategy is None:
        return Retry()
    backoff = strategy.backoff
    return Retry(strategy.limit, duration_seconds(backoff.duration), backoff.factor, duration_seconds(backoff.cap))


def _source(step: Step, expression: depends.Expression | None, steps: Sequence[Step]) -> str | None:
    """The step whose items `step` takes one by one: it needs nothing but their results, and reads them only so."""
    if step.with_param is None or not isinstance(expression, depends.Ended) or expression.result is not None:
        return None
    name = expression.step
    source = next((one for one in steps if one.name == name), None)
    if source is None or (source.with_items is None and source.with_param is None):
        return None
    if "".join(step.with_param.split()) != f"{{{{steps.{name}.{_FLOWS}}}}}":
        return None
    # Whoever reads all results elsewhere needs them all.
    elsewhere = _references(step, "with_param")
    return None if any(name in found.steps or found.whole_steps for found in elsewhere) else name


def _read_of_pick(step: Step) -> tuple[str, ...]:
    """Members of the pick that the step's templates read, in alphabetical order."""
    return tuple(sorted({member for found in _references(step) for member in found.picks}))


def _references(step: Step, *without: str) -> Iterator[References]:
    raw: Mapping[str, Any] = step.model_dump(mode="json", by_alias=True, exclude=set(without))
    for _, text in Written("", raw).templates():
        if is_template(text):
            yield inspect(text)
