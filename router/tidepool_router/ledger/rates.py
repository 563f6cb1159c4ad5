"""Tokens a second from a counter that is read now and then."""

from typing import Final

# A rate forgets half of the past in about this time: short enough for scaling, long enough to be steady.
_HALF_LIFE_SECONDS: Final = 10.0


class RateMeter:
    """Exponentially weighted rate of a growing counter."""

    __slots__ = ("_at", "_rate", "_total")

    def __init__(self) -> None:
        self._at: float | None = None
        self._total = 0
        self._rate = 0.0

    def read(self, total: int, now: float) -> float | None:
        """Units a second after this reading; None until two readings are at least a tenth of a second apart."""
        if self._at is None:
            self._at, self._total = now, total
            return None
        elapsed = now - self._at
        if elapsed >= 0.1:
            keep = 0.5 ** (elapsed / _HALF_LIFE_SECONDS)
            self._rate = keep * self._rate + (1.0 - keep) * (total - self._total) / elapsed
            self._at, self._total = now, total
        return self._rate
