"""Prompts as an attribute of a span, for those who switched that on. PURE."""

from typing import Any, Final

import msgspec

from tidepool_router.facts import Api

# Longer ones are left out and not cut: half a JSON text helps nobody, and collectors refuse long attributes.
LONGEST_BYTES: Final = 65_536


def input_messages(api: Api, body: bytes) -> dict[str, str]:
    """`gen_ai.input.messages`, in the form that the conventions give it; nothing for what has no messages."""
    if len(body) > LONGEST_BYTES:
        return {}
    try:
        document: Any = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return {}
    if not isinstance(document, dict):
        return {}
    if api in (Api.CHAT, Api.MESSAGES):
        messages = document.get("messages")
    elif api is Api.RESPONSES:
        messages = document.get("input")
    else:
        messages = document.get("prompt", document.get("input"))
    if messages is None:
        return {}
    if not isinstance(messages, list) or not all(isinstance(message, dict) for message in messages):
        messages = [{"role": "user", "content": messages}]
    told = [{"role": message.get("role", "user"), "parts": _parts(message.get("content"))} for message in messages]
    return {"gen_ai.input.messages": msgspec.json.encode(told).decode()}


def _parts(content: object) -> list[dict[str, Any]]:
    if isinstance(content, list) and all(isinstance(part, dict) for part in content):
        return [
            {"type": "text", "content": part["text"]} if isinstance(part.get("text"), str) else {"type": "other"}
            for part in content
        ]
    return [] if content is None else [{"type": "text", "content": content}]
