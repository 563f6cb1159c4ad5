"""How many pods of each revision there should be now.

Works on counts alone and keeps no memory: the same counts give the same answer, whatever way led to them. The
rules of taking away are the Deployment controller's (k8s.io/kubernetes pkg/controller/deployment/rolling.go):

    serving    = sum over revisions of min(replicas, ready): what is left whatever pod goes
    floor      = wanted - unavailable
    removable  = all replicas - floor - replicas of the new revision that do not serve yet
    1. an old revision's pods that do not serve go first, up to `removable`
    2. then its serving pods, up to serving - floor
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from tidepool_api.placement import AUTO


@dataclass(frozen=True, slots=True)
class Group:
    """One revision's counts; `short` of them wait for accelerators."""

    revision: str
    replicas: int
    ready: int
    short: int = 0

    @property
    def serving(self) -> int:
        """Pods that serve whichever of the Deployment's pods goes next: those that do not serve go first."""
        return min(self.replicas, self.ready)


@dataclass(frozen=True, slots=True)
class Allowance:
    """How far a rollout may leave the wanted count, in pods."""

    surge: int
    unavailable: int


def allowance(max_surge: int | str, max_unavailable: int | str, wanted: int, *, short: bool) -> Allowance:
    """In pods. Auto surges by the whole count and takes nothing away, until pods are `short` of accelerators:
    then one goes at a time, so that the new one finds its place."""
    surge = wanted if max_surge == AUTO else _pods(max_surge, wanted, math.ceil)
    if max_unavailable != AUTO:
        return Allowance(surge, _pods(max_unavailable, wanted, math.floor))
    return Allowance(surge, 1 if short or surge == 0 else 0)


def targets(
    wanted: int, new: Group, olds: Sequence[Group], allowed: Allowance, *, stuck: bool
) -> Mapping[str, int]:
    """Replicas by revision. `stuck`: the new revision did not come up in time; the old ones serve on."""
    if not any(old.replicas for old in olds):
        return {new.revision: wanted, **{old.revision: 0 for old in olds}}
    if stuck:
        return _held(wanted, new, olds)
    running = sum(old.replicas for old in olds)
    room = wanted + allowed.surge - running
    result = {new.revision: min(wanted, max(new.replicas, room))}
    floor = max(0, wanted - allowed.unavailable)
    result |= _shrunk(floor, new, result[new.revision], olds)
    return result


def _shrunk(floor: int, new: Group, new_replicas: int, olds: Sequence[Group]) -> dict[str, int]:
    kept = {old.revision: old.replicas for old in olds}
    new_serving = min(new_replicas, new.serving)
    removable = sum(kept.values()) + new_replicas - floor - (new_replicas - new_serving)
    for old in olds:
        idle = min(max(0, removable), old.replicas - old.serving)
        kept[old.revision] -= idle
        removable -= idle
    # Nothing to spare while idle pods are left: both sums end at the same floor.
    spare = sum(old.serving for old in olds) + new_serving - floor
    # The revision with the fewest pods goes first: soon there are only two.
    for old in sorted(olds, key=lambda group: (group.serving, group.revision)):
        going = min(max(0, spare), old.serving)
        kept[old.revision] -= going
        spare -= going
    return kept


def _held(wanted: int, new: Group, olds: Sequence[Group]) -> dict[str, int]:
    """The old revision that serves most takes what the new one does not; nothing of the new one goes on."""
    main = max(olds, key=lambda group: (group.serving, group.replicas, group.revision))
    others = sum(old.replicas for old in olds if old is not main)
    held = {old.revision: old.replicas for old in olds}
    held[main.revision] = max(0, wanted - new.serving - others)
    return held | {new.revision: min(new.replicas, wanted)}


def _pods(value: int | str, wanted: int, rounded: Callable[[float], int]) -> int:
    return value if isinstance(value, int) else rounded(wanted * int(value.rstrip("%")) / 100)
