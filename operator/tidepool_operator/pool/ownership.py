"""Whose an object is."""

from tidepool_api.contract import MANAGED_BY, MANAGED_BY_LABEL, POOL_LABEL
from tidepool_api.modelpool import ModelPool
from tidepool_operator.pool.model import Object


def is_own(pool: ModelPool, item: Object) -> bool:
    """Whether an object belongs to this very pool, and not to one of its name before it, and stays."""
    owners = item["metadata"].get("ownerReferences") or []
    mine = any(owner.get("uid") == pool.metadata.uid for owner in owners)
    return mine and not item["metadata"].get("deletionTimestamp")


def may_take(pool: ModelPool, item: Object) -> bool:
    """Whether an object may be applied over: it is the pool's own, or one that a pool of its name left behind."""
    left = (item["metadata"].get("labels") or {}).get(POOL_LABEL) == pool.metadata.name and unowned(item)
    return left or is_own(pool, item)


def unowned(item: Object) -> bool:
    """Whether an object was made by an operator for a pool, and has no owner any more (--cascade=orphan)."""
    metadata = item["metadata"]
    ours = (metadata.get("labels") or {}).get(MANAGED_BY_LABEL) == MANAGED_BY
    return ours and not metadata.get("ownerReferences") and not metadata.get("deletionTimestamp")
