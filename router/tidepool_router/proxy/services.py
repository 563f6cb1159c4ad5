"""What all exchanges of a process share."""

import asyncio
import logging
import secrets
from collections.abc import Coroutine
from pathlib import Path
from time import monotonic
from typing import Any, Final

from tidepool_router.errors import Refusal, Refused
from tidepool_router.proxy.budgets import ReplayMemory, RetryBudget
from tidepool_router.proxy.limits import Limits
from tidepool_router.proxy.spool import Spools
from tidepool_router.proxy.upstream import ConnectionPools
from tidepool_router.tracing.sight import Sight

_log: Final = logging.getLogger("tidepool.router")
_WARNINGS_PER_SECOND: Final = 10


class Services:
    """Limits, connections, budgets, and the owner of the tasks in which requests wait."""

    def __init__(self, limits: Limits, bodies_folder: Path | None = None) -> None:
        self.limits = limits
        self.first_byte_seconds = limits.first_byte_seconds
        self.chunk_seconds = limits.chunk_seconds
        self.pools = ConnectionPools(limits)
        self.replay = ReplayMemory(limits.replay_bytes, limits.replay_total_bytes)
        self.retries = RetryBudget()
        self.spools = Spools(limits.max_stored_bytes, bodies_folder)
        self.bodies_bytes = 0
        self.proof = b""  # our own, as the header line that goes with each mark; empty: we have none
        self.sight: Sight | None = None  # set before the first request where somebody watches
        self.tasks: set[asyncio.Task[None]] = set()
        self._request_prefix = secrets.token_hex(8).encode()
        self._requests = 0
        self._warned_in = 0
        self._warnings = 0

    def new_request_id(self) -> bytes:
        """Unique among processes by its prefix and within this one by its number."""
        self._requests += 1
        return b"%b-%x" % (self._request_prefix, self._requests)

    def warn(self, message: str, **facts: object) -> None:
        """Log what went wrong with a request, so many times a second at most: an outage must not fill disks."""
        second = int(monotonic())
        if second != self._warned_in:
            self._warned_in, self._warnings = second, 0
        self._warnings += 1
        if self._warnings <= _WARNINGS_PER_SECOND:
            _log.warning(message, extra=facts)

    def check_room(self, size: int) -> None:
        """Raises Refused when the bodies of all requests together would take too much memory."""
        if self.bodies_bytes + size > self.limits.max_bodies_bytes:
            message = "the router holds as many request bodies as it may; try again in a moment"
            raise Refused(Refusal(503, "service_unavailable", "router_full", message, 1.0))

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run until done or cancelled; `close` waits for it."""
        task = asyncio.get_running_loop().create_task(work)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)
        return task

    async def close(self) -> None:
        """Cancel what waits and cut every upstream connection."""
        for task in list(self.tasks):
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        await self.pools.close()
