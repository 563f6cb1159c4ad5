"""How fast a queue drains, and what that says to those who wait in it or come too late for it."""

from typing import Final

# Half of what was measured this long ago counts no more: the rate follows the pods that come and go.
_HALF_LIFE_SECONDS: Final = 10.0
# A shorter time says more of the moment's luck than of the rate.
_LEAST_SECONDS: Final = 0.25
_RETRY_AFTER_SECONDS: Final = (1.0, 60.0)
_RETRY_AFTER_UNKNOWN_SECONDS: Final = 2.0
# Multiples of the golden ratio, without their whole part, are spread evenly however many there are (Weyl).
_GOLDEN: Final = 0.6180339887498949


class DrainRate:
    """Tokens a second that leave a queue while something waits in it: what busy pods can do.

    Times while it is empty do not count: they say what was asked for.
    """

    __slots__ = ("_busy_seconds", "_rate", "_refusals", "_since", "_tokens")

    def __init__(self) -> None:
        self._rate: float | None = None
        self._tokens = 0  # that left and are not in the rate yet, within
        self._busy_seconds = 0.0  # of queueing that is not in it either, without the time since
        self._since: float | None = None  # when the queue was last seen to have something in it
        self._refusals = 0

    def waiting(self, now: float) -> None:
        """Something waits from now on; further calls while it does change nothing."""
        if self._since is None:
            self._since = now

    def left(self, work_tokens: int, now: float, *, empty: bool) -> None:
        """One went from the queue to a pod; `empty`: it was the last one."""
        if self._since is not None:
            self._busy_seconds += max(0.0, now - self._since)
            self._since = now
        self._tokens += work_tokens
        if empty:
            self._since = None
        if self._busy_seconds >= _LEAST_SECONDS:
            measured = self._tokens / self._busy_seconds
            keep = 0.5 ** (self._busy_seconds / _HALF_LIFE_SECONDS)
            self._rate = measured if self._rate is None else keep * self._rate + (1.0 - keep) * measured
            self._tokens, self._busy_seconds = 0, 0.0

    @property
    def tokens_per_second(self) -> float | None:
        """None until a quarter of a second of queueing has been seen."""
        return self._rate

    def seconds(self, work_tokens: float) -> float | None:
        """How long so many tokens take; None when that is not known yet."""
        return work_tokens / self._rate if self._rate else None

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
