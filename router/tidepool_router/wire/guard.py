"""A top-level name of a JSON body, kept from the engine while the body goes by in pieces. PURE.

A large body is not there whole when its request begins, and of equal names the last one counts for the engine. So
what a client names must not undo what was spliced in: its name is made another one of the same length, which
engines ignore; no other byte changes.

Theory: strings are taken out by one regular expression, at C speed. What is left is structure, and the count of
its brackets is the depth. A piece ends within a string or not; where that may be the beginning of the name, it
waits for the next piece. Each byte is looked at a fixed number of times, whatever it says.
"""

import re
from typing import Final

# A whole string, which goes; or one without its end, of which all is left.
_STRINGS: Final = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"|(")([^"\\]*(?:\\.[^"\\]*)*\\?)\Z', re.DOTALL)
_LEFT: Final = rb"\1\2"
_TO_END: Final = re.compile(rb'[^"\\]*(?:\\.[^"\\]*)*', re.DOTALL)
_SPACE: Final = re.compile(rb"[ \t\r\n]*")
# An escaped character takes six bytes.
_LONGEST_TIMES: Final = 6
_MOST_SPACE_BYTES: Final = 4096
_LETTER: Final = ord("_")
_DIGIT: Final = ord("a")
_LAST_DIGIT: Final = ord("f")


class NameGuard:
    """One body: each piece goes through `feed`, the front first, and `end` is the rest.

    What is no JSON may come out in any way: the engine refuses it.
    """

    __slots__ = ("_depth", "_held", "_inside", "_longest", "_name")

    def __init__(self, name: bytes) -> None:
        """`name` ends with a letter beyond f, which no hex digit of an escape can be."""
        letters = b"".join(b"(?:%c|\\\\u00(?i:%02x))" % (letter, letter) for letter in name)
        self._name = re.compile(b'"' + letters + b'"')
        self._longest = _LONGEST_TIMES * len(name) + 2
        self._depth = 0
        self._inside = False  # a string that is too long to be the name
        self._held = b""

    def feed(self, data: bytes) -> bytes:
        """What may go out now."""
        if self._held:
            data, self._held = self._held + data, b""
        return self._pass(data)

    def end(self) -> bytes:
        """What was held back."""
        held, self._held = self._held, b""
        return held

    def _pass(self, data: bytes) -> bytes:
        at = 0
        found: list[int] = []  # last characters of the name, where it is one
        if self._inside:
            at = _end_of_string(data, 0)
            if at < 0:
                return self._out(data, len(data) - _open_escape(data, 0), found)
            self._inside = False
        while True:
            hit = self._name.search(data, at)
            stop = len(data) if hit is None else hit.start()
            left = _STRINGS.sub(_LEFT, data[at:stop])
            quote = left.find(b'"')
            self._depth += _deeper(left if quote < 0 else left[:quote])
            if quote >= 0:
                begins = stop - (len(left) - quote)
                at = _end_of_string(data, begins + 1)
                if at >= 0:
                    continue  # what looked like the name stands in a string
                if len(data) - begins > self._longest:
                    self._inside = True
                    return self._out(data, len(data) - _open_escape(data, begins + 1), found)
                return self._out(data, begins, found)
            if hit is None:
                return self._out(data, len(data), found)
            after = _SPACE.match(data, hit.end())
            colon = hit.end() if after is None else after.end()
            if self._depth == 1 and colon == len(data) and colon - stop <= _MOST_SPACE_BYTES:
                return self._out(data, stop, found)  # a name or a value: the next piece tells
            if self._depth == 1 and data[colon : colon + 1] in (b":", b""):
                found.append(hit.end() - 2)
            at = hit.end()

    def _out(self, data: bytes, end: int, found: list[int]) -> bytes:
        """All up to `end`, with other names in place of what was found; the rest waits."""
        if found:
            changed = bytearray(data)
            for last in found:
                changed[last] = _LETTER if changed[last] > _LAST_DIGIT else _DIGIT
            data = bytes(changed)
        self._held = data[end:]
        return data if end == len(data) else data[:end]


def _end_of_string(data: bytes, start: int) -> int:
    """Behind the quote that ends the string whose text is at `start`; -1: it goes on."""
    found = _TO_END.match(data, start)
    end = start if found is None else found.end()
    return end + 1 if data[end : end + 1] == b'"' else -1


def _open_escape(data: bytes, start: int) -> int:
    """1 where the text at `start` ends with a backslash whose character has not come."""
    found = _TO_END.match(data, start)
    return 0 if found is None else len(data) - found.end()


def _deeper(structure: bytes) -> int:
    count = structure.count
    return count(b"{") + count(b"[") - count(b"}") - count(b"]")
