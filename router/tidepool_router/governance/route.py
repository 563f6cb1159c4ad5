"""The decision: where one request goes, who gets a copy, and where it may go instead."""

from dataclasses import dataclass
from hashlib import blake2b
from typing import Final, Generic, TypeVar

from tidepool_router.governance.asked import Asked
from tidepool_router.governance.table import ClassifierTable, Table

P = TypeVar("P")
_FULL: Final = float(1 << 64)
# Two independent points of one key, so that those who get a share are not those who are copied.
_SHARE: Final = b"share"
_MIRROR: Final = b"mirror"


@dataclass(frozen=True, slots=True)
class Plan(Generic[P]):
    """`pool` gets the request. None: `classifier` is to be asked, and `route` goes on `after` it if that does not
    help. `reason` is "own", "split", or the rule's name after "rule:".

    `fallback` has no pool twice and not the chosen one.
    """

    pool: P | None
    reason: str
    mirror: P | None
    fallback: tuple[P, ...]
    classifier: ClassifierTable[P] | None = None
    after: int = 0

    def classified(self, pool: P) -> "Plan[P]":
        """The plan once the classifier has chosen."""
        mirror = None if self.mirror is pool else self.mirror
        return Plan(pool, self.reason, mirror, _others(self.fallback, pool))


def route(asked: Asked, table: Table[P], after: int = 0) -> Plan[P]:
    """The plan of one request. Deterministic: every gateway with the same table decides alike.

    `after`: so many rules have been tried already, by a plan whose classifier did not help.
    """
    mirror = table.mirror
    if mirror is not None and point(_MIRROR, asked.key) >= table.mirror_below:
        mirror = None
    for number, rule in enumerate(table.rules[after:], after + 1):
        if not rule.condition.holds(asked):
            continue
        reason = f"rule:{rule.name}"
        if rule.pool is None:
            return Plan(None, reason, mirror, table.fallback, rule.classifier, number)
        return _plan(rule.pool, reason, mirror, table)
    if table.shares:
        at = point(_SHARE, asked.key)
        for below, pool in table.shares:
            if at < below:
                return _plan(pool, "own" if pool is table.own else "split", mirror, table)
    return _plan(table.own, "own", mirror, table)


def point(salt: bytes, key: bytes) -> float:
    """A number in [0, 1), the same for the same key everywhere."""
    return int.from_bytes(blake2b(key, digest_size=8, person=salt).digest()) / _FULL


def _plan(pool: P, reason: str, mirror: P | None, table: Table[P]) -> Plan[P]:
    return Plan(pool, reason, None if mirror is pool else mirror, _others(table.fallback, pool))


def _others(pools: tuple[P, ...], chosen: P) -> tuple[P, ...]:
    return tuple(pool for pool in pools if pool is not chosen) if chosen in pools else pools
