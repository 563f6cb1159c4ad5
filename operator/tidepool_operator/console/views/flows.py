"""Workflows: the list, the graph of one, its runs, and one run as a Gantt chart."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from tidepool_api.language.steps import Outline, Step, outline
from tidepool_api.workflow_run import RunStory, RunSummary
from tidepool_operator.console.views.words import JSON, condition_told, moment, number, seconds_of, without_none
from tidepool_operator.pool.model import Object
from tidepool_operator.pool.pod_status import condition

MOST_RUNS: Final = 50
MOST_BARS: Final = 400
_DEADLINE: Final = "60s"


def row(raw: Object, objects: Sequence[Object]) -> JSON:
    """One workflow in the list; `objects` are its AgentWorkflowRuns."""
    ready, accepted = condition(raw, "Ready"), condition(raw, "Accepted")
    speaks = ready if accepted.get("status") == "True" else accepted
    phases = [str((one.get("status") or {}).get("phase") or "Pending") for one in objects]
    return without_none(
        {
            "state": "ready" if speaks.get("status") == "True" else "failed" if speaks else "new",
            "reason": speaks.get("reason"),
            "what": speaks.get("message"),
            "steps": len(outline(raw.get("spec") or {}).steps),
            "objects": {phase: phases.count(phase) for phase in sorted(set(phases))} or None,
        }
    )


def graph(raw: Object) -> list[JSON]:
    """Steps with what each needs and how deep in the graph it stands, in the order in which they can run."""
    plan = outline(raw.get("spec") or {})
    needs = {step.name: _needs(step, plan) for step in plan.by_name.values()}
    depths = _depths(needs, plan.exit_step)
    steps = [_step(step, plan, needs[step.name], depths[step.name]) for step in plan.by_name.values()]
    return sorted(steps, key=lambda one: one["depth"])


def _needs(step: Step, plan: Outline) -> tuple[str, ...]:
    choosers = plan.choosers.get(step.name, ())
    return tuple(one.name for one in choosers) or plan.depends_graph.get(step.name, ())


def _depths(needs: Mapping[str, Sequence[str]], last: str) -> dict[str, int]:
    found: dict[str, int] = {}
    while len(found) < len(needs):
        ready = [name for name in needs if name not in found and all(need in found for need in needs[name])]
        for name in ready or [name for name in needs if name not in found]:  # a circle stands in one column
            found[name] = 1 + max((found.get(need, -1) for need in needs[name]), default=-1)
    if last in found:
        found[last] = 1 + max((depth for name, depth in found.items() if name != last), default=-1)
    return found


def _step(step: Step, plan: Outline, needs: Sequence[str], depth: int) -> JSON:
    return without_none(
        {
            "name": step.name,
            "kind": next(iter(step.kinds), ""),
            "needs": list(needs),
            "depth": depth,
            "picked": step.name in plan.choosers or None,
            "last": step.name == plan.exit_step or None,
            "soft": step.raw.get("dependency") == "Soft" or None,
            "items": step.fans_out or None,
            "pools": [name for _, name in step.pools] or None,
        }
    )


def head(raw: Object) -> JSON:
    """What a workflow is."""
    spec = raw.get("spec") or {}
    budget = spec.get("budget") or {}
    return without_none(
        {
            "key": f"{raw['metadata'].get('namespace', '')}/{raw['metadata']['name']}",
            "deadline": seconds_of(spec.get("deadline") or _DEADLINE),
            "budget": budget.get("tokens"),
            "onExceeded": budget.get("onExceeded"),
            "conditions": [condition_told(entry) for entry in (raw.get("status") or {}).get("conditions") or []],
        }
    )


def runs(summaries: Sequence[RunSummary], objects: Sequence[Object], deadline: float | None) -> dict[str, JSON]:
    """Runs by id, the newest first: those that gateways tell, and objects whose run no gateway tells of."""
    found = {one.id: _summary(one) for one in summaries}
    for raw in objects:
        told = raw.get("status") or {}
        key = str(told.get("run") or f"object {raw['metadata']['name']}")
        found[key] = {**found.get(key, _object(told)), "object": raw["metadata"]["name"]}
    for one in found.values():
        if deadline is not None and "began" in one:
            one["deadline"] = one["began"] + deadline
    ordered = sorted(found.items(), key=lambda entry: -(entry[1].get("began") or float("inf")))
    return dict(ordered[:MOST_RUNS])


def _summary(one: RunSummary) -> JSON:
    return without_none(
        {
            "phase": str(one.phase),
            "reason": one.reason or None,
            "began": number(one.created, 13),
            "ended": number(one.ended, 13),
            "tokens": one.tokens,
        }
    )


def _object(told: Mapping[str, Any]) -> JSON:
    return without_none(
        {
            "phase": told.get("phase") or "Pending",
            "reason": told.get("reason") or None,
            "began": moment(told.get("started")),
            "ended": moment(told.get("finished")),
            "tokens": told.get("tokens"),
        }
    )


def story(told: RunStory, speeds: Mapping[str, float]) -> JSON:
    """One run: its tries as bars in seconds since it began; `speeds`: prompt tokens a second by pool, where known.

    Of an answer that came whole nobody knows when its first token was made: prefill is reckoned then (`guessed`).
    """
    summary = told.summary
    began = {}
    bars: list[JSON] = []
    for event in told.events:
        key, at = (event.step, event.item), event.at - summary.created
        if event.phase == "Running":
            began[key] = at
        elif key in began:
            bars.append(_bar(event.model_dump(), began.pop(key), at, speeds))
    # Where only the journal is left, nobody knows when.
    known = {(event.step, event.item) for event in told.events}
    rest = [step for step in told.steps if (step.step, step.item) not in known]
    bars += [{"step": step, "item": item, "from": at, "phase": "Running"} for (step, item), at in began.items()]
    bars.sort(key=lambda bar: (bar["from"], bar["step"]))
    return {
        **_summary(summary),
        "id": summary.id,
        "deadline": number(told.deadline, 13),
        "moves": told.moves,
        "bars": [without_none(bar) for bar in bars[:MOST_BARS]],
        "rest": [
            without_none({"step": one.step, "item": one.item, "phase": one.phase, "tokens": one.tokens or None})
            for one in rest[:MOST_BARS]
        ],
    }


def _bar(event: Mapping[str, Any], began: float, ended: float, speeds: Mapping[str, float]) -> JSON:
    bar: JSON = {
        "step": event["step"],
        "item": event["item"],
        "from": number(began, 6),
        "to": number(ended, 6),
        "phase": event["phase"],
        "reason": event["reason"] or None,
        "tokens": event["tokens"] or None,
        "pool": event["pool"],
    }
    queue, first = event["queue_seconds"], event["first_seconds"]
    if event["pool"] is None:
        return bar
    whole = max(0.0, ended - began)
    queue = min(whole, queue or 0.0)
    if first is None:
        speed = speeds.get(event["pool"])
        prompt = event["prompt_tokens"]
        if not speed or prompt is None:
            return bar | {"queue": number(queue)}
        return bar | {
            "queue": number(queue),
            "prefill": number(min(whole - queue, prompt / speed)),
            "guessed": True,
        }
    return bar | {"queue": number(queue), "prefill": number(min(whole, max(queue, first)) - queue)}
