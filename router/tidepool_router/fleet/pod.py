"""One endpoint of a pool, as a gateway knows it."""

from collections.abc import Callable
from enum import StrEnum
from typing import Final

from tidepool_api.load import Health, LoadReport
from tidepool_router.errors import FailureKind
from tidepool_router.fleet.ejection import Ejection
from tidepool_router.fleet.endpoint import Endpoint
from tidepool_router.fleet.fusion import Dispatch, LoadFusion
from tidepool_router.ledger import Entry, Estimate, Ledger, Outcome


class PodState(StrEnum):
    """Why a pod takes requests or does not; values of the label `state`."""

    READY = "ready"
    UNKNOWN = "unknown"  # nothing heard of it yet
    STARTING = "starting"
    DRAINING = "draining"
    HUNG = "hung"
    DOWN = "down"
    EJECTED = "ejected"
    LEAVING = "leaving"
    FOREIGN = "foreign"  # a pod of another pool has its address now


_OF_HEALTH: Final = {health: PodState(health.value) for health in Health}


class Pod:
    """Load and standing of one endpoint. A picking.Candidate.

    What is heard changes it synchronously; `load_tokens` and `load_requests` are kept current by each event, so
    that a pick reads two attributes a pod. `recovered` is called when it may take more on its way back.
    """

    __slots__ = (
        "_fusion",
        "_identity",
        "_recovered",
        "ejection",
        "endpoint",
        "leaving",
        "ledger",
        "load_requests",
        "load_tokens",
        "reachable",
        "report",
        "streaming",
    )

    def __init__(self, endpoint: Endpoint, recovered: Callable[[], None] = lambda: None) -> None:
        self.endpoint = endpoint
        self.ledger = Ledger(self)
        self._recovered = recovered
        self.ejection = Ejection()
        self.report: LoadReport | None = None
        self.reachable = False  # the last attempt to connect, ours or a request's, succeeded
        self.streaming = False  # a load stream is open and not silent
        self.leaving = False
        self._identity: tuple[str, str] | None = None  # pool and model, as first told
        self.load_tokens = 0
        self.load_requests = 0
        self._fusion = LoadFusion()

    @property
    def key(self) -> str:
        """The endpoint's."""
        return self.endpoint.key

    @property
    def name(self) -> str:
        """The pod's own name where it told one, else its address."""
        return self.report.pod if self.report is not None and self.report.pod else self.endpoint.key

    def state(self, now: float) -> PodState:
        """Only READY pods are picked."""
        if self.leaving:
            return PodState.LEAVING
        if self.report is None:
            return PodState.UNKNOWN if self.reachable else PodState.DOWN
        if self.foreign:
            return PodState.FOREIGN
        if self.report.health is not Health.READY:
            return _OF_HEALTH[self.report.health]
        if not self.reachable:
            return PodState.DOWN
        return PodState.READY if self.ejection.allows(now, self.ledger.running) else PodState.EJECTED

    @property
    def foreign(self) -> bool:
        """Whether another pool's pod answers: addresses are given away again before DNS has forgotten them.

        Both differ, for a pod may be told another model, and one without settings names its pool after itself.
        """
        report, identity = self.report, self._identity
        if report is None or identity is None or not report.model:
            return False
        return report.pool != identity[0] and report.model != identity[1]

    @property
    def answers(self) -> bool:
        """Whether it would take requests, were it not for its ejection."""
        if self.report is None or self.report.health is not Health.READY:
            return False
        return self.reachable and not self.leaving and not self.foreign

    @property
    def stranded(self) -> bool:
        """Nobody answers at the address any more, or the engine hangs."""
        return not self.reachable or (self.report is not None and self.report.health is Health.HUNG)

    def heard(self, report: LoadReport, now: float) -> bool:
        """A load report has come; False when it is out of order. A new boot is a new process at the address."""
        reborn = self.report is not None and self.report.boot != report.boot
        if not self._fusion.heard(report, now):
            return False
        if reborn:
            self.ejection.forgive()
        self.report = report
        if self._identity is None and report.model:
            self._identity = report.pool, report.model
        self.reachable = True
        self._refresh()
        return True

    def reserve(self, estimate: Estimate, now: float) -> tuple[Entry, Dispatch]:
        """Open an entry and let the next pick see it."""
        entry = self.ledger.open(estimate, now)
        dispatch = self._fusion.dispatched(entry.load_tokens, now)
        self._refresh()
        return entry, dispatch

    def release(self, entry: Entry, dispatch: Dispatch, outcome: Outcome, now: float) -> bool:
        """Close the entry; False when it was closed before."""
        tokens = entry.load_tokens
        if not entry.close(outcome, now):
            return False
        self._fusion.ended(dispatch, tokens, now)
        self._refresh()
        return True

    def failed(self, kind: FailureKind, now: float, usual_share: float = 0.0) -> bool:
        """A request failed; True when that changed whether the pod is picked. See Ejection.failed."""
        changed = self.ejection.failed(kind, now, usual_share)
        if kind == "connect" and self.reachable and not self.streaming:
            self.reachable = False
            changed = True
        return changed

    def opened(self, entry: Entry, now: float) -> None:
        """LedgerListener."""

    def started(self, entry: Entry, now: float) -> None:  # noqa: ARG002 - a LedgerListener
        """LedgerListener: a pod on its way back from ejection is trusted more with each answer that begins well.

        The end of the answer would be too late: a stream may take minutes. An answer of 5xx has been told to
        `failed` before its first byte, which ejected the pod again.
        """
        if self.ejection.on_trial:
            self.ejection.succeeded(now)
            self._recovered()

    def closed(self, entry: Entry, outcome: Outcome, now: float) -> None:
        """LedgerListener."""

    def _refresh(self) -> None:
        self.load_tokens = max(self.ledger.load_tokens, self._fusion.tokens)
        self.load_requests = max(self.ledger.running, self._fusion.requests)

    def __repr__(self) -> str:
        health = self.report.health.value if self.report is not None else "unheard"
        return f"<Pod {self.key} {health} tokens={self.load_tokens} requests={self.load_requests}>"
