"""Tools that fail again and again are left alone: a breaker for each host, open longer each time.

`now` is in seconds of a clock that never goes back.
"""

from collections import OrderedDict
from dataclasses import dataclass
from typing import Final

from tidepool_router.workflow.failures import StepFailed

# So many failures in a row open a breaker. Then one try at a time shows whether the host is back.
BREAKS_AFTER: Final = 5
FIRST_SECONDS: Final = 10.0
CAP_SECONDS: Final = 300.0
MOST_HOSTS: Final = 1024


@dataclass(slots=True)
class _Breaker:
    failures: int = 0
    open_until: float = 0.0
    probing_until: float = 0.0


class Breakers:
    """By host and port."""

    def __init__(self) -> None:
        self._breakers: OrderedDict[str, _Breaker] = OrderedDict()

    def require(self, host: str, now: float) -> None:
        """A call begins. Raises StepFailed while the host is left alone."""
        breaker = self._breakers.get(host)
        if breaker is None or breaker.failures < BREAKS_AFTER:
            return
        wait = max(breaker.open_until, breaker.probing_until) - now
        if wait > 0:
            message = f"{host} has failed {breaker.failures} times in a row and is left alone for {wait:.0f} s"
            raise StepFailed(message, again=True)
        # Whoever comes while this one is under way waits for what it finds out.
        breaker.probing_until = now + FIRST_SECONDS

    def count(self, host: str, now: float, *, failed: bool) -> None:
        """A call has ended."""
        if not failed:
            self._breakers.pop(host, None)
            return
        breaker = self._breakers.setdefault(host, _Breaker())
        self._breakers.move_to_end(host)
        breaker.failures += 1
        over = breaker.failures - BREAKS_AFTER
        if over >= 0:
            breaker.probing_until = 0.0
            breaker.open_until = now + min(CAP_SECONDS, FIRST_SECONDS * 2.0 ** min(over, 10))
        if len(self._breakers) > MOST_HOSTS:
            self._breakers.popitem(last=False)
