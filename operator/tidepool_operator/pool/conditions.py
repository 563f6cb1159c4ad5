"""A pool's conditions.

Ready=True means: the spec as applied (observedGeneration) is served by at least one pod of its own revision, or
the pool is at zero because it was asked to be. Pods of an earlier revision never make a pool Ready; that they
serve on during a rollout shows in readyReplicas, in Progressing and in Ready's message.
"""

from dataclasses import dataclass, replace

from tidepool_api.status import PoolCondition
from tidepool_operator.pool import progress
from tidepool_operator.pool.adapters import Progress
from tidepool_operator.pool.diagnosis import TROUBLES, UNPLACED, Finding, foremost
from tidepool_operator.pool.fleet import Counted
from tidepool_operator.pool.model import Observed
from tidepool_operator.pool.reasons import Reason, explain
from tidepool_operator.pool.render import Rendered
from tidepool_operator.pool.revision import apart, made_with
from tidepool_operator.pool.variants import Part


@dataclass(frozen=True, slots=True)
class Picture:
    """What a status is written from. `refusal`: nothing of the new spec can be acted on. `preloading`: its files
    are not there yet, so it has no pods."""

    observed: Observed
    rendered: Rendered | None
    new: Counted | None
    olds: tuple[Counted, ...] = ()
    findings: tuple[Finding, ...] = ()  # of the new revision first to matter, then of the old ones
    refusal: Finding | None = None
    stuck: bool = False
    preloading: Finding | None = None
    adapters: tuple[Progress, ...] | None = None  # None: not looked at
    parts: tuple[Part, ...] = ()
    prefill: "Picture | None" = None  # of the prefill pods, where there are some or should be

    @property
    def revisions(self) -> tuple[Counted, ...]:
        """All of the picture, and of its prefill pods."""
        own = tuple(entry for entry in (self.new, *self.olds) if entry is not None)
        return own if self.prefill is None else (*own, *self.prefill.revisions)

    @property
    def all_findings(self) -> tuple[Finding, ...]:
        """As `findings`, then those of prefill pods, without which the pool serves on."""
        return self.findings if self.prefill is None else (*self.findings, *self.prefill.findings)


@dataclass(frozen=True, slots=True)
class Verdict:
    """One condition without its times."""

    type: PoolCondition
    holds: bool
    reason: str
    message: str = ""


def _yes(kind: PoolCondition, reason: str, message: str) -> Verdict:
    return Verdict(kind, holds=True, reason=reason, message=message)


def _no(kind: PoolCondition, reason: str, message: str) -> Verdict:
    return Verdict(kind, holds=False, reason=reason, message=message)


def verdicts(picture: Picture) -> list[Verdict]:
    """All conditions, in the order in which they are shown."""
    return [
        _ready(picture),
        progressing(picture),
        _loaded(picture),
        _capacity(picture),
        _scaling_active(picture.observed),
        _degraded(picture),
    ]


def _served_by_others(picture: Picture) -> str:
    serving = sum(old.ready for old in picture.olds)
    return f" Meanwhile {serving} pods of an earlier revision serve." if serving else ""


def _ready(picture: Picture) -> Verdict:
    wanted, new = picture.observed.pool.spec.replicas, picture.new
    if picture.refusal is not None:
        message = explain(picture.refusal.reason, picture.refusal.what) + _served_by_others(picture)
        return _no(PoolCondition.READY, picture.refusal.reason, message)
    if wanted == 0:
        message = "The pool is at zero; a request at a gateway or at the pool's own Service starts it."
        if picture.observed.pool.spec.scaling is None:
            message = "The pool is at zero, as spec.replicas says."
        return _yes(PoolCondition.READY, Reason.SCALED_TO_ZERO, message)
    if new is not None and new.ready:
        message = f"{min(new.ready, wanted)} of {wanted} pods serve this spec."
        return _yes(PoolCondition.READY, Reason.SERVING, message)
    finding = foremost(picture.findings) or _unfound(picture)
    message = explain(finding.reason, finding.what) + _served_by_others(picture)
    return _no(PoolCondition.READY, finding.reason, message)


def progressing(picture: Picture) -> Verdict:
    """Whether pods come or go; of prefill pods where the others are as they should be."""
    own = _progressing(picture)
    if picture.prefill is None or own.reason != Reason.COMPLETE:
        return own
    other = _progressing(picture.prefill)
    return own if other.reason == Reason.COMPLETE else replace(other, message=f"Prefill: {other.message}")


def _progressing(picture: Picture) -> Verdict:
    kind, wanted, new = PoolCondition.PROGRESSING, picture.observed.pool.spec.replicas, picture.new
    if picture.refusal is not None:
        return _no(kind, picture.refusal.reason, "Nothing is changed until the spec is corrected.")
    if picture.preloading is not None:
        return _yes(kind, Reason.PRELOADING, "Pods are made when the model's files are in the cache.")
    if picture.stuck:
        return _no(kind, Reason.PROGRESS_DEADLINE_EXCEEDED, _late(picture))
    ready = new.ready if new else 0
    left = sum(len(old.live) + old.replicas for old in picture.olds)
    if left:
        message = (
            f"{ready} of {wanted} pods of the new revision are ready; those of the earlier one go as they come."
        )
        return _yes(kind, Reason.ROLLING_OUT, message)
    live = len(new.live) if new else 0
    if ready != wanted or live != wanted:
        return _yes(kind, Reason.SCALING, f"{ready} of {wanted} pods are ready.")
    return _no(kind, Reason.COMPLETE, f"Every pod is as the spec asks for.{_old_router(picture)}")


def _old_router(picture: Picture) -> str:
    """Pods keep the router that they were born with, and somebody may want to know."""
    if picture.new is None or picture.new.deployment is None or picture.rendered is None:
        return ""
    runs, newest = made_with(picture.new.deployment), apart(picture.rendered.template)[1]
    if runs == newest:
        return ""
    old, new = runs.image, newest.image
    if old == new:
        old, new = "started as by an earlier release", "new ones"
    return f" Its routers are {old}; a new value of spec.rollout.restart brings {new}."


def _late(picture: Picture) -> str:
    """Why the rollout stopped; when its pods had to make place for old ones, what was said of them stands."""
    observed, new = picture.observed, picture.new
    if new is not None and not any(not pod.ready for pod in new.live) and progress.stopped(observed, new.revision):
        return progress.said(observed)
    own = [pod.finding for pod in new.live if pod.finding is not None] if new is not None else []
    finding = foremost(own) or foremost(picture.findings)
    what = finding.what if finding else "the new pods are not made"
    message = f"A pod is not ready within {observed.pool.spec.rollout.progress_deadline}: {what}"
    return explain(Reason.PROGRESS_DEADLINE_EXCEEDED, message)


def _unfound(picture: Picture) -> Finding:
    if picture.stuck:
        return Finding(Reason.PROGRESS_DEADLINE_EXCEEDED, "No pod of this spec became ready in time")
    return Finding(Reason.STARTING, "The first pod is being made")


def _shared(observed: Observed) -> str:
    """Gateways lead a name to the first pool that has it, by namespace and name (Fleet's order)."""
    told = []
    for model, others in observed.namesakes.items():
        first = min(observed.pool.key, *others)
        here = "this pool" if first == observed.pool.key else first
        told.append(f"{model} is served by {', '.join(others)} too, and gateways lead it to {here}")
    return "; ".join(told)


def _loaded(picture: Picture) -> Verdict:
    kind, new = PoolCondition.MODEL_LOADED, picture.new
    if new is not None and any(pod.ready or pod.started for pod in new.live):
        return _yes(kind, Reason.LOADED, f"The engine serves {picture.observed.pool.served_name}.")
    if picture.refusal is None and picture.observed.pool.spec.replicas == 0:
        return _no(kind, Reason.SCALED_TO_ZERO, "The pool is at zero.")
    finding = picture.refusal or foremost(picture.findings) or Finding(Reason.STARTING, "No pod runs yet")
    return _no(kind, finding.reason, explain(finding.reason, finding.what))


def _capacity(picture: Picture) -> Verdict:
    kind, accelerator = PoolCondition.CAPACITY_AVAILABLE, picture.observed.pool.spec.accelerator
    short = sum(entry.short_of_accelerators for entry in picture.revisions)
    if short:
        what = f"{short} pods wait for {short * accelerator.count} more {accelerator.resource}"
        if len(picture.parts) > 1:
            what = f"{short} pods wait for accelerators: {_waiting(picture.parts)}"
        reason = Reason.INSUFFICIENT_ACCELERATORS
        return _no(kind, reason, explain(reason, what))
    other = next((entry for entry in picture.all_findings if entry.reason in UNPLACED), None)
    if other is not None:
        return _no(kind, other.reason, explain(other.reason, other.what))
    return _yes(kind, Reason.ENOUGH, "Every pod has found its place.")


def _waiting(parts: tuple[Part, ...]) -> str:
    """Pods without an accelerator by variant."""
    found = {
        part.rendered.variant: sum(one.short_of_accelerators for one in (part.new, *part.olds)) for part in parts
    }
    return ", ".join(f"{count} of {name}" for name, count in found.items() if count)


def _scaling_active(observed: Observed) -> Verdict:
    kind, decision = PoolCondition.SCALING_ACTIVE, observed.decision
    if observed.pool.spec.scaling is None:
        return _no(kind, Reason.SCALING_OFF, "spec.replicas is left to people, an HPA or KEDA.")
    if decision is None:
        return _no(kind, Reason.NO_DECISION, "The autoscaler has not decided yet.")
    message = decision.message
    if decision.reason == Reason.METRICS_MISSING:
        message = explain(Reason.METRICS_MISSING, message)
    return Verdict(kind, decision.binding != "data", decision.reason, message)


def _degraded(picture: Picture) -> Verdict:
    kind = PoolCondition.DEGRADED
    if picture.refusal is not None:
        return _yes(kind, picture.refusal.reason, explain(picture.refusal.reason, picture.refusal.what))
    trouble = foremost([entry for entry in picture.all_findings if entry.reason in TROUBLES])
    if trouble is not None:
        return _yes(kind, trouble.reason, explain(trouble.reason, trouble.what))
    if picture.stuck or (picture.prefill is not None and picture.prefill.stuck):
        reason = Reason.PROGRESS_DEADLINE_EXCEEDED
        return _yes(kind, reason, explain(reason, "The rollout is stopped"))
    return _warned(picture) or _no(kind, Reason.HEALTHY, "Nothing is known to be wrong.")


def _warned(picture: Picture) -> Verdict | None:
    """What takes nothing away from what serves, and somebody should know."""
    kind, stale = PoolCondition.DEGRADED, picture.observed.settings.stale_fields
    failed = [one for one in picture.adapters or () if one.reason is not None]
    if failed:
        return _yes(kind, failed[0].reason or Reason.ADAPTER_FAILED, failed[0].message)
    if stale:
        what = f"The cluster's CRD is older than the operator and drops {', '.join(stale)}"
        return _yes(kind, Reason.STALE_CRD, explain(Reason.STALE_CRD, what))
    if picture.observed.namesakes:
        return _yes(kind, Reason.MODEL_NAME_SHARED, explain(Reason.MODEL_NAME_SHARED, _shared(picture.observed)))
    return None
