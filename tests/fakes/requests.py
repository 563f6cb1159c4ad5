"""Requests to the engine double: what a body asks for, or the answer that vLLM gives to a body it cannot take."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from fakes.settings import EngineSettings
from fakes.text import render_chat, tokenize


class BadRequestError(Exception):
    """A request that vLLM answers with an error body."""

    def __init__(
        self,
        message: str,
        *,
        status: int = 400,
        kind: str = "BadRequestError",
        param: str | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.kind = kind
        self.param = param

    def body(self, path: str) -> dict[str, Any]:
        """The error in the shape of the path's API; what FastAPI itself refuses has always OpenAI's."""
        if path == "/v1/messages" and self.kind != "Bad Request":
            return {"type": "error", "error": {"type": self.kind, "message": str(self)}}
        return error_body(str(self), self.kind, self.status, self.param)


def error_body(message: str, kind: str, code: int, param: str | None = None) -> dict[str, Any]:
    """The error shape of OpenAI's API, which vLLM uses nearly everywhere."""
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


class Kind(StrEnum):
    """The API of a request for tokens."""

    CHAT = "chat"
    COMPLETION = "completion"
    MESSAGES = "messages"  # Anthropic's
    RESPONSES = "responses"


@dataclass(frozen=True, slots=True)
class Ask:
    """A request for tokens."""

    kind: Kind
    model: str
    prompts: tuple[tuple[int, ...], ...]  # token ids
    choices: int  # for each prompt
    max_tokens: int
    stream: bool = False
    include_usage: bool = False
    continuous_usage: bool = False
    ignore_eos: bool = False
    token_ids: bool = False  # return_token_ids: each event of a chat or completion carries its tokens' ids
    priority: int = 0
    salt: str = ""
    transfer: Mapping[str, Any] = field(default_factory=dict)  # kv_transfer_params

    @property
    def prompt_tokens(self) -> int:
        """Prompt tokens as usage counts them."""
        return sum(map(len, self.prompts))


def parse_json(body: bytes, content_type: str = "application/json") -> dict[str, Any]:
    """The body as an object; raises BadRequestError."""
    if not content_type.startswith("application/json"):
        raise BadRequestError(
            "1 validation error:\n  Unsupported Media Type: Only 'application/json' is allowed", kind="Bad Request"
        )
    if not body:
        raise invalid("missing", "Field required")
    try:
        value = json.loads(body)
    except json.JSONDecodeError as error:
        raise invalid("json_invalid", f"JSON decode error: {error.msg}", str(error.pos)) from error
    except ValueError as error:
        raise invalid("json_invalid", "JSON decode error", "0") from error
    if not isinstance(value, dict):
        raise invalid("model_attributes_type", "Input should be a valid dictionary or object")
    return value


def parse_chat(value: Mapping[str, Any], settings: EngineSettings, names: Mapping[str, object]) -> Ask:
    """A body of /v1/chat/completions; raises BadRequestError."""
    if "messages" not in value:
        raise invalid("missing", "Field required", "messages")
    messages = value["messages"]
    if not isinstance(messages, list):
        raise invalid("list_type", "Input should be a valid list", "messages")
    limit = _integer(value, "max_completion_tokens", None)
    limit = _integer(value, "max_tokens", None) if limit is None else limit
    _check_common(value, settings, names)
    if not messages:
        raise BadRequestError("Cannot apply chat template to an empty conversation.")
    prompt = tuple(tokenize(render_chat(messages)))
    room = max(1, settings.max_model_len - len(prompt))
    return _ask(Kind.CHAT, value, settings, (prompt,), room if limit is None else limit)


def parse_completion(value: Mapping[str, Any], settings: EngineSettings, names: Mapping[str, object]) -> Ask:
    """A body of /v1/completions; raises BadRequestError."""
    if value.get("prompt") is None:
        raise BadRequestError("Either prompt or prompt_embeds must be provided and non-empty.", param="prompt")
    prompts = _prompts(value["prompt"])
    limit = _integer(value, "max_tokens", 16)
    assert limit is not None
    _check_common(value, settings, names)
    return _ask(Kind.COMPLETION, value, settings, prompts, limit)


def parse_messages(value: Mapping[str, Any], settings: EngineSettings, names: Mapping[str, object]) -> Ask:
    """A body of /v1/messages; raises BadRequestError."""
    for name in ("messages", "max_tokens"):
        if name not in value:
            raise invalid("missing", "Field required", name)
    limit = _integer(value, "max_tokens", 0) or 0
    if limit < 1:
        raise invalid("value_error", "Value error, max_tokens must be positive", "max_tokens")
    if value.get("model", settings.model) not in names:
        raise unknown_model(value["model"], names)
    system = [{"role": "system", "content": value["system"]}] if value.get("system") else []
    prompt = tuple(tokenize(render_chat([*system, *value["messages"]])))
    return _ask(Kind.MESSAGES, value, settings, (prompt,), limit)


def parse_responses(value: Mapping[str, Any], settings: EngineSettings, names: Mapping[str, object]) -> Ask:
    """A body of /v1/responses; raises BadRequestError."""
    if "input" not in value:
        raise invalid("missing", "Field required", "input")
    _check_common(value, settings, names)
    given = value["input"]
    messages = [{"role": "user", "content": given}] if isinstance(given, str) else given
    prompt = tuple(tokenize(render_chat(messages)))
    limit = _integer(value, "max_output_tokens", settings.max_model_len - len(prompt))
    assert limit is not None
    return _ask(Kind.RESPONSES, value, settings, (prompt,), limit)


def _check_common(value: Mapping[str, Any], settings: EngineSettings, names: Mapping[str, object]) -> None:
    if value.get("stream_options") and not value.get("stream"):
        raise BadRequestError("Stream options can only be defined when `stream=True`.", param="stream_options")
    if (model := value.get("model") or settings.model) not in names:
        raise unknown_model(model, names)


def _ask(
    kind: Kind,
    value: Mapping[str, Any],
    settings: EngineSettings,
    prompts: tuple[tuple[int, ...], ...],
    max_tokens: int,
) -> Ask:
    priority = _integer(value, "priority", 0) or 0
    if priority and not settings.priority_scheduling:
        raise BadRequestError(f"Got priority {priority} but Priority scheduling is not enabled.")
    choices = _integer(value, "n", 1)
    if choices is None or choices < 1:
        raise BadRequestError(f"n must be at least 1, got {choices}.")
    if max_tokens < 1:
        raise BadRequestError(f"max_tokens must be at least 1, got {max_tokens}.", param="max_tokens")
    _check_room(max(map(len, prompts)), max_tokens, settings.max_model_len)
    options = value.get("stream_options") or {}
    return Ask(
        kind=kind,
        model=value.get("model") or settings.model,
        prompts=prompts,
        choices=choices,
        max_tokens=max_tokens,
        stream=bool(value.get("stream")),
        include_usage=bool(options.get("include_usage")),
        continuous_usage=bool(options.get("continuous_usage_stats")),
        ignore_eos=bool(value.get("ignore_eos")),
        token_ids=bool(value.get("return_token_ids")),
        priority=priority,
        salt=str(value.get("cache_salt") or ""),
        transfer=value.get("kv_transfer_params") or {},
    )


def invalid(kind: str, message: str, *where: str) -> BadRequestError:
    """The answer to a body that is not of the right form."""
    param = ".".join(("body", *where))
    said = f"1 validation error:\n  {{'type': '{kind}', 'loc': '{param}', 'msg': '{message}'}}"
    return BadRequestError(said, kind="Bad Request", param=param)


def unknown_model(model: object, names: Mapping[str, object]) -> BadRequestError:
    """The answer to a model name that is not served."""
    said = f"The model `{model}` does not exist. Valid aliases: {', '.join(names)}."
    return BadRequestError(said, status=404, kind="NotFoundError", param="model")


def _check_room(prompt_tokens: int, max_tokens: int, max_model_len: int) -> None:
    if max_tokens > max_model_len:
        raise BadRequestError(
            f"max_tokens={max_tokens} cannot be greater than max_model_len={max_model_len}. "
            f"Please request fewer output tokens. (parameter=max_tokens, value={max_tokens})",
            param="max_tokens",
        )
    if prompt_tokens + max_tokens > max_model_len:
        raise BadRequestError(
            f"This model's maximum context length is {max_model_len} tokens. However, your prompt contains at "
            f"least {prompt_tokens} input tokens and {max_tokens} output tokens are asked for. Please reduce the "
            "length of the input prompt.",
            param="input_tokens",
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
    raise invalid("string_type", "Input should be a valid string", "prompt")


def _integer(value: Mapping[str, Any], name: str, default: int | None) -> int | None:
    number = value.get(name)
    if number is None:
        return default
    if isinstance(number, bool) or not isinstance(number, int):
        raise invalid("int_parsing", "Input should be a valid integer", name)
    return number
