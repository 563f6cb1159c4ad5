"""When a process that drains may end."""

import asyncio
from collections.abc import Callable
from typing import Final

# Endpoint lists of clients and proxies lag: go on serving at least so long.
MINIMUM_SECONDS: Final = 5.0
# And until nothing has run for so long.
QUIET_SECONDS: Final = 2.0
_LOOK_SECONDS: Final = 0.1


class Drain:
    """One drain, from its beginning; pure but for `finished`."""

    def __init__(self, began: float, timeout_seconds: float) -> None:
        self._began = began
        self._busy_at = began
        self._timeout_seconds = timeout_seconds

    def over(self, now: float, live: int) -> bool:
        """Whether it may end; `live` is the number of requests that run or are held."""
        if live:
            self._busy_at = now
        if now - self._began >= self._timeout_seconds:
            return True
        return not live and now - self._began >= MINIMUM_SECONDS and now - self._busy_at >= QUIET_SECONDS

    async def finished(self, live: Callable[[], int], now: Callable[[], float]) -> None:
        """Return when it is over; bounded by its timeout."""
        while not self.over(now(), live()):  # noqa: ASYNC110 - quiet has to last, which no event can tell
            await asyncio.sleep(_LOOK_SECONDS)
