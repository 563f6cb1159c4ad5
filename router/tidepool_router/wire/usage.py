"""Token counts and errors as engines report them, in streams and in whole answers."""

import re
from typing import Final, NamedTuple

import msgspec

from tidepool_router.wire.models import Counts, decode_answer, decode_counts, decode_event, decode_fault


class Usage(NamedTuple):
    """Tokens of one request. `prompt_tokens` are all of the prompt's, `cached_tokens` None when none are told."""

    prompt_tokens: int
    output_tokens: int
    cached_tokens: int | None


_ERROR_TYPES: Final = ("error", "response.failed")
_USAGE_OBJECT: Final = re.compile(rb'"usage"\s*:\s*(\{[^{}]*(?:\{[^{}]*\}[^{}]*)*\})')


def of_event(data: bytes) -> tuple[Usage | None, bool]:
    """Usage in the JSON of one event, and whether the event carries nothing else (its `choices` are empty)."""
    try:
        event = decode_event(data)
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
        fault = decode_fault(data)
    except msgspec.DecodeError:
        return False
    return fault.type in _ERROR_TYPES or bytes(fault.error) not in (b"", b"null")


def of_answer(tail: bytes) -> Usage | None:
    """Usage in a whole JSON answer, or in the last part of one; None when it is not there."""
    try:
        answer = decode_answer(tail)
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
        return _usage(decode_counts(found[1]))
    except msgspec.DecodeError:
        return None


def _usage(counts: Counts) -> Usage:
    output = counts.completion_tokens if counts.completion_tokens is not None else counts.output_tokens
    return Usage(_prompt(counts), output or 0, _cached(counts))


def _prompt(counts: Counts) -> int:
    if counts.prompt_tokens is not None:
        return counts.prompt_tokens
    if counts.input_tokens is None:
        return counts.total_tokens or 0  # rerankers say this alone
    # Anthropic's API counts apart what was read from the cache and what was written to it; OpenAI's does not.
    return counts.input_tokens + (counts.cache_read_input_tokens or 0) + (counts.cache_creation_input_tokens or 0)


def _cached(counts: Counts) -> int | None:
    if counts.cache_read_input_tokens is not None:
        return counts.cache_read_input_tokens
    for details in (counts.prompt_tokens_details, counts.input_tokens_details):
        cached = details.get("cached_tokens") if details else None
        if type(cached) is int:
            return cached
    return None
