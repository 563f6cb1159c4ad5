"""How fast a queue drains, and what that says to those who wait in it or come too late for it."""

from typing import Final

# Half of what was measured this long ago counts no more: the rate follows the pods that come and go.
_HALF_LIFE_SECONDS: Final = 10.0
# A shorter time says more of the moment's luck than of the rate.
_LEAST_SECONDS: Final = 0.5
_RETRY_AFTER_SECONDS: Final = (1.0, 60.0)
_RETRY_AFTER_UNKNOWN_SECONDS: Final = 2.0
# Multiples of the golden ratio, without their whole part, are spread evenly however many there are (Weyl).
_GOLDEN: Final = 0.6180339887498949


class DrainRate:
    """Tokens a second that leave a queue while something waits in it: what busy pods can do.

    Times while it is empty do not count: they say what was asked for.
    """

    __slots__ = ("_refusals", "_seconds", "_since", "_tokens")

    def __init__(self) -> None:
        # Decayed sums over the times in which something waited.
        self._tokens = 0.0
        self._seconds = 0.0
        self._since: float | None = None  # when the queue was last seen to have something in it
        self._refusals = 0

    def waiting(self, now: float) -> None:
        """Something waits from now on; further calls while it does change nothing."""
        if self._since is None:
            self._since = now

    def left(self, work_tokens: int, now: float, *, empty: bool) -> None:
        """One went from the queue to a pod; `empty`: it was the last one."""
        elapsed = 0.0 if self._since is None else max(0.0, now - self._since)
        keep = 0.5 ** (elapsed / _HALF_LIFE_SECONDS)
        self._tokens = keep * self._tokens + work_tokens
        self._seconds = keep * self._seconds + elapsed
        self._since = None if empty else now

    @property
    def tokens_per_second(self) -> float | None:
        """None until half a second of queueing has been seen."""
        return self._tokens / self._seconds if self._seconds >= _LEAST_SECONDS else None

    def seconds(self, work_tokens: float) -> float | None:
        """How long so many tokens take; None when that is not known yet."""
        rate = self.tokens_per_second
        return work_tokens / rate if rate else None

    def retry_after_seconds(self, held_work_tokens: int) -> float:
        """When somebody who was refused finds room again, 1 to 60 s.

        Within the second half of the time in which what is held now drains, spread evenly over those who ask, so
        that they do not come back as one.
        """
        self._refusals += 1
        drained = self.seconds(held_work_tokens)
        base = _RETRY_AFTER_UNKNOWN_SECONDS if drained is None else drained
        low, high = _RETRY_AFTER_SECONDS
        spread = 0.5 + 0.5 * (self._refusals * _GOLDEN % 1.0)
        return min(high, max(low, min(2 * high, base) * spread))
