"""What of a cluster may leave it in a support bundle: no secret, no prompt. Pure.

Values are hidden by where they stand (environment, arguments after a telling flag, annotations), and again by what
they look like. What is not known to be harmless is hidden.
"""

import re
from collections.abc import Mapping
from typing import Any, Final

HIDDEN: Final = "[hidden]"
# Environment whose value is the part's own and no secret.
_OPEN_ENVIRONMENT: Final = frozenset(
    (
        "POD_NAME",
        "POD_NAMESPACE",
        "POD_IP",
        "NODE_NAME",
        "HOME",
        "HF_HOME",
        "VLLM_LOGGING_LEVEL",
        "VLLM_TARGET_DEVICE",
    )
)
_TELLING: Final = re.compile(r"token|secret|passw|api[-_]?key|credential|authorization|auth$|private", re.I)
_LOOKS_SECRET: Final = re.compile(
    r"hf_[A-Za-z0-9]{8,}|\bsk-[A-Za-z0-9_-]{4,}|\bgh[pousr]_[A-Za-z0-9]{16,}|\bAKIA[A-Z0-9]{12,}"
    r"|\beyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]*"
    r"|(?i:bearer|basic)\s+[A-Za-z0-9._~+/=-]{4,}"
    r"|(?i:(?:authorization|[\w-]*token|[\w-]*api[-_]?key|[\w-]*secret\w*|[\w-]*password)['\"]?\s*[=:]\s*['\"]?"
    r"(?:(?:bearer|basic)\s+)?)"
    r"[^\s'\",;)}]+"
    r"|(?<=://)[^/\s@:]*:[^/\s@]+(?=@)"
    r"|-----BEGIN [A-Z ]*PRIVATE KEY-----[\s\S]*?(?:-----END [A-Z ]*PRIVATE KEY-----|$)"
)
# Lines of an engine or a router that may quote what a client sent; they are left out whole.
_QUOTES_CLIENT: Final = re.compile(
    r"prompt|messages|Received request|input_value|content['\"]?\s*[:=]|completion['\"]?\s*[:=]|request body", re.I
)
# Counts and rates are no prompts, and are what one looks for.
_ONLY_COUNTS: Final = re.compile(r"prompt throughput|prompt_tokens|num_prompt|max_num_batched", re.I)
_LEFT_OUT: Final = "[a line that may quote a request was left out]"


def text(words: str) -> str:
    """Words without what looks like a secret."""
    return _LOOKS_SECRET.sub(HIDDEN, words)


def log(words: str) -> str:
    """A log without secrets and without lines that may quote a request."""
    kept: list[str] = []
    for line in words.splitlines():
        if _QUOTES_CLIENT.search(line) and not _ONLY_COUNTS.search(line):
            if not kept or kept[-1] != _LEFT_OUT:
                kept.append(_LEFT_OUT)
            continue
        kept.append(text(line))
    return "\n".join(kept) + "\n"


def document(value: Any, name: str = "") -> Any:  # noqa: ANN401 - any JSON
    """An object of the API server, or a part of it; `name` is the key that it stands under."""
    if isinstance(value, Mapping):
        return _mapping(value, name)
    if isinstance(value, list):
        return (
            _arguments(value)
            if name in ("args", "command", "engineArgs")
            else [document(each, name) for each in value]
        )
    if isinstance(value, str):
        return HIDDEN if _TELLING.search(name) and not name.endswith(("Ref", "Name")) else text(value)
    return value


def _mapping(value: Mapping[str, Any], name: str) -> dict[str, Any]:
    if name in ("data", "stringData", "binaryData"):
        return dict.fromkeys(value, HIDDEN)
    if name == "annotations":  # the last applied object would bring back all that was hidden
        kept = {key: text(str(inner)) for key, inner in value.items() if key.startswith("tidepool.dev/")}
        return kept | {key: HIDDEN for key in value if key not in kept}
    found = {key: document(inner, key) for key, inner in value.items() if key != "managedFields"}
    if name == "terminated" and value.get("message"):  # the end of the container's log
        found["message"] = log(str(value["message"]))
    if {"name", "value"} <= value.keys() and value["name"] not in _OPEN_ENVIRONMENT:
        found["value"] = HIDDEN
    if name == "env" and "name" not in value:  # a plain mapping of names and values
        found = dict.fromkeys(value, HIDDEN)
    return found


def _arguments(values: list[Any]) -> list[Any]:
    """Arguments; the value of a flag whose name tells of a secret is hidden, after `=` or as the next one."""
    found, hide = [], False
    for each in values:
        word = str(each)
        flag, equals, _ = word.partition("=")
        telling = flag.startswith("-") and _TELLING.search(flag) is not None
        if hide and not word.startswith("-"):
            found.append(HIDDEN)
        elif telling and equals:
            found.append(f"{flag}={HIDDEN}")
        else:
            found.append(text(word))
        hide = telling and not equals
    return found
