"""A pool on several kinds of accelerator, taken apart: each variant is rolled out like a pool of its own.

A pool without variants is one part, itself. With them each variant has one Deployment a revision; earlier
revisions of the same variant make way for it, and what has no variant of the spec makes way for the largest part.
"""

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, replace
from typing import Any

from tidepool_api.contract import VARIANT_LABEL
from tidepool_api.modelpool import ModelPool
from tidepool_api.scaling import Mode, Variant
from tidepool_api.status import PoolCondition
from tidepool_operator.pool.fleet import Counted
from tidepool_operator.pool.model import Object, Observed
from tidepool_operator.pool.reasons import Reason
from tidepool_operator.pool.render import Rendered, render
from tidepool_operator.scaling.mix import settled
from tidepool_operator.scaling.spec import kinds


@dataclass(frozen=True, slots=True)
class Part:
    """One variant's pods; `observed` has the pool as if there were no other, `stuck` is told by the plan."""

    observed: Observed
    rendered: Rendered
    new: Counted
    olds: tuple[Counted, ...]
    stuck: bool = False

    @property
    def wanted(self) -> int:
        """Replicas of this part."""
        return self.observed.pool.spec.replicas


def rendered(observed: Observed, there: Set[str] = frozenset(), *, any_role: bool = False) -> tuple[Rendered, ...]:
    """What the spec asks for, by variant; `there` and `any_role` as in `render`."""
    pool, settings = observed.pool, observed.settings
    made = tuple(
        render(pool_of(pool, one, 0), settings, there, one.name, any_role=any_role) for one in _variants(pool)
    )
    return made or (render(pool, settings, there, any_role=any_role),)


def parts(observed: Observed, made: Sequence[Rendered], revisions: Mapping[str, Counted]) -> tuple[Part, ...]:
    """The pool in parts, one for each that is rendered."""
    news = {one.revision: revisions.get(one.revision, Counted(one.revision, None)) for one in made}
    others = [entry for name, entry in revisions.items() if name not in news]
    if not _variants(observed.pool):
        return (Part(observed, made[0], news[made[0].revision], tuple(others)),)
    mix = wanted(observed)
    # Of parts that are alike the first in the spec is the largest.
    largest = max(made, key=lambda one: mix[one.variant]).variant
    homes = [(entry, entry.variant if entry.variant in mix else largest) for entry in others]
    return tuple(
        Part(
            _alone(observed, one, mix[one.variant]),
            one,
            news[one.revision],
            tuple(entry for entry, home in homes if home == one.variant),
        )
        for one in made
    )


def wanted(observed: Observed) -> dict[str, int]:
    """Replicas by variant: as decided, where the decision has been written; else from what the status says."""
    pool, decision = observed.pool, observed.decision
    scaling, total = pool.spec.scaling, pool.spec.replicas
    names = [one.name for one in _variants(pool)]
    if decision is not None and scaling is not None and scaling.mode is Mode.AUTO:
        mix = {name: decision.mix.get(name, 0) for name in names}
        if sum(mix.values()) == total:
            return mix
    return settled(total, told(observed.raw_status) or _running(observed), kinds(scaling))


def told(status: Mapping[str, Any]) -> dict[str, int]:
    """Replicas by variant as a status has them."""
    return {one["name"]: int(one.get("replicas") or 0) for one in status.get("variants") or []}


def together(entries: Sequence[Counted]) -> Counted:
    """Revisions that serve side by side, as one."""
    if len(entries) == 1:
        return entries[0]
    made = [entry.deployment for entry in entries if entry.deployment is not None]
    pods = tuple(pod for entry in entries for pod in entry.pods)
    deployment = None
    if made:
        count = sum(entry.replicas for entry in entries)
        deployment = {**made[0], "spec": {**made[0]["spec"], "replicas": count}}
    return Counted("+".join(entry.revision for entry in entries), deployment, pods)


def status_of(found: Sequence[Part]) -> list[Object]:
    """The parts as the status tells them; nothing without variants."""
    return [_status(part) for part in found if part.rendered.variant]


def device_of(pool: ModelPool, variant: str) -> tuple[str, int]:
    """The accelerator that a pod asks for, and how many; no name where it asks for none."""
    found = next((one.accelerator for one in _variants(pool) if one.name == variant), pool.spec.accelerator)
    return found.resource if found.count else "", found.count


def pool_of(pool: ModelPool, variant: Variant, replicas: int) -> ModelPool:
    """The pool as if it had this variant alone."""
    update = {"accelerator": variant.accelerator, "parallelism": variant.parallelism, "replicas": replicas}
    return pool.model_copy(update={"spec": pool.spec.model_copy(update=update)})


def _variants(pool: ModelPool) -> tuple[Variant, ...]:
    return pool.spec.scaling.variants if pool.spec.scaling is not None else ()


def _running(observed: Observed) -> dict[str, int]:
    """Replicas by variant as the Deployments have them, where no status says so."""
    found: dict[str, int] = {}
    for item in observed.objects:
        name = (item["metadata"].get("labels") or {}).get(VARIANT_LABEL)
        if item["kind"] == "Deployment" and name:
            found[name] = found.get(name, 0) + int(item["spec"].get("replicas") or 0)
    return found


def _alone(observed: Observed, made: Rendered, replicas: int) -> Observed:
    """The look at the pool as the part's rollout is to see it: its own replicas, revisions and progress."""
    variant = next(one for one in _variants(observed.pool) if one.name == made.variant)
    status = observed.raw_status
    before: Mapping[str, Any] = next(
        (one for one in status.get("variants") or [] if one["name"] == made.variant), {}
    )
    own = {key: before.get(key) for key in ("currentRevision", "updateRevision") if before.get(key)}
    conditions = [_progress(one, stuck=bool(before.get("stuck"))) for one in status.get("conditions") or []]
    kept = {key: value for key, value in status.items() if key not in ("currentRevision", "updateRevision")}
    return replace(
        observed,
        pool=pool_of(observed.pool, variant, replicas),
        raw_status={**kept, **own, "conditions": conditions},
    )


def _progress(condition: Object, *, stuck: bool) -> Object:
    late = condition.get("reason") == Reason.PROGRESS_DEADLINE_EXCEEDED
    if condition["type"] != PoolCondition.PROGRESSING or stuck or not late:
        return condition
    return {**condition, "status": "True", "reason": str(Reason.ROLLING_OUT)}


def _status(part: Part) -> Object:
    revisions = (part.new, *part.olds)
    serving = max(revisions, key=lambda entry: (entry.ready, entry is part.new))
    before = part.observed.raw_status.get("currentRevision")
    current = serving.revision if serving.ready else before
    found: Object = {
        "name": part.rendered.variant,
        "replicas": part.wanted,
        "readyReplicas": sum(entry.ready for entry in revisions),
        "updateRevision": part.rendered.revision,
    }
    if current:
        found["currentRevision"] = current
    if part.stuck:
        found["stuck"] = True
    return found
