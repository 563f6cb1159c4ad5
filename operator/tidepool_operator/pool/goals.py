"""From a pool's pods and the cluster's room to replica counts by revision."""

from collections.abc import Mapping, Sequence
from typing import Final

from tidepool_api.units import duration_seconds
from tidepool_operator.pool.fleet import Counted
from tidepool_operator.pool.model import Observed
from tidepool_operator.pool.render import Rendered
from tidepool_operator.pool.rollout import Group, Space, allowance, targets
from tidepool_operator.pool.room import shape_of

# A pod that goes for longer than its drain may take is on a node that is lost; its place is not waited for.
_LATE_SECONDS: Final = 60.0
# Three times the longest pause between the scheduler's tries of a pod (podMaxBackoffSeconds is 10).
_SCHEDULER_SECONDS: Final = 30.0


def goals(
    observed: Observed, rendered: Rendered, new: Counted, olds: Sequence[Counted], now: float, *, stuck: bool
) -> Mapping[str, int]:
    """Replicas by revision for now."""
    rollout, wanted = observed.pool.spec.rollout, observed.pool.spec.replicas
    space = _space(observed, rendered, new, olds, now)
    groups = [_group(observed, entry, space, now) for entry in (new, *olds)]
    allowed = allowance(rollout.max_surge, rollout.max_unavailable, wanted, groups, space)
    return targets(wanted, groups[0], groups[1:], allowed, stuck=stuck, space=space)


def rolls(observed: Observed, new: Counted, olds: Sequence[Counted]) -> bool:
    """Whether the new revision wants places while earlier ones have some: room is worth a look then."""
    waits = any(pod.unplaced_since is not None for pod in new.live)
    return (waits or new.replicas < observed.pool.spec.replicas) and any(old.replicas or old.pods for old in olds)


def _group(observed: Observed, entry: Counted, space: Space, now: float) -> Group:
    proven = entry.deployment is not None and entry.revision == observed.raw_status.get("currentRevision")
    if space.places is None:
        # Without a look at the nodes only the scheduler's own word for accelerators says that leaving helps.
        short = entry.short_of_accelerators
    else:
        # Where there is a place the scheduler finds it at its next try; else it knows what a look does not show.
        patience = 0.0 if space.places < 0 else _SCHEDULER_SECONDS
        since = [pod.unplaced_since for pod in entry.live if pod.unplaced_since is not None]
        short = sum(now - one >= patience for one in since)
    return Group(entry.revision, entry.replicas, entry.ready, short, proven, entry.idle)


def _space(observed: Observed, rendered: Rendered, new: Counted, olds: Sequence[Counted], now: float) -> Space:
    room = observed.room
    if room is None:
        return Space()
    entries, shape = (new, *olds), shape_of(rendered.template)
    pods = [pod for entry in entries for pod in entry.pods]
    # What is asked for and not seen in a place takes one first; the look may be older than the pods.
    homeless = sum(max(0, entry.replicas - sum(pod.uid in room.placed for pod in entry.live)) for entry in entries)
    limit = observed.pool.spec.replicas + homeless
    patience = duration_seconds(observed.pool.spec.rollout.drain_timeout) + _LATE_SECONDS
    leaving = sum(pod.leaving_since is not None and now - pod.leaving_since < patience for pod in pods)
    # The ReplicaSet's controller takes a moment to act on a count that was lowered.
    leaving += sum(max(0, len(entry.live) - entry.replicas) for entry in entries)
    return Space(
        places=room.places(shape, {pod.uid for pod in pods}, limit) - homeless,
        helps=any(room.makes_place(shape, pod.uid) for old in olds for pod in old.live),
        going=leaving,
    )
