"""Rules of templates: they compile, and read only what exists by the time they are rendered."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from tidepool_api.language import graph, schema, templates
from tidepool_api.language.problems import Problem, Reason, listing, near_miss
from tidepool_api.language.steps import Outline, Step, text

MAX_TOTAL_CHARACTERS: Final = 262_144


@dataclass(frozen=True, slots=True)
class _Scope:
    """What a template may read; `place` says in words where it stands."""

    place: str
    roots: frozenset[str]
    steps: frozenset[str]
    whole_steps: bool = False


def check(workflow: Outline) -> Iterator[Problem]:
    """Problems of every template of the workflow, in the order of the resource."""
    left = MAX_TOTAL_CHARACTERS
    for path, written, scope in _all(workflow):
        left -= len(written)
        if left < 0:
            yield _problem(
                path, f"the templates together are longer than {MAX_TOTAL_CHARACTERS} characters; shorten them"
            )
            return
        if "{" in written:
            yield from _template(path, written, scope, workflow)
    for step in workflow.steps:
        yield from _items(step)


def _all(workflow: Outline) -> Iterator[tuple[str, str, _Scope]]:
    for step in workflow.steps:
        scope = _scope(step, workflow)
        before_items = _Scope(scope.place, scope.roots - {"item"}, scope.steps, scope.whole_steps)
        for path, written in step.templates():
            fans = path.startswith((f"{step.path}.withParam", f"{step.path}.withItems"))
            yield path, written, before_items if fans else scope
    regular = _regular(workflow)
    yield "spec.output", text(workflow.spec, "output"), _Scope("the output", _roots(), regular, whole_steps=True)


def _scope(step: Step, workflow: Outline) -> _Scope:
    roots = _roots(item=step.fans_out, pick=step.name in workflow.choosers)
    if step.name and step.name == workflow.exit_step:
        return _Scope(f"step {step.name!r}", roots, _regular(workflow), whole_steps=True)
    return _Scope(f"step {step.name!r}", roots, _visible(step, workflow, frozenset()))


def _roots(*, item: bool = False, pick: bool = False) -> frozenset[str]:
    return frozenset({"input", "steps"} | ({"item"} if item else set()) | ({"pick"} if pick else set()))


def _visible(step: Step, workflow: Outline, seen: frozenset[str]) -> frozenset[str]:
    """Steps that have ended, or chosen, by the time `step` starts; `seen` ends circles of choosers."""
    own = frozenset({step.name}) if "choose" in step.kinds else frozenset()
    reach = graph.ancestors(step.name, workflow.depends_graph) | own
    choosers = [one for one in workflow.choosers.get(step.name, ()) if one.name not in seen]
    if not choosers:
        return reach
    # Whoever picks it, what it reads must be there.
    return reach | frozenset.intersection(*(_visible(one, workflow, seen | {step.name}) for one in choosers))


def _regular(workflow: Outline) -> frozenset[str]:
    return frozenset(workflow.by_name) - frozenset(workflow.choosers) - {workflow.exit_step}


def _template(path: str, written: str, scope: _Scope, workflow: Outline) -> Iterator[Problem]:
    try:
        found = templates.inspect(written)
    except templates.BrokenTemplateError as error:
        yield _problem(path, str(error))
        return
    for root in sorted(found.roots - scope.roots):
        yield _problem(path, _undefined(root, scope, workflow))
    if found.whole_steps and not scope.whole_steps:
        yield _problem(path, "steps is read as a whole; name one step, as in steps.plan")
    for name in sorted(found.steps - scope.steps):
        reason = Reason.INVALID_TEMPLATE if name in workflow.by_name else Reason.UNKNOWN_STEP
        yield Problem(path, _unreachable(name, scope, workflow), reason)
    declared = schema.closed_properties(workflow.spec.get("input"))
    for name in sorted(found.inputs - declared) if declared is not None else ():
        hint = near_miss(name, declared or ()) or "; declare it under spec.input.properties"
        yield _problem(path, f"the input has no property {name!r}{hint}")


def _undefined(root: str, scope: _Scope, workflow: Outline) -> str:
    if root == "item":
        return "item exists only in a step with withItems or withParam, and not in these two themselves"
    if root == "pick":
        return "pick exists only in a step that some choose.among names"
    if root in workflow.by_name:
        return f"{root!r} is undefined; write steps.{root}"
    hint = near_miss(root, scope.roots) or f"; there are {listing(sorted(scope.roots))}"
    return f"{root!r} is undefined{hint}"


def _unreachable(name: str, scope: _Scope, workflow: Outline) -> str:
    if name not in workflow.by_name:
        hint = near_miss(name, workflow.by_name) or f"; there are {listing(list(workflow.by_name))}"
        return f"steps.{name} is read, and there is no step {name!r}{hint}"
    if name in workflow.choosers:
        chooser = workflow.choosers[name][0].name
        return f"steps.{name} is read, and {name!r} runs only when picked; read steps.{chooser}.turns instead"
    if name == workflow.exit_step:
        return f"steps.{name} is read, and {name!r} is the onExit step, which runs last; read another step"
    return f"steps.{name} is read, and {scope.place} does not come after {name!r}; add {name!r} to its depends"


def _items(step: Step) -> Iterator[Problem]:
    param = text(step.raw, "withParam")
    if not param or templates.is_template(param):
        return
    try:
        value = json.loads(param)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, list):
        remedy = 'write a template, such as "{{ steps.plan.json.queries }}", or a JSON list'
        yield _problem(f"{step.path}.withParam", f"gives no list; {remedy}")


def _problem(path: str, message: str) -> Problem:
    return Problem(path, message, Reason.INVALID_TEMPLATE)
