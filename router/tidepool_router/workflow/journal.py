"""What is kept of runs, behind one small interface: accepted means written, and so does ended.

A run belongs to the gateway that holds its lease. Each time a run changes hands its fence goes up by one; whoever
writes names the fence, so that a gateway that was slow, and is not the owner any more, writes nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from tidepool_api.contract import HEADER_TENANT
from tidepool_router.errors import RouterError
from tidepool_router.workflow.core.states import Ending, Key, Verdict


class JournalError(RouterError):
    """The store cannot be used; nothing of what was asked is written."""


class Fenced(JournalError):
    """The run belongs to another gateway by now, or is over."""


@dataclass(frozen=True, slots=True)
class Accepted:
    """A run as it was taken in; times in Unix seconds. `deadline` bounds all but its exit step.

    `spec` is the workflow's as it was then: a run ends by the spec that it began with.
    """

    id: str
    workflow: str
    spec: dict[str, Any]
    input: Any
    created: float
    deadline: float
    background: bool = True
    caller: dict[str, str] = field(default_factory=dict)  # headers of tenant and priority: never a key

    @property
    def tenant(self) -> str:
        """Whose run it is; empty: nobody's in particular."""
        return self.caller.get(HEADER_TENANT, "")


@dataclass(frozen=True, slots=True)
class Summary:
    """A run in a list. `ended` is None while it runs."""

    id: str
    workflow: str
    created: float
    verdict: Verdict = Verdict.RUNNING
    reason: str = ""
    ended: float | None = None
    tokens: int = 0


@dataclass(frozen=True, slots=True)
class Claim:
    """A run that this gateway owns now, with all that has ended of it."""

    run: Accepted
    fence: int
    endings: dict[Key, Ending]


@dataclass(frozen=True, slots=True)
class Record:
    """All that is known of one run."""

    run: Accepted
    summary: Summary
    output: str | None
    endings: dict[Key, Ending]


class Journal(Protocol):
    """The store. Each method returns when what it writes is on disk, and raises JournalError otherwise."""

    async def accept(self, run: Accepted, owner: str, lease_until: float) -> int:
        """Take a run in; returns its fence."""

    async def commit(self, run: str, fence: int, key: Key, ending: Ending) -> None:
        """A unit of work has ended. Raises Fenced; a key that has ended already keeps its first ending."""

    async def finish(self, run: str, fence: int, end: Summary, output: str | None) -> None:
        """The run is over. Raises Fenced."""

    async def renew(self, owner: str, lease_until: float) -> None:
        """Keep all runs that this gateway owns."""

    async def claim(self, owner: str, now: float, lease_until: float, most: int) -> Sequence[Claim]:
        """Take over runs whose lease is over, the oldest first."""

    async def find(self, run: str) -> Record | None:
        """One run."""

    async def runs(
        self, workflow: str, most: int, *, before: float | None = None, tenant: str | None = None
    ) -> Sequence[Summary]:
        """Runs of a workflow, the newest first: those created before a time, those of a tenant."""

    async def forget(self, ended_before: float) -> int:
        """Delete runs that ended before a time; returns how many."""

    async def close(self) -> None:
        """Write what waits, then close."""
