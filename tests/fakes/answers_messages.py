"""Answers of /v1/messages, Anthropic's API as vLLM speaks it."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from fakes.answers import Usage, event
from fakes.requests import Ask

_REASONS = {"length": "max_tokens", "stop": "end_turn"}


@dataclass(frozen=True, slots=True)
class MessagesShape:
    """Builds what one request is answered with."""

    ask: Ask
    request_id: str
    model: str
    created: int

    def whole(self, texts: list[str], reasons: list[str], usage: Usage) -> dict[str, Any]:
        """The answer to a request without a stream."""
        content = [{"type": "text", "text": texts[0]}]
        head = self._head() | {"content": content, "model": self.model, "stop_reason": _REASONS[reasons[0]]}
        return head | {"usage": _usage(usage)}

    def opening(self, choices: int) -> Iterator[bytes]:
        """The events before the first token."""
        body = self._head() | {"content": [], "model": self.model, "stop_reason": None, "stop_sequence": None}
        body["usage"] = {"input_tokens": self.ask.prompt_tokens, "output_tokens": 0}
        yield _event("message_start", message=body)
        yield _event("content_block_start", content_block={"type": "text", "text": ""}, index=0)

    def tokens(self, index: int, text: str, reason: str | None, count: int) -> bytes:
        """The event of a step."""
        return _event("content_block_delta", delta={"type": "text_delta", "text": text}, index=0)

    def ending(self, text: str, reason: str, usage: Usage) -> Iterator[bytes]:
        """The events after the last token."""
        yield _event("content_block_stop", index=0)
        delta = {"stop_reason": _REASONS[reason], "stop_sequence": None}
        yield _event("message_delta", delta=delta, usage=_usage(usage))
        yield _event("message_stop")

    def _head(self) -> dict[str, Any]:
        return {"id": self.request_id, "type": "message", "role": "assistant"}


def _usage(usage: Usage) -> dict[str, Any]:
    """Anthropic's `input_tokens` are those that were neither read from the cache nor written to it."""
    counts = {"input_tokens": usage.prompt_tokens, "output_tokens": usage.completion_tokens}
    if usage.cached_tokens is None:
        return counts
    created, read = usage.created_tokens or 0, usage.cached_tokens
    counts["input_tokens"] = max(0, usage.prompt_tokens - created - read)
    return counts | {"cache_creation_input_tokens": created, "cache_read_input_tokens": read}


def _event(name: str, **fields: Any) -> bytes:
    return event({"type": name} | fields, name)
