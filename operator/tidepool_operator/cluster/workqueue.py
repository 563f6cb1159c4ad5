"""A queue of keys that are due: each at most once, one worker a key, failures with backoff."""

import asyncio
import heapq
from collections.abc import Hashable
from typing import Final, Generic, TypeVar

K = TypeVar("K", bound=Hashable)

_FIRST_BACKOFF_SECONDS: Final = 0.5
_LONGEST_BACKOFF_SECONDS: Final = 120.0


class WorkQueue(Generic[K]):
    """Keys with the time at which they are due, on the event loop's clock.

    A key added again keeps its earliest time. A key that is worked on is not handed out a second time: added
    meanwhile, it is due again when its worker is done. Its size is bounded by the number of objects that exist.
    """

    def __init__(self) -> None:
        self._due: dict[K, float] = {}
        self._order: list[tuple[float, int, K]] = []
        self._serial = 0
        self._active: dict[K, float] = {}
        self._failures: dict[K, int] = {}
        self._not_before: dict[K, float] = {}
        self._wake = asyncio.Event()

    def add(self, key: K, after_seconds: float = 0.0) -> None:
        """Make `key` due in `after_seconds`, or at the earlier time that it already has; not before the time that
        the API server asked for when it failed."""
        time = max(asyncio.get_running_loop().time() + after_seconds, self._not_before.get(key, 0.0))
        if time >= self._due.get(key, float("inf")):
            return
        self._due[key] = time
        self._serial += 1
        heapq.heappush(self._order, (time, self._serial, key))
        self._wake.set()

    async def take(self) -> K:
        """Wait for the next due key; hand it to `done` or `failed` afterwards."""
        loop = asyncio.get_running_loop()
        while True:
            self._wake.clear()
            time = self._next_time()
            if time is not None and time <= loop.time():
                return self._pop(loop.time())
            wait = None if time is None else time - loop.time()
            try:
                async with asyncio.timeout(wait):
                    await self._wake.wait()
            except TimeoutError:
                continue

    def done(self, key: K, *, again_after_seconds: float | None = None) -> None:
        """The key's work succeeded; it may name when it wants to be looked at again."""
        self._active.pop(key, None)
        self._failures.pop(key, None)
        self._not_before.pop(key, None)
        if again_after_seconds is not None:
            self.add(key, again_after_seconds)
        self._wake.set()

    def failed(self, key: K, *, at_least_seconds: float = 0.0) -> float:
        """The key's work failed: due again after a doubling pause, which is returned (seconds).

        An event in the meantime may make it due sooner, for a repaired spec need not wait for the backoff; but not
        within `at_least_seconds`, which the API server asks of everybody (two minutes of it are granted).
        """
        self._active.pop(key, None)
        failures = self._failures.get(key, 0)
        self._failures[key] = failures + 1
        pause = min(_LONGEST_BACKOFF_SECONDS, _FIRST_BACKOFF_SECONDS * 2.0 ** min(failures, 20))
        patience = min(at_least_seconds, _LONGEST_BACKOFF_SECONDS)
        pause = max(pause, patience)
        self._not_before.pop(key, None)
        if patience > 0.0:
            self._not_before[key] = asyncio.get_running_loop().time() + patience
            # What came while it was worked on waits as well.
            self._due.pop(key, None)
        self.add(key, pause)
        self._wake.set()
        return pause

    def forget(self, key: K) -> None:
        """The key's object is gone: no more work for it."""
        self._due.pop(key, None)
        self._failures.pop(key, None)
        self._not_before.pop(key, None)

    def clear(self) -> None:
        """Drop everything that waits."""
        self._due.clear()
        self._order.clear()
        self._failures.clear()
        self._not_before.clear()

    def __len__(self) -> int:
        """Keys that are due by now, or worked on."""
        now = asyncio.get_running_loop().time()
        return sum(time <= now for time in self._due.values()) + len(self._active)

    def oldest_seconds(self) -> float:
        """For how long the most overdue key has waited or been worked on; 0 when nothing is late."""
        now = asyncio.get_running_loop().time()
        # What waits for its own worker is told by that worker's time.
        times = [time for key, time in self._due.items() if key not in self._active]
        return max(0.0, now - min([*times, *self._active.values()], default=now))

    def _next_time(self) -> float | None:
        skipped = []
        found = None
        while self._order:
            time, _, key = self._order[0]
            if self._due.get(key) != time:
                heapq.heappop(self._order)  # taken, forgotten or moved to an earlier time
            elif key in self._active:
                skipped.append(heapq.heappop(self._order))
            else:
                found = time
                break
        for entry in skipped:
            heapq.heappush(self._order, entry)
        return found

    def _pop(self, now: float) -> K:
        skipped = []
        while True:
            entry = heapq.heappop(self._order)
            time, _, key = entry
            if self._due.get(key) != time:
                continue
            if key not in self._active:
                break
            skipped.append(entry)
        for held in skipped:
            heapq.heappush(self._order, held)
        del self._due[key]
        self._active[key] = now
        return key
