"""Answers of the engine double: the JSON objects and the events of a stream, field by field as vLLM's."""

import json
from dataclasses import dataclass
from typing import Any

from fakes.requests import Ask

DONE = b"data: [DONE]\n\n"
FINGERPRINT = "vllm-0.32.0-double"


def event(value: Any) -> bytes:
    """One server-sent event."""
    return b"data: " + json.dumps(value, separators=(",", ":")).encode() + b"\n\n"


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts of a request; `cached_tokens` None where the engine does not tell."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int | None = None

    def body(self) -> dict[str, Any]:
        """The usage object."""
        details = None if self.cached_tokens is None else {"cached_tokens": self.cached_tokens}
        return {
            "prompt_tokens": self.prompt_tokens,
            "total_tokens": self.prompt_tokens + self.completion_tokens,
            "completion_tokens": self.completion_tokens,
            "prompt_tokens_details": details,
        }


@dataclass(frozen=True, slots=True)
class Shape:
    """Builds what one request is answered with."""

    ask: Ask
    request_id: str
    model: str
    created: int

    def whole(self, texts: list[str], reasons: list[str], usage: Usage) -> dict[str, Any]:
        """The answer to a request without a stream."""
        if self.ask.chat:
            choices = [_chat_choice(i, t, r) for i, (t, r) in enumerate(zip(texts, reasons, strict=True))]
        else:
            choices = [_text_choice(i, t, r) for i, (t, r) in enumerate(zip(texts, reasons, strict=True))]
        extra: dict[str, Any] = {"kv_transfer_params": None, "service_tier": None}
        extra["system_fingerprint"] = FINGERPRINT
        if self.ask.chat:
            extra |= {"prompt_logprobs": None, "prompt_token_ids": None}
        kind = "chat.completion" if self.ask.chat else "text_completion"
        return self._head(kind) | {"choices": choices, "usage": usage.body()} | extra

    def opening(self, index: int) -> bytes | None:
        """The event with the role, which only a chat has."""
        if not self.ask.chat:
            return None
        choice = {"index": index, "delta": {"role": "assistant", "content": ""}, "logprobs": None}
        return event(
            self._head("chat.completion.chunk")
            | {"choices": [choice | {"finish_reason": None}], "prompt_token_ids": None}
        )

    def tokens(self, index: int, text: str, reason: str | None, usage: Usage | None, *, last: bool) -> bytes:
        """The event of a step."""
        choice: dict[str, Any] = {"index": index}
        choice |= {"delta": {"content": text}} if self.ask.chat else {"text": text}
        choice |= {"logprobs": None, "finish_reason": reason}
        if not self.ask.chat or reason is not None:
            choice["stop_reason"] = None
        choice["token_ids"] = None
        if not self.ask.chat:
            choice |= {"prompt_logprobs": None, "prompt_token_ids": None}
        body = self._head(self._chunk) | {"choices": [choice]}
        if usage is not None:
            body["usage"] = usage.body()
        if last:
            body["system_fingerprint"] = FINGERPRINT
        return event(body)

    def usage(self, usage: Usage) -> bytes:
        """The event that stream_options.include_usage asks for."""
        body = self._head(self._chunk) | {"choices": [], "usage": usage.body()}
        return event(body | {"system_fingerprint": FINGERPRINT})

    @property
    def _chunk(self) -> str:
        return "chat.completion.chunk" if self.ask.chat else "text_completion"

    def _head(self, kind: str) -> dict[str, Any]:
        return {"id": self.request_id, "object": kind, "created": self.created, "model": self.model}


def _chat_choice(index: int, text: str, reason: str) -> dict[str, Any]:
    message = {"role": "assistant", "content": text, "refusal": None, "annotations": None, "audio": None}
    message |= {"function_call": None, "reasoning": None}
    return {
        "index": index,
        "message": message | {"tool_calls": []},
        "logprobs": None,
        "finish_reason": reason,
        "stop_reason": None,
        "token_ids": None,
    }


def _text_choice(index: int, text: str, reason: str) -> dict[str, Any]:
    return {
        "index": index,
        "text": text,
        "logprobs": None,
        "finish_reason": reason,
        "stop_reason": None,
        "token_ids": None,
        "prompt_logprobs": None,
        "prompt_token_ids": None,
    }


def model_card(
    name: str, root: str, created: int, max_model_len: int, parent: str | None = None
) -> dict[str, Any]:
    """One entry of /v1/models."""
    return {
        "id": name,
        "object": "model",
        "created": created,
        "owned_by": "vllm",
        "root": root,
        "parent": parent,
        "max_model_len": max_model_len,
        "permission": [_permission(created)],
    }


def _permission(created: int) -> dict[str, Any]:
    allowed = dict.fromkeys(("allow_sampling", "allow_logprobs", "allow_view"), True)
    refused = dict.fromkeys(
        ("allow_create_engine", "allow_search_indices", "allow_fine_tuning", "is_blocking"), False
    )
    head = {"id": "modelperm-double", "object": "model_permission", "created": created}
    return head | allowed | refused | {"organization": "*", "group": None}
