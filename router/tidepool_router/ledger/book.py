"""The ledger: every live request of one engine, and sums over them that cost O(1) to keep and to read.

Invariant: each sum equals the sum of its figure over the open entries, after every call, in whatever order the
calls of different requests interleave; with no open entry all are zero.
"""

from enum import StrEnum
from typing import Protocol

from tidepool_router.ledger.estimate import Estimate
from tidepool_router.ledger.lengths import OutputLengths
from tidepool_router.ledger.sums import LedgerSums
from tidepool_router.ledger.totals import Totals


class Outcome(StrEnum):
    """How a request ended; values of the label `outcome`."""

    OK = "ok"
    ERROR = "error"
    CANCELLED = "cancelled"
    REFUSED = "refused"


class LedgerListener(Protocol):
    """Hears of the three moments of a request that matter to load and metrics; must not raise."""

    def opened(self, entry: "Entry", now: float) -> None:
        """The entry counts from here on."""

    def started(self, entry: "Entry", now: float) -> None:
        """The first token was seen."""

    def closed(self, entry: "Entry", outcome: Outcome, now: float) -> None:
        """The entry no longer counts; its figures are final."""


class Entry:
    """One live request. Every method is O(1); after `close` each of them does nothing but count as late."""

    __slots__ = (
        "_aim_tokens",
        "_lengths",
        "_listener",
        "_totals",
        "ahead_tokens",
        "beside",
        "cached_tokens",
        "cached_told",
        "code",
        "counted_by_engine",
        "estimate",
        "expected_tokens",
        "first_token_at",
        "moved_tokens",
        "open",
        "opened_at",
        "output_tokens",
        "prompt_tokens",
        "streams",
    )

    def __init__(
        self,
        totals: Totals,
        listener: LedgerListener | None,
        estimate: Estimate,
        now: float,
        lengths: OutputLengths | None,
    ) -> None:
        self._totals = totals
        self._listener = listener
        self._lengths = lengths
        self._aim_tokens = estimate.output_tokens  # where the output is expected to end
        self.estimate = estimate
        self.opened_at = now
        self.first_token_at: float | None = None
        self.prompt_tokens = estimate.prompt_tokens
        self.cached_tokens = estimate.cached_tokens
        self.cached_told = False  # by the engine
        self.moved_tokens = 0  # of the cached ones: handed over by another engine, and so not there before
        self.output_tokens = 0
        self.expected_tokens = estimate.output_tokens
        self.counted_by_engine = False  # usage has come: the figures are no estimates any more
        self.code = 0  # HTTP status, for metrics; the data path sets it when it knows
        self.open = True
        # What was there when it came: uncached tokens not worked through yet, and requests. For learning of speed.
        self.ahead_tokens = 0
        self.beside = 0
        self.streams = True  # its first token is seen when it is made

    @property
    def uncached_tokens(self) -> int:
        """Prompt tokens that the engine has to work through."""
        return self.prompt_tokens - self.cached_tokens

    @property
    def load_tokens(self) -> int:
        """What the request weighs in Ledger.load_tokens."""
        queued = self.uncached_tokens if self.first_token_at is None else 0
        return queued + self.prompt_tokens + self.output_tokens + self.expected_tokens

    def first_token(self, now: float) -> None:
        """The first token has come; later calls only say that the engine works."""
        if self._late():
            return
        totals = self._totals
        totals.token_at = now
        if self.first_token_at is not None:
            return
        self.first_token_at = now
        totals.unstarted -= 1
        totals.queued_tokens -= self.uncached_tokens
        if self._listener is not None:
            self._listener.started(self, now)

    def progress(self, output_tokens: int, now: float) -> None:
        """Output tokens seen so far, as an absolute count; a lower count than before is ignored."""
        if self.first_token_at is None:
            self.first_token(now)
        if self._late():
            return
        self._totals.token_at = now
        if output_tokens > self.output_tokens:
            self._set_output(output_tokens)

    def usage(self, prompt_tokens: int, output_tokens: int, cached_tokens: int | None = None) -> None:
        """The engine's own counts take the place of estimates; the last call holds. None: not told."""
        if self._late():
            return
        totals = self._totals
        uncached_before, shared_before = self.uncached_tokens, self.cached_tokens - self.moved_tokens
        totals.held_tokens += prompt_tokens - self.prompt_tokens
        self.prompt_tokens = prompt_tokens
        if cached_tokens is not None:
            self.cached_told = True
            self.cached_tokens = cached_tokens
        self.cached_tokens = min(self.cached_tokens, prompt_tokens)
        if self.moved_tokens:  # fewer have come than were said to
            self.moved_tokens = min(self.moved_tokens, self.cached_tokens)
        totals.shared_tokens += self.cached_tokens - self.moved_tokens - shared_before
        if self.first_token_at is None:
            totals.queued_tokens += self.uncached_tokens - uncached_before
        self._set_output(output_tokens)
        self.counted_by_engine = True

    def moved(self, tokens: int) -> None:
        """So many prompt tokens come from another engine (0: none, after all): no work, but room in the cache."""
        if self._late():
            return
        tokens = min(tokens, self.prompt_tokens - self.cached_tokens + self.moved_tokens)
        change = tokens - self.moved_tokens
        self.moved_tokens = tokens
        self.cached_tokens += change
        if self.first_token_at is None:
            self._totals.queued_tokens -= change

    def close(self, outcome: Outcome, now: float) -> bool:
        """True the first time; later calls return False, change nothing and are counted."""
        if self._late():
            return False
        self.open = False
        totals = self._totals
        totals.running -= 1
        if self.first_token_at is None:
            totals.unstarted -= 1
            totals.queued_tokens -= self.uncached_tokens
        totals.held_tokens -= self.prompt_tokens + self.output_tokens
        totals.shared_tokens -= self.cached_tokens - self.moved_tokens
        totals.expected_tokens -= self.expected_tokens
        totals.closed_total += 1
        totals.prompt_tokens_total += self.prompt_tokens
        if self.cached_told:  # a prediction is no count
            totals.cached_tokens_total += self.cached_tokens
        if self._listener is not None:
            self._listener.closed(self, outcome, now)
        return True

    def _set_output(self, output_tokens: int) -> None:
        totals = self._totals
        added = output_tokens - self.output_tokens
        totals.held_tokens += added
        if added > 0:  # a counter never goes back, even where the engine counts less than was seen
            totals.output_tokens_total += added
        self.output_tokens = output_tokens
        expected = self._aim_tokens - output_tokens
        if expected <= 0:
            expected = self._aim_further(output_tokens)
        totals.expected_tokens += expected - self.expected_tokens
        self.expected_tokens = expected

    def _aim_further(self, output_tokens: int) -> int:
        """Tokens still expected of an output that is as long as it was expected to be, and goes on."""
        lengths, most = self._lengths, self.estimate.most_output_tokens
        further = (
            0 if lengths is None or self.estimate.output_tokens == 0 else round(lengths.remaining(output_tokens))
        )
        if most:
            further = max(0, min(further, most - output_tokens))
        if further:
            self._aim_tokens = output_tokens + further
        return further

    def _late(self) -> bool:
        if self.open:
            return False
        self._totals.late_calls_total += 1
        return True

    def __repr__(self) -> str:
        state = "open" if self.open else "closed"
        return f"<Entry {state} prompt={self.prompt_tokens} output={self.output_tokens}>"


class Ledger:
    """All live requests of one engine.

    Entries hold their figures and the ledger only the sums, so a forgotten entry shows as a sum that does not
    return to zero.
    """

    def __init__(self, listener: LedgerListener | None = None) -> None:
        self._listener = listener
        self._totals = Totals()

    def open(self, estimate: Estimate, now: float, lengths: OutputLengths | None = None) -> Entry:
        """Count a request from now on. The caller owes exactly one `close`.

        `lengths` says what to expect of an output that gets longer than estimated; without it, nothing.
        """
        totals = self._totals
        if totals.running == 0:
            totals.token_at = now  # an engine that had nothing to do has not been silent
        totals.running += 1
        totals.unstarted += 1
        totals.queued_tokens += estimate.prompt_tokens - estimate.cached_tokens
        totals.held_tokens += estimate.prompt_tokens
        totals.shared_tokens += estimate.cached_tokens
        totals.expected_tokens += estimate.output_tokens
        totals.opened_total += 1
        entry = Entry(totals, self._listener, estimate, now, lengths)
        if self._listener is not None:
            self._listener.opened(entry, now)
        return entry

    @property
    def running(self) -> int:
        """Open entries."""
        return self._totals.running

    @property
    def unstarted(self) -> int:
        """Of these, those without a first token."""
        return self._totals.unstarted

    @property
    def queued_tokens(self) -> int:
        """Uncached prompt tokens of entries without a first token."""
        return self._totals.queued_tokens

    @property
    def expected_tokens(self) -> int:
        """Output tokens still expected."""
        return self._totals.expected_tokens

    @property
    def kv_tokens(self) -> int:
        """Tokens that the open entries add to the engine's KV cache: a cached prefix is there already."""
        return self._totals.held_tokens - self._totals.shared_tokens

    @property
    def load_tokens(self) -> int:
        """Queued, held and expected tokens of the open entries."""
        totals = self._totals
        return totals.queued_tokens + totals.held_tokens + totals.expected_tokens

    def sums(self) -> LedgerSums:
        """A snapshot."""
        return self._totals.snapshot()

    def engine_progress(self, now: float) -> None:
        """The engine was seen at work by other means, such as its own token counters."""
        self._totals.token_at = now

    def silent_seconds(self, now: float) -> float:
        """Seconds since the last sign of work while requests run; 0 with none running."""
        return now - self._totals.token_at if self._totals.running else 0.0
