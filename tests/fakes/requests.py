"""Requests to the engine double: what a body asks for, or the answer that vLLM gives to a body it cannot take."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fakes.settings import EngineSettings
from fakes.text import render_chat, tokenize


class BadRequestError(Exception):
    """A request that vLLM answers with an error body."""

    def __init__(
        self, message: str, *, status: int = 400, kind: str = "BadRequestError", param: str | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.kind = kind
        self.param = param

    def body(self) -> dict[str, Any]:
        """The error in the OpenAI shape."""
        return error_body(str(self), self.kind, self.status, self.param)


def error_body(message: str, kind: str, code: int, param: str | None = None) -> dict[str, Any]:
    """The one error shape of vLLM."""
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


@dataclass(frozen=True, slots=True)
class Ask:
    """A request for tokens."""

    chat: bool
    model: str
    prompts: tuple[tuple[int, ...], ...]  # token ids
    choices: int  # for each prompt
    max_tokens: int
    stream: bool = False
    include_usage: bool = False
    continuous_usage: bool = False
    ignore_eos: bool = False
    priority: int = 0
    salt: str = ""

    @property
    def prompt_tokens(self) -> int:
        """Prompt tokens as usage counts them."""
        return sum(map(len, self.prompts))


def parse_json(body: bytes) -> dict[str, Any]:
    """The body as an object; raises BadRequestError."""
    try:
        value = json.loads(body)
    except ValueError as error:
        raise BadRequestError(
            f"[{{'type': 'json_invalid', 'loc': ('body', 0), 'msg': 'JSON decode error: {error}'}}]",
            kind="Bad Request",
        ) from error
    if not isinstance(value, dict):
        raise BadRequestError("[{'type': 'model_attributes_type', 'loc': ('body',)}]", kind="Bad Request")
    return value


def parse_chat(body: bytes, settings: EngineSettings, names: Mapping[str, object]) -> Ask:
    """A body of /v1/chat/completions; raises BadRequestError."""
    value = parse_json(body)
    messages = value.get("messages")
    if not isinstance(messages, list) or not messages:
        raise _missing("messages")
    prompt = tuple(tokenize(render_chat(messages)))
    room = settings.max_model_len - len(prompt)
    limit = _integer(value, "max_completion_tokens", None)
    limit = _integer(value, "max_tokens", None) if limit is None else limit
    return _ask(value, settings, names, (prompt,), room if limit is None else limit)


def parse_completion(body: bytes, settings: EngineSettings, names: Mapping[str, object]) -> Ask:
    """A body of /v1/completions; raises BadRequestError."""
    value = parse_json(body)
    if "prompt" not in value:
        raise _missing("prompt")
    limit = _integer(value, "max_tokens", 16)
    assert limit is not None
    return _ask(value, settings, names, _prompts(value["prompt"]), limit)


def _ask(
    value: Mapping[str, Any],
    settings: EngineSettings,
    names: Mapping[str, object],
    prompts: tuple[tuple[int, ...], ...],
    max_tokens: int,
) -> Ask:
    model = value.get("model") or settings.model
    if model not in names:
        raise unknown_model(model)
    priority = _integer(value, "priority", 0) or 0
    if priority and not settings.priority_scheduling:
        raise BadRequestError(f"Got priority {priority} but Priority scheduling is not enabled.")
    if max_tokens < 1:
        raise BadRequestError(f"max_tokens must be at least 1, got {max_tokens}.", param="max_tokens")
    _check_room(max(map(len, prompts)), max_tokens, settings.max_model_len)
    options = value.get("stream_options") or {}
    if options and not value.get("stream"):
        raise BadRequestError("Stream options can only be defined when `stream=True`.", param="stream_options")
    return Ask(
        chat="messages" in value,
        model=model,
        prompts=prompts,
        choices=_integer(value, "n", 1) or 1,
        max_tokens=max_tokens,
        stream=bool(value.get("stream")),
        include_usage=bool(options.get("include_usage")),
        continuous_usage=bool(options.get("continuous_usage_stats")),
        ignore_eos=bool(value.get("ignore_eos")),
        priority=priority,
        salt=str(value.get("cache_salt") or ""),
    )


def unknown_model(model: object) -> BadRequestError:
    """vLLM's answer to a model name that it does not serve."""
    return BadRequestError(f"The model `{model}` does not exist.", status=404, kind="NotFoundError", param="model")


def _check_room(prompt_tokens: int, max_tokens: int, max_model_len: int) -> None:
    if prompt_tokens >= max_model_len:
        raise BadRequestError(
            f"This model's maximum context length is {max_model_len} tokens. However, your request has "
            f"{prompt_tokens} input tokens. Please reduce the length of the input messages.",
            param="input_tokens",
        )
    if prompt_tokens + max_tokens > max_model_len:
        raise BadRequestError(
            f"'max_tokens' or 'max_completion_tokens' is too large: {max_tokens}. This model's maximum context "
            f"length is {max_model_len} tokens and your request has {prompt_tokens} input tokens.",
            param="max_tokens",
        )


def _prompts(prompt: object) -> tuple[tuple[int, ...], ...]:
    if isinstance(prompt, str):
        return (tuple(tokenize(prompt)),)
    if isinstance(prompt, list) and prompt:
        if all(isinstance(item, int) for item in prompt):
            return (tuple(prompt),)
        if all(isinstance(item, str) for item in prompt):
            return tuple(tuple(tokenize(item)) for item in prompt)
        if all(isinstance(item, list) for item in prompt):
            return tuple(tuple(item) for item in prompt)
    raise BadRequestError("[{'type': 'string_type', 'loc': ('body', 'prompt')}]", kind="Bad Request")


def _integer(value: Mapping[str, Any], name: str, default: int | None) -> int | None:
    number = value.get(name)
    if number is None:
        return default
    if isinstance(number, bool) or not isinstance(number, int):
        raise BadRequestError(
            f"[{{'type': 'int_parsing', 'loc': ('body', '{name}')}}]", kind="Bad Request", param=name
        )
    return number


def _missing(name: str) -> BadRequestError:
    return BadRequestError(f"[{{'type': 'missing', 'loc': ('body', '{name}')}}]", kind="Bad Request", param=name)
