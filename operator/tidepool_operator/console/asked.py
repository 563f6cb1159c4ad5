"""Answers of others that a view is made from, asked for in the background: no view waits for one that hangs."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final, Generic, TypeVar

from tidepool_operator.errors import OperatorError

T = TypeVar("T")
log = logging.getLogger(__name__)

# The first view of all waits so long for its first answer.
PATIENCE_SECONDS: Final = 1.0


class Asked(Generic[T]):
    """The last answer, at most so old when somebody looks often. Whoever has it closes it."""

    def __init__(self, ask: Callable[[], Awaitable[T]], nothing: T, old_seconds: float) -> None:
        self._ask = ask
        self._old_seconds = old_seconds
        self._asked_at: float | None = None
        self._task: asyncio.Task[None] | None = None
        self.answer = nothing
        self.trouble: str | None = None  # why the last question had no answer

    async def look(self, now: float) -> T:
        """The answer as it is known; a new one is under way where it is old."""
        first = self._asked_at is None
        if (self._task is None or self._task.done()) and (
            self._asked_at is None or now - self._asked_at >= self._old_seconds
        ):
            self._asked_at = now
            self._task = asyncio.create_task(self._take(), name="console asks")
        if first and self._task is not None:
            await asyncio.wait((self._task,), timeout=PATIENCE_SECONDS)
        return self.answer

    async def close(self) -> None:
        """Ask no more."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _take(self) -> None:
        try:
            self.answer = await self._ask()
            self.trouble = None
        except OperatorError as error:
            self.trouble = str(error)
        except Exception:  # nobody waits for this task, so nobody else would hear of it
            log.exception("a question of the console failed")
            self.trouble = "the operator failed to ask; its log says why. Please report it."
