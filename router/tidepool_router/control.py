"""The control, metrics and load endpoints as plain handlers; the server that frames their answers is proxy's."""

import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from time import time
from typing import Protocol, TypeVar

from pydantic import ValidationError

from tidepool_api import contract
from tidepool_api.routing import SidecarSettings
from tidepool_router.door import Door
from tidepool_router.fleet.document import FleetError, read_fleet
from tidepool_router.fleet.feed import Feed, Report
from tidepool_router.fleet.gateway import GatewayFleet
from tidepool_router.fleet.metrics_page import append_page
from tidepool_router.fleet.sidecar import SidecarState
from tidepool_router.metrics import CONTENT_TYPE
from tidepool_router.proofs import Part

log = logging.getLogger("tidepool.control")

TEXT = "text/plain; charset=utf-8"
JSON = "application/json"
JSON_LINES = "application/x-ndjson"


@dataclass(frozen=True, slots=True)
class Response:
    """A whole answer; the server adds content-length."""

    status: int
    body: bytes = b""
    content_type: str = TEXT


@dataclass(frozen=True, slots=True)
class StreamResponse:
    """An answer of unknown length, sent chunked, each chunk at once.

    The server owns `chunks`: it closes the iterator (`aclose`) when the client goes or the stream ends.
    """

    status: int
    chunks: AsyncIterator[bytes]
    content_type: str = JSON_LINES


class Handler(Protocol):
    """One port's or one group of paths' answers. Header names come in lower case; no exception leaves it."""

    async def handle(
        self, method: str, path: str, headers: Mapping[str, str], body: bytes
    ) -> Response | StreamResponse:
        """`path` is without the query."""


Answering = Callable[[bytes], Awaitable[Response | StreamResponse]]


class Routes:
    """A table of (method, path) to handlers, with 404 and 405 for the rest."""

    def __init__(self, table: Mapping[tuple[str, str], Answering]) -> None:
        self.table = table
        self._paths = {path for _, path in table}

    async def handle(
        self,
        method: str,
        path: str,
        headers: Mapping[str, str],  # noqa: ARG002 - part of the Handler protocol
        body: bytes,
    ) -> Response | StreamResponse:
        """See Handler."""
        handler = self.table.get((method, path))
        if handler is not None:
            return await handler(body)
        if path in self._paths:
            return text(405, f"{method} is not for {path}")
        return text(404, f"there is no {path} here")


def text(status: int, message: str) -> Response:
    """A line for people and probes."""
    return Response(status, message.encode() + b"\n")


class _SidecarControl(Routes):
    """The table, and the one order that depends on who gives it."""

    def __init__(self, state: SidecarState, table: Mapping[tuple[str, str], Answering]) -> None:
        self._state = state
        super().__init__({**table, ("PUT", contract.PATH_SETTINGS): self._settings})

    async def handle(
        self, method: str, path: str, headers: Mapping[str, str], body: bytes
    ) -> Response | StreamResponse:
        """See Handler."""
        if (method, path) == ("PUT", contract.PATH_SETTINGS):
            return await self._settings(body, headers.get(contract.HEADER_PROOF))
        return await super().handle(method, path, headers, body)

    async def _settings(self, body: bytes, proof: str | None = None) -> Response:
        state = self._state
        callers, token = state.callers, None if proof is None else proof.encode("latin-1")
        proven = callers is not None and callers.part_of(token, time()) is Part.OPERATOR
        try:
            state.apply(SidecarSettings.model_validate_json(body), proven=proven)
        except ValidationError as error:
            return text(400, _first(error))
        return Response(204)


def sidecar_control(state: SidecarState) -> Routes:
    """Control port of a sidecar."""

    async def health(_: bytes) -> Response:
        return text(200, "ok")

    async def started(_: bytes) -> Response:
        reason = state.why_not_started()
        return text(200, "started") if reason is None else text(503, reason)

    async def ready(_: bytes) -> Response:
        reason = state.why_not_ready()
        return text(200, "ready") if reason is None else text(503, reason)

    async def drain(_: bytes) -> Response:
        await state.drain()
        return text(200, "drained")

    return _SidecarControl(
        state,
        {
            ("GET", contract.PATH_HEALTH): health,
            ("GET", contract.PATH_ENGINE_STARTED): started,
            ("GET", contract.PATH_ENGINE_READY): ready,
            ("GET", contract.PATH_DRAIN): drain,
        },
    )


def sidecar_metrics(state: SidecarState) -> Routes:
    """Metrics port of a sidecar: its own page, then the engine's."""

    async def page(_: bytes) -> Response:
        engine = await state.watch.page()
        return Response(200, append_page(state.metrics.registry.render(), engine), CONTENT_TYPE)

    return Routes({("GET", "/metrics"): page})


R = TypeVar("R", bound=Report)


def load_endpoints(feed: Feed[R], report: Callable[[], R]) -> Routes:
    """The two load paths, on a sidecar's traffic port and on a gateway's control port."""

    async def once(_: bytes) -> Response:
        return Response(200, report().encode(), JSON)

    async def stream(_: bytes) -> StreamResponse:
        return StreamResponse(200, feed.lines())

    return Routes({("GET", contract.PATH_LOAD): once, ("GET", contract.PATH_LOAD_STREAM): stream})


class Guarded:
    """Handlers behind a door."""

    def __init__(self, door: Door, inner: Handler) -> None:
        self._door = door
        self._inner = inner

    async def handle(
        self, method: str, path: str, headers: Mapping[str, str], body: bytes
    ) -> Response | StreamResponse:
        """See Handler."""
        refused = self._door.refusal(method, path, headers.get(contract.HEADER_PROOF), time())
        return await self._inner.handle(method, path, headers, body) if refused is None else text(*refused)


class Beside:
    """Handlers of one port: what is at a path and below it, and the rest."""

    def __init__(self, path: str, there: Handler, rest: Handler) -> None:
        self._path = path
        self._there = there
        self._rest = rest

    async def handle(
        self, method: str, path: str, headers: Mapping[str, str], body: bytes
    ) -> Response | StreamResponse:
        """See Handler."""
        there = path == self._path or path.startswith(self._path + "/")
        return await (self._there if there else self._rest).handle(method, path, headers, body)


def gateway_control(
    fleet: GatewayFleet, drain_timeout_seconds: float, door: Door, runs: Handler | None = None
) -> Handler:
    """Control port of a gateway. `runs` answers for runs of workflows."""

    async def health(_: bytes) -> Response:
        return text(200, "ok")

    async def ready(_: bytes) -> Response:
        if fleet.draining:
            return text(503, "the gateway is draining")
        return text(200, "ready") if fleet.has_fleet else text(503, "the gateway has no fleet yet")

    async def drain(_: bytes) -> Response:
        await fleet.drain(drain_timeout_seconds)
        return text(200, "drained")

    async def put_fleet(body: bytes) -> Response:
        try:
            document = read_fleet(body.decode())
        except (FleetError, UnicodeDecodeError) as error:
            return text(400, str(error))
        for warning in document.warnings:
            log.warning("fleet", extra={"reason": warning})
        return Response(204) if fleet.apply(document.fleet) else text(409, "an older fleet than the one in force")

    routes = Routes(
        {
            ("GET", contract.PATH_HEALTH): health,
            ("GET", contract.PATH_READY): ready,
            ("GET", contract.PATH_DRAIN): drain,
            ("PUT", contract.PATH_FLEET): put_fleet,
            **load_endpoints(fleet.feed, fleet.report).table,
        }
    )
    return Guarded(door, routes if runs is None else Beside(contract.PATH_RUNS, runs, routes))


def gateway_metrics(fleet: GatewayFleet) -> Routes:
    """Metrics port of a gateway."""

    async def page(_: bytes) -> Response:
        return Response(200, fleet.metrics.registry.render(), CONTENT_TYPE)

    return Routes({("GET", "/metrics"): page})


def _first(error: ValidationError) -> str:
    first = error.errors(include_url=False)[0]
    return f"{'.'.join(map(str, first['loc'])) or 'document'}: {first['msg']}"
