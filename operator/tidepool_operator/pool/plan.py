"""From one look at a pool to what to do now."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from tidepool_api.contract import ROLE_PREFILL, VARIANT_LABEL
from tidepool_api.status import AdapterState
from tidepool_operator.pool import adapters, groups, progress, render, roles, variants, zero
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
from tidepool_operator.pool.revision import made_with
from tidepool_operator.pool.roles import Side
from tidepool_operator.pool.status import outcome
from tidepool_operator.pool.variants import Part
from tidepool_operator.pool.victims import choose

# What somebody else still holds (a pool of the same name that is being deleted) is looked at again soon.
_LEFTOVER_SECONDS: Final = 2.0
# Deployments without pods that are kept for a change back: they have passed the dry run, and show what was.
HISTORY: Final = 2
# Which kinds the cluster has is found out when the operator starts.
_KINDS_SECONDS: Final = 1.0
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
    revisions, prefills = _revisions(observed)
    if observed.problems:
        return _refused(observed, None, revisions, Finding(Reason.SPEC_INVALID, "; ".join(observed.problems)), now)
    made = variants.rendered(observed, there(observed), any_role=roles.others_serve(observed))
    apart = render.render_prefill(observed.pool, observed.settings)
    refusal = _refusal(observed, made if apart is None else (*made, apart))
    if refusal is not None:
        return _refused(observed, made, revisions, refusal, now)
    if _grouped(observed) and observed.settings.groups is None:
        return Plan(requeue_after_seconds=_KINDS_SECONDS)
    return _serve(observed, variants.parts(observed, made, revisions), roles.side(observed, apart, prefills), now)


def _refusal(observed: Observed, made: Sequence[render.Rendered]) -> Finding | None:
    """Why nothing of a sound spec can be acted on here."""
    if observed.taken:
        what = f"{', '.join(observed.taken)} exists already and does not belong to this pool"
        return Finding(Reason.NAME_TAKEN, what)
    if _grouped(observed) and observed.settings.groups is False:
        hosts = observed.pool.spec.parallelism.hosts
        what = f"A replica on {hosts} nodes is made by a LeaderWorkerSet, and the cluster knows none"
        return Finding(Reason.LEADER_WORKER_SET_MISSING, what)
    for one in made:
        refusal = observed.refused.get(one.revision)
        if refusal is not None:
            return Finding(Reason.POD_TEMPLATE_REJECTED, f"The API server refuses {_whose(one)}: {refusal}")
    return None


def _whose(one: render.Rendered) -> str:
    if one.variant:
        return f"the pods of variant {one.variant}"
    return "the prefill pods" if one.role == ROLE_PREFILL else "the pods"


def _revisions(observed: Observed) -> tuple[dict[str, Counted], dict[str, Counted]]:
    """Those of the pods that spec.replicas counts, and those of prefill pods."""
    deployments = [
        item for item in observed.objects if item["kind"] in groups.WORKLOADS and may_take(observed.pool, item)
    ]
    return _counted(observed, deployments, prefill=False), _counted(observed, deployments, prefill=True)


def _counted(observed: Observed, deployments: Sequence[Object], *, prefill: bool) -> dict[str, Counted]:
    clues = observed.clues
    facts = (
        (pod, pod_facts(pod, _accelerator(observed, pod), clues.get(pod["metadata"]["name"], NO_CLUES)))
        for pod in observed.pods
        if roles.is_prefill(pod) is prefill
    )
    return count([item for item in deployments if roles.is_prefill(item) is prefill], groups.led(facts))


def _grouped(observed: Observed) -> bool:
    return observed.pool.spec.parallelism.hosts > 1


def _accelerator(observed: Observed, pod: Object) -> str:
    return variants.device_of(observed.pool, (pod["metadata"].get("labels") or {}).get(VARIANT_LABEL, ""))[0]


@dataclass(frozen=True, slots=True)
class _Counts:
    """Replica counts to go to, and what has to be marked first."""

    scales: tuple[Scale, ...] = ()
    marks: tuple[Mark, ...] = ()
    wants_loads: bool = False


def _serve(observed: Observed, parts: Sequence[Part], side: Side, now: float) -> Plan:
    """`parts` are what spec.replicas counts, `side` the prefill pods; both are rolled out alike."""
    new = variants.together([part.new for part in parts])
    loads = preload(observed)
    if loads.waits is not None and not new.replicas:
        return _prepare(observed, parts, side, loads, now)
    parts, side = _watched(parts, now), replace(side, parts=_watched(side.parts, now))
    both = (*parts, *side.parts)
    aims = _aims(both, now) | {entry.revision: 0 for entry in side.leftovers}
    counting = _every(parts)
    counts = _counts(aims, (*counting, *_every(side.parts), *side.leftovers), observed)
    deployments = [_deployment(part, aims[part.new.revision]) for part in both]
    made, checks, leftover = _wanted(
        observed, (*parts[0].rendered.objects, *loads.makes, *_slice(observed, counting), *deployments)
    )
    progressed = _adapters(observed, new, loads)
    picture = replace(_picture(observed, parts, [part.new for part in parts]), adapters=progressed)
    told = outcome(replace(picture, prefill=_prefill(side)), now)
    waits = [_LEFTOVER_SECONDS] if leftover else []
    return Plan(
        checks=checks,
        applies=made,
        marks=counts.marks,
        scales=counts.scales,
        deletes=(
            *(item for part in both for item in _finished(part)),
            *_idle(observed, side.leftovers, kept=0),
            *loads.garbage,
            *_slice_gone(observed, counting),
        ),
        status=told.status,
        notes=told.notes,
        wants_loads=counts.wants_loads or _wants_adapters(observed, new),
        # Room is counted in pods: where a group of them finds it is not known.
        wants_room=not _grouped(observed)
        and observed.room is None
        and any(not part.stuck and _rolls(part) for part in both),
        requeue_after_seconds=_again(both, now, [*waits, *_until_adapters(observed, progressed)]),
    )


def _watched(parts: Sequence[Part], now: float) -> tuple[Part, ...]:
    """With whether their rollouts get on."""
    return tuple(replace(part, stuck=progress.stuck(part.observed, part.new, part.olds, now)) for part in parts)


def _every(parts: Sequence[Part]) -> list[Counted]:
    """The revisions of the parts."""
    return [entry for part in parts for entry in (part.new, *part.olds)]


def _prefill(side: Side) -> Picture | None:
    """The prefill pods, where there are some or should be."""
    if side.parts:
        return _picture(side.observed, side.parts, [part.new for part in side.parts])
    gone = side.leftovers
    return Picture(side.observed, None, None, gone, _findings([], gone)) if gone else None


def _aims(parts: Sequence[Part], now: float) -> dict[str, int]:
    """Replicas by revision."""
    aims: dict[str, int] = {}
    for part in parts:
        aims |= goals(part.observed, part.rendered, part.new, part.olds, now, stuck=part.stuck)
    return aims


def _picture(observed: Observed, parts: Sequence[Part], news: Sequence[Counted]) -> Picture:
    """The parts as one pool; `news` are the new revisions whose pods are to be looked at."""
    new = variants.together([part.new for part in parts])
    olds = tuple(old for part in parts for old in part.olds)
    return Picture(
        observed,
        parts[0].rendered,
        new,
        olds,
        _findings(news, olds),
        stuck=any(part.stuck for part in parts),
        parts=tuple(parts),
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


def _rolls(part: Part) -> bool:
    return rolls(part.observed, part.new, part.olds)


def _again(parts: Sequence[Part], now: float, waits: list[float]) -> float | None:
    waits = list(waits)
    for part in parts:
        if part.observed.room is not None and _rolls(part):
            waits.append(_ROOM_SECONDS)
        deadline = progress.until_deadline(part.observed, part.new, now)
        waits += [] if deadline is None else [deadline]
    return min(waits, default=None)


def _counts(aims: Mapping[str, int], revisions: Sequence[Counted], observed: Observed) -> _Counts:
    scales: list[Scale] = []
    marks: list[Mark] = []
    wants_loads = False
    for entry in revisions:
        if entry.deployment is None:
            continue
        goal, kind, name = aims[entry.revision], entry.deployment["kind"], entry.deployment["metadata"]["name"]
        # Marks stay until the pods are gone: the ReplicaSet's controller acts after the count was lowered.
        # Where all of a revision's pods go together there is nobody to choose.
        going = max(0, len(entry.live) - goal)
        # A LeaderWorkerSet takes its last groups, whatever is marked.
        chosen = goal and kind == "Deployment"
        choice = choose(entry.live if chosen else (), going, observed.loads)
        marks += choice.marks
        wants_loads = wants_loads or (bool(choice.marks) and not observed.loads)
        if goal > entry.replicas or (goal < entry.replicas and choice.marked):
            scales.append(Scale(name, goal, kind))
    return _Counts(tuple(scales), tuple(marks), wants_loads)


def _prepare(observed: Observed, parts: Sequence[Part], side: Side, loads: Preload, now: float) -> Plan:
    """Everything but the new revision's pods, whose files are not there yet; what serves goes on."""
    every, both = _every(parts), (*parts, *side.parts)
    olds = [old for part in both for old in part.olds]
    made, _, leftover = _wanted(observed, (*parts[0].rendered.objects, *loads.makes, *_slice(observed, every)))
    # What can never work is told before hours of loading.
    checks = tuple(
        stamped(render.deployment(part.observed.pool, part.rendered, 0))
        for part in both
        if part.new.deployment is None
    )
    picture = _picture(observed, parts, ())
    findings = (*picture.findings, *([loads.waits] if loads.waits else []))
    progressed = _adapters(observed, variants.together([part.new for part in parts]), loads)
    told = outcome(replace(picture, findings=findings, preloading=loads.waits, adapters=progressed), now)
    held = [replace(part, stuck=True) for part in both if part.olds]
    counts = _counts(_aims(held, now), olds, observed) if olds else _Counts()
    waits = [_LEFTOVER_SECONDS] if leftover else [_LOADER_SECONDS] if unready(observed) else []
    return Plan(
        checks=checks,
        applies=made,
        marks=counts.marks,
        scales=counts.scales,
        deletes=(*loads.garbage, *_slice_gone(observed, every)),
        status=told.status,
        notes=told.notes,
        wants_loads=counts.wants_loads,
        requeue_after_seconds=min(waits, default=None),
    )


def _wanted(observed: Observed, objects: Sequence[Object]) -> tuple[tuple[Object, ...], tuple[Object, ...], bool]:
    """Objects to apply, those of them to check first, and whether something of another pool is in the way."""
    live = {(item["kind"], item["metadata"]["name"]): item for item in observed.objects}
    desired = [stamped(item) for item in objects]
    made = [item for item in desired if differs(item, live.get((item["kind"], item["metadata"]["name"])))]
    blocked = [item for item in made if _blocked(observed, live.get((item["kind"], item["metadata"]["name"])))]
    if blocked:
        return (), (), True
    checks = tuple(item for item in made if item["kind"] in groups.WORKLOADS)
    return tuple(made), checks, False


def _deployment(part: Part, goal: int) -> Object:
    new = part.new
    # An upgrade of the operator restarts no engine; where none runs, the newest router can do no harm.
    keeps = any(pod.ready or pod.started or pod.loads for pod in new.pods)
    router = made_with(new.deployment) if new.deployment is not None and keeps else None
    # Scaling is a step of its own; an object that exists is applied with the count that it has.
    replicas = new.replicas if new.deployment else goal
    return render.deployment(part.observed.pool, part.rendered, replicas, router)


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


def _finished(part: Part) -> list[Doomed]:
    """Deployments of earlier revisions that nobody needs: the new one is complete, all their pods are gone, and
    they are not among the youngest, which are kept for a change back."""
    observed, new, olds = part.observed, part.new, part.olds
    if new.ready < observed.pool.spec.replicas or new.deployment is None:
        return []
    return _idle(observed, olds, kept=HISTORY)


def _idle(observed: Observed, olds: Sequence[Counted], kept: int) -> list[Doomed]:
    """Deployments without pods but the `kept` youngest."""
    idle = [old.deployment for old in olds if old.deployment and not old.replicas and not old.pods]
    idle.sort(key=lambda item: (item["metadata"].get("creationTimestamp") or "", item["metadata"]["name"]))
    # What another pool left would not go with this one.
    foreign = [item for item in idle if not is_own(observed.pool, item)]
    own = [item for item in idle if is_own(observed.pool, item)]
    return [_doomed(item) for item in (*foreign, *own[: max(0, len(own) - kept)])]


def _doomed(item: Object) -> Doomed:
    metadata = item["metadata"]
    version = metadata.get("resourceVersion", "")
    return Doomed(item["apiVersion"], item["kind"], metadata["name"], metadata["uid"], version)


def _findings(news: Sequence[Counted], olds: Sequence[Counted]) -> tuple[Finding, ...]:
    found = [pod.finding for entry in (*news, *olds) for pod in entry.live if pod.finding is not None]
    # What a Deployment of the history once failed at is no matter of today.
    made = [entry.deployment for entry in (*news, *olds) if entry.deployment is not None and entry.replicas]
    found += [failure for item in made if (failure := deployment_finding(item)) is not None]
    return tuple(found)


def _refused(
    observed: Observed,
    made: Sequence[render.Rendered] | None,
    revisions: Mapping[str, Counted],
    refusal: Finding,
    now: float,
) -> Plan:
    """Nothing new is made; what serves goes on serving, and follows the wanted count where that is known.

    With variants the counts stay as they are: which of them a change is meant for is in the spec that is refused.
    """
    rendered = made[0] if made is not None and len(made) == 1 else None
    new = revisions.get(rendered.revision) if rendered else None
    olds = tuple(entry for entry in revisions.values() if entry is not new)
    picture = Picture(observed, rendered, new, olds, _findings([], olds), refusal=refusal)
    told = outcome(picture, now)
    plan_made = Plan(status=told.status, notes=told.notes)
    if rendered is None or not olds:
        return plan_made
    counted = new or Counted(rendered.revision, None)
    aims = goals(observed, rendered, counted, olds, now, stuck=True)
    counts = _counts(aims, olds, observed)
    return replace(plan_made, marks=counts.marks, scales=counts.scales, wants_loads=counts.wants_loads)
