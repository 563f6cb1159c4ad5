"""Listens to one endpoint for as long as it is in the fleet: a sidecar's load stream, or a bare engine's page."""

import asyncio
import logging
import random
from typing import Final

from tidepool_api import contract
from tidepool_api.load import Health, LoadReport
from tidepool_router.admission import Load, Room
from tidepool_router.errors import UpstreamError
from tidepool_router.fleet.client import Stream, get, open_stream
from tidepool_router.fleet.engine_page import EngineFigures, read_engine_page
from tidepool_router.fleet.feed import HEARTBEAT_SECONDS
from tidepool_router.fleet.patience import HUNG_SECONDS, Patience
from tidepool_router.fleet.pod import Pod
from tidepool_router.fleet.pool import PoolState

# A stream may miss so many heartbeats; derived, so that a slower heartbeat does not make every stream look silent.
SILENT_HEARTBEATS: Final = 5
SILENT_SECONDS: Final = SILENT_HEARTBEATS * HEARTBEAT_SECONDS
_SCRAPE_SECONDS: Final = 1.0
_SCRAPE_TIMEOUT_SECONDS: Final = 2.0
# Short, because a pod that wakes a pool is met here first.
_BACKOFF_SECONDS: Final = (0.05, 0.5)
_NO_STREAM: Final = frozenset({404, 405, 501})

log = logging.getLogger("tidepool.fleet")


class Listener:
    """Owner of one pod's standing. `run` ends only by cancellation."""

    def __init__(self, pool: PoolState, pod: Pod) -> None:
        self._pool = pool
        self._pod = pod
        self._scrapes = 0
        self._figures = EngineFigures()  # of the last scrape
        self._room = Room()
        self._patience = Patience()  # learns nothing: others' prompts may be in the engine too
        self._sidecar = False  # a load report was heard
        self._stuck_until = 0.0

    async def run(self) -> None:
        """Connect, listen, and connect again."""
        delay, longest = _BACKOFF_SECONDS
        while True:
            try:
                heard = await self._listen()
            except UpstreamError as error:
                self._lost(error)
                heard = False
            except Exception:  # without a listener the pod's figures would stand still for ever
                log.exception("listener failed; connecting again", extra={"endpoint": self._pod.key})
                heard = False
            delay = _BACKOFF_SECONDS[0] if heard else min(longest, delay * 2)
            await asyncio.sleep(delay * random.uniform(0.75, 1.25))  # noqa: S311 - spreads load, keeps no secret

    async def _listen(self) -> bool:
        stream = await open_stream(self._pod.endpoint, contract.PATH_LOAD_STREAM)
        try:
            if stream.status == 200:
                return await self._follow(stream)
        finally:
            stream.close()
            self._pod.streaming = False
        # Where a sidecar was, an answer without a load stream is that of somebody else at its address.
        if stream.status in _NO_STREAM and not self._sidecar:
            await self._scrape_on()
        raise UpstreamError("connect", f"{self._pod.key} answers its load stream with {stream.status}")

    async def _follow(self, stream: Stream) -> bool:
        """True when at least one report came before the stream ended or went silent."""
        heard = False
        while True:
            try:
                async with asyncio.timeout(SILENT_SECONDS):
                    line = await stream.line()
            except TimeoutError as error:
                if not heard:  # it connects and says nothing: what was heard before is not true any more
                    message = f"{self._pod.key} opens its load stream and sends no report"
                    raise UpstreamError("first_byte_timeout", message) from error
                log.warning("load stream silent; connecting again", extra={"endpoint": self._pod.key})
                return heard
            except UpstreamError:
                return heard
            if line is None:
                return heard
            try:
                report = LoadReport.decode(line)
            except ValueError as error:
                raise UpstreamError("connect", f"{self._pod.key} sent no load report: {error}") from error
            heard = self._pod.streaming = self._sidecar = True
            self._pool.pod_heard(self._pod, report)

    async def _scrape_on(self) -> None:
        """A bare engine, until it stops to answer (raises UpstreamError)."""
        while True:
            answer = await get(self._pod.endpoint, "/metrics", _SCRAPE_TIMEOUT_SECONDS)
            if answer.status >= 500:
                raise UpstreamError("connect", f"{self._pod.key} answers /metrics with {answer.status}")
            figures = read_engine_page(answer.body) if answer.status == 200 else EngineFigures()
            self._pool.pod_heard(self._pod, self._report(figures))
            await asyncio.sleep(_SCRAPE_SECONDS)

    def _report(self, figures: EngineFigures) -> LoadReport:
        """The page and own counting in the form of a sidecar's report; others' requests weigh what ours do."""
        pod, now = self._pod, self._pool.now()
        if figures.shows_work_since(self._figures):
            pod.ledger.engine_progress(now)
            self._stuck_until = 0.0
        self._figures = figures
        self._scrapes += 1
        sums = pod.ledger.sums()
        hung = pod.ledger.silent_seconds(now) > self._patience.seconds(sums.queued_tokens)
        if hung:
            self._stuck_until = now + HUNG_SECONDS
        elif not sums.running:  # its requests left; see EngineWatch.hung
            hung = now < self._stuck_until
        seen = sums.running if figures.running is None else figures.running + (figures.waiting or 0)
        others = max(0, seen - sums.running)
        each = self._pool.estimator.typical_tokens
        held = sums.held_tokens + others * each
        load = Load(sums.running + others, sums.unstarted, sums.queued_tokens, held, sums.expected_tokens)
        self._room.looked(load, figures.running, figures.waiting, figures.kv_usage, figures.kv_capacity_tokens)
        return LoadReport(
            boot="bare",
            seq=self._scrapes,
            health=Health.HUNG if hung else Health.READY,
            running=sums.running + others,
            queued_tokens=sums.queued_tokens,
            held_tokens=held,
            expected_tokens=sums.expected_tokens,
            kv_capacity_tokens=figures.kv_capacity_tokens,
            kv_usage=figures.kv_usage,
            kv_block_tokens=figures.kv_block_tokens,
            adapters=figures.adapters,
            adapter_slots=figures.adapter_slots,
            opened_total=sums.opened_total,
            closed_total=sums.closed_total,
            limit=self._room.limit(load),
        )

    def _lost(self, error: UpstreamError) -> None:
        if not self._pod.reachable:
            return
        log.warning("endpoint lost", extra={"endpoint": self._pod.key, "reason": str(error)})
        self._pod.reachable = False
        self._pool.pod_changed()
