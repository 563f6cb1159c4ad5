"""The two paths of the engine double that make tokens, whole or as a stream."""

import secrets
import time
from collections.abc import Mapping
from typing import Any

from aiohttp import web

from fakes.answers import DONE, Shape, Usage
from fakes.core import EngineCore, Generation
from fakes.faults import Fault
from fakes.journal import Record
from fakes.misbehave import break_stream
from fakes.replies import reply
from fakes.requests import parse_chat, parse_completion, parse_json
from fakes.text import words


async def answer(
    core: EngineCore, names: Mapping[str, str], request: web.BaseRequest, record: Record
) -> web.StreamResponse:
    """Answer a request for tokens; raises BadRequestError. A client that leaves aborts it."""
    chat = request.path == "/v1/chat/completions"
    value = parse_json(record.body, record.header("content-type") or "")
    ask = (parse_chat if chat else parse_completion)(value, core.settings, names)
    name = request.headers.get("x-request-id") or secrets.token_hex(16)
    shape = Shape(ask, f"{'chatcmpl' if chat else 'cmpl'}-{name}", ask.model, int(time.time()))
    async with core.generate(ask) as generation:
        try:
            if ask.stream:
                return await _stream(core, request, shape, generation, record.fault)
            return reply(await _whole(core, shape, generation))
        finally:
            record.output_tokens = generation.output_tokens


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
    running = shape.ask.continuous_usage
    for index in range(len(generation.sequences)):
        opening = shape.opening(index, Usage(shape.ask.prompt_tokens, 0) if running else None)
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
        usage = Usage(ask.prompt_tokens, got.start + got.count) if running else None
        await response.write(shape.tokens(got.choice, words(got.start, got.count), got.reason, usage))
    if ask.include_usage:
        await response.write(shape.usage(_usage(core, generation)))
    await response.write(DONE)
    await response.write_eof()
    return response


def _usage(core: EngineCore, generation: Generation) -> Usage:
    prompt_tokens, cached = generation.ask.prompt_tokens, generation.cached_tokens
    if not core.settings.prompt_tokens_details:
        return Usage(prompt_tokens, generation.output_tokens)
    created = core.scheduler.kv.full_block_tokens(prompt_tokens) - cached if generation.ask.chat else None
    return Usage(prompt_tokens, generation.output_tokens, cached, created)
