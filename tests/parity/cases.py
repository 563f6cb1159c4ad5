"""Requests that the double must answer as the real engine does: fields, framing, statuses, error bodies."""

import json
from dataclasses import dataclass, field
from typing import Any

MODEL = "tiny"
CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"
MESSAGES = "/v1/messages"
RESPONSES = "/v1/responses"
_LONG = "the tide pool is full of small lives " * 2000  # many times the model's 2048 tokens


@dataclass(frozen=True)
class Case:
    """One request. `body` None: without one."""

    name: str
    path: str
    body: Any = None
    method: str = "POST"
    headers: dict[str, str] = field(default_factory=lambda: {"content-type": "application/json"})

    @property
    def content(self) -> bytes | None:
        """The body as it is sent."""
        if self.body is None or isinstance(self.body, bytes):
            return self.body
        return json.dumps(self.body).encode()

    def __str__(self) -> str:
        return self.name


def chat(**extra: Any) -> dict[str, Any]:
    """A chat of five tokens."""
    messages = [{"role": "user", "content": "Tell me of the sea."}]
    return {"model": MODEL, "messages": messages, "max_tokens": 12, "ignore_eos": True} | extra


def text(**extra: Any) -> dict[str, Any]:
    """A completion of five tokens."""
    return {"model": MODEL, "prompt": "Once upon a tide", "max_tokens": 12, "ignore_eos": True} | extra


def message(**extra: Any) -> dict[str, Any]:
    """A message of five tokens, in Anthropic's API."""
    said = [{"role": "user", "content": "Tell me of the sea."}]
    return {"model": MODEL, "messages": said, "max_tokens": 12} | extra


def response(**extra: Any) -> dict[str, Any]:
    """A response of five tokens."""
    return {"model": MODEL, "input": "Tell me of the sea.", "max_output_tokens": 5} | extra


def without(body: dict[str, Any], *names: str) -> dict[str, Any]:
    """The body without some fields."""
    return {name: value for name, value in body.items() if name not in names}


USAGE = {"include_usage": True}
EVERY_USAGE = {"include_usage": True, "continuous_usage_stats": True}

ANSWERS = (
    Case("chat", CHAT, chat()),
    Case("chat of two choices", CHAT, chat(n=2)),
    Case("chat without a model", CHAT, without(chat(), "model")),
    Case("chat with max_completion_tokens", CHAT, without(chat(max_completion_tokens=3), "max_tokens")),
    Case("chat with both limits", CHAT, chat(max_completion_tokens=3, max_tokens=5)),
    Case(
        "chat of content parts",
        CHAT,
        chat(messages=[{"role": "user", "content": [{"type": "text", "text": "hi"}]}]),
    ),
    Case("chat with an unknown field", CHAT, chat(tide="high")),
    Case("chat with a priority", CHAT, chat(priority=-3)),
    Case("completion", TEXT, text()),
    Case("completion without a limit", TEXT, without(text(), "max_tokens")),
    Case("completion of token ids", TEXT, text(prompt=[5, 6, 7, 8])),
    Case("completion of two prompts", TEXT, text(prompt=["one tide", "two tides"])),
    Case("completion of two choices", TEXT, text(n=2)),
    Case("message", MESSAGES, message()),
    Case("message with a system prompt", MESSAGES, message(system="Be brief.")),
    Case("response", RESPONSES, response()),
    Case("response to messages", RESPONSES, response(input=[{"role": "user", "content": "hi"}])),
    Case("models", "/v1/models", method="GET"),
    Case("version", "/version", method="GET"),
    Case("health", "/health", method="GET"),
    Case("ping", "/ping", method="GET"),
    Case("tokenize a prompt", "/tokenize", {"model": MODEL, "prompt": "once upon a tide"}),
    Case("tokenize a chat", "/tokenize", without(chat(), "max_tokens", "ignore_eos")),
    Case("detokenize", "/detokenize", {"model": MODEL, "tokens": [5, 6, 7]}),
)

STREAMS = (
    Case("chat stream", CHAT, chat(stream=True)),
    Case("chat stream with usage", CHAT, chat(stream=True, stream_options=USAGE)),
    Case("chat stream with usage refused", CHAT, chat(stream=True, stream_options={"include_usage": False})),
    Case("chat stream with usage in every event", CHAT, chat(stream=True, stream_options=EVERY_USAGE)),
    Case("chat stream of two choices", CHAT, chat(stream=True, n=2, stream_options=USAGE)),
    Case("chat stream of one token", CHAT, chat(stream=True, max_tokens=1)),
    Case("completion stream", TEXT, text(stream=True)),
    Case("completion stream with usage", TEXT, text(stream=True, stream_options=USAGE)),
    Case("completion stream with usage in every event", TEXT, text(stream=True, stream_options=EVERY_USAGE)),
    Case("message stream", MESSAGES, message(stream=True)),
    Case("response stream", RESPONSES, response(stream=True)),
    Case("completion stream of two prompts", TEXT, text(stream=True, prompt=["one tide", "two tides"])),
)

REFUSALS = (
    Case("malformed JSON", CHAT, b'{"model": "tiny", "messages": ['),
    Case("malformed JSON for a completion", TEXT, b"{"),
    Case("an empty body", CHAT, b""),
    Case("no JSON object", CHAT, b"[]"),
    Case("no JSON content type", CHAT, chat(), headers={"content-type": "text/plain"}),
    Case("no content type", CHAT, chat(), headers={}),
    Case("a content type with a charset", CHAT, b"{", headers={"content-type": "application/json; charset=utf-8"}),
    Case("unknown model", CHAT, chat(model="no-such-model")),
    Case("unknown model in a stream", CHAT, chat(model="no-such-model", stream=True)),
    Case("unknown model for a completion", TEXT, text(model="no-such-model")),
    Case("unknown model to tokenize", "/tokenize", {"model": "no-such-model", "prompt": "hi"}),
    Case("no messages", CHAT, without(chat(), "messages")),
    Case("empty messages", CHAT, chat(messages=[])),
    Case("messages of the wrong type", CHAT, chat(messages="hello")),
    Case("no prompt", TEXT, without(text(), "prompt")),
    Case("a prompt of the wrong type", TEXT, text(prompt={"a": 1})),
    Case("max_tokens of zero", CHAT, chat(max_tokens=0)),
    Case("max_tokens negative", CHAT, chat(max_tokens=-1)),
    Case("max_tokens negative for a completion", TEXT, text(max_tokens=-1)),
    Case("max_tokens of the wrong type", CHAT, chat(max_tokens="many")),
    Case("max_tokens beyond the context", CHAT, chat(max_tokens=100_000)),
    Case("max_tokens beyond the context for a completion", TEXT, text(max_tokens=100_000)),
    Case("prompt too long", CHAT, chat(messages=[{"role": "user", "content": _LONG}])),
    Case("prompt too long for a completion", TEXT, text(prompt=_LONG)),
    Case("prompt too long in a stream", CHAT, chat(messages=[{"role": "user", "content": _LONG}], stream=True)),
    Case("stream options without a stream", CHAT, chat(stream_options=USAGE)),
    Case("n of zero", CHAT, chat(n=0)),
    Case("malformed JSON for a message", MESSAGES, b"{"),
    Case("unknown model for a message", MESSAGES, message(model="no-such-model")),
    Case("no limit for a message", MESSAGES, without(message(), "max_tokens")),
    Case("a limit of zero for a message", MESSAGES, message(max_tokens=0)),
    Case("no messages for a message", MESSAGES, without(message(), "messages")),
    Case("prompt too long for a message", MESSAGES, message(messages=[{"role": "user", "content": _LONG}])),
    Case("unknown model for a response", RESPONSES, response(model="no-such-model")),
    Case("no input for a response", RESPONSES, without(response(), "input")),
    Case("prompt too long for a response", RESPONSES, response(input=_LONG)),
    Case("wrong method", CHAT, method="GET"),
    Case("wrong method on a reader", "/v1/models", {}),
    Case("unknown path", "/v1/no-such-path", {}),
    Case("an administration path", "/v1/load_lora_adapter", {"lora_name": "a", "lora_path": "b"}),
    Case("a development path", "/reset_prefix_cache", {}),
)
