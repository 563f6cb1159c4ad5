"""Requests that are held: streams that say nothing for long, and large bodies that are nearly all there.

Both tell what a proxy keeps in memory for a request that is under way.
"""

import asyncio
import json
from collections.abc import Callable
from typing import Any

from .load import PATH, Sent, Work

BODY_BYTES = 8 * 2**20
_KEPT_BACK = 1024  # bytes of a large body that are sent only when memory has been looked at
_SETTLE_SECONDS = 1.0
_WAIT_SECONDS = 60.0
_AT_ONCE = 100  # connections that are opened together

Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]


def hold(port: int, work: Work, look: Callable[[], Any]) -> Sent:
    """Run "idle", "bodies" or "late-bodies"; `look` is called before and while all are held."""
    run = _idle if work.name == "idle" else _bodies
    return asyncio.run(asyncio.wait_for(run(port, work, look), _WAIT_SECONDS))


async def _idle(port: int, work: Work, look: Callable[[], Any]) -> Sent:
    request = _request(json.dumps(work.request).encode(), 0)
    open_streams: list[Connection] = []
    errors = 0
    look()
    try:
        for start in range(0, work.connections, _AT_ONCE):
            count = min(_AT_ONCE, work.connections - start)
            open_streams += await asyncio.gather(*(_open(port) for _ in range(count)))
            for _, writer in open_streams[start:]:
                writer.write(request)
            # The role comes at once; the first token of such a stream would come in ten minutes.
            heads = await asyncio.gather(
                *(reader.readuntil(b'"role"') for reader, _ in open_streams[start:]), return_exceptions=True
            )
            errors += sum(isinstance(head, BaseException) or b" 200 " not in head[:16] for head in heads)
        await asyncio.sleep(_SETTLE_SECONDS)
        look()
    finally:
        for _, writer in open_streams:
            writer.transport.abort()
    return Sent(len(open_streams), 0, errors, 1.0, 0.0, 0.0)


async def _bodies(port: int, work: Work, look: Callable[[], Any]) -> Sent:
    late = bool(work.request.get("late"))  # as the clients of OpenAI and Anthropic write it: the model comes last
    fields: dict[str, Any] = {"max_tokens": 1, "messages": [{"role": "user", "content": "@"}]}
    text = json.dumps(fields | {"model": "tiny"} if late else {"model": "tiny"} | fields)
    front, _, back = text.partition("@")
    body = front.encode() + b"word " * ((BODY_BYTES - len(text)) // 5) + back.encode()
    loop = asyncio.get_running_loop()
    senders = await asyncio.gather(*(_open(port) for _ in range(work.connections)))
    look()
    began = loop.time()
    for _, writer in senders:
        writer.write(_request(body, _KEPT_BACK))
    # A proxy that waits for the whole body before it sends any on takes it all; one that sends on takes it too,
    # because the engine reads as fast as it can.
    await asyncio.gather(*(writer.drain() for _, writer in senders))
    await asyncio.sleep(_SETTLE_SECONDS)
    look()
    errors = 0
    for reader, writer in senders:
        writer.write(body[-_KEPT_BACK:])
        head = await reader.readuntil(b"\r\n")
        errors += b" 200 " not in head
        writer.close()
    return Sent(len(senders), 0, errors, loop.time() - began, 0.0, 0.0)


async def _open(port: int) -> Connection:
    return await asyncio.open_connection("127.0.0.1", port)


def _request(body: bytes, kept_back: int) -> bytes:
    head = f"POST {PATH} HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"
    return head.encode() + b"content-length: %d\r\n\r\n" % len(body) + body[: len(body) - kept_back]
