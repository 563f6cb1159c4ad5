"""A process for work on what others wrote: bounded in time and memory, killed when it does not answer."""

import asyncio
import json
import sys
from collections import OrderedDict
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final

from tidepool_router.errors import RouterError

_START_SECONDS: Final = 15.0
_LENGTH_BYTES: Final = 4
_MOST_BURNT: Final = 1024
# What was stopped must go well so often before it waits among the others again.
_PROVED: Final = 16


class ChildFailed(RouterError):
    """It gave no answer; the message says why, as the end of a sentence."""


class TookTooLong(ChildFailed):
    """It was stopped."""


class Child:
    """One process of a program of this package, started when it is first asked.

    `turn`: for who asks, one at a time. `seconds`: for an answer.
    """

    def __init__(self, program: str, seconds: float, *arguments: str) -> None:
        self.turn = asyncio.Lock()
        self._words = (sys.executable, "-m", f"tidepool_router.workflow.{program}", *arguments)
        self._seconds = seconds
        self._process: asyncio.subprocess.Process | None = None

    @property
    def runs(self) -> bool:
        """Whether there is a process."""
        return self._process is not None

    async def ask(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """The program's answer; in one's turn. Raises ChildFailed."""
        told = json.dumps(request).encode()
        process = await self._started()
        assert process.stdin is not None  # noqa: S101 - both are pipes
        assert process.stdout is not None  # noqa: S101
        try:
            async with asyncio.timeout(self._seconds):
                process.stdin.write(len(told).to_bytes(_LENGTH_BYTES) + told)
                await process.stdin.drain()
                size = int.from_bytes(await process.stdout.readexactly(_LENGTH_BYTES))
                answer: dict[str, Any] = json.loads(await process.stdout.readexactly(size))
        except TimeoutError:
            await self.close()
            raise TookTooLong(f"took longer than {self._seconds:g} s and was stopped; make it simpler") from None
        except (asyncio.IncompleteReadError, ConnectionError):
            await self.close()
            raise ChildFailed("needed more memory than it may have; make it smaller") from None
        except asyncio.CancelledError:
            await self.close()  # it may still work on what nobody waits for
            raise
        return answer

    async def close(self) -> None:
        """End it."""
        process, self._process = self._process, None
        if process is not None:
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()
            if process.stdin is not None:
                process.stdin.close()

    async def _started(self) -> asyncio.subprocess.Process:
        if self._process is not None and self._process.returncode is None:
            return self._process
        process = await asyncio.create_subprocess_exec(
            *self._words, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, env={}
        )
        self._process = process
        assert process.stdout is not None  # noqa: S101 - a pipe
        try:
            async with asyncio.timeout(_START_SECONDS):
                await process.stdout.readexactly(1)
        except (TimeoutError, asyncio.IncompleteReadError):
            await self.close()
            raise ChildFailed("cannot be worked on now: the process for it does not start") from None
        return process


class Lanes:
    """Two processes of a program: what was stopped waits for its like alone, so that others wait for it once."""

    def __init__(self, program: str, seconds: float, *arguments: str) -> None:
        self._quick = Child(program, seconds, *arguments)
        self._slow = Child(program, seconds, *arguments)
        self._burnt: OrderedDict[str, int] = OrderedDict()  # what was stopped, and how often it must go well yet

    @property
    def runs(self) -> bool:
        """Whether there is a process."""
        return self._quick.runs or self._slow.runs

    async def ask(self, what: str, request: Mapping[str, Any]) -> dict[str, Any]:
        """The program's answer. `what`: by which it is known again. Raises ChildFailed."""
        if what not in self._burnt:
            async with self._quick.turn:
                if what not in self._burnt:  # nor was it while this one waited
                    return await self._asked(self._quick, what, request)
        async with self._slow.turn:
            return await self._asked(self._slow, what, request)

    async def close(self) -> None:
        """End both."""
        await self._quick.close()
        await self._slow.close()

    async def _asked(self, child: Child, what: str, request: Mapping[str, Any]) -> dict[str, Any]:
        try:
            answer = await child.ask(request)
        except TookTooLong:
            self._burnt[what] = _PROVED
            self._burnt.move_to_end(what)
            if len(self._burnt) > _MOST_BURNT:
                self._burnt.popitem(last=False)
            raise
        left = self._burnt.pop(what, 0) - 1
        if left > 0:
            self._burnt[what] = left
        return answer
