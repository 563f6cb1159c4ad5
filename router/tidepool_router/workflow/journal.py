"""What is kept of runs, behind one small interface: accepted means written, and so does ended.

A run belongs to the gateway that holds its lease. Each time a run changes hands its fence goes up by one; whoever
writes names the fence, so that a gateway that was slow, and is not the owner any more, writes nothing.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from tidepool_api.contract import HEADER_TENANT
from tidepool_router.errors import RouterError
from tidepool_router.workflow.core.states import Ending, Key, Verdict


class JournalError(RouterError):
    """The store cannot be used; nothing of what was asked is written."""


class Fenced(JournalError):
    """The run belongs to another gateway by now, or is over."""


class Taken(JournalError):
    """A run of this id was taken in before."""


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
    """A run that this gateway owns now, with all that has ended of it. `cancel`: why it is to end, if it is."""

    run: Accepted
    fence: int
    endings: dict[Key, Ending]
    cancel: str | None = None


@dataclass(frozen=True, slots=True)
class Record:
    """All that is known of one run, but for what its steps made. `moves`: how often it changed hands."""

    run: Accepted
    summary: Summary
    output: str | None
    endings: dict[Key, Ending]
    moves: int = 0


@dataclass(frozen=True, slots=True)
class Totals:
    """Runs of a workflow: in progress, lately ended, and seconds that half and 19 in 20 of these took."""

    workflow: str
    active: int = 0
    succeeded: int = 0
    failed: int = 0
    p50_seconds: float | None = None
    p95_seconds: float | None = None


class Journal(Protocol):
    """The store. Each method returns when what it writes is on disk, and raises JournalError otherwise.

    After a JournalError that is no Fenced and no Taken it may be written all the same: nobody knows, when an
    answer is lost. So each method may be called again, and twice is once. Leases are measured by one clock, the
    store's.
    """

    shared: bool  # other gateways may write there, too

    async def accept(self, run: Accepted, owner: str, lease_seconds: float) -> int:
        """Take a run in; returns its fence. Raises Taken."""

    async def commit(self, run: str, fence: int, key: Key, ending: Ending) -> None:
        """A unit of work has ended. Raises Fenced; a key that has ended already keeps its first ending."""

    async def finish(self, run: str, fence: int, end: Summary, output: str | None) -> None:
        """The run is over. Raises Fenced."""

    async def renew(self, owner: str, runs: Collection[str], lease_seconds: float) -> Collection[str]:
        """Keep these runs, as far as this gateway owns them; returns those that it does."""

    async def release(self, owner: str) -> None:
        """Whoever comes next need not wait for the leases of this gateway."""

    async def claim(self, owner: str, lease_seconds: float, most: int) -> Sequence[Claim]:
        """Take over runs whose lease is over, the oldest first."""

    async def ask_to_cancel(self, run: str, reason: str) -> None:
        """Let the gateway that owns the run know, whichever it is; without effect when it is over."""

    async def cancels(self, owner: str) -> Mapping[str, str]:
        """Runs of this gateway that are to end, and why."""

    async def find(self, run: str) -> Record | None:
        """One run."""

    async def recorded(self, run: str) -> tuple[Accepted, dict[Key, Ending]] | None:
        """One run as it was taken in, and all that has ended of it with what it made."""

    async def runs(
        self, workflow: str, most: int, *, before: float | None = None, tenant: str | None = None
    ) -> Sequence[Summary]:
        """Runs of a workflow, the newest first: those created before a time, those of a tenant."""

    async def open_runs(self, prefix: str, most: int) -> Sequence[tuple[str, str]]:
        """Ids that begin so, of runs that are not over, and their workflows."""

    async def totals(self, ended_after: float) -> Sequence[Totals]:
        """Of each workflow that has runs, those that ended before a time and cancelled ones left out.

        Bounded: where very many have ended, the newest count.
        """

    async def forget(self, ended_before: float) -> int:
        """Delete runs that ended before a time; returns how many."""

    async def close(self) -> None:
        """Write what waits, then close."""
