"""What is written somewhere slow: gathered on the loop, written by a thread, dropped when that falls behind."""

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, Generic, TypeVar

Item = TypeVar("Item")

_CLOSE_SECONDS: Final = 5.0

_log: Final = logging.getLogger("tidepool.router")


class Batches(Generic[Item]):
    """At most `bound` items wait; `write` gets them all together, on a thread, every `interval_seconds` at most.

    Items are written once and in their order. `dropped` counts those that found no room.
    """

    def __init__(
        self, name: str, write: Callable[[list[Item]], None], *, bound: int, interval_seconds: float
    ) -> None:
        self._name = name
        self._write = write
        self._bound = bound
        self._interval_seconds = interval_seconds
        self._items: list[Item] = []
        self._some = asyncio.Event()
        self._executor = ThreadPoolExecutor(1, name)
        self._task: asyncio.Task[None] | None = None
        self.dropped = 0

    def start(self) -> None:
        """Begin to write."""
        self._task = asyncio.create_task(self._run(), name=self._name)

    def put(self, item: Item) -> None:
        """Never waits."""
        items = self._items
        if len(items) >= self._bound:
            self.dropped += 1
            return
        if not items:
            self._some.set()
        items.append(item)

    async def close(self) -> None:
        """Write what is left, within a few seconds; what is not written by then is lost."""
        task, self._task = self._task, None
        if task is None:
            return
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        try:
            async with asyncio.timeout(_CLOSE_SECONDS):
                await self._flush()  # behind a write that is under way, for there is one thread
        except TimeoutError:
            _log.warning("not everything was written at the end", extra={"what": self._name})
        self._executor.shutdown(wait=False, cancel_futures=True)

    async def _run(self) -> None:
        while True:
            await self._some.wait()
            await asyncio.sleep(self._interval_seconds)
            await self._flush()

    async def _flush(self) -> None:
        items, self._items = self._items, []
        self._some.clear()
        if not items:
            return
        try:
            await asyncio.get_running_loop().run_in_executor(self._executor, self._write, items)
        except Exception:  # whoever watches depends on this loop, and nobody else may
            _log.exception("writing failed; what was to be written is lost", extra={"what": self._name})
