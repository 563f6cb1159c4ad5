"""Carries out the faults that were ordered, on the connection of the request that met them."""

import asyncio
import socket
import struct

from aiohttp import web

from fakes.answers import DONE, event
from fakes.faults import Fault, Wrong
from fakes.replies import reply
from fakes.requests import error_body


class CutError(Exception):
    """The connection is gone by the double's own will."""


async def misbehave(request: web.BaseRequest, fault: Fault) -> web.StreamResponse:
    """Do what was ordered instead of an answer."""
    match fault.wrong:
        case Wrong.STATUS:
            after = fault.retry_after_seconds
            headers = {} if after is None else {"retry-after": str(after)}
            return reply(
                error_body("ordered by the test", "InternalServerError", fault.status), fault.status, headers
            )
        case Wrong.NOT_JSON:
            return web.Response(body=b"<html>not what you asked for</html>", content_type="text/html")
        case Wrong.RESET:
            cut(request, reset=True)
        case Wrong.CLOSE:
            cut(request, reset=False)
        case Wrong.NOT_HTTP:
            await _raw(request, b"SSH-2.0-OpenSSH_9.6\r\n\r\n")
            cut(request, reset=False)
        case Wrong.SLOW_HEADERS:
            await _raw(request, b"HTTP/1.1 200 OK\r\nx-slow: ")
            while True:
                await _raw(request, b"a")
                await asyncio.sleep(fault.seconds)
        case _:
            await asyncio.Event().wait()
    raise CutError(fault.wrong)


async def break_stream(request: web.BaseRequest, response: web.StreamResponse, fault: Fault) -> None:
    """Do what was ordered in the middle of a stream; returns when the stream was ended in order, with an error."""
    match fault.wrong:
        case Wrong.RESET_MID_STREAM:
            cut(request, reset=True)
        case Wrong.CLOSE_MID_STREAM:
            cut(request, reset=False)
        case Wrong.ERROR_MID_STREAM:
            await response.write(event(error_body("EngineCore died", "InternalServerError", 500)))
            await response.write(DONE)
            await response.write_eof()
            return
        case _:
            await asyncio.Event().wait()
    raise CutError(fault.wrong)


def cut(request: web.BaseRequest, *, reset: bool) -> None:
    """End the connection, by RST (what is unsent is lost) or by FIN."""
    transport = request.transport
    if transport is None:
        return
    if reset:
        sock = transport.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        transport.abort()
    else:
        transport.close()


async def _raw(request: web.BaseRequest, data: bytes) -> None:
    """Bytes beside the HTTP machinery."""
    if request.transport is None or request.transport.is_closing():
        raise ConnectionResetError
    request.transport.write(data)
