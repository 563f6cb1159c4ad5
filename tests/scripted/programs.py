"""The router as a program of its own."""

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass

import httpx

from cluster.ports import ports_in_a_row
from scripted.plain import plain


@dataclass
class Program:
    """A running router."""

    process: asyncio.subprocess.Process
    port: int

    def url(self, offset: int = 0) -> str:
        return f"http://127.0.0.1:{self.port + offset}"

    async def stop(self, number: int = signal.SIGTERM) -> tuple[int, list[dict[str, object]]]:
        """Exit status and log records."""
        if self.process.returncode is None:
            self.process.send_signal(number)
        return await self.ended()

    async def ended(self) -> tuple[int, list[dict[str, object]]]:
        """The same of a program that has been told to end: another signal could meet it in its last moments."""
        async with asyncio.timeout(60):
            _, err = await self.process.communicate()
        return self.process.returncode or 0, [json.loads(line) for line in err.splitlines()]


@asynccontextmanager
async def run_program(
    *arguments: str, ready: str, environment: Mapping[str, str] | None = None, within_seconds: float = 60.0
) -> AsyncIterator[Program]:
    """Runs it until `ready`, a path of its control port, answers 200; at once where that is empty."""
    port = ports_in_a_row(3)  # of requests, of peers and of control
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tidepool_router", *arguments, "--host", "127.0.0.1", "--port", str(port),
        stderr=asyncio.subprocess.PIPE, env={**os.environ, **(environment or {})},
    )  # fmt: skip
    running = Program(process, port)
    try:
        async with asyncio.timeout(within_seconds), plain() as client:
            while ready:
                assert process.returncode is None
                try:
                    if (await client.get(running.url(2) + ready)).status_code == 200:
                        break
                except httpx.TransportError:
                    pass
                await asyncio.sleep(0.02)
        yield running
    finally:
        if process.returncode is None:
            process.kill()
            await process.communicate()
