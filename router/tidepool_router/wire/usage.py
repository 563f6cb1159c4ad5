"""Token counts and errors as engines report them, in streams and in whole answers."""

import re
from typing import Any, Final, NamedTuple

import msgspec

_ABSENT: Final = msgspec.Raw(b"")


class Usage(NamedTuple):
    """Tokens of one request. `prompt_tokens` are all of the prompt's, `cached_tokens` None when none are told."""

    prompt_tokens: int
    output_tokens: int
    cached_tokens: int | None


class _Counts(msgspec.Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    total_tokens: int | None = None
    cache_creation_input_tokens: int | None = None
    cache_read_input_tokens: int | None = None
    prompt_tokens_details: dict[str, Any] | None = None
    input_tokens_details: dict[str, Any] | None = None


class _Inner(msgspec.Struct):
    usage: _Counts | None = None


class _Meta(msgspec.Struct):
    """Cohere's place for it (vLLM's /v2/embed)."""

    billed_units: _Counts | None = None


class _Answer(msgspec.Struct):
    usage: _Counts | None = None
    meta: _Meta | None = None


class _Event(msgspec.Struct):
    """The members of a stream's event that matter here: three APIs put their usage in three places."""

    choices: msgspec.Raw = _ABSENT
    usage: _Counts | None = None
    message: _Inner | None = None
    response: _Inner | None = None


class _Fault(msgspec.Struct):
    """The members by which the four APIs tell an error."""

    type: Any = None
    error: msgspec.Raw = _ABSENT


_decode_event: Final = msgspec.json.Decoder(_Event).decode
_decode_answer: Final = msgspec.json.Decoder(_Answer).decode
_decode_fault: Final = msgspec.json.Decoder(_Fault).decode
_ERROR_TYPES: Final = ("error", "response.failed")
_decode_counts: Final = msgspec.json.Decoder(_Counts).decode
_USAGE_OBJECT: Final = re.compile(rb'"usage"\s*:\s*(\{[^{}]*(?:\{[^{}]*\}[^{}]*)*\})')


def of_event(data: bytes) -> tuple[Usage | None, bool]:
    """Usage in the JSON of one event, and whether the event carries nothing else (its `choices` are empty)."""
    try:
        event = _decode_event(data)
    except msgspec.DecodeError:
        return None, False
    counts = event.usage
    if counts is None:
        inner = event.message or event.response
        counts = inner.usage if inner is not None else None
    if counts is None:
        return None, False
    return _usage(counts), bytes(event.choices).translate(None, b" \t\r\n") == b"[]"


def is_error(data: bytes) -> bool:
    """Whether the JSON of one event says that the answer has failed."""
    try:
        fault = _decode_fault(data)
    except msgspec.DecodeError:
        return False
    return fault.type in _ERROR_TYPES or bytes(fault.error) not in (b"", b"null")


def of_answer(tail: bytes) -> Usage | None:
    """Usage in a whole JSON answer, or in the last part of one; None when it is not there."""
    try:
        answer = _decode_answer(tail)
    except msgspec.DecodeError:
        return _of_last_part(tail)
    counts = answer.usage
    if counts is None and answer.meta is not None:
        counts = answer.meta.billed_units
    return None if counts is None else _usage(counts)


def _of_last_part(tail: bytes) -> Usage | None:
    found = _USAGE_OBJECT.search(tail, max(0, tail.rfind(b'"usage"')))
    if found is None:
        return None
    try:
        return _usage(_decode_counts(found[1]))
    except msgspec.DecodeError:
        return None


def _usage(counts: _Counts) -> Usage:
    output = counts.completion_tokens if counts.completion_tokens is not None else counts.output_tokens
    return Usage(_prompt(counts), output or 0, _cached(counts))


def _prompt(counts: _Counts) -> int:
    if counts.prompt_tokens is not None:
        return counts.prompt_tokens
    if counts.input_tokens is None:
        return counts.total_tokens or 0  # rerankers say this alone
    # Anthropic's API counts apart what was read from the cache and what was written to it; OpenAI's does not.
    return counts.input_tokens + (counts.cache_read_input_tokens or 0) + (counts.cache_creation_input_tokens or 0)


def _cached(counts: _Counts) -> int | None:
    if counts.cache_read_input_tokens is not None:
        return counts.cache_read_input_tokens
    for details in (counts.prompt_tokens_details, counts.input_tokens_details):
        cached = details.get("cached_tokens") if details else None
        if type(cached) is int:
            return cached
    return None
