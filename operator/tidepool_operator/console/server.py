"""The console's own port: the page, and the live views as server-sent events. It answers GET alone.

Nobody is asked who they are. By default it listens on loopback, where `kubectl port-forward` leads and nothing
else does; whoever puts it behind an Ingress lets that ask.
"""

import asyncio
import gzip
import logging
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Final

from aiohttp import web

from tidepool_operator.console.hub import Hub, TooMany, Topic, What

log = logging.getLogger(__name__)

_KINDS: Final = {
    "html": "text/html; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "svg": "image/svg+xml",
}
# Nothing is loaded from elsewhere, nothing is inline, nobody may frame it.
_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; "
    "trusted-types 'none'"
)
_HEADERS: Final = {
    "Content-Security-Policy": _POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}
_LOOPBACK: Final = ("127.0.0.1", "::1", "localhost")
_LONGEST_KEY: Final = 400
# A page that takes nothing for so long is gone.
_WRITE_SECONDS: Final = 30.0


@dataclass(frozen=True, slots=True)
class File:
    """A file of the page, as it is and compressed."""

    kind: str
    body: bytes
    packed: bytes
    tag: str


def page_tag(found: Mapping[str, File]) -> str:
    """Another page has another one."""
    return f"{zlib.crc32(''.join(file.tag for file in found.values()).encode()):08x}"


@cache
def page_files() -> dict[str, File]:
    """All files of the page by their path below /static/; read once, when the first page asks."""
    found: dict[str, File] = {}
    folders = [("", files("tidepool_operator.console") / "static")]
    for path, folder in folders:
        for entry in folder.iterdir():
            if entry.is_dir():
                folders.append((f"{path}{entry.name}/", entry))
                continue
            kind = _KINDS.get(entry.name.rpartition(".")[2])
            if kind is not None:
                body = entry.read_bytes()
                tag = f'"{zlib.crc32(body):08x}-{len(body)}"'
                found[f"{path}{entry.name}"] = File(kind, body, gzip.compress(body, mtime=0), tag)
    return found


class ConsoleServer:
    """Serves until closed. `hosts`: names by which it may be asked; empty: any.

    On loopback a page from elsewhere could have its own name lead there: only loopback's names are answered to.
    """

    def __init__(
        self, hub: Hub, hosts: Sequence[str] = (), load: Callable[[], dict[str, File]] = page_files
    ) -> None:
        self._hub = hub
        self._hosts = frozenset(host.lower() for host in hosts)
        self._load = load
        self._runner: web.AppRunner | None = None
        self.port = 0

    async def start(self, host: str, port: int) -> None:
        """Listen; port 0 takes a free one, `port` tells which. Raises OSError when it is taken."""
        if host in _LOOPBACK:
            self._hosts |= frozenset(_LOOPBACK)
        app = web.Application(middlewares=[self._guarded])
        app.router.add_get("/", self._index)
        app.router.add_get("/static/{path:.+}", self._static)
        app.router.add_get("/live/{what}", self._live, allow_head=False)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
        await self._runner.setup()
        await web.TCPSite(self._runner, host, port).start()
        self.port = self._runner.addresses[0][1]

    def looking(self) -> int:
        """Pages that look now."""
        return self._hub.looking()

    async def close(self) -> None:
        """Let everybody go, and stop listening."""
        await self._hub.close()
        if self._runner is not None:
            await self._runner.cleanup()

    @web.middleware
    async def _guarded(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        host = request.host.lower()
        name = host.partition("]")[0].removeprefix("[") if host.startswith("[") else host.partition(":")[0]
        if self._hosts and name not in self._hosts:
            message = "this console is not asked by that name; operator.console.hosts of the chart names others\n"
            return web.Response(status=421, text=message, headers=_HEADERS)
        try:
            answer = await handler(request)
        except web.HTTPException as error:
            return web.Response(status=error.status, text=f"{error.reason}\n", headers=_HEADERS)
        if not answer.prepared:
            answer.headers.update(_HEADERS)
        return answer

    async def _index(self, request: web.Request) -> web.Response:
        return self._file(request, "index.html")

    async def _static(self, request: web.Request) -> web.Response:
        return self._file(request, request.match_info["path"])

    def _file(self, request: web.Request, path: str) -> web.Response:
        found = self._load().get(path)
        if found is None:
            raise web.HTTPNotFound
        # Looked at again each time: a new operator has a new page, and the old one may not speak to it.
        headers = {
            "Content-Type": found.kind,
            "ETag": found.tag,
            "Cache-Control": "no-cache",
            "Vary": "Accept-Encoding",
        }
        if request.headers.get("If-None-Match") == found.tag:
            return web.Response(status=304, headers=headers)
        if "gzip" in request.headers.get("Accept-Encoding", ""):
            return web.Response(body=found.packed, headers={**headers, "Content-Encoding": "gzip"})
        return web.Response(body=found.body, headers=headers)

    async def _live(self, request: web.Request) -> web.StreamResponse:
        topic = _topic(request.match_info["what"], request.query.get("key", ""))
        if topic is None:
            raise web.HTTPNotFound
        events = self._hub.follow(topic)
        try:
            first = await anext(events)
        except TooMany as error:
            return web.Response(status=503, text=f"{error}\n", headers={"Retry-After": "10"})
        except StopAsyncIteration:
            return web.Response(status=503, text="the operator ends\n", headers={"Retry-After": "2"})
        packs = "gzip" in request.headers.get("Accept-Encoding", "")
        answer = web.StreamResponse(
            headers={
                **_HEADERS,
                "Content-Type": "text/event-stream",
                "Cache-Control": "no-store",
                "X-Accel-Buffering": "no",  # nginx would keep events back
                **({"Content-Encoding": "gzip"} if packs else {}),
            }
        )
        try:
            await answer.prepare(request)
            # A page of another operator may not understand this one, and loads itself anew.
            tag = f"event: page\ndata: {page_tag(self._load())}\n\ndata: ".encode()
            await _written(answer, events, tag + first, packs=packs)
        except (ConnectionError, TimeoutError):
            pass  # the page has gone
        finally:
            await events.aclose()
        return answer


async def _written(answer: web.StreamResponse, events: AsyncIterator[bytes], first: bytes, *, packs: bool) -> None:
    """Each event as it comes, packed up to its end. Raises ConnectionError, TimeoutError."""
    packer = zlib.compressobj(6, zlib.DEFLATED, 31) if packs else None

    async def write(event: bytes) -> None:
        data = event + b"\n\n"
        if packer is not None:
            data = packer.compress(data) + packer.flush(zlib.Z_SYNC_FLUSH)
        async with asyncio.timeout(_WRITE_SECONDS):
            await answer.write(data)

    await write(first)
    async for event in events:
        await write(b"data: " + event)


def _topic(what: str, key: str) -> Topic | None:
    try:
        kind = What(what)
    except ValueError:
        return None
    wants_key = kind not in (What.POOLS, What.WORKFLOWS)
    if wants_key != bool(key) or len(key) > _LONGEST_KEY:
        return None
    return Topic(kind, key)
