"""The parent of several gateways: one metrics page, one control port and one signal for all of them.

Each worker listens on the traffic port itself (SO_REUSEPORT), so the parent is in no request's way, and workers
serve on while it is slow. Workers are gateways of their own, which share nothing but the port.
"""

import asyncio
import contextlib
import logging
import secrets
import signal
import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, contextmanager
from typing import Final

import httpx

from tidepool_api import contract
from tidepool_api.load import GatewayReport
from tidepool_router.control import (
    JSON,
    Beside,
    Guarded,
    Handler,
    Response,
    Routes,
    StreamResponse,
    load_endpoints,
    text,
)
from tidepool_router.errors import SettingsError, UpstreamError
from tidepool_router.fleet.client import get
from tidepool_router.fleet.feed import Feed
from tidepool_router.guard import open_door
from tidepool_router.metrics import CONTENT_TYPE, Registry
from tidepool_router.proxy.handled import HandlerApplication
from tidepool_router.proxy.listening import Server
from tidepool_router.proxy.services import Services
from tidepool_router.settings import Options
from tidepool_router.workers.demand import Demand, differ
from tidepool_router.workers.pages import merged
from tidepool_router.workers.process import Worker

_PAGE_SECONDS: Final = 2.0
_LAST_SECONDS: Final = 5.0  # beyond the drain, for the workers to end

_log: Final = logging.getLogger("tidepool.router")


class Crew:
    """All workers, and the handlers that speak for them."""

    def __init__(self, options: Options, arguments: Sequence[str], port: int) -> None:
        self.options = options
        self.draining = False
        self._fleet: bytes | None = None
        self._demand = Demand(options.pod, secrets.token_hex(4), options.workers)
        self.feed = Feed(self._demand.report, differ)
        own = ("--port", str(port), "--metrics-port", "0", "--control-port", "0")
        self.workers = [
            Worker(number, (*arguments, *own), self._heard, lambda: self._fleet)
            for number in range(options.workers)
        ]
        self._registry = registry = Registry()
        self._serving = registry.gauge(contract.METRIC_GATEWAY_WORKERS, "Workers that serve.").labels()
        self._restarts = registry.counter(
            contract.METRIC_GATEWAY_WORKER_RESTARTS, "Workers that ended and were started again."
        ).labels()
        self._runs: asyncio.Future[list[None]] | None = None

    async def start(self) -> None:
        """Start all of them. Raises SettingsError, or WorkerEnded when one ends before it serves."""
        await asyncio.gather(*(worker.start() for worker in self.workers))
        self._runs = asyncio.gather(*(worker.run() for worker in self.workers))

    def drain(self) -> None:
        """No new connections; each ends after its last answer. The second call ends them at once."""
        self.draining = True
        for worker in self.workers:
            worker.stop()

    async def ended(self) -> None:
        """Until every worker has ended, which they do after `drain` only."""
        if self._runs is not None:
            await self._runs

    async def close(self) -> None:
        """Kill whatever is left."""
        self.draining = True
        self.feed.close()
        await asyncio.gather(*(worker.close() for worker in self.workers))
        if self._runs is not None:
            self._runs.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._runs

    def _heard(self, worker: int, report: GatewayReport | None) -> None:
        if report is None:
            self._demand.left(worker)
        else:
            self._demand.heard(worker, report)
        self.feed.touch()

    async def control(self, services: Services) -> Handler:
        """Control port of the gateway that they are together. Raises SettingsError for a bad trust file."""
        door = await open_door(self.options, self._registry, services)
        loads = load_endpoints(self.feed, self._demand.report).table
        routes = Routes(
            {
                ("GET", contract.PATH_HEALTH): self._health,
                ("GET", contract.PATH_READY): self._ready,
                ("GET", contract.PATH_DRAIN): self._drain,
                ("PUT", contract.PATH_FLEET): self._put_fleet,
                **loads,
            }
        )
        return Guarded(door, Beside(contract.PATH_RUNS, _AnyWorker(self.workers), routes))

    def metrics(self) -> Handler:
        """Metrics port: all pages as one."""
        return Routes({("GET", "/metrics"): self._page})

    async def _health(self, _: bytes) -> Response:
        return text(200, "ok")

    async def _ready(self, _: bytes) -> Response:
        if self.draining:
            return text(503, "the gateway is draining")
        statuses = await self._ask(contract.PATH_READY)
        ready = [answer for answer in statuses.values() if answer.status == 200]
        return text(200, "ready") if ready else text(503, "no worker is ready; the log says why")

    async def _drain(self, _: bytes) -> Response:
        self.draining = True
        await self._ask(contract.PATH_DRAIN, self.options.drain_seconds + _LAST_SECONDS)
        return text(200, "drained")

    async def _put_fleet(self, body: bytes) -> Response:
        """To all of them. Whoever is being started gets it then; it counts as taken when all have it."""
        found = await asyncio.gather(*(worker.put_fleet(body) for worker in self.workers), return_exceptions=True)
        answers = [answer for answer in found if not isinstance(answer, BaseException)]
        if any(status == 204 for status, _ in answers):
            self._fleet = body
        worst = max(answers, default=(503, b"no worker answers\n"))
        if worst[0] == 204 and len(answers) < len(found):
            return text(503, "a worker does not answer; try again")
        return Response(*worst)

    async def _page(self, _: bytes) -> Response:
        pages = await self._ask("/metrics", metrics=True)
        self._serving.set(sum(worker.control is not None for worker in self.workers))
        self._restarts.set(sum(worker.restarts for worker in self.workers))
        own = self._registry.render()
        page = own + merged({number: answer.body for number, answer in pages.items() if answer.status == 200})
        return Response(200, page, CONTENT_TYPE)

    async def _ask(
        self, path: str, seconds: float = _PAGE_SECONDS, *, metrics: bool = False
    ) -> dict[int, Response]:
        """Answers by worker, of those that answer in time."""

        async def ask(worker: Worker) -> tuple[int, Response] | None:
            endpoint = worker.metrics if metrics else worker.control
            if endpoint is None:
                return None
            try:
                answer = await get(endpoint, path, seconds)
            except UpstreamError:
                return None
            return worker.number, Response(answer.status, answer.body)

        return dict(filter(None, await asyncio.gather(*(ask(worker) for worker in self.workers))))


class _AnyWorker:
    """What any worker may answer, since they share the store."""

    def __init__(self, workers: Sequence[Worker]) -> None:
        self._workers = workers

    async def handle(
        self, method: str, path: str, headers: Mapping[str, str], body: bytes
    ) -> Response | StreamResponse:
        """Handler."""
        del headers
        for worker in self._workers:
            try:
                status, answer = await worker.ask(method, path, body)
            except httpx.HTTPError:
                continue
            return Response(status, answer, JSON)
        return text(503, "no worker answers")


@contextmanager
def reserved(host: str, port: int) -> Iterator[int]:
    """The traffic port, kept for the workers; a free one for 0. Raises SettingsError when somebody else has it."""
    try:
        family, kind, proto, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        held = socket.socket(family, kind, proto)
    except OSError as error:
        raise SettingsError(f"cannot listen on {host}:{port} (traffic): {error}") from error
    with held:
        try:
            # Whoever does not set it too cannot have the port; and it is bound, but does not listen.
            held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            held.bind(address)
        except OSError as error:
            raise SettingsError(f"cannot listen on {host}:{port} (traffic): {error}") from error
        yield int(held.getsockname()[1])


async def run(options: Options, arguments: Sequence[str]) -> None:
    """Serve with `options.workers` processes until a signal: the first one drains, the second one ends at once."""
    signals: asyncio.Queue[int] = asyncio.Queue()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, signals.put_nowait, number)
    services = Services(options.limits)
    async with AsyncExitStack() as stack:
        stack.push_async_callback(services.close)
        port = stack.enter_context(reserved(options.host, options.port))
        crew = Crew(options, arguments, port)
        stack.push_async_callback(crew.close)
        await crew.start()
        ports = []
        for name, handler, host, at in (
            ("control", await crew.control(services), options.control_host, options.control_port),
            ("metrics", crew.metrics(), "", options.metrics_port),
        ):
            server = Server(HandlerApplication(services, handler), options.limits, name)
            ports.append(await server.start(host or options.host, at))
            stack.push_async_callback(server.close)
        where = {"port": port, "metrics_port": ports[1], "control_port": ports[0], "workers": options.workers}
        _log.info("the gateway is serving", extra=where)
        await signals.get()
        await _drain(crew, options, signals)


async def _drain(crew: Crew, options: Options, signals: "asyncio.Queue[int]") -> None:
    _log.info("draining", extra={"workers": options.workers, "at_most_seconds": options.drain_seconds})
    crew.drain()
    ended = asyncio.ensure_future(crew.ended())
    again = asyncio.ensure_future(signals.get())
    limit = options.drain_seconds + _LAST_SECONDS
    await asyncio.wait((ended, again), timeout=limit, return_when=asyncio.FIRST_COMPLETED)
    if not ended.done():
        crew.drain()
        await asyncio.wait((ended,), timeout=_LAST_SECONDS)
    again.cancel()
    await asyncio.gather(again, return_exceptions=True)
