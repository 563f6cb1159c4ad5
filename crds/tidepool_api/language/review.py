"""The review of an AgentWorkflow: every rule that the CRD's schema cannot state."""

import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any, Final

from pydantic import BaseModel

from tidepool_api.language import ordering, rendering, saving, schema
from tidepool_api.language.problems import Problem, Reason, listing, near_miss
from tidepool_api.language.steps import Outline, Step, mapping, outline, text
from tidepool_api.units import duration_seconds
from tidepool_api.workflow_steps import KINDS, STEP_NAME_PATTERN

# As the CRD bounds them: checked here too, for what never met the API server.
MAX_STEPS: Final = 64
MAX_RETRIES: Final = 10
MAX_NAME: Final = 63


def review(
    workflow: BaseModel | Mapping[str, Any],
    pool_names: Collection[str],
    workflow_names: Collection[str] | None = None,
) -> list[Problem]:
    """All that is wrong with a workflow, in an order that never changes; an empty list when it is sound.

    `workflow` is the resource, as a model or as the API server gives it. `pool_names` and `workflow_names` are the
    ModelPools and AgentWorkflows of its namespace; None: steps that run workflows are taken on trust.
    Raises nothing: what cannot be read is a problem too.
    """
    raw = workflow.model_dump(mode="json", by_alias=True) if isinstance(workflow, BaseModel) else workflow
    found = outline(mapping(raw, "spec"))
    if not found.steps:
        return [Problem("spec.steps", "there are no steps; write at least one")]
    if len(found.steps) > MAX_STEPS:
        return [Problem("spec.steps", f"{len(found.steps)} steps are more than {MAX_STEPS}; split the workflow")]
    own_name = text(mapping(raw, "metadata"), "name")
    problems = (*_problems(found, pool_names), *_workflows(found, own_name, workflow_names))
    return list(dict.fromkeys(problems))


def _problems(workflow: Outline, pool_names: Collection[str]) -> Iterator[Problem]:
    for step in workflow.steps:
        yield from _name(step, workflow)
        yield from _kind(step)
        yield from _fan_out(step)
        yield from _retry(step)
        yield from _schemas(step)
    if workflow.spec.get("input") is not None:
        yield from schema.check(workflow.spec["input"], "spec.input")
    yield from ordering.check(workflow)
    yield from rendering.check(workflow)
    yield from saving.check(workflow)
    for step in workflow.steps:
        yield from _pools(step, pool_names)


def _name(step: Step, workflow: Outline) -> Iterator[Problem]:
    if re.match(STEP_NAME_PATTERN, step.name) is None or len(step.name) > MAX_NAME:
        rule = f"use lower case letters, digits and _, at most {MAX_NAME}, and begin with a letter"
        yield Problem(f"{step.path}.name", f"{step.name!r} is no name for a step; {rule}")
    elif workflow.by_name[step.name] is not step:
        first = workflow.by_name[step.name].path
        yield Problem(f"{step.path}.name", f"{step.name!r} is the name of {first} already; give each step its own")


def _kind(step: Step) -> Iterator[Problem]:
    if not step.kinds:
        yield Problem(step.path, f"the step does nothing; give it one of {', '.join(KINDS)}")
    elif len(step.kinds) > 1:
        yield Problem(step.path, f"the step is {' and '.join(step.kinds)} at once; make it one step each")
    url = text(mapping(step.raw, "http"), "url")
    if "http" in step.kinds and not url.lstrip().startswith(("http://", "https://", "{{", "{%")):
        yield Problem(f"{step.path}.http.url", f"{url!r} is no URL; begin with http:// or https://")


def _fan_out(step: Step) -> Iterator[Problem]:
    if step.raw.get("withItems") is not None and step.raw.get("withParam") is not None:
        yield Problem(step.path, "withItems and withParam are both given; keep one of them")


def _retry(step: Step) -> Iterator[Problem]:
    path = f"{step.path}.retryStrategy"
    strategy = mapping(step.raw, "retryStrategy")
    limit = strategy.get("limit", 0)
    if isinstance(limit, bool) or not isinstance(limit, int) or not 0 <= limit <= MAX_RETRIES:
        yield Problem(f"{path}.limit", f"{limit!r} is out of bounds; write a number from 0 to {MAX_RETRIES}")
    backoff = mapping(strategy, "backoff")
    factor = _number(backoff.get("factor"))
    if factor is not None and factor < 1:
        yield Problem(f"{path}.backoff.factor", f"{factor:g} makes each wait shorter; write 1 or more")
    first, cap = _seconds(backoff, "duration"), _seconds(backoff, "cap")
    if first is not None and cap is not None and cap < first:
        message = f"{backoff['cap']} is below the first wait of {backoff['duration']}; raise cap or lower duration"
        yield Problem(f"{path}.backoff.cap", message)


def _schemas(step: Step) -> Iterator[Problem]:
    answer = mapping(step.raw, "llm").get("responseFormat")
    if answer is not None:
        yield from schema.check(answer, f"{step.path}.llm.responseFormat")


def _pools(step: Step, pool_names: Collection[str]) -> Iterator[Problem]:
    names = [name for _, name in step.pools]
    for kind in {"llm", "choose"}.intersection(step.kinds):
        if not names:
            yield Problem(f"{step.path}.{kind}.pools", "names no pool; name at least one ModelPool")
    for index, (path, name) in enumerate(step.pools):
        if name in names[:index]:
            yield Problem(f"{path}.name", f"{name!r} is named twice; name each candidate once")
        elif name not in pool_names:
            known = f"; there are {listing(sorted(pool_names))}" if pool_names else "; there is no ModelPool yet"
            message = f"there is no ModelPool {name!r} in this namespace{near_miss(name, pool_names) or known}"
            yield Problem(f"{path}.name", message, Reason.POOL_NOT_FOUND)


def _workflows(workflow: Outline, own_name: str, known: Collection[str] | None) -> Iterator[Problem]:
    for step in workflow.steps:
        name, path = text(mapping(step.raw, "workflow"), "name"), f"{step.path}.workflow.name"
        if name and name == own_name:
            yield Problem(path, "the workflow would run itself without end; name another", Reason.DEPENDENCY_CYCLE)
        elif name and known is not None and name not in known:
            message = f"there is no AgentWorkflow {name!r} in this namespace{near_miss(name, known)}"
            yield Problem(path, message, Reason.WORKFLOW_NOT_FOUND)


def _seconds(raw: Mapping[str, Any], key: str) -> float | None:
    try:
        return duration_seconds(text(raw, key))
    except ValueError:
        return None  # the CRD's pattern speaks of it, in its own words


def _number(value: object) -> float | None:
    try:
        return float(value) if isinstance(value, int | float | str) else None
    except ValueError:
        return None
