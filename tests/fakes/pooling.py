"""The paths of the engine double that make no text from text: vectors, scores, transcripts, counts.

Vectors and scores are made from the text's checksum: equal text gets equal answers.
"""

import email.parser
import email.policy
import json
import zlib
from collections.abc import Callable, Mapping
from typing import Any

from aiohttp import web

from fakes.answers import DONE, event
from fakes.journal import Record
from fakes.replies import reply
from fakes.requests import BadRequestError, invalid, parse_json, unknown_model
from fakes.text import render_chat, tokenize, words

Value = Mapping[str, Any]
_VECTOR = 8


def embeddings(value: Value) -> dict[str, Any]:
    """/v1/embeddings and /pooling."""
    texts = _texts(value, "input")
    data = [{"index": i, "object": "embedding", "embedding": _vector(text)} for i, text in enumerate(texts)]
    return _head("embd") | {"data": data, "usage": _usage(texts)}


def cohere_embeddings(value: Value) -> dict[str, Any]:
    """/v2/embed."""
    texts = _texts(value, "texts")
    billed = {"input_tokens": _count(texts), "image_tokens": 0}
    vectors = {"float": [_vector(text) for text in texts]}
    return {"id": "embd-double", "embeddings": vectors, "texts": texts, "meta": {"billed_units": billed}}


def classify(value: Value) -> dict[str, Any]:
    """/classify."""
    texts = _texts(value, "input")
    data = [
        {"index": i, "label": "yes" if _score(text) > 0.5 else "no", "probs": [_score(text)], "num_classes": 1}
        for i, text in enumerate(texts)
    ]
    return _head("classify") | {"data": data, "usage": _usage(texts)}


def rerank(value: Value) -> dict[str, Any]:
    """The three rerank paths."""
    documents = _texts(value, "documents")
    query = _texts(value, "query")[0]
    results = [
        {"index": i, "document": {"text": text}, "relevance_score": _score(query + text)}
        for i, text in enumerate(documents)
    ]
    results.sort(key=lambda result: -result["relevance_score"])
    tokens = _count([query + text for text in documents])
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    return {"id": "rerank-double", "model": value.get("model"), "usage": usage, "results": results}


def score(value: Value) -> dict[str, Any]:
    """The two score paths."""
    first, second = _texts(value, "text_1"), _texts(value, "text_2")
    pairs = [one + two for one in first for two in second]
    data = [{"index": i, "object": "score", "score": _score(pair)} for i, pair in enumerate(pairs)]
    return _head("embd") | {"data": data, "usage": _usage(pairs)}


def count_tokens(value: Value) -> dict[str, Any]:
    """/v1/messages/count_tokens."""
    if "messages" not in value:
        raise invalid("missing", "Field required", "messages")
    tokens = len(tokenize(render_chat(value["messages"])))
    return {"input_tokens": tokens, "context_management": {"original_input_tokens": tokens}}


JSON_PATHS: Mapping[str, Callable[[Value], dict[str, Any]]] = {
    "/v1/embeddings": embeddings,
    "/v2/embed": cohere_embeddings,
    "/pooling": embeddings,
    "/classify": classify,
    "/v1/rerank": rerank,
    "/v2/rerank": rerank,
    "/rerank": rerank,
    "/v1/score": score,
    "/score": score,
    "/v1/messages/count_tokens": count_tokens,
}
FORM_PATHS = ("/v1/audio/transcriptions", "/v1/audio/translations")


def answer_json(names: Mapping[str, str], request: web.BaseRequest, record: Record) -> web.Response:
    """Answer one of JSON_PATHS; raises BadRequestError."""
    value = parse_json(record.body, record.header("content-type") or "")
    if value.get("model") not in (None, *names):
        raise unknown_model(value["model"], names)
    return reply(JSON_PATHS[request.path](value))


async def answer_form(names: Mapping[str, str], request: web.BaseRequest, record: Record) -> web.StreamResponse:
    """Answer one of FORM_PATHS: a word for each 10,000 bytes of audio; raises BadRequestError."""
    fields = read_form(record.body, record.header("content-type") or "")
    if "file" not in fields:
        raise invalid("missing", "Field required", "file")
    if fields.get("model", b"").decode() not in ("", *names):
        raise unknown_model(fields["model"].decode(), names)
    spoken = max(1, len(fields["file"]) // 10_000)
    if fields.get("stream", b"") != b"true":
        return reply({"text": words(0, spoken), "usage": {"type": "duration", "seconds": spoken}})
    response = web.StreamResponse(headers={"content-type": "text/event-stream; charset=utf-8"})
    await response.prepare(request)
    for at in range(spoken):
        last = "stop" if at == spoken - 1 else None
        delta = [{"delta": {"content": words(at, 1)}, "finish_reason": last, "stop_reason": None}]
        await response.write(event({"object": "transcription.chunk", "choices": delta}))
    await response.write(DONE)
    await response.write_eof()
    return response


def read_form(body: bytes, content_type: str) -> dict[str, bytes]:
    """Fields of a form by name, read as mail is: by another hand than the router's."""
    head = f"Content-Type: {content_type}\r\n\r\n".encode()
    message = email.parser.BytesParser(policy=email.policy.HTTP).parsebytes(head + body)
    if not message.is_multipart():
        raise BadRequestError("Missing boundary in multipart.")
    fields = {}
    for part in message.iter_parts():
        name = part.get_param("name", header="content-disposition")
        fields[str(name)] = part.get_payload(decode=True) or b""
    return fields


def _texts(value: Value, name: str) -> list[str]:
    if name not in value:
        raise invalid("missing", "Field required", name)
    given = value[name]
    items = given if isinstance(given, list) else [given]
    return [item if isinstance(item, str) else json.dumps(item) for item in items]


def _count(texts: list[str]) -> int:
    return sum(len(tokenize(text)) for text in texts)


def _usage(texts: list[str]) -> dict[str, Any]:
    tokens = _count(texts)
    return {
        "prompt_tokens": tokens,
        "total_tokens": tokens,
        "completion_tokens": 0,
        "prompt_tokens_details": None,
    }


def _head(prefix: str) -> dict[str, Any]:
    return {"id": f"{prefix}-double", "object": "list", "created": 1, "model": "tiny"}


def _score(text: str) -> float:
    return zlib.crc32(text.encode()) % 1000 / 1000


def _vector(text: str) -> list[float]:
    return [_score(f"{at}{text}") for at in range(_VECTOR)]
