"""Error answers and error events in the shape of the API that was called."""

import re
from http import HTTPStatus
from typing import Final

import msgspec

from tidepool_router.errors import Refusal
from tidepool_router.facts import Api

_ANTHROPIC_TYPES: Final = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
    529: "overloaded_error",
}
_ANTHROPIC: Final = frozenset((Api.MESSAGES, Api.COUNT_TOKENS))
REASONS: Final = {status.value: status.phrase.encode() for status in HTTPStatus}

_CODE: Final = re.compile(rb'"code"\s*:\s*"?(\d{3})\b')
# Types of errors that are the client's, as they stand in an event.
_CLIENT_FAULTS: Final = tuple(b'"%b"' % kind.encode() for code, kind in _ANTHROPIC_TYPES.items() if code < 500)

_encode: Final = msgspec.json.Encoder().encode


def error_body(api: Api, status: int, kind: str, message: str, code: str) -> bytes:
    """JSON of an error answer: OpenAI's `{"error": {...}}`, or Anthropic's for paths of its API."""
    if api in _ANTHROPIC:
        fault = {"type": _ANTHROPIC_TYPES.get(status, "api_error"), "message": message}
        return _encode({"type": "error", "error": fault})
    return _encode({"error": {"message": message, "type": kind, "param": None, "code": code}})


def error_event(api: Api, message: str, sequence: int = 0) -> bytes:
    """The SSE event that ends a stream which cannot go on.

    `sequence` is the number of events that went before; the responses API numbers its events. No API gets a
    `[DONE]` after it: the answer is not complete, and a client must be able to see that.
    """
    if api is Api.MESSAGES:
        body = _encode({"type": "error", "error": {"type": "api_error", "message": message}})
        return b"event: error\ndata: " + body + b"\n\n"
    if api is Api.RESPONSES:
        event = {"type": "error", "code": "server_error", "message": message, "param": None}
        body = _encode(event | {"sequence_number": sequence})
        return b"event: error\ndata: " + body + b"\n\n"
    fault = {"message": message, "type": "server_error", "param": None, "code": "upstream_error"}
    return b"data: " + _encode({"error": fault}) + b"\n\n"


def blames_engine(event: bytes) -> bool:
    """Whether an error event speaks against the engine and not against the request that got it.

    vLLM puts the HTTP status that it would have answered into `code`; Anthropic's API has a type for each of them.
    """
    found = _CODE.search(event)
    if found is not None:
        return not 400 <= int(found[1]) < 500
    return not any(kind in event for kind in _CLIENT_FAULTS)


def refusal_answer(
    api: Api, refusal: Refusal, extra: bytes = b"", *, close: bool, head_only: bool = False
) -> bytes:
    """Whole HTTP/1.1 answer for a refusal; `extra` are complete header lines, each with its CRLF."""
    body = error_body(api, refusal.status, refusal.type, refusal.message, refusal.code)
    reason = REASONS.get(refusal.status, b"Error")
    lines = [b"HTTP/1.1 %d %b\r\ncontent-type: application/json\r\n" % (refusal.status, reason), extra]
    if refusal.retry_after_seconds is not None:
        lines.append(b"retry-after: %d\r\n" % max(1, round(refusal.retry_after_seconds)))
    if refusal.allow:
        lines.append(b"allow: %b\r\n" % refusal.allow.encode())
    if refusal.status == 401:  # RFC 9110 11.6.1
        lines.append(b"www-authenticate: Bearer\r\n")
    if close:
        lines.append(b"connection: close\r\n")
    lines.append(b"content-length: %d\r\n\r\n" % len(body))
    if not head_only:
        lines.append(body)
    return b"".join(lines)
