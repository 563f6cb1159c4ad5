"""Heads that a connection repeats, recognised by comparing bytes, so that only a head of a new shape is parsed.

Clients and engines send the same head again and again on a connection, but for a few values. A `Repeat` is made of
a head that the parser has read and accepted, and matches another one only if all else is equal byte by byte; it
accepts nothing that the parser would not. What it does not match goes to the parser.
"""

from typing import Final

_END: Final = b"\r\n\r\n"
# A varying value is one of these characters alone: nothing in it could be taken for an end of line.
_PLAIN: Final = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.;:,=/+ "
_LONGEST_VALUE: Final = 512
_LONGEST_NUMBER: Final = 10


class Repeat:
    """The shape of a head whose values of `names` vary; `names[length_at]` is content-length.

    `end` is the length of the head that matched last, `hits` counts matches.
    """

    __slots__ = ("_pieces", "end", "hits", "length_at", "names")

    def __init__(self, names: list[bytes], pieces: list[bytes]) -> None:
        self.names = names
        self.length_at = names.index(b"content-length")
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
            elif value.translate(None, _PLAIN):
                return None
        self.end = at
        self.hits += 1
        return values


def head_of(data: bytes) -> bytes:
    """The head that `data` begins with, its empty line included; empty when it does not end in `data`."""
    end = data.find(_END)
    return data[: end + len(_END)] if end >= 0 else b""


def repeat_of(head: bytes, variable: frozenset[bytes]) -> Repeat | None:
    """The shape of a head that was accepted; None when it has no plain content-length, or one too many.

    `variable` are the names, in lower case, whose values may differ in the next one.
    """
    names: list[bytes] = []
    pieces: list[bytes] = []
    fixed = bytearray()
    for number, line in enumerate(head[: -len(_END)].split(b"\r\n")):
        name, _, value = line.partition(b":")
        lower = name.lower()
        if number == 0 or lower not in variable:
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
