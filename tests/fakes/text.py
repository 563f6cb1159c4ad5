"""Tokens and words of the engine double: four characters of a prompt are a token, each output token is a word."""

import zlib
from collections.abc import Mapping, Sequence
from typing import Any

CHARACTERS_PER_TOKEN = 4
_WORDS = (" reef", " tide", " pool", " wave", " kelp", " sand", " crab", " gull", " foam", " salt")


def tokenize(text: str) -> list[int]:
    """One id for each four characters; equal text gives equal ids."""
    pieces = (text[i : i + CHARACTERS_PER_TOKEN] for i in range(0, len(text), CHARACTERS_PER_TOKEN))
    return [zlib.crc32(piece.encode("utf-8", "surrogatepass")) % 32000 for piece in pieces] or [1]


def render_chat(messages: Sequence[Mapping[str, Any]]) -> str:
    """The double's chat template."""
    parts = [f"<|{message.get('role')}|>{_content(message.get('content'))}\n" for message in messages]
    return "".join(parts) + "<|assistant|>"


def word(index: int) -> str:
    """Text of the output token at `index`, counted from 0."""
    return _WORDS[index % len(_WORDS)]


def words(start: int, count: int) -> str:
    """Text of `count` output tokens from `start` on."""
    return "".join(word(start + i) for i in range(count))


def output_ids(text: str) -> list[int]:
    """Ids of the output tokens that make this text: one a word."""
    return [zlib.crc32(word.encode()) % 32000 for word in text.split()]


def _content(content: object) -> str:
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        return "".join(str(part.get("text", "")) for part in content if isinstance(part, dict))
    return ""
