"""What the front of a large body says, whose end has not come. PURE.

Members that stand behind the front are not known: a request is routed by the model that the front names, and
counts with all its bytes.
"""

import json
import re
from collections.abc import Callable
from typing import Any, Final, NamedTuple

import msgspec

from tidepool_router.facts import Api, RequestFacts
from tidepool_router.wire.body import AUDIO_BYTES_PER_TEXT_BYTE, cap_of, own_priority, prompt_of, spliced
from tidepool_router.wire.models import Body, Told, decode_told
from tidepool_router.wire.multipart import is_form, read_parts

# As in body.py: walks one JSON value at C speed, in latin-1 so that an index into the text is one into the bytes.
_scan_value: Final[Callable[[str, int], tuple[Any, int]]] = json.JSONDecoder().scan_once  # type: ignore[attr-defined]
_SPACE: Final = re.compile(r"[ \t\r\n]*")
_PROMPTS: Final = frozenset(
    (
        "messages",
        "prompt",
        "input",
        "tools",
        "documents",
        "system",
        "instructions",
        "query",
        "queries",
        "texts",
        "text_1",
        "text_2",
    )
)
_PLAIN: Final = frozenset(
    ("model", "stream", "n", "max_tokens", "max_completion_tokens", "max_output_tokens", "priority")
)
_HEAD_BYTES: Final = 32
_MOST_CHOICES: Final = 1024


class Front(NamedTuple):
    """`model_at` are the places of the model's value; without one the model is not known, and "" in the facts."""

    facts: RequestFacts
    model_at: tuple[tuple[int, int], ...]


def read_front(
    api: Api, path: str, front: bytes, size_bytes: int, content_type: bytes = b"", session: str | None = None
) -> Front | None:
    """Facts as far as they are known; None: wait for the whole. `size_bytes` is the whole body's, 0: unknown."""
    size_bytes = max(size_bytes, len(front))
    if is_form(content_type):
        return _form(RequestFacts(api, path, "", body_bytes=size_bytes, session=session), front, content_type)
    members = _members(front)
    if members is None:
        return None
    text = memoryview(front)
    found: dict[str, Any] = {}
    model_at: list[tuple[int, int]] = []
    for name, value, start, end in members:
        if name in _PROMPTS:
            found[name] = msgspec.Raw(bytes(text[start:end]))
        elif name in _PLAIN:
            found[name] = value
        if name == "model" and end < len(front):
            found[name] = _name(front[start:end])
            if found[name]:
                model_at.append((start, end))
    model = found.get("model") or ""
    fields = Body(**found)
    head = front[:_HEAD_BYTES]
    prompt_bytes, prefix = prompt_of(fields, spaced=b'": ' in head or b"\n" in head)
    facts = RequestFacts(
        api,
        path,
        model,
        fields.stream is True,
        cap_of(fields),
        min(fields.n, _MOST_CHOICES) if type(fields.n) is int and fields.n > 0 else 1,
        prompt_bytes + size_bytes - len(front),
        size_bytes,
        session=session,
        prefix=prefix,
        engine_priority=None if fields.priority is None else own_priority(fields.priority),
    )
    return Front(facts, tuple(model_at))


def told_of(facts: RequestFacts, model: str) -> bytes:
    """What the next router should know of a body whose end it does not wait for; `model` is its name by now."""
    told = Told(model, facts.stream, facts.max_tokens, facts.choices)
    return json.dumps(msgspec.to_builtins(told)).encode()  # ASCII, whatever the name


def with_told(facts: RequestFacts, told: bytes) -> RequestFacts:
    """The facts of a front, and what a gateway has told; what cannot be read tells nothing."""
    try:
        known = decode_told(told)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return facts
    cap = known.max_tokens
    return msgspec.structs.replace(
        facts,
        model=known.model,
        stream=known.stream,
        max_tokens=cap if cap is None or cap >= 0 else None,
        choices=min(max(1, known.n), _MOST_CHOICES),
    )


def rename_front(
    front: bytes, new: str, model_at: tuple[tuple[int, int], ...], content_type: bytes = b""
) -> bytes:
    """The front with another model's name in these places; every other byte stays."""
    value = new.encode() if is_form(content_type) else json.dumps(new).encode()
    return spliced(front, [(start, end, value) for start, end in model_at])


def set_front_priority(front: bytes, value: int) -> bytes:
    """The front with `priority` of this value as its first member; one of its own was made another name."""
    brace = front.index(b"{") + 1
    return spliced(front, [(brace, brace, b'"priority":%d,' % value)])


def _name(value: bytes) -> str:
    """A model's name; "" for what is none: the whole body is then refused, in the words for it."""
    try:
        name = json.loads(value)
    except ValueError:
        return ""
    return name if isinstance(name, str) else ""


def _form(facts: RequestFacts, front: bytes, content_type: bytes) -> Front | None:
    try:
        parts = read_parts(front, content_type)  # those whose end has come
    except ValueError:
        return None
    fields = [part for part in parts if not part.is_file]
    named = [part for part in fields if part.name == b"model"]
    known = sum(part.end - part.start for part in fields if part.name == b"prompt")
    facts = msgspec.structs.replace(
        facts,
        model=front[named[-1].start : named[-1].end].decode("utf-8", "replace") if named else "",
        prompt_bytes=known + facts.body_bytes // AUDIO_BYTES_PER_TEXT_BYTE,
    )
    return Front(facts, tuple((part.start, part.end) for part in named))


def _members(front: bytes) -> list[tuple[str, Any, int, int]] | None:
    """Name, value, start and end of each member, the last one as far as it has come; None: this is no object."""
    text = front.decode("latin-1")
    at = _skip(text, 0)
    if text[at : at + 1] != "{":
        return None
    members: list[tuple[str, Any, int, int]] = []
    sign = ","
    try:
        while sign == ",":
            name, end = _scan_value(text, _skip(text, at + 1))
            start = _skip(text, _skip(text, end) + 1)
            value, end = _value(text, start)
            members.append((str(name), value, start, end))
            at = _skip(text, end)
            sign = text[at : at + 1]
    except (ValueError, StopIteration):  # in the middle of a name
        pass
    except RecursionError:
        return None
    return members


def _value(text: str, start: int) -> tuple[Any, int]:
    """A value and its end; None and the text's where the value goes on behind it."""
    try:
        value, end = _scan_value(text, start)
    except (ValueError, StopIteration):
        return None, len(text)
    return (value, end) if end < len(text) else (None, end)  # a number may go on


def _skip(text: str, at: int) -> int:
    match = _SPACE.match(text, at)
    return at if match is None else match.end()
