"""Rules of order: `depends`, cycles, `choose.among` and `onExit`."""

from collections.abc import Iterator

from tidepool_api.language import depends, graph
from tidepool_api.language.problems import Problem, Reason, listing, near_miss
from tidepool_api.language.steps import Outline, Step


def check(workflow: Outline) -> Iterator[Problem]:
    """Problems of the order in which steps run."""
    for step in workflow.steps:
        yield from _depends(step, workflow)
        yield from _among(step, workflow)
    yield from _exit(workflow)
    yield from _cycles(workflow)


def _depends(step: Step, workflow: Outline) -> Iterator[Problem]:
    path = f"{step.path}.depends"
    if isinstance(step.expression, depends.DependsError):
        yield Problem(path, str(step.expression), Reason.INVALID_DEPENDS)
    for end in dict.fromkeys(step.needs):
        message = _cannot_end(end, workflow)
        if message is not None:
            reason = Reason.INVALID_DEPENDS if end.step in workflow.by_name else Reason.UNKNOWN_STEP
            yield Problem(path, message, reason)


def _cannot_end(end: depends.Ended, workflow: Outline) -> str | None:
    if end.step not in workflow.by_name:
        return _unknown(end.step, workflow)
    if end.step in workflow.choosers:
        choosers = listing([step.name for step in workflow.choosers[end.step]])
        return (
            f"{end.step!r} runs only when it is picked, so nothing can wait for it; depend on {choosers} instead"
        )
    if end.step == workflow.exit_step:
        return f"{end.step!r} is the onExit step and runs last, so nothing can wait for it"
    if end.result in depends.OF_ITEMS and not workflow.by_name[end.step].fans_out:
        plain = depends.Result.SUCCEEDED if end.result is depends.Result.ANY_SUCCEEDED else depends.Result.FAILED
        return f"{end} speaks of items, and {end.step!r} does not fan out; write {end.step}.{plain}"
    return None


def _among(step: Step, workflow: Outline) -> Iterator[Problem]:
    path = f"{step.path}.choose.among"
    if "choose" in step.kinds and not step.among:
        yield Problem(path, "names no step: name at least one that may be picked")
    for index, name in enumerate(step.among):
        if name in step.among[:index]:
            yield Problem(f"{path}[{index}]", f"{name!r} is named twice; name it once")
        elif name not in workflow.by_name:
            yield Problem(f"{path}[{index}]", _unknown(name, workflow), Reason.UNKNOWN_STEP)
        elif name == workflow.exit_step:
            yield Problem(
                f"{path}[{index}]", f"{name!r} is the onExit step and cannot be picked; name another step"
            )
    if step.name in workflow.choosers and step.raw.get("depends"):
        choosers = listing([chooser.name for chooser in workflow.choosers[step.name]])
        yield Problem(f"{step.path}.depends", f"the step runs when {choosers} picks it; leave depends out")


def _exit(workflow: Outline) -> Iterator[Problem]:
    name = workflow.exit_step
    if not name:
        return
    step = workflow.by_name.get(name)
    if step is None:
        yield Problem("spec.onExit", _unknown(name, workflow), Reason.UNKNOWN_STEP)
    elif step.raw.get("depends"):
        yield Problem(f"{step.path}.depends", "the onExit step runs last, whatever happened; leave depends out")
    elif len(workflow.by_name) == 1:
        yield Problem("spec.onExit", f"{name!r} is the only step, so nothing would run before it; add a step")


def _cycles(workflow: Outline) -> Iterator[Problem]:
    needs = {
        name: dict.fromkeys(
            [*needed, *(pick for pick in workflow.by_name[name].among if pick in workflow.by_name)]
        )
        for name, needed in workflow.depends_graph.items()
    }
    for cycle in graph.cycles(needs):
        step = workflow.by_name[cycle[0]]
        field = "depends" if cycle[1] in workflow.depends_graph[step.name] else "choose.among"
        message = (
            f"steps wait for each other without end: {' -> '.join(cycle)} (each needs the next); break the circle"
        )
        yield Problem(f"{step.path}.{field}", message, Reason.DEPENDENCY_CYCLE)


def _unknown(name: str, workflow: Outline) -> str:
    hint = near_miss(name, workflow.by_name) or f"; there are {listing(list(workflow.by_name))}"
    return f"there is no step {name!r}{hint}"
