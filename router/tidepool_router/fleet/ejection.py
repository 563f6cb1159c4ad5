"""Takes a pod that fails out of the choice for a while, and lets it come back slowly.

A pod that refuses connections or answers errors at once looks idle, and would otherwise draw all traffic. Two
rules eject: failures in a row, and a share of failures that is high by itself and beside the other pods'. A pod
whose time is over is on trial: it may have few requests at once, more with each step that goes well, and all of
them only in the end. Answers of 4xx are the client's and never told here. No clock: `now` is passed, in seconds.
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
# The sum of a third, three times, or of a fifth, five times, is not exactly one.
_EJECTING_STRIKES: Final = 0.999
# Weight of one answer in the share of failures: about the last forty count. A pod that fails a tenth of its
# requests stays four standard deviations below the limit.
_ANSWER_WEIGHT: Final = 0.05
_SHARE_LIMIT: Final = 0.3
# Requests that no pod can serve raise the share of all: at fault is who fails so much more often than the others.
_TIMES_USUAL: Final = 3.0
_FIRST_SECONDS: Final = 1.0
_LONGEST_SECONDS: Final = 30.0
_MOST_DOUBLINGS: Final = 5  # beyond it _LONGEST_SECONDS holds
# A pod on its way back may have so many requests at once, doubled by a success; beyond the last it is trusted.
_FIRST_ALLOWANCE: Final = 1
_LAST_ALLOWANCE: Final = 64
# Between two doublings, or a pod that answers at once would be back at once, whatever comes after.
_STEP_SECONDS: Final = 0.25


class Ejection:
    """Record of one pod's failures. `failure_share` is that of its latest answers, 0 to 1."""

    __slots__ = ("_allowance", "_ejections", "_step_at", "_strikes", "failure_share", "until")

    def __init__(self) -> None:
        self.until = 0.0
        self.failure_share = 0.0
        self._strikes = 0.0
        self._ejections = 0
        self._allowance: int | None = None
        self._step_at = 0.0

    @property
    def on_trial(self) -> bool:
        """Whether the pod is ejected or on its way back."""
        return self._allowance is not None

    def allows(self, now: float, in_flight: int) -> bool:
        """Whether the pod may take one more request beside those that it has of us."""
        if self._allowance is None:
            return True
        return now >= self.until and in_flight < self._allowance

    def failed(self, kind: FailureKind, now: float, usual_share: float = 0.0) -> bool:
        """Count a failure; True when it ejects the pod. What fails while it is out was sent before.

        `usual_share` is the failure share of the pool's other pods.
        """
        if now < self.until:
            return False
        self._strikes += _STRIKES[kind]
        self.failure_share += _ANSWER_WEIGHT * (1.0 - self.failure_share)
        stands_out = self.failure_share > max(_SHARE_LIMIT, _TIMES_USUAL * usual_share)
        if self._strikes < _EJECTING_STRIKES and not stands_out and self._allowance is None:
            return False
        self._strikes = self.failure_share = 0.0
        self.until = now + min(_LONGEST_SECONDS, _FIRST_SECONDS * 2.0**self._ejections)
        self._ejections = min(self._ejections + 1, _MOST_DOUBLINGS)
        self._allowance = _FIRST_ALLOWANCE
        self._step_at = self.until
        return True

    def succeeded(self, now: float) -> None:
        """A request was answered; a success while the pod is out was sent before and says nothing."""
        if now < self.until:
            return
        self._strikes = 0.0
        self.failure_share -= _ANSWER_WEIGHT * self.failure_share
        if self._allowance is None or now < self._step_at:
            return
        self._allowance *= 2
        self._step_at = now + _STEP_SECONDS
        if self._allowance > _LAST_ALLOWANCE:
            self._allowance = None
            self._ejections = 0

    def forgive(self) -> None:
        """The pod is another process now: its past is not this one's."""
        self.until = self.failure_share = self._strikes = self._step_at = 0.0
        self._ejections, self._allowance = 0, None
