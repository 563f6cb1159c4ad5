"""Does what is due, a key at a time."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping

from tidepool_operator.cluster.health import Figures
from tidepool_operator.cluster.store import Key
from tidepool_operator.cluster.workqueue import WorkQueue
from tidepool_operator.due import Item, Work
from tidepool_operator.errors import ApiError, NotLeader, TooManyRequests

log = logging.getLogger(__name__)

Acts = Mapping[Work, Callable[[Key], Awaitable[float | None]]]


class Workers:
    """`acts`: what is done with a key; it tells in how many seconds the key is to be looked at again."""

    def __init__(self, queue: WorkQueue[Item], acts: Acts, figures: Figures) -> None:
        self._queue = queue
        self._acts = acts
        self._figures = figures

    async def work(self) -> None:
        """One worker, as long as it is not cancelled."""
        while True:
            item = await self._queue.take()
            began = time.perf_counter()
            try:
                again = await self._acts[item.work](item.key)
            except NotLeader:
                self._queue.done(item)  # the new leader looks at everything
            except Exception as error:
                self._failed(item, error)
            except asyncio.CancelledError:
                self._queue.done(item)
                raise
            else:
                self._queue.done(item, again_after_seconds=again)
            self._figures.reconciles += 1
            self._figures.seconds += time.perf_counter() - began

    def _failed(self, item: Item, error: Exception) -> None:
        name, figures = type(error).__name__, self._figures
        figures.errors += 1
        figures.by_error[name] = figures.by_error.get(name, 0) + 1
        asked = error.retry_after_seconds if isinstance(error, TooManyRequests) else None
        pause = self._queue.failed(item, at_least_seconds=asked or 0.0)
        # What is not the API server's is a defect: its place matters.
        trace = None if isinstance(error, ApiError) else error
        log.error("%s %s failed, again in %.1f s: %s", item.work, item.key, pause, error, exc_info=trace)
