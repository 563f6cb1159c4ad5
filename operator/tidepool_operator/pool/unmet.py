"""What pools lack, as gauges for alerts: room for pods, and figures to scale by. From what their status says."""

from collections.abc import Iterable, Iterator, Mapping

from tidepool_api.status import PoolCondition
from tidepool_operator.pool.model import Object
from tidepool_operator.pool.pod_status import condition
from tidepool_operator.pool.reasons import REMEDIES, Reason


def unmet(pools: Iterable[Object]) -> Mapping[str, float]:
    """Gauges by name and labels, 1 each; a pool that lacks nothing has none."""
    return {name: 1.0 for raw in pools for name in _lacks(raw)}


def _lacks(raw: Object) -> Iterator[str]:
    metadata = raw["metadata"]
    if metadata.get("deletionTimestamp"):
        return
    pool = f"{metadata.get('namespace', '')}/{metadata['name']}"
    room, scaling = condition(raw, PoolCondition.CAPACITY_AVAILABLE), condition(raw, PoolCondition.SCALING_ACTIVE)
    reasons = {room["reason"]} if room.get("status") == "False" and room.get("reason") in REMEDIES else set()
    # Pods that are not even asked for, since the room is known not to be there.
    refused = ((raw.get("status") or {}).get("scaling") or {}).get("refused") or {}
    for reason in sorted(reasons | ({refused["reason"]} if refused.get("reason") else set())):
        yield f'held_back{{pool="{pool}",reason="{reason}"}}'
    if scaling.get("status") == "False" and scaling.get("reason") == Reason.METRICS_MISSING:
        yield f'figures_missing{{pool="{pool}"}}'
