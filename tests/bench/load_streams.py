"""Load streams of many idle pods from one process: the port of each answers as a sidecar's does.

Usage: load_streams.py FIRST_PORT COUNT
"""

import asyncio
import sys
from dataclasses import replace

from tidepool_api import contract
from tidepool_api.load import Health, LoadReport

_HEARTBEAT_SECONDS = 1.0
_IDLE = LoadReport(pool="default/bench", boot="bench", health=Health.READY, kv_capacity_tokens=500_000)
_HEALTHY = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n"
_STREAM = b"HTTP/1.1 200 OK\r\ncontent-type: application/x-ndjson\r\ntransfer-encoding: chunked\r\n\r\n"


async def _answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        request = await reader.readuntil(b"\r\n\r\n")
        if contract.PATH_LOAD_STREAM.encode() not in request.partition(b"\r\n")[0]:
            writer.write(_HEALTHY)
            return
        writer.write(_STREAM)
        port = writer.get_extra_info("sockname")[1]
        sequence = 0
        while not writer.is_closing():
            sequence += 1
            line = replace(_IDLE, pod=f"pod-{port}", seq=sequence).encode()
            writer.write(b"%x\r\n%b\r\n" % (len(line), line))
            await asyncio.sleep(_HEARTBEAT_SECONDS)
    except (asyncio.IncompleteReadError, ConnectionError):
        pass  # the gateway went
    finally:
        writer.close()


async def _serve(first: int, count: int) -> None:
    servers = [await asyncio.start_server(_answer, "127.0.0.1", first + number) for number in range(count)]
    await asyncio.gather(*(server.serve_forever() for server in servers))


if __name__ == "__main__":
    asyncio.run(_serve(int(sys.argv[1]), int(sys.argv[2])))
