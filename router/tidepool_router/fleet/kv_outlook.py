"""A sidecar's outlook on its engine's KV cache: what its live requests hold now, and what they will come to."""

from typing import Final

from tidepool_router.fleet.engine_page import EngineFigures
from tidepool_router.fleet.engine_queue import HeldHere
from tidepool_router.fleet.engine_watch import EngineWatch
from tidepool_router.ledger import Entry, KvForecast, PodSpeed, PoolSpeed, foresee

# A forecast is made anew this often at most: at 256 requests it takes some 100 us.
_SPACING_SECONDS: Final = 0.1
# As long as everything that is held and expected fits into this part of the cache, there is nothing to foresee.
_SURELY_ENOUGH: Final = 0.7
# Steps are learned from so many answers a second at most, and from those that are long enough to tell.
_LEARNING_SPACING_SECONDS: Final = 0.05
_LEAST_OUTPUT_TOKENS: Final = 8

_NOTHING: Final = KvForecast(None, 0)


class KvOutlook:
    """One engine's. Costs O(1) a request; a forecast is O(n log n) in the live ones and made when asked for."""

    def __init__(self, watch: EngineWatch) -> None:
        self._watch = watch
        self._figures = watch.figures  # that were taken in
        self._speed = PodSpeed(PoolSpeed())
        # Open entries; those with a ticket that was not sent yet are not in the engine.
        self._live: dict[Entry, HeldHere | None] = {}
        self._capacity_tokens = 0  # 0: not known
        self._block_tokens = 1
        # What the gauge showed beyond the requests' own: beginnings that several share, which none of them owns.
        # Below zero where more was presumed of answers that do not stream than the gauge showed.
        self._beyond_tokens = 0
        self._presumed_tokens = 0
        self._learned_at = float("-inf")
        self._made_at = float("-inf")
        self._forecast = _NOTHING

    def opened(self, entry: Entry, held: HeldHere | None, beside: int, *, streams: bool) -> None:
        """A request came; `beside` others are there. What does not stream shows its tokens only at its end."""
        entry.streams, entry.beside = streams, beside
        self._live[entry] = held

    def closed(self, entry: Entry, beside: int, now: float) -> None:
        """It ended, whichever way; so many are left."""
        self._live.pop(entry, None)
        first, tokens = entry.first_token_at, entry.output_tokens
        if first is None or tokens < _LEAST_OUTPUT_TOKENS or now - self._learned_at < _LEARNING_SPACING_SECONDS:
            return
        self._learned_at = now
        between = (entry.beside + beside) / 2
        if entry.streams:
            self._speed.stepped(between, (now - first) / (tokens - 1))
        else:
            self._speed.answered(entry.uncached_tokens, between, tokens, now - entry.opened_at)

    def forecast(self, expected_tokens: int, held_tokens: int, now: float) -> KvForecast:
        """As of now, by the ledger's sums; `peak_tokens` 0 where exhaustion is so far that none was made."""
        figures = self._watch.figures
        if figures is not self._figures:
            self._looked(figures, now)
        capacity = self._capacity_tokens
        if not capacity or held_tokens + self._beyond_tokens + expected_tokens < _SURELY_ENOUGH * capacity:
            return _NOTHING
        if now - self._made_at >= _SPACING_SECONDS:
            self._made_at = now
            running = self._running(now)
            used, speed = self._beyond_tokens + sum([own for _, own in running]), self._speed
            self._forecast = foresee(used, running, capacity, speed.step_seconds, speed.step_seconds_a_request)
        return self._forecast

    def _looked(self, figures: EngineFigures, now: float) -> None:
        """The engine's page is new."""
        self._figures = figures
        self._capacity_tokens = figures.kv_capacity_tokens or 0
        self._block_tokens = figures.kv_block_tokens or 1
        self._made_at = float("-inf")
        if figures.kv_usage is not None and not figures.waiting:  # else the ledger has what the engine has not
            gauge = int(figures.kv_usage * self._capacity_tokens)
            own = sum([own for _, own in self._running(now)])
            self._beyond_tokens = max(-self._presumed_tokens, gauge - own)

    def _running(self, now: float) -> list[tuple[int, int]]:
        """Of each request in the engine: output tokens to come, KV tokens in its blocks."""
        block, presumed = self._block_tokens, 0
        running = []
        for entry, held in self._live.items():
            if held is not None and not held.sent:
                continue
            made, to_come = entry.output_tokens, entry.expected_tokens
            if entry.first_token_at is None and not entry.streams:
                unseen = min(self._unseen_tokens(entry, now), to_come - 1)
                if unseen > 0:
                    made, to_come, presumed = made + unseen, to_come - unseen, presumed + unseen
            own = entry.uncached_tokens + entry.moved_tokens + made
            running.append((to_come, own + -own % block))
        self._presumed_tokens = presumed
        return running

    def _unseen_tokens(self, entry: Entry, now: float) -> int:
        """Output tokens that an answer which does not stream should have by now."""
        speed = self._speed
        begun = entry.opened_at + speed.first_token_seconds + entry.uncached_tokens * speed.prompt_token_seconds
        return int((now - begun) / (speed.step_seconds + entry.beside * speed.step_seconds_a_request))
