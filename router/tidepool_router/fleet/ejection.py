"""Takes a pod that fails out of the choice for a while, and lets it come back slowly.

A pod that refuses connections at once looks idle, and would otherwise draw all traffic. No clock: `now` is passed.
"""

from typing import Final

from tidepool_router.errors import FailureKind

# How much of an ejection one failure is worth; a success wipes the count. A refused connection says all by itself;
# an answer of 5xx may be the request's own fault, so five in a row are asked for (Envoy's default).
_STRIKES: Final[dict[FailureKind, float]] = {
    "connect": 1.0,
    "first_byte_timeout": 0.5,
    "reset": 0.34,
    "http_5xx": 0.2,
}
_FIRST_SECONDS: Final = 1.0
_LONGEST_SECONDS: Final = 30.0
# A pod on its way back may have so many requests at once, doubled by each success; beyond the last it is trusted.
_FIRST_ALLOWANCE: Final = 1
_LAST_ALLOWANCE: Final = 64


class Ejection:
    """Record of one pod's failures."""

    __slots__ = ("_allowance", "_ejections", "_strikes", "until")

    def __init__(self) -> None:
        self.until = 0.0
        self._strikes = 0.0
        self._ejections = 0
        self._allowance: int | None = None

    @property
    def on_trial(self) -> bool:
        """Whether the pod is ejected or on its way back."""
        return self._allowance is not None

    def allows(self, now: float, in_flight: int) -> bool:
        """Whether the pod may take one more request beside those that it has of us."""
        if self._allowance is None:
            return True
        return now >= self.until and in_flight < self._allowance

    def failed(self, kind: FailureKind, now: float) -> bool:
        """Count a failure; True when it ejects the pod. What fails while it is out was sent before."""
        if now < self.until:
            return False
        self._strikes += _STRIKES[kind]
        # The sum of a third, three times, or of a fifth, five times, is not exactly one.
        if self._strikes < 0.999 and self._allowance is None:
            return False
        self._strikes = 0.0
        self.until = now + min(_LONGEST_SECONDS, _FIRST_SECONDS * 2.0**self._ejections)
        self._ejections = min(self._ejections + 1, 10)
        self._allowance = _FIRST_ALLOWANCE
        return True

    def succeeded(self, now: float) -> None:
        """A request was answered; a success while the pod is out was sent before and says nothing."""
        if now < self.until:
            return
        self._strikes = 0.0
        if self._allowance is None:
            return
        self._allowance *= 2
        if self._allowance > _LAST_ALLOWANCE:
            self._allowance = None
            self._ejections = 0

    def forgive(self) -> None:
        """The pod is another process now: its past is not this one's."""
        self.until, self._strikes, self._ejections, self._allowance = 0.0, 0.0, 0, None
