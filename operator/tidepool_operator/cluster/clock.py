"""The API server's clock, as its answers tell it: what pods and conditions say of time is written by that clock.

A machine whose own clock is wrong by an hour would take every new pod for an hour late.
"""

import logging
import time
from collections.abc import Callable
from email.utils import parsedate_to_datetime
from typing import Final

log = logging.getLogger(__name__)

# A Date header has whole seconds and an answer takes a while: less than this is no difference.
_TOLERANCE_SECONDS: Final = 5.0
# An answer that took longer says little of when its header was written.
_LONGEST_SECONDS: Final = 2.0


class ServerClock:
    """`now` is Unix seconds by the API server, as far as that differs from `local` by more than a header can tell.

    The difference stays what it was until an answer contradicts it, so that time does not jitter.
    """

    def __init__(self, local: Callable[[], float] = time.time) -> None:
        self._local = local
        self._ahead = 0.0

    def now(self) -> float:
        """Unix seconds."""
        return self._local() - self._ahead

    def begin(self) -> float:
        """Call before a request; `heard` wants the result."""
        return self._local()

    def heard(self, date: str | None, begun: float) -> None:
        """Take in the Date header of an answer to a request that began at `begun`."""
        ended = self._local()
        if date is None or not 0.0 <= ended - begun <= _LONGEST_SECONDS:
            return
        try:
            # The header is cut to whole seconds.
            server = parsedate_to_datetime(date).timestamp() + 0.5
        except ValueError:
            return
        ahead = (begun + ended) / 2 - server
        if abs(ahead - self._ahead) <= _TOLERANCE_SECONDS:
            return
        self._ahead = ahead if abs(ahead) > _TOLERANCE_SECONDS else 0.0
        log.warning(
            "this machine's clock is %.0f s ahead of the API server's; its time is taken, but set the clock right",
            ahead,
        )
