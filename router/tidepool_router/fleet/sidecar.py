"""A sidecar's state: the ledger of its one engine, health, load reports, drain."""

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from tidepool_api.load import Health, LoadReport
from tidepool_api.routing import SidecarSettings
from tidepool_api.trust import TrustedCallers
from tidepool_api.units import duration_seconds
from tidepool_router.admission import Refusal
from tidepool_router.errors import NoPods
from tidepool_router.facts import RequestFacts
from tidepool_router.fleet.adapter_keeper import AdapterKeeper
from tidepool_router.fleet.drain import Drain
from tidepool_router.fleet.endpoint import Endpoint
from tidepool_router.fleet.engine_cache import EngineCache
from tidepool_router.fleet.engine_queue import EngineQueue, HeldHere
from tidepool_router.fleet.engine_watch import EngineWatch
from tidepool_router.fleet.feed import Feed
from tidepool_router.fleet.kv_outlook import KvOutlook
from tidepool_router.fleet.loadheader import write_load_header
from tidepool_router.fleet.sidecar_metrics import SidecarMetrics
from tidepool_router.ledger import Entry, Ledger, Outcome, RateMeter, TokenEstimator
from tidepool_router.proofs import Callers, Fault, Proof

_STARTING_PROBE_SECONDS: Final = 1.0
_PROBE_SECONDS: Final = 2.0
_HEADER_SPACING_SECONDS: Final = 0.01
_RETRY_AFTER_SECONDS: Final = 2.0
# Prompt tokens that wait beyond what gateways were told: another gateway's next pick should know of them
# (docs/simulator.md, two gateways against one).
_URGENT_TOKENS: Final = 512

log = logging.getLogger("tidepool.sidecar")


class SidecarState:
    """Owner of the ledger and of the probe loop. Also the ledger's listener, which feeds reports and metrics."""

    def __init__(
        self,
        engine: Endpoint,
        settings: SidecarSettings,
        *,
        pod: str,
        boot: str,
        now: Callable[[], float] = time.monotonic,
        hands_over: bool = False,
    ) -> None:
        self.settings = settings
        self.hands_over = hands_over  # KV blocks pass between its engine and those of other pods
        self.pod = pod
        self.variant = ""  # the kind of accelerator, where the pool has several
        self.metrics = SidecarMetrics()
        self.ledger = Ledger(self)
        self.estimator = TokenEstimator()
        self.cache = EngineCache(self.estimator)
        self.watch = EngineWatch(engine, self.ledger, now)
        self.kv = KvOutlook(self.watch)
        self.waiting = EngineQueue(
            pod, self.ledger, self.watch, self._why_engine_takes_none, self._count_refusal, now
        )
        self.feed: Feed[LoadReport] = Feed(self.tell, _differs)
        self._told_queued_tokens = 0
        self.adapters = AdapterKeeper(engine, now, self.feed.touch)
        # Whose word counts, and who shows it; None: everybody's does.
        self.callers: Callers | None = None
        self._apply(settings)
        self._boot = boot
        self._seq = 0
        self._now = now
        self._header_at = float("-inf")
        self._header = ""
        self._drain: Drain | None = None
        self._loop_task: asyncio.Task[None] | None = None
        self._prefill_rate, self._output_rate = RateMeter(), RateMeter()
        self.metrics.registry.before_scrape(self._set_gauges)

    async def start(self) -> None:
        """Begin to ask the engine."""
        self._loop_task = asyncio.create_task(self._watch_engine(), name="engine-probe")

    async def close(self) -> None:
        """Stop asking; load streams end."""
        self.feed.close()
        if self._loop_task is not None:
            self._loop_task.cancel()
            await asyncio.gather(self._loop_task, return_exceptions=True)
        await self.adapters.close()
        await self.waiting.close()

    # Standing.

    @property
    def draining(self) -> bool:
        """From the first drain on, for good."""
        return self._drain is not None

    @property
    def health(self) -> Health:
        """As the load report says it; draining hides what the engine does."""
        if self.draining:
            return Health.DRAINING
        if not self.watch.up:
            return Health.DOWN if self.watch.was_up else Health.STARTING
        return Health.HUNG if self.watch.hung else Health.READY

    @property
    def pool(self) -> str:
        """`namespace/name`."""
        return f"{self.settings.namespace}/{self.settings.pool}"

    @property
    def boot(self) -> str:
        """Tells this process from all others."""
        return self._boot

    @property
    def takes_requests(self) -> bool:
        """Whether the engine would take one, draining or not."""
        return self._why_engine_takes_none() is None

    def why_not_started(self) -> str | None:
        """None when the engine answers and serves the model, else a sentence for /engine/started."""
        return self.watch.problem

    def why_not_ready(self) -> str | None:
        """None when the pod takes new requests, else a sentence for /engine/ready."""
        if self.draining:
            return "the pod is draining"
        reason = self._why_engine_takes_none()
        return reason if reason is not None or self.adapters.settled else "the engine's adapters are being loaded"

    def _why_engine_takes_none(self) -> str | None:
        if self.watch.up and self.watch.hung:
            silent_seconds = self.ledger.silent_seconds(self._now())
            return f"the engine runs requests and has made no token for {silent_seconds:.0f} s"
        return self.watch.problem

    # Requests.

    def open(self, facts: RequestFacts, now: float, *, direct: bool = False) -> tuple[Entry, HeldHere | None]:
        """Count a request; the caller owes one `close` of the entry. `direct`: it came by no gateway.

        It goes to the engine now, or has a place in the queue, and goes when `waiting.wait` returns. While
        draining requests are still taken, for lists of endpoints lag. Raises NoPods when the engine cannot take
        one, QueueFull when as many wait as the settings allow, TooLate; the caller counts what it refuses.
        """
        reason = self._why_engine_takes_none()
        if reason is not None:
            raise NoPods(f"The engine of {self.pod} takes no requests: {reason}.", _RETRY_AFTER_SECONDS)
        estimate, prefix, found = self.cache.look(facts)
        held = None
        if self.waiting.must_wait(estimate):
            held = self.waiting.hold(facts, estimate, direct=direct)
        self.cache.took_in(prefix, found)
        beside = self.ledger.running
        entry = self.ledger.open(estimate, now, self.estimator.lengths(facts.api))
        self.kv.opened(entry, held, beside, streams=facts.stream)
        return entry, held

    def _count_refusal(self, reason: Refusal) -> None:
        self.metrics.refused[reason].inc()

    def opened(self, entry: Entry, now: float) -> None:  # noqa: ARG002 - a LedgerListener
        """Ledger's moment."""
        self.watch.patience.opened(entry, self.ledger.unstarted)
        self.feed.touch(urgent=self.urgent)

    def started(self, entry: Entry, now: float) -> None:
        """Ledger's moment."""
        self.watch.patience.started(entry, now)
        self.metrics.started(entry, now)
        self.waiting.release()
        self.feed.touch()

    def closed(self, entry: Entry, outcome: Outcome, now: float) -> None:
        """Ledger's moment."""
        self.metrics.closed(entry, outcome, now)
        self.cache.ended(entry)
        self.kv.closed(entry, self.ledger.running, now)
        self.waiting.release()
        self.feed.touch()

    # Reports.

    @property
    def urgent(self) -> bool:
        """Whether so much prompt came since gateways were told that they would choose wrongly meanwhile."""
        return self.ledger.queued_tokens - self._told_queued_tokens >= _URGENT_TOKENS

    def tell(self) -> LoadReport:
        """A report for all who listen."""
        self._told_queued_tokens = self.ledger.queued_tokens
        return self.report()

    def report(self) -> LoadReport:
        """The ledger's sums now; each call counts as one report."""
        self._seq += 1
        now, sums, waiting = self._now(), self.ledger.sums(), self._waiting
        models, figures = self.watch.probe.models, self.watch.figures
        exhausted = self._kv_exhausted_seconds(now)
        return LoadReport(
            pod=self.pod,
            pool=self.pool,
            model=self.settings.model or (models[0] if models else ""),
            boot=self._boot,
            seq=self._seq,
            health=self.health,
            running=sums.running - waiting,
            waiting=waiting,
            queued_tokens=sums.queued_tokens,
            held_tokens=sums.held_tokens,
            expected_tokens=sums.expected_tokens,
            kv_capacity_tokens=figures.kv_capacity_tokens,
            kv_usage=figures.kv_usage,
            kv_block_tokens=figures.kv_block_tokens,
            kv_tokens=sums.held_tokens - sums.shared_tokens,
            prefill_tokens_per_second=self._prefill_rate.read(sums.prompt_tokens_total, now),
            output_tokens_per_second=self._output_rate.read(sums.output_tokens_total, now),
            opened_total=sums.opened_total,
            closed_total=sums.closed_total,
            held=self.waiting.queue.held,
            limit=self.waiting.room.limit(self.waiting.sent()),
            settings=self._digest,
            adapters=figures.adapters,
            adapter_slots=figures.adapter_slots,
            served_adapters=self.watch.probe.adapters,
            adapters_failed=self.adapters.failed,
            kv_exhausted_seconds=None if exhausted is None else round(exhausted, 2),
            stored=self.cache.log.text,
            stored_total=self.cache.log.total,
            variant=self.variant,
            held_direct=self.waiting.held_direct,
        )

    def _kv_exhausted_seconds(self, now: float) -> float | None:
        ledger = self.ledger
        return self.kv.forecast(ledger.expected_tokens, ledger.kv_tokens, now).exhausted_seconds

    @property
    def _waiting(self) -> int:
        """Requests in the engine's queue and in ours."""
        return self.watch.waiting + self.waiting.queue.held

    def load_header(self) -> str:
        """x-tidepool-load for an answer, made anew at most every 10 ms; who reads it knows it by its number."""
        now = self._now()
        if now - self._header_at >= _HEADER_SPACING_SECONDS:
            self._header_at = now
            self._header = write_load_header(self.report())
        return self._header

    # Orders.

    def apply(self, settings: SidecarSettings, *, proven: bool = False) -> None:
        """New settings; a new model name is checked with the next probe.

        Whom to believe, and what the engine loads where anybody is to prove himself, is taken from the proven
        operator alone, or whoever reaches the control port could say so.
        """
        if not proven:
            kept: dict[str, object] = {"trust": self.settings.trust}
            if self.settings.trust is not None:
                kept["adapters"] = self.settings.adapters
            settings = settings.model_copy(update=kept)
        self._apply(settings)

    def believe(self, trust: TrustedCallers | None) -> None:
        """Whose word counts from now on, from a source that is trusted itself."""
        self._apply(self.settings.model_copy(update={"trust": trust}))

    def _apply(self, settings: SidecarSettings) -> None:
        self.settings = settings
        self._digest = settings.digest()
        self.waiting.apply(settings.routing.queue)
        self.adapters.want(settings.adapters)
        trust, callers = settings.trust, self.callers
        if trust is None:
            self.callers = None
        elif callers is None or callers.trusted != trust:
            self.callers = Callers(trust, self._told)
            if not self.callers.can_prove:
                log.warning("the cluster's keys are not known yet: priority, tenant and deadline are nobody's")
        self.feed.touch()

    def _told(self, found: Proof | Fault) -> None:
        self.metrics.proofs[found if isinstance(found, Fault) else found.part].inc()

    def begin_drain(self) -> Drain:
        """Tell everyone at once; the settings of the first call hold."""
        if self._drain is None:
            timeout_seconds = duration_seconds(self.settings.drain_timeout)
            self._drain = Drain(self._now(), timeout_seconds)
            log.info("draining", extra={"timeout_seconds": timeout_seconds, "running": self.ledger.running})
            self.feed.touch()
        return self._drain

    def engine_gone(self, problem: str) -> None:
        """A request found nobody listening where the engine should: believe it before the next look."""
        self.watch.gone(problem)
        self.feed.touch()

    async def drain(self) -> None:
        """Begin to drain, and return when nothing runs any more or at the drain timeout."""
        await self.begin_drain().finished(lambda: self.ledger.running, self._now)

    async def look_at_engine(self) -> None:
        """One look; what it found goes out when it matters."""
        before = self.watch.figures
        await self.watch.look(self.settings.model)
        self.adapters.looked(self.watch.probe)
        figures = self.watch.figures
        if figures is not before:
            self.waiting.looked()
            if figures.kv_capacity_tokens:
                self.cache.resize(figures.kv_capacity_tokens, figures.kv_block_tokens)
        self.feed.touch()

    async def _watch_engine(self) -> None:
        while True:
            try:
                await self.look_at_engine()
            except Exception:  # the kubelet depends on this loop: a defect in one look must not end it
                log.exception("looking at the engine failed; going on")
            await asyncio.sleep(_PROBE_SECONDS if self.watch.probe.answers else _STARTING_PROBE_SECONDS)

    def _set_gauges(self) -> None:
        metrics, sums, waiting = self.metrics, self.ledger.sums(), self._waiting
        metrics.running.set(sums.running - waiting)
        metrics.waiting.set(waiting)
        metrics.output_tokens.set(sums.output_tokens_total)
        metrics.late_calls.set(sums.late_calls_total)
        metrics.kv_tokens.set(sums.held_tokens)
        metrics.ledger.set(sums)
        metrics.kv_capacity.clear()
        metrics.kv_usage.clear()
        if capacity := self.watch.figures.kv_capacity_tokens:
            metrics.kv_capacity.labels().set(capacity)
            metrics.kv_usage.labels().set(sums.held_tokens / capacity)
        metrics.kv_exhaustion.clear()
        exhausted = self._kv_exhausted_seconds(self._now())
        if exhausted is not None:
            metrics.kv_exhaustion.labels().set(exhausted)
        metrics.engine_ready.set(float(self.why_not_ready() is None))
        metrics.draining.set(float(self.draining))


def _differs(old: LoadReport, new: LoadReport) -> bool:
    """Any request that came or went, any change of standing; of token counts only what would move a pick."""
    quiet = replace(
        new,
        seq=old.seq,
        queued_tokens=old.queued_tokens,
        held_tokens=old.held_tokens,
        expected_tokens=old.expected_tokens,
        kv_tokens=old.kv_tokens,
        kv_usage=old.kv_usage,
        kv_exhausted_seconds=old.kv_exhausted_seconds,
        prefill_tokens_per_second=old.prefill_tokens_per_second,
        output_tokens_per_second=old.output_tokens_per_second,
    )
    if quiet != old or (old.kv_exhausted_seconds is None) is not (new.kv_exhausted_seconds is None):
        return True
    before, after = old.queued_tokens + old.held_tokens, new.queued_tokens + new.held_tokens
    return abs(after - before) > max(256, before // 20)
