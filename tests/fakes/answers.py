"""Answers of the engine double: the JSON objects and the events of a stream, field by field as vLLM's."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from fakes.requests import Ask, Kind
from fakes.text import output_ids

DONE = b"data: [DONE]\n\n"
FINGERPRINT = "vllm-0.32.0-00000000"


def event(value: Any, name: str | None = None) -> bytes:
    """One server-sent event."""
    head = b"" if name is None else f"event: {name}\n".encode()
    return head + b"data: " + json.dumps(value, separators=(",", ":")).encode() + b"\n\n"


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts of a request; `cached_tokens` None where the engine does not tell.

    `created_tokens` are prompt tokens newly put into the prefix cache; only chats tell them.
    """

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int | None = None
    created_tokens: int | None = None

    def body(self) -> dict[str, Any]:
        """The usage object of a whole answer."""
        told = self._details()
        details = None if told is None else {"created_cache_tokens": None, "multimodal_tokens": None} | told
        return self.counts() | {"prompt_tokens_details": details, "completion_tokens_details": None}

    def last(self) -> dict[str, Any]:
        """The usage object of the usage event: without what is null."""
        told = self._details()
        return self.counts() | ({} if told is None else {"prompt_tokens_details": told})

    def counts(self) -> dict[str, Any]:
        """The counts alone."""
        total = self.prompt_tokens + self.completion_tokens
        return {
            "prompt_tokens": self.prompt_tokens,
            "total_tokens": total,
            "completion_tokens": self.completion_tokens,
        }

    def _details(self) -> dict[str, Any] | None:
        if self.cached_tokens is None:
            return None
        told = {"cached_tokens": self.cached_tokens}
        return told if self.created_tokens is None else told | {"created_cache_tokens": self.created_tokens}


@dataclass(frozen=True, slots=True)
class Shape:
    """Builds what one request is answered with."""

    ask: Ask
    request_id: str
    model: str
    created: int

    @property
    def chat(self) -> bool:
        """Not a plain completion."""
        return self.ask.kind is Kind.CHAT

    def whole(self, texts: list[str], reasons: list[str], usage: Usage) -> dict[str, Any]:
        """The answer to a request without a stream."""
        choice = _chat_choice if self.chat else _text_choice
        choices = [choice(i, text, reason) for i, (text, reason) in enumerate(zip(texts, reasons, strict=True))]
        head = self._head("chat.completion" if self.chat else "text_completion") | {"choices": choices}
        head |= {"service_tier": None, "system_fingerprint": FINGERPRINT, "usage": usage.body()}
        if self.chat:
            head |= {"prompt_logprobs": None, "prompt_token_ids": None, "prompt_text": None}
        return head | {"kv_transfer_params": None, "ec_transfer_params": None, "metrics": None}

    def opening(self, choices: int) -> Iterator[bytes]:
        """The events with the role, which only a chat has."""
        usage = Usage(self.ask.prompt_tokens, 0) if self.ask.continuous_usage else None
        for index in range(choices if self.chat else 0):
            choice = {"index": index, "delta": {"role": "assistant", "content": ""}, "logprobs": None}
            body = self._head("chat.completion.chunk") | {"choices": [choice | {"finish_reason": None}]}
            yield event(body | self._running(usage) | {"prompt_token_ids": None, "prompt_text": None})

    def tokens(self, index: int, text: str, reason: str | None, count: int) -> bytes:
        """The event of a step, `count` being the tokens of the choice by then.

        Without a usage event to come, the last event of a choice has the fingerprint.
        """
        usage = Usage(self.ask.prompt_tokens, count) if self.ask.continuous_usage else None
        choice: dict[str, Any] = {"index": index}
        choice |= {"delta": {"content": text}} if self.chat else {"text": text}
        choice |= {"logprobs": None, "finish_reason": reason}
        if not self.chat:
            choice |= {"stop_reason": None, "prompt_token_ids": None}
        elif reason is not None:
            choice["stop_reason"] = None
        choice["token_ids"] = output_ids(text) if self.ask.token_ids else None
        body = self._head(self._chunk) | {"choices": [choice]} | self._running(usage)
        if reason is not None and not self.ask.include_usage:
            body["system_fingerprint"] = FINGERPRINT
        return event(body)

    def ending(self, text: str, reason: str, usage: Usage) -> Iterator[bytes]:
        """The usage event that stream_options.include_usage asks for, and [DONE]."""
        if self.ask.include_usage:
            body = self._head(self._chunk) | {"choices": [], "usage": usage.last()}
            yield event(body | {"system_fingerprint": FINGERPRINT})
        yield DONE

    def _running(self, usage: Usage | None) -> dict[str, Any]:
        """Usage so far, in every event where continuous_usage_stats asks for it."""
        if usage is None:
            return {}
        return {"usage": usage.counts() | ({"completion_tokens_details": None} if self.chat else {})}

    @property
    def _chunk(self) -> str:
        return "chat.completion.chunk" if self.chat else "text_completion"

    def _head(self, kind: str) -> dict[str, Any]:
        return {"id": self.request_id, "object": kind, "created": self.created, "model": self.model}


def _chat_choice(index: int, text: str, reason: str) -> dict[str, Any]:
    message = {"role": "assistant", "content": text, "refusal": None, "annotations": None, "audio": None}
    message |= {"function_call": None, "reasoning": None}
    head = {"index": index, "message": message, "logprobs": None, "finish_reason": reason, "stop_reason": None}
    return head | {"token_ids": None, "routed_experts": None}


def _text_choice(index: int, text: str, reason: str) -> dict[str, Any]:
    head = {"index": index, "text": text, "logprobs": None, "finish_reason": reason, "stop_reason": None}
    return head | {"token_ids": None, "prompt_logprobs": None, "prompt_token_ids": None, "routed_experts": None}
