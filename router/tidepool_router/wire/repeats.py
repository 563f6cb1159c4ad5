"""Heads that a connection repeats, recognised by comparing bytes, so that only a head of a new shape is parsed.

Clients and engines send the same head again and again on a connection, but for a few values. A `Repeat` is made of
a head that the parser has read and accepted, and matches another one only if all else is equal byte by byte; it
accepts nothing that the parser would not. What it does not match goes to the parser.

Which values vary is known for some names, and seen for the others (a trace's context, a client's own counter): two
heads that the parser has read differ there. What the router acts on never varies unless it is known to.
"""

from collections.abc import Collection
from typing import Final

_END: Final = b"\r\n\r\n"
# A varying value is one of these characters alone: nothing in it could be taken for an end of line.
_PLAIN: Final = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.;:,=/+ "
_LONGEST_VALUE: Final = 512
_LONGEST_NUMBER: Final = 10
_SPACE: Final = 32
# A head longer than this is not kept to be compared with the next one.
LONGEST_KEPT_BYTES: Final = 4096


class Repeat:
    """The shape of a head whose values of `names` vary; `names[length_at]` is content-length.

    `places` tells for each name where its value stands in the lines that are passed on, -1 where it does not, and
    `passes` whether any does. `end` is the length of the head that matched last, `hits` counts matches.
    """

    __slots__ = ("_pieces", "end", "hits", "length_at", "names", "passes", "places")

    def __init__(self, names: list[bytes], pieces: list[bytes]) -> None:
        self.names = names
        self.length_at = names.index(b"content-length")
        self.places = [-1] * len(names)
        self.passes = False
        self.end = 0
        self.hits = 0
        self._pieces = pieces

    def match(self, data: bytes) -> list[bytes] | None:
        """The values in the order of `names`, if `data` begins with such a head; content-length is a number."""
        pieces = self._pieces
        at = 0
        values: list[bytes] = []
        for piece in pieces:
            if at:
                end = data.find(b"\r", at, at + _LONGEST_VALUE)
                if end < 0:
                    return None
                values.append(data[at:end])
                at = end
            if not data.startswith(piece, at):
                return None
            at += len(piece)
        length_at = self.length_at
        for place in range(len(values)):
            value = values[place]
            if place == length_at:
                if not value.isdigit() or len(value) > _LONGEST_NUMBER:
                    return None
            elif not value or value.translate(None, _PLAIN) or value[0] == _SPACE or value[-1] == _SPACE:
                return None
        self.end = at
        self.hits += 1
        return values

    def place(self, lines: list[bytes], special: Collection[bytes]) -> bool:
        """Find the values among the lines (see messages.py); False when one is neither there nor in `special`.

        False too for a name that is there twice: which of them varies is not known.
        """
        found = lines[::4]
        for number, name in enumerate(self.names):
            if found.count(name) > 1:
                return False
            if name in found:
                self.places[number] = 4 * found.index(name) + 2
                self.passes = True
            elif name not in special:
                return False
        return True


def head_of(data: bytes) -> bytes:
    """The head that `data` begins with, its empty line included; empty when it does not end in `data`."""
    end = data.find(_END)
    return data[: end + len(_END)] if end >= 0 else b""


def repeat_of(
    head: bytes, variable: frozenset[bytes], before: bytes = b"", fixed_names: Collection[bytes] = ()
) -> Repeat | None:
    """The shape of a head that was accepted; None when it has no plain content-length, or one too many.

    `variable` are the names, in lower case, whose values may differ in the next one; and those may that differ
    from the head `before`, but for the names in `fixed_names`.
    """
    lines = head[: -len(_END)].split(b"\r\n")
    earlier = before[: -len(_END)].split(b"\r\n")
    if len(earlier) != len(lines):
        earlier = lines
    names: list[bytes] = []
    pieces: list[bytes] = []
    fixed = bytearray()
    for number, line in enumerate(lines):
        name, _, value = line.partition(b":")
        lower = name.lower()
        varies = lower in variable
        if not varies and line != earlier[number] and lower not in fixed_names:
            varies = earlier[number].startswith(name + b":")
        if number == 0 or not varies:
            fixed += line + b"\r\n"
            continue
        plain = value.strip(b" \t")
        if not plain or lower in names:
            return None
        start = line.index(plain, len(name) + 1)
        pieces.append(bytes(fixed) + line[:start])
        fixed = bytearray(line[start + len(plain) :] + b"\r\n")
        names.append(lower)
    if b"content-length" not in names:
        return None
    pieces.append(bytes(fixed) + b"\r\n")
    return Repeat(names, pieces)
