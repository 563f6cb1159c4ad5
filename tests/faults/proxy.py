"""A real HTTP proxy between an operator and an API server, which goes wrong where its script says so."""

import asyncio
import contextlib
import json
import ssl
from collections import deque
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import aiohttp
from aiohttp import web
from kubernetes.aio.client import Configuration
from multidict import CIMultiDict

from cluster.ports import free_ports
from faults.script import Asked, Break, Cut, Expire, Hang, Lose, Mute, Refuse, Rule, Slow, Verb, asked
from tidepool_operator.cluster.client import configuration

_REMEMBERED: Final = 200_000
_CLOSING_SECONDS: Final = 0.1
# Of a connection, not of a message: they are not passed on. The length follows from what is sent.
_HOPS: Final = {"connection", "keep-alive", "transfer-encoding", "host", "content-length"}
_REASONS: Final = {
    409: "Conflict",
    410: "Expired",
    429: "TooManyRequests",
    500: "InternalError",
    503: "ServiceUnavailable",
    504: "Timeout",
}


class FaultProxy:
    """Listens on loopback in plain HTTP and speaks to the API server with the caller's own token.

    `rules` are tried in order; the first that takes a request decides. `log` holds every request in the order of
    their coming. While it is `down` nobody listens at its address, and nothing that was open stays so.
    """

    def __init__(self, upstream: Configuration) -> None:
        self._upstream = upstream
        self._runner: web.AppRunner | None = None
        self._open: set[asyncio.Transport] = set()
        self._session: aiohttp.ClientSession | None = None
        (self.port,) = free_ports(1)  # it stays the same when it is down in between
        self.rules: list[Rule] = []
        self.log: deque[Asked] = deque(maxlen=_REMEMBERED)

    @property
    def url(self) -> str:
        """Where operators find it."""
        return f"http://127.0.0.1:{self.port}"

    def add(self, *rules: Rule) -> None:
        """Have these happen, after those that are there already."""
        self.rules.extend(rules)

    def writes(self, since: int = 0) -> list[Asked]:
        """What was asked for that changes something, from the request of that number on."""
        return [one for one in list(self.log)[since:] if one.writes and one.resource != "leases"]

    async def start(self) -> None:
        """Listen, at the same address as before where there was one."""
        safe = self._upstream.host.startswith("https:")
        context = ssl.create_default_context(cafile=self._upstream.ssl_ca_cert) if safe else False
        connector = aiohttp.TCPConnector(ssl=context, limit=0)
        self._session = aiohttp.ClientSession(
            connector=connector, auto_decompress=False, timeout=aiohttp.ClientTimeout(total=None)
        )
        app = web.Application(client_max_size=64 * 1024 * 1024)
        app.router.add_route("*", "/{path:.*}", self._handle)
        self._runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", self.port, reuse_address=True)
        await site.start()

    async def down(self) -> None:
        """Break every connection and listen no more."""
        if self._runner is not None:
            for site in list(self._runner.sites):
                await site.stop()
            self.cut()
            await self._runner.cleanup()
            self._runner = None
        if self._session is not None:
            await self._session.close()
            # Its transports close a few turns of the loop later.
            await asyncio.sleep(_CLOSING_SECONDS)
            self._session = None

    def cut(self) -> None:
        """Break every connection at this moment."""
        for transport in list(self._open):
            transport.abort()

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        one = asked(request.method, request.path, request.query, request.headers.get("Content-Type", ""))
        self.log.append(one)
        rule = next((rule for rule in self.rules if rule.takes(one)), None)
        fault = rule.fault if rule is not None else None
        one.fault = type(fault).__name__ if fault is not None else ""
        if rule is not None and not isinstance(fault, Lose):
            rule.met.set()
        transport = request.transport
        if not isinstance(transport, asyncio.Transport):
            raise ConnectionResetError("the client is gone")
        self._open.add(transport)
        try:
            match fault:
                case Refuse():
                    one.status = fault.status
                    return _refusal(fault)
                case Hang():
                    await asyncio.Event().wait()  # ends with the client
                case Break():
                    transport.abort()
                    raise ConnectionResetError("as the script says")
                case Slow():
                    await asyncio.sleep(fault.seconds)
            answer = await self._forward(request, one, fault if isinstance(fault, Mute | Cut | Expire) else None)
            if rule is not None and isinstance(fault, Lose):
                transport.abort()
                rule.met.set()
            return answer
        finally:
            self._open.discard(transport)

    async def _forward(
        self, request: web.Request, one: Asked, fault: Mute | Cut | Expire | None
    ) -> web.StreamResponse:
        assert self._session is not None
        headers = _passed_on(request.headers)
        if one.verb is Verb.WATCH:
            headers.popall("Accept-Encoding", None)  # its lines are looked at
        body = await request.read() or None
        url = f"{self._upstream.host}{request.rel_url}"
        try:
            async with self._session.request(
                request.method, url, headers=headers, data=body, skip_auto_headers=("Content-Type",)
            ) as answer:
                one.status = answer.status
                kept = _passed_on(answer.headers)
                if one.verb is not Verb.WATCH:
                    return web.Response(status=answer.status, headers=kept, body=await answer.read())
                return await self._stream(request, answer, kept, fault)
        except aiohttp.ClientError as error:
            # The API server is gone: so is this connection.
            if request.transport is not None:
                request.transport.abort()
            raise ConnectionResetError(str(error)) from error

    async def _stream(
        self,
        request: web.Request,
        answer: aiohttp.ClientResponse,
        headers: CIMultiDict[str],
        fault: Mute | Cut | Expire | None,
    ) -> web.StreamResponse:
        out = web.StreamResponse(status=answer.status, headers=headers)
        await out.prepare(request)
        if fault is None:
            async for chunk in answer.content.iter_any():
                await out.write(chunk)
            return out
        told = 0
        while told < fault.events and (line := await answer.content.readuntil(b"\n")):
            await out.write(line)
            told += 1
        match fault:
            case Mute():
                await asyncio.Event().wait()  # until the client has had enough
            case Cut():
                assert request.transport is not None
                request.transport.abort()
            case Expire():
                event = {"type": "ERROR", "object": _status(fault.code)}
                await out.write(json.dumps(event).encode() + b"\n")
        return out


def _passed_on(headers: Mapping[str, str]) -> CIMultiDict[str]:
    return CIMultiDict((key, value) for key, value in headers.items() if key.lower() not in _HOPS)


def _refusal(fault: Refuse) -> web.Response:
    headers = {"Retry-After": fault.retry_after} if fault.retry_after else {}
    return web.json_response(_status(fault.status), status=fault.status, headers=headers)


def _status(code: int) -> dict[str, object]:
    reason = _REASONS.get(code, "Unknown")
    return {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": f"{reason}, as the script says",
        "reason": reason,
        "code": code,
    }


@asynccontextmanager
async def fault_proxy(kubeconfig: str, folder: Path) -> AsyncIterator[tuple[FaultProxy, str]]:
    """A proxy before the API server of `kubeconfig`, and the access file of those that go through it."""
    proxy = FaultProxy(await configuration(kubeconfig))
    await proxy.start()
    through = folder / f"through-{proxy.port}.kubeconfig"
    _write_access(Path(kubeconfig), through, proxy.url)
    try:
        yield proxy, str(through)
    finally:
        with contextlib.suppress(asyncio.CancelledError):
            await proxy.down()


def _write_access(kubeconfig: Path, through: Path, url: str) -> None:
    access = json.loads(kubeconfig.read_text())
    access["clusters"][0]["cluster"] = {"server": url}
    through.touch(mode=0o600)
    through.write_text(json.dumps(access))
