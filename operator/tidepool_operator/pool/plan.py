"""From one look at a pool to what to do now."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from tidepool_api.status import AdapterState
from tidepool_operator.pool import adapters, progress, render, zero
from tidepool_operator.pool.clues import NO_CLUES
from tidepool_operator.pool.conditions import Picture
from tidepool_operator.pool.diagnosis import Finding, deployment_finding
from tidepool_operator.pool.drift import differs, stamped
from tidepool_operator.pool.fleet import Counted, count, pod_facts
from tidepool_operator.pool.goals import goals, rolls
from tidepool_operator.pool.model import Doomed, Mark, Object, Observed, Plan, Scale
from tidepool_operator.pool.ownership import is_own, may_take
from tidepool_operator.pool.preload import Preload, preload, there, unready
from tidepool_operator.pool.reasons import Reason
from tidepool_operator.pool.status import outcome
from tidepool_operator.pool.victims import choose

# What somebody else still holds (a pool of the same name that is being deleted) is looked at again soon.
_LEFTOVER_SECONDS: Final = 2.0
# Deployments without pods that are kept for a change back: they have passed the dry run, and show what was.
HISTORY: Final = 2
# Room that others make is told by nobody.
_ROOM_SECONDS: Final = 2.0


# The pods of Jobs are not watched.
_LOADER_SECONDS: Final = 15.0
# A load report is asked for so often until an adapter that is being loaded is there.
_ADAPTER_SECONDS: Final = 3.0


def plan(observed: Observed, now: float) -> Plan:
    """What to do for the pool at `now` (Unix seconds). The same look gives the same plan."""
    if observed.pool.metadata.deletion_timestamp:
        # Everything carries an owner reference: the garbage collector does it, with or without an operator.
        return Plan()
    revisions = _revisions(observed)
    if observed.problems:
        return _refused(observed, None, revisions, Finding(Reason.SPEC_INVALID, "; ".join(observed.problems)), now)
    rendered = render.render(observed.pool, observed.settings, there(observed))
    if observed.taken:
        what = f"{', '.join(observed.taken)} exists already and does not belong to this pool"
        return _refused(observed, rendered, revisions, Finding(Reason.NAME_TAKEN, what), now)
    refusal = observed.refused.get(rendered.revision)
    if refusal is not None:
        what = f"The API server refuses the pods: {refusal}"
        return _refused(observed, rendered, revisions, Finding(Reason.POD_TEMPLATE_REJECTED, what), now)
    return _serve(observed, rendered, revisions, now)


def _revisions(observed: Observed) -> dict[str, Counted]:
    accelerator = observed.pool.spec.accelerator.resource
    deployments = [
        item for item in observed.objects if item["kind"] == "Deployment" and may_take(observed.pool, item)
    ]
    clues = observed.clues
    facts = (pod_facts(pod, accelerator, clues.get(pod["metadata"]["name"], NO_CLUES)) for pod in observed.pods)
    return count(deployments, facts)


@dataclass(frozen=True, slots=True)
class _Counts:
    """Replica counts to go to, and what has to be marked first."""

    scales: tuple[Scale, ...] = ()
    marks: tuple[Mark, ...] = ()
    wants_loads: bool = False


def _serve(observed: Observed, rendered: render.Rendered, revisions: Mapping[str, Counted], now: float) -> Plan:
    new = revisions.get(rendered.revision, Counted(rendered.revision, None))
    olds = tuple(entry for name, entry in revisions.items() if name != rendered.revision)
    loads = preload(observed)
    if loads.waits is not None and not new.replicas:
        return _prepare(observed, rendered, revisions, loads, now)
    stuck = progress.stuck(observed, new, olds, now)
    aims = goals(observed, rendered, new, olds, now, stuck=stuck)
    counts = _counts(aims, (new, *olds), observed)
    extra = (*loads.makes, *_slice(observed, (new, *olds)))
    made, checks, leftover = _wanted(
        observed, (*rendered.objects, *extra, _deployment(observed, rendered, new, aims))
    )
    progressed = _adapters(observed, new, loads)
    picture = Picture(observed, rendered, new, olds, _findings(new, olds), stuck=stuck, adapters=progressed)
    told = outcome(picture, now)
    waits = [_LEFTOVER_SECONDS] if leftover else []
    return Plan(
        checks=checks,
        applies=made,
        marks=counts.marks,
        scales=counts.scales,
        deletes=(*_finished(observed, new, olds), *loads.garbage, *_slice_gone(observed, (new, *olds))),
        status=told.status,
        notes=told.notes,
        wants_loads=counts.wants_loads or _wants_adapters(observed, new),
        wants_room=observed.room is None and not stuck and rolls(observed, new, olds),
        requeue_after_seconds=_again(observed, new, olds, now, [*waits, *_until_adapters(observed, progressed)]),
    )


def _adapters(observed: Observed, new: Counted, loads: Preload) -> tuple[adapters.Progress, ...]:
    up = {pod.name for pod in new.live if pod.started}
    waits = {uri: (finding.reason, finding.what) for uri, finding in loads.adapters.items()}
    return tuple(adapters.progress(observed.pool, observed.loads, up, waits))


def _wants_adapters(observed: Observed, new: Counted) -> bool:
    """Only sidecars know what their engines have loaded."""
    wanted = bool(observed.pool.spec.model.adapters) and any(pod.started for pod in new.live)
    return wanted and not observed.loads


def _until_adapters(observed: Observed, progressed: Sequence[adapters.Progress]) -> list[float]:
    """Nobody tells when an engine has taken one, or a Job's pod does not get on."""
    states = {one.state for one in progressed}
    waits = [_LOADER_SECONDS] if AdapterState.FAILED in states or unready(observed) else []
    return [*waits, _ADAPTER_SECONDS] if AdapterState.LOADING in states else waits


def _again(
    observed: Observed, new: Counted, olds: Sequence[Counted], now: float, waits: list[float]
) -> float | None:
    waits = list(waits)
    if observed.room is not None and rolls(observed, new, olds):
        waits.append(_ROOM_SECONDS)
    deadline = progress.until_deadline(observed, new, now)
    return min([*waits, *([] if deadline is None else [deadline])], default=None)


def _counts(aims: Mapping[str, int], revisions: Sequence[Counted], observed: Observed) -> _Counts:
    scales: list[Scale] = []
    marks: list[Mark] = []
    wants_loads = False
    for entry in revisions:
        if entry.deployment is None:
            continue
        goal, name = aims[entry.revision], entry.deployment["metadata"]["name"]
        # Marks stay until the pods are gone: the ReplicaSet's controller acts after the count was lowered.
        # Where all of a revision's pods go together there is nobody to choose.
        going = max(0, len(entry.live) - goal)
        choice = choose(entry.live if goal else (), going, observed.loads)
        marks += choice.marks
        wants_loads = wants_loads or (bool(choice.marks) and not observed.loads)
        if goal > entry.replicas or (goal < entry.replicas and choice.marked):
            scales.append(Scale(name, goal))
    return _Counts(tuple(scales), tuple(marks), wants_loads)


def _prepare(
    observed: Observed, rendered: render.Rendered, revisions: Mapping[str, Counted], loads: Preload, now: float
) -> Plan:
    """Everything but the new revision's pods, whose files are not there yet; what serves goes on."""
    new = revisions.get(rendered.revision, Counted(rendered.revision, None))
    olds = tuple(entry for name, entry in revisions.items() if name != rendered.revision)
    made, _, leftover = _wanted(observed, (*rendered.objects, *loads.makes, *_slice(observed, (new, *olds))))
    # What can never work is told before hours of loading.
    checks = () if new.deployment else (stamped(render.deployment(observed.pool, rendered, 0)),)
    findings = (*_findings(Counted("", None), olds), *([loads.waits] if loads.waits else []))
    picture = Picture(observed, rendered, new, olds, findings, preloading=loads.waits)
    told = outcome(replace(picture, adapters=_adapters(observed, new, loads)), now)
    counts = _counts(goals(observed, rendered, new, olds, now, stuck=True), olds, observed) if olds else _Counts()
    waits = [_LEFTOVER_SECONDS] if leftover else [_LOADER_SECONDS] if unready(observed) else []
    return Plan(
        checks=checks,
        applies=made,
        marks=counts.marks,
        scales=counts.scales,
        deletes=(*loads.garbage, *_slice_gone(observed, (new, *olds))),
        status=told.status,
        notes=told.notes,
        wants_loads=counts.wants_loads,
        requeue_after_seconds=min(waits, default=None),
    )


def _deployment(observed: Observed, rendered: render.Rendered, new: Counted, aims: Mapping[str, int]) -> Object:
    # An upgrade of the operator restarts no engine that is up; where none is, the newest router can do no harm.
    keeps = new.deployment is not None and any(pod.ready or pod.started for pod in new.pods)
    image = render.router_image(new.deployment) if new.deployment and keeps else None
    # Scaling is a step of its own; an object that exists is applied with the count that it has.
    replicas = new.replicas if new.deployment else aims[new.revision]
    return render.deployment(observed.pool, rendered, replicas, image)


def _wanted(observed: Observed, objects: Sequence[Object]) -> tuple[tuple[Object, ...], tuple[Object, ...], bool]:
    """Objects to apply, those of them to check first, and whether something of another pool is in the way."""
    live = {(item["kind"], item["metadata"]["name"]): item for item in observed.objects}
    desired = [stamped(item) for item in objects]
    made = [item for item in desired if differs(item, live.get((item["kind"], item["metadata"]["name"])))]
    blocked = [item for item in made if _blocked(observed, live.get((item["kind"], item["metadata"]["name"])))]
    if blocked:
        return (), (), True
    checks = tuple(item for item in made if item["kind"] == "Deployment")
    return tuple(made), checks, False


def _blocked(observed: Observed, live: Object | None) -> bool:
    return live is not None and not may_take(observed.pool, live)


def _slice(observed: Observed, revisions: Sequence[Counted]) -> list[Object]:
    ready = sum(entry.ready for entry in revisions)
    if not observed.gateways or not zero.wanted(observed.pool, ready):
        return []
    return [zero.gateway_slice(observed.pool, observed.gateways)]


def _slice_gone(observed: Observed, revisions: Sequence[Counted]) -> list[Doomed]:
    ready = sum(entry.ready for entry in revisions)
    if zero.wanted(observed.pool, ready):
        return []
    name = zero.slice_name(observed.pool.metadata.name)
    return [
        _doomed(item)
        for item in observed.objects
        if item["kind"] == "EndpointSlice" and item["metadata"]["name"] == name and is_own(observed.pool, item)
    ]


def _finished(observed: Observed, new: Counted, olds: Sequence[Counted]) -> list[Doomed]:
    """Deployments of earlier revisions that nobody needs: the new one is complete, all their pods are gone, and
    they are not among the youngest, which are kept for a change back."""
    if new.ready < observed.pool.spec.replicas or new.deployment is None:
        return []
    idle = [old.deployment for old in olds if old.deployment and not old.replicas and not old.pods]
    idle.sort(key=lambda item: (item["metadata"].get("creationTimestamp") or "", item["metadata"]["name"]))
    # What another pool left would not go with this one.
    foreign = [item for item in idle if not is_own(observed.pool, item)]
    own = [item for item in idle if is_own(observed.pool, item)]
    return [_doomed(item) for item in (*foreign, *own[: max(0, len(own) - HISTORY)])]


def _doomed(item: Object) -> Doomed:
    metadata = item["metadata"]
    return Doomed(item["apiVersion"], item["kind"], metadata["name"], metadata["uid"])


def _findings(new: Counted, olds: Sequence[Counted]) -> tuple[Finding, ...]:
    found = [pod.finding for entry in (new, *olds) for pod in entry.live if pod.finding is not None]
    # What a Deployment of the history once failed at is no matter of today.
    made = [entry.deployment for entry in (new, *olds) if entry.deployment is not None and entry.replicas]
    found += [failure for item in made if (failure := deployment_finding(item)) is not None]
    return tuple(found)


def _refused(
    observed: Observed,
    rendered: render.Rendered | None,
    revisions: Mapping[str, Counted],
    refusal: Finding,
    now: float,
) -> Plan:
    """Nothing new is made; what serves goes on serving, and follows the wanted count where that is known."""
    new = revisions.get(rendered.revision) if rendered else None
    olds = tuple(entry for entry in revisions.values() if entry is not new)
    picture = Picture(observed, rendered, new, olds, _findings(Counted("", None), olds), refusal=refusal)
    told = outcome(picture, now)
    made = Plan(status=told.status, notes=told.notes)
    if rendered is None or not olds:
        return made
    counted = new or Counted(rendered.revision, None)
    aims = goals(observed, rendered, counted, olds, now, stuck=True)
    counts = _counts(aims, olds, observed)
    return replace(made, marks=counts.marks, scales=counts.scales, wants_loads=counts.wants_loads)
