"""The paths of the engine double that make tokens, whole or as a stream."""

import secrets
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from aiohttp import web

from fakes import requests
from fakes.answers import Shape, Usage
from fakes.answers_messages import MessagesShape
from fakes.answers_responses import ResponsesShape
from fakes.core import EngineCore, Generation
from fakes.faults import Fault
from fakes.journal import Record
from fakes.misbehave import break_stream
from fakes.replies import reply
from fakes.requests import Ask, Kind
from fakes.settings import EngineSettings
from fakes.text import words


class Answer(Protocol):
    """Builds what a request is answered with, in the shape of its API."""

    def whole(self, texts: list[str], reasons: list[str], usage: Usage) -> dict[str, Any]:
        """Without a stream."""

    def opening(self, choices: int) -> Iterator[bytes]:
        """Events before the first token."""

    def tokens(self, index: int, text: str, reason: str | None, count: int) -> bytes:
        """The event of a step."""

    def ending(self, text: str, reason: str, usage: Usage) -> Iterator[bytes]:
        """Events after the last token."""


@dataclass(frozen=True, slots=True)
class Api:
    """One path: how its bodies are read and its answers are built."""

    parse: Callable[[Mapping[str, Any], EngineSettings, Mapping[str, object]], Ask]
    answer: Callable[[Ask, str, str, int], Answer]
    id_prefix: str


APIS: Mapping[str, Api] = {
    "/v1/chat/completions": Api(requests.parse_chat, Shape, "chatcmpl-"),
    "/v1/completions": Api(requests.parse_completion, Shape, "cmpl-"),
    "/v1/messages": Api(requests.parse_messages, MessagesShape, "chatcmpl-"),
    "/v1/responses": Api(requests.parse_responses, ResponsesShape, "resp_"),
}


async def answer(
    core: EngineCore, names: Mapping[str, str], request: web.BaseRequest, record: Record
) -> web.StreamResponse:
    """Answer a request for tokens; raises BadRequestError. A client that leaves aborts it."""
    api = APIS[request.path]
    value = requests.parse_json(record.body, record.header("content-type") or "")
    ask = api.parse(value, core.settings, names)
    name = api.id_prefix + (request.headers.get("x-request-id") or secrets.token_hex(8))
    shape = api.answer(ask, name, ask.model, int(time.time()))
    async with core.generate(ask) as generation:
        try:
            if ask.stream:
                return await _stream(core, request, shape, generation, record.fault)
            body = await _whole(core, shape, generation)
            told = core.told(generation)
            return reply(body if told is None else body | {"kv_transfer_params": told})
        finally:
            record.output_tokens = generation.output_tokens


async def _whole(core: EngineCore, shape: Answer, generation: Generation) -> dict[str, Any]:
    count = len(generation.sequences)
    texts, reasons = [""] * count, [""] * count
    while not all(reasons):
        got = await generation.ready.get()
        texts[got.choice] += words(got.start, got.count)
        reasons[got.choice] = got.reason or ""
    return shape.whole(texts, reasons, _usage(core, generation))


async def _stream(
    core: EngineCore, request: web.BaseRequest, shape: Answer, generation: Generation, fault: Fault | None
) -> web.StreamResponse:
    headers = {"content-type": "text/event-stream; charset=utf-8", "server": "uvicorn"}
    response = web.StreamResponse(headers=headers)
    await response.prepare(request)
    for event in shape.opening(len(generation.sequences)):
        await response.write(event)
    sent, reasons = 0, [""] * len(generation.sequences)
    while not all(reasons):
        if fault is not None and sent >= fault.after_tokens:
            await break_stream(request, response, fault)
            return response
        got = await generation.ready.get()
        sent += got.count
        reasons[got.choice] = got.reason or ""
        text = words(got.start, got.count)
        await response.write(shape.tokens(got.choice, text, got.reason, got.start + got.count))
    for event in shape.ending(words(0, sent), reasons[0], _usage(core, generation)):
        await response.write(event)
    await response.write_eof()
    return response


def _usage(core: EngineCore, generation: Generation) -> Usage:
    prompt_tokens, cached = generation.ask.prompt_tokens, generation.cached_tokens
    if not core.settings.prompt_tokens_details:
        return Usage(prompt_tokens, generation.output_tokens)
    told = generation.ask.kind is not Kind.COMPLETION
    created = core.scheduler.kv.full_block_tokens(prompt_tokens) - cached if told else None
    return Usage(prompt_tokens, generation.output_tokens, cached, created)
