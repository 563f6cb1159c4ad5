"""Request bodies: what they say, and the splices that may be made in them."""

import json
import re
from collections.abc import Callable
from typing import Any, Final

import msgspec

from tidepool_router.errors import Refusal, Refused
from tidepool_router.facts import Api, RequestFacts
from tidepool_router.ledger.chain import FIRST_BORDER_BYTES, canonical, chain, seed_of
from tidepool_router.wire.models import NOTHING, Body, decode_body
from tidepool_router.wire.multipart import Part, is_form, read_parts

# Walks one JSON value from an index and says where it ends, at C speed. Bodies are decoded as latin-1 for it, so
# that an index into the text is an index into the bytes; JSON's own characters are ASCII, so nothing is confused.
_scan_value: Final[Callable[[str, int], tuple[Any, int]]] = json.JSONDecoder().scan_once  # type: ignore[attr-defined]
_SPACE: Final = re.compile(r"[ \t\r\n]*")
_ASKED: Final = b'"stream_options":{"include_usage":true}'
_BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"
# More choices than this are refused by the engine, and must not weigh on a pod until then.
_MOST_CHOICES: Final = 1024
# Speech as mp3 has about 16 kB a second, of which Whisper's encoder makes 50 positions (its paper, section 2.2):
# 320 bytes each, where text has 4 a token.
AUDIO_BYTES_PER_TEXT_BYTE: Final = 80
# What engines read as true in a form (pydantic's words).
_TRUE: Final = frozenset((b"true", b"1", b"t", b"yes", b"y", b"on"))
# A client that writes spaces between the parts of its JSON shows it here.
_HEAD_BYTES: Final = 32
_BOLDEST: Final = -(2**63)


def inspect(
    api: Api, path: str, body: bytes, *, content_type: bytes = b"", priority: int = 0, session: str | None = None
) -> RequestFacts:
    """Facts of one request.

    Raises Refused (400) for a body that is no JSON object, or whose `model` is no string.
    """
    if is_form(content_type):
        return _inspect_form(api, path, body, content_type, priority, session)
    fields = _read(body)
    model = fields.model
    if model is None:
        model = ""
    elif type(model) is not str:
        raise _bad_request("the field model is no string; name the model as /v1/models lists it")
    options = fields.stream_options
    head = body[:_HEAD_BYTES]
    prompt_bytes, prefix = prompt_of(fields, spaced=b'": ' in head or b"\n" in head)
    return RequestFacts(
        api,
        path,
        model,
        fields.stream is True,
        cap_of(fields),
        min(fields.n, _MOST_CHOICES) if type(fields.n) is int and fields.n > 0 else 1,
        prompt_bytes,
        len(body),
        priority,
        session,
        type(options) is dict and options.get("include_usage") is True,
        prefix=prefix,
        engine_priority=None if fields.priority is None else own_priority(fields.priority),
    )


def _inspect_form(
    api: Api, path: str, body: bytes, content_type: bytes, priority: int, session: str | None
) -> RequestFacts:
    """As `inspect`, for a form: of equal names the last one counts, as it does for the engine."""
    parts = _parts(body, content_type)
    values = {part.name: body[part.start : part.end] for part in parts if not part.is_file}
    audio_bytes = sum([part.end - part.start for part in parts if part.is_file])
    return RequestFacts(
        api,
        path,
        values.get(b"model", b"").decode("utf-8", "replace"),
        values.get(b"stream", b"").lower() in _TRUE,
        prompt_bytes=len(values.get(b"prompt", b"")) + audio_bytes // AUDIO_BYTES_PER_TEXT_BYTE,
        body_bytes=len(body),
        priority=priority,
        session=session,
        asked_usage=values.get(b"stream_include_usage", b"").lower() in _TRUE,
    )


def _parts(body: bytes, content_type: bytes) -> list[Part]:
    try:
        return read_parts(body, content_type)
    except ValueError as error:
        raise Refused(Refusal(400, "invalid_request_error", "invalid_form", str(error))) from error


def rename_model(body: bytes, new: str, content_type: bytes = b"") -> bytes:
    """The body with its top-level `model` (or its form part of that name) replaced; every other byte stays.

    A body that names it more than once has each replaced. Raises ValueError when it is no JSON object.
    """
    if is_form(content_type):
        named = [part for part in read_parts(body, content_type) if part.name == b"model" and not part.is_file]
        return spliced(body, [(part.start, part.end, new.encode()) for part in named])
    value = json.dumps(new).encode()
    spans = [(start, end) for key, start, end in members_of(body) if key == "model"]
    return spliced(body, [(start, end, value) for start, end in spans])


def ask_usage(body: bytes) -> bytes:
    """The body with `stream_options.include_usage` true; every other byte stays.

    Raises ValueError when it is no JSON object.
    """
    if b'"stream_options"' not in body:
        brace = body.index(b"{") + 1
        comma = b"" if body[brace:].lstrip()[:1] == b"}" else b","
        return b"%b%b%b%b" % (body[:brace], _ASKED, comma, body[brace:])
    return _ask_usage_slowly(body)


def set_priority(body: bytes, value: int, *, named: bool) -> bytes:
    """The body with `priority` of this value; every other byte stays. `named`: it has one already.

    A body that names it more than once has each replaced. Raises ValueError when it is no JSON object.
    """
    number = b"%d" % value
    if named:
        spans = [(start, end, number) for key, start, end in members_of(body) if key == "priority"]
        return spliced(body, spans)
    brace = body.index(b"{") + 1
    comma = b"" if body[brace : brace + 64].lstrip()[:1] == b"}" else b","
    return spliced(body, [(brace, brace, b'"priority":%b%b' % (number, comma))])


def _ask_usage_slowly(body: bytes) -> bytes:
    members = list(members_of(body))
    present = [(start, end) for key, start, end in members if key == "stream_options"]
    if not present:
        brace = body.index(b"{") + 1
        return spliced(body, [(brace, brace, _ASKED + (b"," if members else b""))])
    start, end = present[-1]  # of equal names the last one counts, for json and for the engine
    options = body[start:end]
    if options[:1] != b"{":
        return spliced(body, [(start, end, b'{"include_usage":true}')])
    inner = [(s, e) for key, s, e in members_of(options) if key == "include_usage"]
    if inner:
        return spliced(body, [(start + inner[-1][0], start + inner[-1][1], b"true")])
    comma = b"" if not options[1:-1].strip() else b","
    return spliced(body, [(start + 1, start + 1, b'"include_usage":true' + comma)])


def spliced(body: bytes, changes: list[tuple[int, int, bytes]]) -> bytes:
    """The body with other bytes from start to end of each change; they stand in their order."""
    parts: list[bytes] = []
    at = 0
    for start, end, new in changes:
        parts += (body[at:start], new)
        at = end
    parts.append(body[at:])
    return b"".join(parts)


def members_of(body: bytes) -> list[tuple[str, int, int]]:
    """Name, start and end of each member's value in the outermost object."""
    text = body.decode("latin-1")
    at = _skip(text, len(_BYTE_ORDER_MARK) if body.startswith(_BYTE_ORDER_MARK) else 0)
    if text[at : at + 1] != "{":
        raise ValueError("no JSON object")
    members: list[tuple[str, int, int]] = []
    at = _skip(text, at + 1)
    while text[at : at + 1] != "}":
        try:
            key, end = _scan_value(text, at)
            start = _skip(text, _after(text, _skip(text, end), ":"))
            _, end = _scan_value(text, start)
        except (StopIteration, RecursionError) as error:
            raise ValueError("no JSON object") from error
        members.append((str(key), start, end))
        at = _skip(text, end)
        if text[at : at + 1] == ",":
            at = _skip(text, at + 1)
    return members


def _skip(text: str, at: int) -> int:
    return _SPACE.match(text, at).end()  # type: ignore[union-attr]  # matches the empty string anywhere


def _after(text: str, at: int, sign: str) -> int:
    if text[at : at + 1] != sign:
        raise ValueError("no JSON object")
    return at + 1


def _read(body: bytes) -> Body:
    try:
        return decode_body(body)
    except (msgspec.DecodeError, RecursionError):
        return _read_leniently(body)


def _read_leniently(body: bytes) -> Body:
    """What engines accept goes beyond strict JSON (NaN, a byte order mark): their parser has the last word."""
    try:
        document = json.loads(body.decode("utf-8-sig", "surrogatepass"))
    except (ValueError, RecursionError) as error:
        reason = "it is nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise _bad_request(f"the body is not valid JSON: {reason}") from error
    if not isinstance(document, dict):
        raise _bad_request("the body must be a JSON object")
    return Body(
        model=document.get("model"),
        stream=document.get("stream"),
        stream_options=document.get("stream_options"),
        max_tokens=document.get("max_tokens"),
        n=document.get("n"),
        priority=document.get("priority"),
        messages=msgspec.Raw(body),
    )


def own_priority(value: object) -> int:
    """What is no whole number is taken for the boldest, and so is replaced: engines read "-5" and -5.0 as well."""
    return value if type(value) is int else _BOLDEST


def cap_of(fields: Body) -> int | None:
    """The cap on a choice's output tokens, under the names of all APIs."""
    for cap in (fields.max_completion_tokens, fields.max_tokens, fields.max_output_tokens):
        if type(cap) is int and cap >= 0:
            return cap
    return None


def prompt_of(fields: Body, *, spaced: bool) -> tuple[int, tuple[int, ...]]:
    """Bytes of what becomes prompt tokens, and the hashes of its beginnings, in the order of chat templates."""
    messages = fields.messages
    told: tuple[Any, ...] = (
        fields.tools,
        fields.system,
        fields.instructions,
        messages,
        fields.prompt,
        fields.input,
    )
    if messages is NOTHING:
        told += (fields.documents, fields.query, fields.queries, fields.text_1, fields.text_2, fields.texts)
    elif fields.documents is not NOTHING:
        told += (fields.documents,)
    parts = [part for part in told if part is not NOTHING]
    if not parts:
        return 0, ()
    text = memoryview(parts[0]) if len(parts) == 1 else memoryview(b"".join([memoryview(part) for part in parts]))
    size = text.nbytes
    if size < FIRST_BORDER_BYTES:
        return size, ()
    salt = fields.cache_salt
    return size, chain(canonical(text) if spaced else text, seed_of(salt) if type(salt) is str else 0)


def _bad_request(message: str) -> Refused:
    return Refused(Refusal(400, "invalid_request_error", "invalid_json", message))
