"""How many pods of each revision there should be now.

Works on counts alone and keeps no memory: the same counts give the same answer, whatever way led to them.

    running    = replicas of the earlier revisions
    base       = wanted - running - pods that go: what the new revision is short of, room or not
    surge      = wanted + surge - running, as far as there is room for it
    new        = the larger of the two and of what it has, up to `wanted`

The rules of taking away are the Deployment controller's (k8s.io/kubernetes
pkg/controller/deployment/rolling.go):

    serving    = sum over revisions of min(replicas, ready): what is left whatever pod goes
    floor      = wanted - unavailable
    removable  = all replicas - floor - replicas of the new revision that do not serve yet
    1. an old revision's pods that do not serve go first, up to `removable`
    2. then its serving pods, up to serving - floor

The bound that this holds: serving never falls below `floor` by an act of the operator, over all revisions.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from tidepool_api.placement import AUTO


@dataclass(frozen=True, slots=True)
class Group:
    """One revision's counts; `short` of them wait for a place. `proven`: the last one that served in full.
    `idle`: those that go first and do not serve; None: all that do not."""

    revision: str
    replicas: int
    ready: int
    short: int = 0
    proven: bool = False
    idle: int | None = None

    @property
    def serving(self) -> int:
        """Pods that serve whichever of the Deployment's pods goes next: those that do not serve go first."""
        return min(self.replicas, self.ready)


@dataclass(frozen=True, slots=True)
class Space:
    """What the nodes have for the new revision.

    `places`: how many more of its pods the scheduler could place beyond those that are asked for; None: not known.
    `helps`: a pod of an earlier revision would make place by leaving. `going`: pods that leave and hold a place.
    """

    places: int | None = None
    helps: bool = True
    going: int = 0


@dataclass(frozen=True, slots=True)
class Allowance:
    """How far a rollout may leave the wanted count, in pods; `asks` of the surge need no place that is known."""

    surge: int
    unavailable: int
    asks: int = 0


def allowance(
    max_surge: int | str,
    max_unavailable: int | str,
    wanted: int,
    groups: Sequence[Group],
    space: Space,
) -> Allowance:
    """In pods; `groups` are all revisions, the new one first.

    Auto takes nothing away as long as the new revision can come up beside the old ones: there are places, a surge
    is on its way, or a pod that goes will leave one. Where that is not so, one pod goes first. Where nothing may
    go first, or it would not help, one pod is asked for without a place: who adds nodes acts on pods that wait.
    """
    surge = wanted if max_surge == AUTO else _pods(max_surge, wanted, math.ceil)
    if max_unavailable != AUTO:
        # Both may come to nothing by rounding: then one, as in a Deployment.
        unavailable = _pods(max_unavailable, wanted, math.floor) or int(surge == 0)
        return Allowance(surge, unavailable, asks=0 if unavailable else 1)
    if surge == 0:
        return Allowance(0, 1)
    short = sum(group.short for group in groups)
    if space.places is None:
        return Allowance(surge, 1 if short else 0)
    coming = sum(group.replicas for group in groups) - short - wanted
    if space.places > 0 or coming > 0 or space.going > 0:
        return Allowance(surge, 0)
    return Allowance(surge, 1) if space.helps else Allowance(surge, 0, asks=1)


def targets(
    wanted: int,
    new: Group,
    olds: Sequence[Group],
    allowed: Allowance,
    *,
    stuck: bool,
    space: Space | None = None,
) -> Mapping[str, int]:
    """Replicas by revision. `stuck`: the new revision did not come up in time; the old ones serve on."""
    space = space or Space()
    running = sum(old.replicas for old in olds)
    if stuck and (running or any(old.proven for old in olds)):
        return _held(wanted, new, olds)
    if not running and space.places is None:
        return {new.revision: wanted, **{old.revision: 0 for old in olds}}
    surge, base = wanted + allowed.surge - running, wanted - running - space.going
    if space.places is not None:
        surge = min(surge, max(new.replicas + max(0, space.places), base + allowed.asks))
    result = {new.revision: min(wanted, max(new.replicas, base, surge))}
    floor = max(0, wanted - allowed.unavailable)
    result |= _shrunk(floor, new, result[new.revision], olds)
    return result


def _shrunk(floor: int, new: Group, new_replicas: int, olds: Sequence[Group]) -> dict[str, int]:
    kept = {old.revision: old.replicas for old in olds}
    new_serving = min(new_replicas, new.serving)
    removable = sum(kept.values()) + new_replicas - floor - (new_replicas - new_serving)
    for old in olds:
        lazy = old.replicas - old.serving if old.idle is None else old.idle
        idle = min(max(0, removable), lazy)
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
    """The old revision that serves most takes what the new one does not; nothing of the new one goes on.

    Pods of the new revision that do not serve are kept to be looked at, but not in places that old ones need.
    """
    main = max(olds, key=lambda group: (group.serving, group.replicas, group.proven, group.revision))
    others = sum(old.replicas for old in olds if old is not main)
    held = {old.revision: old.replicas for old in olds}
    held[main.revision] = max(0, wanted - new.serving - others)
    missing = sum(old.short for old in olds)
    return held | {new.revision: max(min(new.serving, wanted), min(new.replicas, wanted) - missing)}


def _pods(value: int | str, wanted: int, rounded: Callable[[float], int]) -> int:
    return value if isinstance(value, int) else rounded(wanted * int(value.rstrip("%")) / 100)
