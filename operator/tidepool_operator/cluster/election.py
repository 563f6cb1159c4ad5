"""Who leads: the rules of the Lease, without I/O or clock.

The rules are client-go's: a candidate never compares its clock with the holder's. It notes when it first saw a
record, and takes over when that record has not changed for the record's own duration.
"""

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

DURATION_SECONDS: Final = 10.0
# The holder stops itself this long after its last renewal; the rest up to DURATION_SECONDS is for writes that are
# under way and for a clock that runs a little slower.
RENEW_DEADLINE_SECONDS: Final = 6.0
RETRY_SECONDS: Final = 2.0


@dataclass(frozen=True, slots=True)
class Record:
    """The Lease as last read. `version` is its resourceVersion; `holder` empty means released."""

    holder: str
    version: str
    transitions: int = 0
    duration_seconds: float = DURATION_SECONDS


class Step(StrEnum):
    """What to try now."""

    CREATE = "create"
    TAKE = "take"
    RENEW = "renew"
    WAIT = "wait"


@dataclass(frozen=True, slots=True)
class Election:
    """State of one candidate; times are seconds on its own monotonic clock."""

    me: str
    record: Record | None = None
    seen_at: float = 0.0
    renewed_at: float | None = None

    def observed(self, record: Record | None, now: float) -> "Election":
        """The Lease was read. A changed record starts its time anew; somebody else's ends our leadership."""
        changed = self.record is None or record is None or record.version != self.record.version
        held = record is not None and record.holder == self.me
        return replace(
            self,
            record=record,
            seen_at=now if changed else self.seen_at,
            renewed_at=self.renewed_at if held else None,
        )

    def step(self, now: float) -> Step:
        """What the rules allow at `now`."""
        if self.record is None:
            return Step.CREATE
        if self.record.holder == self.me:
            return Step.RENEW
        expired = now - self.seen_at >= self.record.duration_seconds
        return Step.TAKE if expired or not self.record.holder else Step.WAIT

    def renewed(self, record: Record, started_at: float) -> "Election":
        """Our write of `record` succeeded; it counts from when it was sent, not from when it was answered."""
        return replace(self, record=record, seen_at=started_at, renewed_at=started_at)

    def leads(self, now: float) -> bool:
        """Whether this candidate may write at `now`."""
        return self.renewed_at is not None and now - self.renewed_at < RENEW_DEADLINE_SECONDS
