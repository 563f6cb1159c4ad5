"""A token bucket: so much a minute, a minute's worth at once.

An amount above the bucket's size is let through when the bucket is full and leaves a debt, so that no request
waits for ever; over time the rate holds all the same.
"""

from typing import Final

_MINUTE_SECONDS: Final = 60.0


class Bucket:
    """Invariant: over any time of T seconds, no more than size + rate * T is taken, but for one amount's excess.

    `now` is any clock that does not go back; a step back counts as no time.
    """

    __slots__ = ("_at", "_level", "_per_second", "_size")

    def __init__(self, per_minute: float, now: float) -> None:
        self._size = per_minute
        self._per_second = per_minute / _MINUTE_SECONDS
        self._level = per_minute
        self._at = now

    def wait_seconds(self, amount: float, now: float) -> float:
        """Seconds until the amount may be taken; 0: now."""
        elapsed = now - self._at
        if elapsed > 0.0:
            self._at = now
            level = self._level + elapsed * self._per_second
            self._level = level if level < self._size else self._size
        needed = amount if amount < self._size else self._size
        missing = needed - self._level
        # Rounding must not keep a full bucket shut.
        return missing / self._per_second if missing > 1e-6 * self._size else 0.0

    def take(self, amount: float) -> None:
        """Take what `wait_seconds` has just allowed; a negative amount gives back."""
        level = self._level - amount
        self._level = level if level < self._size else self._size

    def resize(self, per_minute: float) -> None:
        """Another rate from now on: what was used up of the old size is used up of the new one, in proportion."""
        self._level *= per_minute / self._size
        self._size = per_minute
        self._per_second = per_minute / _MINUTE_SECONDS

    def __repr__(self) -> str:
        return f"<Bucket {self._level:.1f} of {self._size:g}>"
