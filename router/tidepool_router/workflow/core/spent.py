"""Where the time of a unit of work goes: queue, prefill, decode, tools, pauses between tries, and what is left."""

from collections.abc import Mapping
from enum import StrEnum


class Part(StrEnum):
    """What takes time."""

    QUEUE = "queue"  # at the gateway
    PREFILL = "prefill"
    DECODE = "decode"
    TOOL = "tool"
    PAUSE = "pause"
    OVERHEAD = "overhead"


class Spent:
    """Of one unit, over all its tries, the first of which `began` then; seconds of one clock.

    `inside`: it is made of others, whose time is told as theirs.
    """

    __slots__ = ("_paused_at", "_seconds", "began", "inside", "tries")

    def __init__(self, began: float) -> None:
        self.began = began
        self.tries = 0
        self.inside = False
        self._seconds = dict.fromkeys(Part, 0.0)
        self._paused_at: float | None = None

    def tried(self, now: float) -> None:
        """A try begins."""
        self.tries += 1
        if self._paused_at is not None:
            self._seconds[Part.PAUSE] += now - self._paused_at
            self._paused_at = None

    def pauses(self, now: float) -> None:
        """A try has failed, and is made again later."""
        self._paused_at = now

    def called(self, seconds: float) -> None:
        """A tool answered, or did not, after so long."""
        self._seconds[Part.TOOL] += seconds

    def asked(self, seconds: float, queue_seconds: float, prefill_seconds: float) -> None:
        """A model answered, or did not, after so long: first it waited, then it read, and the rest it wrote."""
        queue = min(seconds, queue_seconds)
        prefill = min(seconds - queue, max(0.0, prefill_seconds))
        self._seconds[Part.QUEUE] += queue
        self._seconds[Part.PREFILL] += prefill
        self._seconds[Part.DECODE] += seconds - queue - prefill

    def parts(self, now: float) -> Mapping[Part, float]:
        """The whole time until now, by what took it; what nothing else did is overhead."""
        if self.inside:
            return {}
        rest = max(0.0, now - self.began - sum(self._seconds.values()))
        whole = {**self._seconds, Part.OVERHEAD: rest}
        return {part: seconds for part, seconds in whole.items() if seconds}
