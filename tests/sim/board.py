"""The engines' gauges as a scraper sees them: as old as its interval, and older where metrics are delayed."""

from collections import deque
from collections.abc import Sequence

from .engine import Engine
from .picker import Gauges

# llm-d and AIBrix scrape every 50 ms (research: the floor of llm-d's configuration).
SCRAPE_SECONDS = 0.05


class ScrapedBoard:
    """Scrapes when asked, once an interval: between two reads nobody could have seen a scrape."""

    def __init__(self, engines: Sequence[Engine], delay_seconds: float, interval: float = SCRAPE_SECONDS) -> None:
        self._engines = engines
        self._delay = delay_seconds
        self._interval = interval
        self._slot = -1
        self._scrapes: deque[tuple[float, list[Gauges]]] = deque([(float("-inf"), [Gauges() for _ in engines])])

    def gauges(self, now: float) -> Sequence[Gauges]:
        """The newest scrape that is at least as old as the delay."""
        slot = int(now / self._interval)
        scrapes = self._scrapes
        if slot != self._slot:
            self._slot = slot
            scrapes.append((now, [Gauges(len(e.running), e.waiting, e.kv_usage) for e in self._engines]))
        while len(scrapes) > 1 and scrapes[1][0] <= now - self._delay:
            scrapes.popleft()
        return scrapes[0][1]
