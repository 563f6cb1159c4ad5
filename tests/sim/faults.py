"""What goes wrong in a run."""

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Fault:
    """`slow` and `failing` are pods by number; `delay_seconds` is the age of all that engines and sidecars report.

    A failing pod answers each request with an error `_FAILS_AFTER` later and never reaches its engine.
    """

    name: str = "none"
    delay_seconds: float = 0.0
    slow: tuple[int, ...] = ()
    slowness: float = 2.0
    failing: tuple[int, ...] = ()
    rate_factor: float = 1.0  # of round robin's knee, where the fault takes capacity away


FAILS_AFTER_SECONDS: Final = 0.002
NONE: Final = Fault()
DELAYED: Final = Fault("metrics 5 s old", delay_seconds=5.0)
SLOW: Final = Fault("2 of 8 pods half as fast", slow=(2, 5), rate_factor=0.85)
FAILING: Final = Fault("one pod fails fast", failing=(3,), rate_factor=0.85)
FAULTS: Final = (DELAYED, SLOW, FAILING)
