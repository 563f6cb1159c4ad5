"""One endpoint of a pool, as a gateway knows it."""

from collections import deque
from collections.abc import Callable
from enum import StrEnum
from typing import Final

from tidepool_api.load import Health, LoadReport
from tidepool_router.errors import FailureKind
from tidepool_router.fleet.adapters import LoadedAdapters
from tidepool_router.fleet.ejection import Ejection
from tidepool_router.fleet.endpoint import Endpoint
from tidepool_router.fleet.fusion import Company, Dispatch, LoadFusion
from tidepool_router.ledger import Entry, Estimate, Ledger, Outcome, OutputLengths, PodSpeed, PoolSpeed
from tidepool_router.picking.candidate import Candidate

# Outputs shorter than this say little of the time for one token.
_LEAST_OUTPUT_TOKENS: Final = 8
# A pod with nothing to do for so long rests: what it was seen to do under load is believed less.
_REST_SECONDS: Final = 1.0
# Beyond this use of the KV cache a first token may have waited for room, not for work.
_KV_WAITS: Final = 0.9


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


# Of a pod that does not say how many requests it is worth having at once.
NO_LIMIT: Final = 1 << 60

_NEVER: Final = -1.0
_OF_HEALTH: Final = {health: PodState(health.value) for health in Health}


class Pod(Candidate):
    """Load and standing of one endpoint.

    What is heard changes it synchronously; the figures of the load are kept current by each event, so that a pick
    reads attributes. `recovered` is called when it may take more on its way back. `slot` is its number in the
    pool's prefix index.
    """

    __slots__ = (
        "_busy_at",
        "_company",
        "_fusion",
        "_gauge_tokens",
        "_identity",
        "_loaded",
        "_presumed_tokens",
        "_quiet",
        "_recovered",
        "_told_expected_tokens",
        "_told_kv_tokens",
        "ejection",
        "endpoint",
        "learned",
        "leaving",
        "ledger",
        "limit",
        "others_waiting",
        "reachable",
        "report",
        "streaming",
    )

    def __init__(
        self,
        endpoint: Endpoint,
        recovered: Callable[[], None] = lambda: None,
        *,
        slot: int = 0,
        speed: PoolSpeed | None = None,
        company: Company | None = None,
    ) -> None:
        self.learned = PodSpeed(speed or PoolSpeed())
        super().__init__(slot, endpoint.key, self.learned)
        self.endpoint = endpoint
        self.ledger = Ledger(self)
        self._recovered = recovered
        self.ejection = Ejection()
        self.report: LoadReport | None = None
        self.reachable = False  # the last attempt to connect, ours or a request's, succeeded
        self.streaming = False  # a load stream is open and not silent
        self.leaving = False
        self._identity: tuple[str, str] | None = None  # pool and model, as first told
        # Of the last report: KV tokens in use by its gauge (-1: none told), held and expected ones.
        self._gauge_tokens = -1
        self._told_kv_tokens = self._told_expected_tokens = 0
        self._loaded: LoadedAdapters | None = None  # None: nothing was heard of any
        self.limit = NO_LIMIT  # load_requests at which the pod is full
        self.others_waiting = 0  # requests that wait there and came by no gateway
        self._busy_at = _NEVER  # when it was last busy, or its rest was last counted
        self._fusion = LoadFusion()
        self._company = company or Company()
        # Of requests whose first token is not seen (they do not stream): when it is due, and what is past that.
        self._quiet: deque[tuple[float, Entry, Dispatch]] = deque()
        self._presumed_tokens = 0

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

    def serves(self, adapter: str) -> bool:
        """Whether it told that its engine answers to that name."""
        return self.report is not None and adapter in self.report.served_adapters

    @property
    def full(self) -> bool:
        """One more request would only wait there."""
        return self.load_requests >= self.limit

    def has_turn(self, most_waiting: int) -> bool:
        """Full, but with others that came by no gateway and wait there: as many of ours may wait beside them.

        Else those that hold their requests back while the pod is full would never get a place of it. Not where its
        own queue, which takes `most_waiting`, might refuse them.
        """
        report = self.report
        room = report is not None and 2 * report.held < most_waiting
        return room and self.ledger.unstarted < self.others_waiting

    @property
    def stranded(self) -> bool:
        """Nobody answers at the address any more, or the engine hangs."""
        return not self.reachable or (self.report is not None and self.report.health is Health.HUNG)

    def heard(self, report: LoadReport, now: float) -> bool:
        """A load report has come; False when it is out of order. A new boot is a new process at the address."""
        last = self.report
        reborn = last is not None and last.boot != report.boot
        shared = self._fusion.shared
        if not self._fusion.heard(report, now):
            return False
        if self._fusion.shared is not shared:
            self._company.shared_pods += -1 if shared else 1
        if reborn:
            self.ejection.forgive()
        if report.variant and self.learned.kin is None:
            self.learned.join(report.variant)
        self.report = report
        if self._identity is None and report.model:
            self._identity = report.pool, report.model
        self.limit = NO_LIMIT if report.limit is None else report.limit
        self.others_waiting = report.held_direct
        self.reachable = True
        self.kv_capacity_tokens = report.kv_capacity_tokens or 0
        self.kv_block_tokens = report.kv_block_tokens or 1
        if reborn and self._loaded is not None:
            self._loaded.forget()
            self.adapters = self._loaded.names
        # Told again and again between looks at the engine: only news, for own requests since are newer.
        told = last is not None and last.adapters == report.adapters and last.adapter_slots == report.adapter_slots
        if (report.adapters or report.adapter_slots) and (reborn or not told):
            self._take_adapters(report.adapters, report.adapter_slots)
        usage = report.kv_usage
        self._gauge_tokens = -1 if usage is None else int(usage * self.kv_capacity_tokens)
        self._told_kv_tokens, self._told_expected_tokens = report.kv_tokens or 0, report.expected_tokens
        self.refresh(now)
        if self.load_requests or self._busy_at < 0.0:
            self._busy_at = now
        elif now - self._busy_at >= _REST_SECONDS:
            self.learned.rested(now - self._busy_at)
            self._busy_at = now
        return True

    def gone(self) -> None:
        """It is no longer of the pool, whatever a last report may say."""
        if self._fusion.shared:
            self._company.shared_pods -= 1
        self._company = Company()

    def reserve(
        self, estimate: Estimate, now: float, *, streams: bool = True, lengths: OutputLengths | None = None
    ) -> tuple[Entry, Dispatch]:
        """Open an entry and let the next pick see it."""
        entry = self.ledger.open(estimate, now, lengths)
        entry.streams = streams
        entry.beside = self.live_requests
        entry.ahead_tokens = ahead = self.queued_tokens
        queued = entry.uncached_tokens
        dispatch = self._fusion.dispatched(entry.load_tokens, now, queued)
        if not streams:
            speed = self.learned
            due = now + speed.first_token_seconds + (ahead + queued) * speed.prompt_token_seconds
            self._quiet.append((due, entry, dispatch))
        self.refresh(now)
        return entry, dispatch

    def moved(self, entry: Entry, dispatch: Dispatch, tokens: int, now: float) -> None:
        """So many of the entry's prompt tokens come from another pod, which was at them until now."""
        before = entry.uncached_tokens
        entry.moved(tokens)
        self._fusion.reweigh(dispatch, entry.uncached_tokens - before)
        self.refresh(now)
        entry.opened_at = now
        entry.ahead_tokens = max(0, self.queued_tokens - entry.uncached_tokens)

    def uses(self, adapter: str) -> None:
        """A request for a LoRA adapter was sent: the next one finds it loaded, or finds its slot taken."""
        self._take_adapters((adapter,), None)

    def _take_adapters(self, names: tuple[str, ...], slots: int | None) -> None:
        loaded = self._loaded
        if loaded is None:
            loaded = self._loaded = LoadedAdapters()
        loaded.told(names, slots)
        self.adapters, self.adapter_slots = loaded.names, loaded.slots

    def release(self, entry: Entry, dispatch: Dispatch, outcome: Outcome, now: float) -> bool:
        """Close the entry; False when it was closed before."""
        tokens = entry.load_tokens
        if not entry.close(outcome, now):
            return False
        self._presumed_tokens -= dispatch.presumed_tokens
        dispatch.presumed_tokens = 0
        self._fusion.ended(dispatch, tokens, now)
        if outcome is Outcome.OK and entry.output_tokens >= _LEAST_OUTPUT_TOKENS:
            self._learn(entry, now)
        self.refresh(now)
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

    def started(self, entry: Entry, now: float) -> None:
        """LedgerListener: a pod on its way back from ejection is trusted more with each answer that begins well.

        The end of the answer would be too late: a stream may take minutes. An answer of 5xx has been told to
        `failed` before its first byte, which ejected the pod again.
        """
        if entry.streams:
            queued = entry.uncached_tokens
            self._fusion.started(queued)
            if self.kv_tokens <= _KV_WAITS * self.kv_capacity_tokens or not self.kv_capacity_tokens:
                self.learned.started(entry.ahead_tokens + queued, now - entry.opened_at)
            self.refresh(now)
        if self.ejection.on_trial:
            self.ejection.succeeded(now)
            self._recovered()

    def closed(self, entry: Entry, outcome: Outcome, now: float) -> None:
        """LedgerListener."""

    def refresh(self, now: float) -> None:
        """Make the figures those of this moment.

        A pod that only we send to is told by our own ledger, which no delay touches; else whichever is more.
        """
        while self._quiet and self._quiet[0][0] <= now:
            self._presume_started(*self._quiet.popleft()[1:])
        ledger, fusion = self.ledger, self._fusion
        queued, requests, expected = (
            ledger.queued_tokens - self._presumed_tokens,
            ledger.running,
            ledger.expected_tokens,
        )
        own, kv = ledger.load_tokens, ledger.kv_tokens
        self.load_tokens = load = own if own > fusion.tokens else fusion.tokens
        self.load_requests = requests if requests > fusion.requests else fusion.requests
        if fusion.shared:
            self.queued_tokens = max(queued, fusion.queued_tokens)
            self.live_requests = self.load_requests
            self.expected_tokens = max(expected, self._told_expected_tokens)
            kv = max(kv, self._told_kv_tokens)
        else:
            self.queued_tokens, self.live_requests, self.expected_tokens = queued, requests, expected
        if self._company.shared_pods:
            # Others send meanwhile, and no report tells of it yet: as much as we do.
            self.queued_tokens += fusion.unreported_tokens
        # The gauge sees what others hold, and beginnings that are held only once; it may be of a while ago.
        gauge = self._gauge_tokens
        if gauge > kv:
            kv = max(kv, min(load, gauge))
        self.kv_tokens = kv

    def _presume_started(self, entry: Entry, dispatch: Dispatch) -> None:
        """Its prompt should be worked through by now, though nothing shows it."""
        if entry.open:
            dispatch.presumed_tokens = entry.uncached_tokens
            self._presumed_tokens += dispatch.presumed_tokens

    def _learn(self, entry: Entry, now: float) -> None:
        """Speed from a whole answer; of one that did not stream, both parts in the proportion expected."""
        speed, first, beside = self.learned, entry.first_token_at, (entry.beside + self.live_requests) / 2
        if entry.streams and first is not None:
            speed.stepped(beside, (now - first) / (entry.output_tokens - 1))
        elif not entry.streams:
            speed.answered(
                entry.ahead_tokens + entry.uncached_tokens, beside, entry.output_tokens, now - entry.opened_at
            )

    def __repr__(self) -> str:
        health = self.report.health.value if self.report is not None else "unheard"
        return f"<Pod {self.key} {health} tokens={self.load_tokens} requests={self.load_requests}>"
