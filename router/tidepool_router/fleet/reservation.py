"""A request's place on a pod, from the pick to its end."""

from typing import TYPE_CHECKING

from tidepool_router.errors import FailureKind
from tidepool_router.fleet.endpoint import Endpoint
from tidepool_router.fleet.fusion import Dispatch
from tidepool_router.fleet.loadheader import read_load_header
from tidepool_router.fleet.pod import Pod
from tidepool_router.ledger import Entry, Outcome

if TYPE_CHECKING:
    from tidepool_router.fleet.holding import HeldRequest
    from tidepool_router.fleet.pool import PoolState


class Reservation:
    """Whoever holds it owes exactly one `close`; further ones do nothing.

    `reason` says why this pod was picked, `queued_seconds` how long the request was held before.
    """

    __slots__ = ("_dispatch", "_pod", "_pool", "entry", "held", "queued_seconds", "reason")

    def __init__(self, pool: "PoolState", pod: Pod, entry: Entry, dispatch: Dispatch, reason: str) -> None:
        self._pool = pool
        self._pod = pod
        self._dispatch = dispatch
        self.entry = entry
        self.reason = reason
        self.queued_seconds = 0.0
        self.held: HeldRequest | None = None  # its ticket, where it was held before

    @property
    def endpoint(self) -> Endpoint:
        """Where to send the request."""
        return self._pod.endpoint

    @property
    def pod(self) -> str:
        """Name of the pod for people: its own, else its address."""
        return self._pod.name

    @property
    def stranded(self) -> bool:
        """Whether the pod is known to be gone or to hang: an answer that has not begun will hardly come."""
        return self._pod.stranded

    def failed(self, kind: FailureKind) -> None:
        """The request failed before its answer; an answer of 4xx is none. `close` is owed all the same."""
        self._pool.pod_failed(self._pod, kind)

    def moved(self, tokens: int, now: float) -> None:
        """So many prompt tokens are not for this pod to compute: another one, busy until now, hands them over."""
        self._pod.moved(self.entry, self._dispatch, tokens, now)

    def heard(self, load_header: str) -> None:
        """The answer's x-tidepool-load, a report that came sooner than the stream's; a bad one is ignored."""
        report = read_load_header(load_header, self._pod.report)
        if report is not None:
            self._pool.pod_heard(self._pod, report)

    def close(self, outcome: Outcome, now: float) -> bool:
        """The request is over; True the first time."""
        if not self._pod.release(self.entry, self._dispatch, outcome, now):
            return False
        if self.held is not None:
            self._pool.settle(self.held, self.entry)
        entry = self.entry
        # An answer of 4xx says nothing of the pod; and on trial, what had a first byte was told to it then.
        told = self._pod.ejection.on_trial and entry.first_token_at is not None
        succeeded = outcome is Outcome.OK and entry.code < 400 and not told
        self._pool.closed(self._pod, entry, succeeded=succeeded, now=now)
        return True
