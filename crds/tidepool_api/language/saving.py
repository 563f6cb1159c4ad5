"""Rules of a budget that degrades: each measure that is declared can do something."""

from collections.abc import Callable, Iterator, Mapping
from typing import Final

from tidepool_api.language.problems import Problem, Reason
from tidepool_api.language.steps import Outline, Step, mapping, sequence, text
from tidepool_api.workflow import Measure

# A workflow that is run inside may have what the outer one lacks.
_PATH: Final = "spec.budget.degrade"


def check(workflow: Outline) -> Iterator[Problem]:
    """Problems of what is declared; a budget that declares nothing takes the measures that its steps allow."""
    inside = any("workflow" in step.kinds for step in workflow.steps)
    for index, entry in enumerate(sequence(mapping(workflow.spec, "budget"), "degrade")):
        rule = _RULES.get(text(entry, "measure")) if isinstance(entry, Mapping) else None
        if rule is not None:
            helps, remedy = rule
            if not inside and not any(map(helps, workflow.steps)):
                yield Problem(
                    f"{_PATH}[{index}].measure", f"would change nothing: {remedy}", Reason.INVALID_BUDGET
                )
            if helps is _has_choice:
                yield from _unmeasured(workflow)


def _unmeasured(workflow: Outline) -> Iterator[Problem]:
    """Of candidates, which is the smaller one is told by their quality alone."""
    for step in filter(_has_choice, workflow.steps):
        for kind in {"llm", "choose"}.intersection(step.kinds):
            for index, pool in enumerate(sequence(mapping(step.raw, kind), "pools")):
                if isinstance(pool, Mapping) and pool.get("quality") is None:
                    path = f"{step.path}.{kind}.pools[{index}].quality"
                    message = "is missing, and SmallerModel asks the pool of least quality; write it, 0 to 1"
                    yield Problem(path, message, Reason.INVALID_BUDGET)


def _has_choice(step: Step) -> bool:
    return len(step.pools) > 1


def _branches(step: Step) -> bool:
    return step.fans_out or "choose" in step.kinds


def _is_soft(step: Step) -> bool:
    return text(step.raw, "dependency") == "Soft"


_RULES: Final[Mapping[str, tuple[Callable[[Step], bool], str]]] = {
    Measure.SMALLER_MODEL.value: (_has_choice, "no step has a second pool; name one, or take the measure out"),
    Measure.FEWER_BRANCHES.value: (_branches, "no step fans out or chooses; take the measure out"),
    Measure.SKIP_SOFT.value: (_is_soft, "no step is Soft; set dependency: Soft on one, or take the measure out"),
}
