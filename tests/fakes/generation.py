"""The two paths of the engine double that make tokens, whole or as a stream."""

import secrets
import time
from collections.abc import Mapping
from typing import Any

from aiohttp import web

from fakes.answers import DONE, Shape, Usage
from fakes.core import EngineCore, Generation
from fakes.faults import Fault
from fakes.journal import Ending, Record
from fakes.misbehave import break_stream
from fakes.replies import reply
from fakes.requests import parse_chat, parse_completion
from fakes.text import words


async def answer(
    core: EngineCore, names: Mapping[str, str], request: web.BaseRequest, record: Record, fault: Fault | None
) -> web.StreamResponse:
    """Answer a request for tokens; raises BadRequestError. A client that leaves aborts it."""
    chat = request.path == "/v1/chat/completions"
    ask = (parse_chat if chat else parse_completion)(record.body, core.settings, names)
    name = request.headers.get("x-request-id") or secrets.token_hex(16)
    shape = Shape(ask, f"{'chatcmpl' if chat else 'cmpl'}-{name}", ask.model, int(time.time()))
    async with core.generate(ask) as generation:
        try:
            if ask.stream:
                return await _stream(core, request, shape, generation, fault)
            return reply(await _whole(core, shape, generation))
        finally:
            record.output_tokens = generation.output_tokens
            record.ending = Ending.ANSWERED if record.ending is Ending.OPEN else record.ending


async def _whole(core: EngineCore, shape: Shape, generation: Generation) -> dict[str, Any]:
    count = len(generation.sequences)
    texts, reasons = [""] * count, [""] * count
    left = count
    while left:
        got = await generation.ready.get()
        texts[got.choice] += words(got.start, got.count)
        if got.reason is not None:
            reasons[got.choice] = got.reason
            left -= 1
    return shape.whole(texts, reasons, _usage(core, generation))


async def _stream(
    core: EngineCore, request: web.BaseRequest, shape: Shape, generation: Generation, fault: Fault | None
) -> web.StreamResponse:
    response = web.StreamResponse(
        headers={"content-type": "text/event-stream; charset=utf-8", "server": "uvicorn"}
    )
    await response.prepare(request)
    for index in range(len(generation.sequences)):
        opening = shape.opening(index)
        if opening is not None:
            await response.write(opening)
    left, sent, ask = len(generation.sequences), 0, shape.ask
    while left:
        if fault is not None and sent >= fault.after_tokens:
            await break_stream(request, response, fault)
            return response
        got = await generation.ready.get()
        sent += got.count
        left -= got.reason is not None
        usage = _usage(core, generation) if ask.continuous_usage else None
        last = left == 0 and not ask.include_usage
        await response.write(shape.tokens(got.choice, words(got.start, got.count), got.reason, usage, last=last))
    if ask.include_usage:
        await response.write(shape.usage(_usage(core, generation)))
    await response.write(DONE)
    await response.write_eof()
    return response


def _usage(core: EngineCore, generation: Generation) -> Usage:
    cached = generation.cached_tokens if core.settings.prompt_tokens_details else None
    return Usage(generation.ask.prompt_tokens, generation.output_tokens, cached)
