"""Forms with parts (RFC 7578), as audio uploads are: which fields a body has, and where each value stands."""

import re
from typing import Final, NamedTuple

_BOUNDARY: Final = re.compile(rb';[ \t]*boundary=(?:"([^"]{1,70})"|([^;\s"]{1,70}))', re.IGNORECASE)
_DISPOSITION: Final = re.compile(rb"(?:^|\r\n)content-disposition:[ \t]*form-data([^\r\n]*)", re.IGNORECASE)
# Taken one after the other from the left, so that a quoted value cannot pass for a parameter.
_PARAMETER: Final = re.compile(rb';[ \t]*([^\s=;"]+)=(?:"((?:[^"\\]|\\.)*)"|([^;\s"]*))')
_BREAK: Final = b"\r\n"
# As many fields as vLLM's server reads before it refuses.
_MOST_PARTS: Final = 1000


class Part(NamedTuple):
    """One part: its name, whether it is a file, and its value's place in the body."""

    name: bytes
    is_file: bool
    start: int
    end: int


def is_form(content_type: bytes) -> bool:
    """Whether the body is a form with parts."""
    return content_type[:19].lower() == b"multipart/form-data"


def read_parts(body: bytes, content_type: bytes) -> list[Part]:
    """All parts in their order; what stands before the first delimiter and after the last one is no part.

    A part without an end is left out: the engine has the last word on such a body. Raises ValueError, with a
    sentence for the client, when the type names no boundary or there are more parts than an engine reads.
    """
    found = _BOUNDARY.search(content_type)
    if found is None:
        raise ValueError(
            "the Content-Type multipart/form-data has no boundary; let your HTTP library set the header"
        )
    delimiter = b"--" + (found[1] or found[2])
    parts: list[Part] = []
    at = 0 if body.startswith(delimiter) else body.find(_BREAK + delimiter) + len(_BREAK)
    if at < len(_BREAK) and not body.startswith(delimiter):
        return parts
    while True:
        line_end = body.find(_BREAK, at + len(delimiter))
        if line_end < 0 or body[at + len(delimiter) : at + len(delimiter) + 2] == b"--":
            return parts
        end = body.find(_BREAK + delimiter, line_end)
        if end < 0:
            return parts
        if len(parts) == _MOST_PARTS:
            raise ValueError(f"the form has more than {_MOST_PARTS} parts")
        part = _part(body, line_end, end)
        if part is not None:
            parts.append(part)
        at = end + len(_BREAK)


def _part(body: bytes, start: int, end: int) -> Part | None:
    """The part whose head follows the line break at `start`."""
    head_end = body.find(_BREAK + _BREAK, start, end)
    if head_end < 0:
        return None
    disposition = _DISPOSITION.search(body[start:head_end])
    if disposition is None:
        return None
    parameters = {name.lower(): quoted or plain for name, quoted, plain in _PARAMETER.findall(disposition[1])}
    return Part(parameters.get(b"name", b""), b"filename" in parameters, head_end + 4, end)
