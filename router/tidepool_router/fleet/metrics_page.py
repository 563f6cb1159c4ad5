"""Puts two pages of Prometheus' text format together as one that every parser takes. Pure."""

from collections.abc import Iterator
from typing import Final

_SUFFIXES: Final = ("_bucket", "_sum", "_count")


def append_page(own: bytes, other: bytes | None) -> bytes:
    """`own`, then those families of `other` that `own` does not have.

    A family that stands in a page twice makes a parser refuse all of it, and so does a page that goes on after
    OpenMetrics' end mark.
    """
    if other is None:
        return own
    taken = {family for line in own.split(b"\n") if (family := _declared(line)) is not None}
    return own + b"".join(line + b"\n" for line in _without(other, taken))


def _without(page: bytes, taken: set[bytes]) -> Iterator[bytes]:
    skipping = False
    for raw in page.split(b"\n"):
        line = raw.strip()
        declared = _declared(line)
        if declared is not None:
            skipping = declared in taken
        elif not line or line.startswith(b"#") or (not skipping and taken and _family(line) in taken):
            continue
        if not skipping:
            yield line


def _declared(line: bytes) -> bytes | None:
    if line.startswith((b"# HELP ", b"# TYPE ")):
        parts = line.split(None, 3)
        return parts[2] if len(parts) > 2 else None
    return None


def _family(line: bytes) -> bytes:
    name = line.partition(b"{")[0].partition(b" ")[0]
    for suffix in _SUFFIXES:
        name = name.removesuffix(suffix.encode())
    return name
