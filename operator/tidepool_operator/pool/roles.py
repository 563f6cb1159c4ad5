"""Pods by role: prefill pods, and those that spec.replicas counts (which decode, or do both)."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from tidepool_api import contract
from tidepool_operator.pool.fleet import Counted
from tidepool_operator.pool.model import Object, Observed
from tidepool_operator.pool.render import Rendered
from tidepool_operator.pool.variants import Part

_CARRIED: Final = ("currentRevision", "updateRevision", "conditions")


def role(item: Object) -> str:
    """The role of a pod or a Deployment."""
    labels: dict[str, str] = item["metadata"].get("labels") or {}
    return labels.get(contract.ROLE_LABEL) or contract.ROLE_MIXED


def is_prefill(item: Object) -> bool:
    """Whether a pod or a Deployment is one of those that compute prompts for others."""
    return role(item) == contract.ROLE_PREFILL


@dataclass(frozen=True, slots=True)
class Side:
    """The prefill pods of a pool: a part where the spec wants some, what is left of them where it does not."""

    observed: Observed
    parts: tuple[Part, ...] = ()
    leftovers: tuple[Counted, ...] = ()


def side(observed: Observed, made: Rendered | None, revisions: Mapping[str, Counted]) -> Side:
    """From the revisions of prefill pods; `made` None: the spec has none of them."""
    alone = _alone(observed)
    if made is None:
        return Side(alone, leftovers=tuple(revisions.values()))
    new = revisions.get(made.revision, Counted(made.revision, None))
    olds = tuple(entry for name, entry in revisions.items() if name != made.revision)
    return Side(alone, (Part(alone, made, new, olds),))


def _alone(observed: Observed) -> Observed:
    """The look at a pool as if its prefill pods were all of it, with the part of the status that is theirs.

    A pool at zero has none: there is nobody to hand blocks to.
    """
    spec = observed.pool.spec
    apart = spec.disaggregation
    wanted = 0 if apart is None or not spec.replicas else apart.prefill.replicas
    pool = observed.pool.model_copy(update={"spec": spec.model_copy(update={"replicas": wanted, "scaling": None})})
    before: dict[str, Any] = observed.raw_status.get("prefill") or {}
    status: Object = {key: before[key] for key in _CARRIED if key in before}
    return Observed(
        pool=pool,
        raw_status=status,
        settings=observed.settings,
        objects=observed.objects,
        pods=tuple(pod for pod in observed.pods if is_prefill(pod)),
        clues=observed.clues,
        loads=observed.loads,
        room=observed.room,
    )


def others_serve(observed: Observed) -> bool:
    """Whether pods serve that the spec would have in another role: the pool's Services must not lose them."""
    apart = observed.pool.spec.disaggregation
    wanted = contract.ROLE_MIXED if apart is None else contract.ROLE_DECODE
    return any(
        role(pod) != wanted
        for pod in observed.pods
        if role(pod) not in (contract.ROLE_PREFILL, contract.ROLE_WORKER)
        and not pod["metadata"].get("deletionTimestamp")
    )
