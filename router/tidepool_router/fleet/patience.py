"""How long an engine that runs requests may show no sign of work before it is taken for hung. No clock.

Tokens are a sign of work, and so is any change of the engine's own counters and of its KV cache's use, which
moves with each chunk of a prefill. What is left is one step that takes long by itself: a long prompt where prefill
is not cut into chunks. Its time is estimated from the prompt tokens that wait and what one has taken here.
"""

from typing import Final

from tidepool_router.ledger import Entry

HUNG_SECONDS: Final = 60.0
# The longest that anybody waits for a first byte by default: beyond it patience helps nobody.
LONGEST_SECONDS: Final = 600.0
# Estimates of tokens are off, and decodes run beside a prefill.
_MARGIN: Final = 3.0
# Before anything is learned: 100 tokens a second, as a small model on a CPU does; the first prompt outweighs it.
_FIRST_SECONDS_A_TOKEN: Final = 0.01
_FIRST_WEIGHT_TOKENS: Final = 50.0
# A prompt of so many tokens weighs half of all that was learned before.
_MEMORY_TOKENS: Final = 10_000.0


class Patience:
    """Learns from prompts that no other prompt had to be waited for; O(1) a request."""

    __slots__ = ("_alone", "_seconds", "_tokens")

    def __init__(self) -> None:
        self._alone: Entry | None = None
        self._tokens = _FIRST_WEIGHT_TOKENS
        self._seconds = _FIRST_WEIGHT_TOKENS * _FIRST_SECONDS_A_TOKEN

    def opened(self, entry: Entry, unstarted: int) -> None:
        """A request was sent to the engine, where `unstarted` have no first token yet, itself among them."""
        if unstarted == 1:
            self._alone = entry

    def started(self, entry: Entry, now: float) -> None:
        """A first token has come."""
        if entry is self._alone:
            self._alone = None
            tokens = float(max(1, entry.uncached_tokens))
            keep = _MEMORY_TOKENS / (_MEMORY_TOKENS + tokens)
            self._tokens = keep * self._tokens + tokens
            self._seconds = keep * self._seconds + now - entry.opened_at

    def seconds(self, queued_tokens: int) -> float:
        """Longest silence that is believed with so many uncached prompt tokens in the engine."""
        prefill_seconds = queued_tokens * self._seconds / self._tokens
        return min(LONGEST_SECONDS, HUNG_SECONDS + _MARGIN * prefill_seconds)
