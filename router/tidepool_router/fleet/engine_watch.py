"""Keeps up with one engine: is it up, does it work, how full is it."""

import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from tidepool_router.errors import UpstreamError
from tidepool_router.fleet.client import get
from tidepool_router.fleet.endpoint import Endpoint
from tidepool_router.fleet.engine_page import EngineFigures
from tidepool_router.fleet.engine_probe import Probe, probe_engine, scrape_engine
from tidepool_router.fleet.patience import HUNG_SECONDS, Patience
from tidepool_router.ledger import Ledger

# A busy engine may miss one deadline; a closed port counts at once, for then the process is gone.
_FAILURES_UNTIL_DOWN: Final = 3
_BUSY_SCRAPE_SECONDS: Final = 2.0
_IDLE_SCRAPE_SECONDS: Final = 15.0
_PAGE_SECONDS: Final = 2.0

log = logging.getLogger("tidepool.sidecar")


class EngineWatch:
    """What was seen at the last look. The ledger is told when the engine's own counters show work."""

    def __init__(self, engine: Endpoint, ledger: Ledger, now: Callable[[], float]) -> None:
        self.engine = engine
        self.figures = EngineFigures()
        self.probe = Probe(answers=False, problem="the engine has not been asked yet")
        self.was_up = False
        self.patience = Patience()
        self._ledger = ledger
        self._now = now
        self._failures = 0
        self._scraped_at = float("-inf")
        self._stuck_until = 0.0

    @property
    def up(self) -> bool:
        """Answers, and serves the model that it must."""
        return self.probe.answers or (self.was_up and 0 < self._failures < _FAILURES_UNTIL_DOWN)

    @property
    def hung(self) -> bool:
        """Runs requests and shows no sign of work for too long, whatever its /health says.

        It stays so for a while when its requests have left for other pods: an engine that has nothing to do shows
        no sign of work either, and would draw the next ones at once.
        """
        if self._silent_for_long():
            return True
        return self._stuck_until > 0.0 and not self._ledger.running and self._now() < self._stuck_until

    def _silent_for_long(self) -> bool:
        silent_seconds = self._ledger.silent_seconds(self._now())
        if silent_seconds <= HUNG_SECONDS:  # asked for each request
            return False
        return silent_seconds > self.patience.seconds(self._ledger.sums().queued_tokens)

    @property
    def problem(self) -> str | None:
        """Why it is not up; None when it is."""
        return None if self.up else self.probe.problem or "the engine does not answer"

    @property
    def waiting(self) -> int:
        """Requests that wait in the engine: its gauge, which may be old, within what the ledger knows."""
        told = self.figures.waiting
        return min(told, self._ledger.unstarted) if told else 0

    async def look(self, model: str | None) -> None:
        """One probe, and a scrape when one is due: often while requests run, always while no token comes."""
        self._take(await probe_engine(self.engine, model))
        now = self._now()
        # After the last request one more look, so that the page's last figures are not those of a busy engine.
        busy = self._ledger.running or self.figures.running or self.figures.waiting
        spacing = _BUSY_SCRAPE_SECONDS if busy else _IDLE_SCRAPE_SECONDS
        due = now - self._scraped_at >= spacing or self._ledger.silent_seconds(now) > spacing
        if self.probe.answers and due:
            await self.scrape()
        if self._silent_for_long():
            self._stuck_until = self._now() + HUNG_SECONDS

    async def scrape(self) -> None:
        """A look at the page alone."""
        self._scraped_at = self._now()
        self._note(await scrape_engine(self.engine))

    def gone(self, problem: str) -> None:
        """Somebody found nobody listening on its port: that counts at once, as if a look had seen it."""
        self._take(Probe(answers=False, problem=problem, gone=True))

    async def page(self) -> bytes | None:
        """The engine's own metrics page, for a scrape of ours; None when it does not answer."""
        try:
            answer = await get(self.engine, "/metrics", _PAGE_SECONDS)
        except UpstreamError:
            return None
        return answer.body if answer.status == 200 else None

    def _take(self, probe: Probe) -> None:
        was_up = self.up
        if probe.answers and not self.probe.answers:
            self._scraped_at = float("-inf")  # another process, maybe with another size of KV cache
        if probe.answers:
            self.was_up, self._failures = True, 0
        elif probe.gone:
            self._failures = _FAILURES_UNTIL_DOWN
            self._stuck_until = 0.0  # whoever comes next is another process
        else:
            self._failures += 1
        changed = probe.problem != self.probe.problem
        self.probe = probe
        if changed or self.up is not was_up:
            log.info("engine %s", "up" if self.up else "not up", extra={"reason": probe.problem or "answers"})

    def _note(self, figures: EngineFigures | None) -> None:
        if figures is None:  # the size of the cache stays true, what was going on does not
            self.figures = replace(self.figures, running=None, waiting=None, kv_usage=None)
            return
        if figures.shows_work_since(self.figures):
            self._ledger.engine_progress(self._now())
            self._stuck_until = 0.0
        self.figures = figures
