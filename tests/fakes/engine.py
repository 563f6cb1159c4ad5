"""A double of a vLLM engine for fast tests: `async with EngineDouble() as engine`, or a process of its own.

It speaks vLLM 0.32's HTTP API; tests/parity holds it against the real one. See EngineSettings for its size and
speed, Fault for what it does wrong on order, and EngineDouble for what a test can see of it.
"""

import argparse
import asyncio
import contextlib
import socket
from collections.abc import Callable
from types import TracebackType
from typing import Self

from aiohttp import web

from fakes.core import EngineCore
from fakes.faults import Fault, FaultPlan
from fakes.journal import Ending, Journal
from fakes.server import Api
from fakes.settings import EngineSettings, Pace


class EngineDouble:
    """One engine on a port of its own (0: any free one).

    `loading=True` binds the port without listening, as vLLM does until the model is loaded; `listen()` ends that.
    """

    def __init__(
        self,
        settings: EngineSettings | None = None,
        *,
        port: int = 0,
        host: str = "127.0.0.1",
        loading: bool = False,
    ) -> None:
        self.settings = settings or EngineSettings()
        self.host = host
        self.faults = FaultPlan()
        self.journal = Journal()
        self.core = EngineCore(self.settings, self._bump)
        self.api = Api(self.core, self.journal, self.faults, self._bump)
        self.connections_accepted = 0  # since the start; a client that keeps its connections adds none
        self._wanted_port = port
        self._listen_at_start = not loading
        self._changed = asyncio.Event()
        self._holder: socket.socket | None = None
        self._listener: asyncio.Server | None = None
        self._runner: web.ServerRunner | None = None
        self._loop_task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._holder = _bind(self.host, self._wanted_port)
        server = web.Server(self.api.handle, handler_cancellation=True, access_log=None)
        self._runner = web.ServerRunner(server, handle_signals=False, shutdown_timeout=0.1)
        await self._runner.setup()
        if self.settings.pace is Pace.FREE:
            self._loop_task = asyncio.create_task(self.core.run(), name="engine double")
        if self._listen_at_start:
            await self.listen()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.refuse(drop=True)
        if self._runner is not None:
            await self._runner.cleanup()
        if self._loop_task is not None:
            self._loop_task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._loop_task
        if self._holder is not None:
            self._holder.close()

    @property
    def port(self) -> int:
        """The port, also while nothing listens there."""
        assert self._holder is not None, "the double is used as `async with EngineDouble() as engine`"
        port = self._holder.getsockname()[1]
        assert isinstance(port, int)
        return port

    @property
    def url(self) -> str:
        """Base URL without a slash at the end."""
        return f"http://{self.host}:{self.port}"

    @property
    def running(self) -> int:
        """Sequences that have a slot."""
        return len(self.core.scheduler.running)

    @property
    def waiting(self) -> int:
        """Sequences that wait for one."""
        return len(self.core.scheduler.waiting)

    @property
    def aborted(self) -> int:
        """Sequences that were dropped because their client went away (or a fault cut them)."""
        return self.core.counts.finished["abort"]

    @property
    def kv_blocks_used(self) -> int:
        """Blocks with a user."""
        kv = self.core.scheduler.kv
        return kv.total - kv.free_blocks

    @property
    def connections_open(self) -> int:
        """Connections that are open now."""
        server = self._runner.server if self._runner is not None else None
        return 0 if server is None else len(server.connections)

    def ended(self, ending: Ending) -> int:
        """Requests in the journal that ended so."""
        return self.journal.count(ending)

    def order(self, fault: Fault) -> None:
        """Misbehave from now on as ordered."""
        self.faults.order(fault)

    async def step(self, steps: int = 1) -> None:
        """Pace.MANUAL: give each running sequence its next token(s), `steps` times, and let them be written."""
        for _ in range(steps):
            self.core.step()
            await asyncio.sleep(0)

    async def until(self, condition: Callable[[], bool], timeout_seconds: float = 5.0) -> None:
        """Wait for something that is visible here; raises TimeoutError.

        Woken by requests and tokens; the end of a connection wakes nobody, so it also looks by itself.
        """
        async with asyncio.timeout(timeout_seconds):
            while not condition():
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._changed.wait(), 0.02)

    async def until_waiting(self, sequences: int) -> None:
        """Wait until so many sequences wait for a slot."""
        await self.until(lambda: self.waiting == sequences)

    async def listen(self) -> None:
        """Accept connections (again)."""
        if self._listener is not None:
            return
        assert self._runner is not None
        assert self._runner.server is not None
        listening = _bind(self.host, self.port)
        self._listener = await asyncio.get_running_loop().create_server(self._accept, sock=listening, backlog=1024)

    async def refuse(self, *, drop: bool = False) -> None:
        """Refuse new connections from now on; `drop` also resets those that are open."""
        if self._listener is not None:
            self._listener.close()
            self._listener = None
        if drop and self._runner is not None and self._runner.server is not None:
            for connection in list(self._runner.server.connections):
                if connection.transport is not None:
                    connection.transport.abort()
            await asyncio.sleep(0)

    def _accept(self) -> asyncio.Protocol:
        assert self._runner is not None
        assert self._runner.server is not None
        self.connections_accepted += 1
        self._bump()
        return self._runner.server()

    def _bump(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()


def _bind(host: str, port: int) -> socket.socket:
    """A bound socket that does not listen: with SO_REUSEADDR a second one may be bound to listen there."""
    bound = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    bound.bind((host, port))
    return bound


async def _serve(settings: EngineSettings, arguments: argparse.Namespace) -> None:
    loading = arguments.loading_seconds > 0
    async with EngineDouble(settings, port=arguments.port, host=arguments.host, loading=loading) as engine:
        await asyncio.sleep(arguments.loading_seconds)
        await engine.listen()
        print(f"engine double of {settings.model!r} on {engine.url}", flush=True)
        await asyncio.Event().wait()


def main() -> None:
    """`python -m fakes.engine --port N`."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--model", default="tiny")
    parser.add_argument("--max-model-len", type=int, default=2048)
    parser.add_argument("--max-num-seqs", type=int, default=64)
    parser.add_argument("--num-gpu-blocks", type=int, default=4096)
    parser.add_argument("--block-size", type=int, default=16)
    parser.add_argument("--prefill-tokens-per-second", type=float, default=8000.0)
    parser.add_argument("--output-tokens-per-second", type=float, default=50.0, help="of one sequence")
    parser.add_argument("--loading-seconds", type=float, default=0.0)
    arguments = parser.parse_args()
    settings = EngineSettings(
        model=arguments.model,
        max_model_len=arguments.max_model_len,
        max_num_seqs=arguments.max_num_seqs,
        num_gpu_blocks=arguments.num_gpu_blocks,
        block_size=arguments.block_size,
        prefill_tokens_per_second=arguments.prefill_tokens_per_second,
        output_tokens_per_second=arguments.output_tokens_per_second,
    )
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(_serve(settings, arguments))


if __name__ == "__main__":
    main()
