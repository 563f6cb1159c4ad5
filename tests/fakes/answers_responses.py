"""Answers of /v1/responses, as vLLM speaks it."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count as counting
from typing import Any

from fakes.answers import Usage, event
from fakes.requests import Ask


@dataclass(frozen=True, slots=True)
class ResponsesShape:
    """Builds what one request is answered with; events are numbered as they are built."""

    ask: Ask
    request_id: str
    model: str
    created: int
    numbers: Iterator[int] = field(default_factory=counting)

    def whole(self, texts: list[str], reasons: list[str], usage: Usage) -> dict[str, Any]:
        """The answer to a request without a stream."""
        return self._response(texts[0], reasons[0], usage)

    def opening(self, choices: int) -> Iterator[bytes]:
        """The events before the first token."""
        yield self._event("response.created", response=self._response(None, None, None))
        yield self._event("response.in_progress", response=self._response(None, None, None))
        yield self._event("response.output_item.added", item=self._item(None), output_index=0)
        yield self._part("response.content_part.added", part=_text("") | {"logprobs": []})

    def tokens(self, index: int, text: str, reason: str | None, count: int) -> bytes:
        """The event of a step."""
        return self._part("response.output_text.delta", delta=text, logprobs=[])

    def ending(self, text: str, reason: str, usage: Usage) -> Iterator[bytes]:
        """The events after the last token."""
        yield self._part("response.output_text.done", logprobs=[], text=text)
        yield self._part("response.content_part.done", part=_text(text))
        yield self._event("response.output_item.done", item=self._item(text), output_index=0)
        yield self._event("response.completed", response=self._response(text, reason, usage))

    def _response(self, text: str | None, reason: str | None, usage: Usage | None) -> dict[str, Any]:
        cut = reason == "length"
        nothing = dict.fromkeys(_NULLS)
        return nothing | {
            "id": self.request_id,
            "created_at": self.created,
            "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
            "model": self.model,
            "object": "response",
            "output": [] if text is None else [self._item(text)],
            "parallel_tool_calls": True,
            "temperature": 1.0,
            "tool_choice": "none",
            "tools": [],
            "top_p": 1.0,
            "background": False,
            "max_output_tokens": self.ask.max_tokens,
            "service_tier": "auto",
            "status": "in_progress" if reason is None else "incomplete" if cut else "completed",
            "truncation": "disabled",
            "usage": None if usage is None else _usage(usage),
            "presence_penalty": 0.0,
            "frequency_penalty": 0.0,
        }

    @property
    def _item_id(self) -> str:
        return "msg_" + self.request_id.removeprefix("resp_")

    def _item(self, text: str | None) -> dict[str, Any]:
        content = [] if text is None else [_text(text)]
        status = "in_progress" if text is None else "completed"
        head = {"id": self._item_id, "content": content, "role": "assistant", "status": status}
        return head | {"type": "message", "phase": None}

    def _part(self, name: str, **fields: Any) -> bytes:
        return self._event(name, content_index=0, item_id=self._item_id, output_index=0, **fields)

    def _event(self, name: str, **fields: Any) -> bytes:
        return event(fields | {"sequence_number": next(self.numbers), "type": name}, name)


_NULLS = (
    *("instructions", "metadata", "max_tool_calls", "previous_response_id", "prompt", "reasoning", "text"),
    *("top_logprobs", "user", "kv_transfer_params", "ec_transfer_params", "input_messages", "output_messages"),
)


def _text(text: str) -> dict[str, Any]:
    return {"annotations": [], "text": text, "type": "output_text", "logprobs": None}


def _usage(usage: Usage) -> dict[str, Any]:
    turns: dict[str, list[int]] = {"input_tokens_per_turn": [], "cached_tokens_per_turn": []}
    written: dict[str, Any] = {
        "cached_tokens": usage.cached_tokens or 0,
        "cache_write_tokens": usage.created_tokens or 0,
    }
    spent: dict[str, Any] = {"reasoning_tokens": 0, "tool_output_tokens": 0, "output_tokens_per_turn": []}
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": written | turns,
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": spent | {"tool_output_tokens_per_turn": []},
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
    }
