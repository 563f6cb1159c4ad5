"""HTTP/1.x answers: bytes in, heads and parts of bodies out (sans-I/O, on httptools); see messages.py."""

from typing import Final, cast

import httptools

from tidepool_router.wire.headers import (
    ANSWER_SPECIAL,
    ANSWER_VARIES,
    COLON,
    CRLF,
    LEARN_EVERY,
    NEVER_REPEATED,
    WITHOUT_LENGTH,
    without_named,
)
from tidepool_router.wire.repeats import LONGEST_KEPT_BYTES, Repeat, head_of, repeat_of

_HEX: Final = b"0123456789abcdefABCDEF"
# The line of a chunk's size is shorter than this; whatever stands beside the size is for the parser.
_LONGEST_SIZE: Final = 10
# A chunk that a read has cut waits for its end when it is at most this long: nobody can use half of an event.
_LONGEST_CUT_BYTES: Final = 2048


class AnswerReader:
    """Reads the answers of one upstream connection, one request at a time.

    `head_ready`: status, `lines` and `special` hold. `parts` collects body pieces until the caller takes them;
    `framed` is the chunks in which all of these came, when they came as whole chunks, else empty.
    `complete`: the answer has ended and the connection may be used again when `reusable`.
    """

    __slots__ = (
        "_between_chunks",
        "_cut",
        "_head_limit",
        "_informational",
        "_known_lines",
        "_known_special",
        "_known_status",
        "_last_head",
        "_parsed",
        "_parser",
        "_quiet",
        "_repeat",
        "complete",
        "framed",
        "head_ready",
        "lines",
        "no_body",
        "parts",
        "reusable",
        "special",
        "status",
    )

    def __init__(self, head_limit: int) -> None:
        self._parser = httptools.HttpResponseParser(self)
        self._head_limit = head_limit
        self._quiet = 0
        self._informational = False
        self._repeat: Repeat | None = None
        self._known_lines: list[bytes] = []
        self._known_special: dict[bytes, bytes] = {}
        self._known_status = 0
        self._last_head = b""
        self._parsed = 0
        self.no_body = False
        self.reset(no_body=False)

    def end(self) -> None:
        """The connection is closed; nothing may be fed any more. As RequestReader's: the parser is let go."""
        self._parser = cast("httptools.HttpResponseParser", None)

    def reset(self, *, no_body: bool) -> None:
        """Expect the answer to a new request; `no_body` for HEAD, whose answers announce what they do not send."""
        self.status = 0
        self.lines: list[bytes] = []
        self.special: dict[bytes, bytes] = {}
        self.parts: list[bytes] = []
        self.framed = b""
        self._between_chunks = False
        self._cut = b""
        self.head_ready = False
        self.complete = False
        self.reusable = True
        self.no_body = no_body

    @property
    def began(self) -> bool:
        """Whether a byte of the answer has come."""
        return self._quiet > 0 or self.head_ready

    @property
    def ends_with_connection(self) -> bool:
        """Whether the body has no length of its own and lasts until the connection closes."""
        special = self.special
        return self.head_ready and b"content-length" not in special and b"transfer-encoding" not in special

    def feed(self, data: bytes) -> None:
        """Raises ValueError when the bytes are no answer."""
        if self._between_chunks:
            if self._cut:
                data, self._cut = self._cut + data, b""
            data = self._feed_chunks(data)
            if not data:
                return
        if self.head_ready or self._quiet:
            self._parse(data)
            return
        repeat = self._repeat
        if repeat is not None and not self.no_body and self._feed_known(data, repeat):
            return
        self._parse(data)
        if self.complete and not self.no_body:
            self._learn(data)

    def _feed_chunks(self, data: bytes) -> bytes:
        """Take whole chunks off the front and keep a short one that is cut; returns what only the parser can read.

        The parser has seen all before, and stands between two chunks.
        """
        parts = self.parts
        fresh = not parts
        at, total = 0, len(data)
        while at < total:
            line_end = data.find(CRLF, at, at + _LONGEST_SIZE)
            digits = data[at : line_end if line_end >= 0 else total]
            if line_end < 0 and len(digits) < _LONGEST_SIZE and not digits.rstrip(b"\r").translate(None, _HEX):
                self._cut = data[at:]  # within the line of the size
                break
            if line_end <= at or digits.translate(None, _HEX):
                break
            start = line_end + 2
            end = start + int(digits, 16)
            if end == start:
                break
            if end + 2 > total:
                if end - at <= _LONGEST_CUT_BYTES:
                    self._cut = data[at:]
                break
            if data[end : end + 2] != CRLF:
                break
            parts.append(data[start:end])
            at = end + 2
        if at == total:
            self.framed = data if fresh else b""
            return b""
        if not self._cut:
            self.framed = b""
            return data[at:] if at else data
        self.framed = data[:at] if fresh else b""
        return b""

    def _feed_known(self, data: bytes, repeat: Repeat) -> bool:
        """Whether the bytes are one whole answer of the known shape."""
        values = repeat.match(data)
        if values is None:
            return False
        start = repeat.end
        if start > self._head_limit or len(data) != start + int(values[repeat.length_at]):
            return False
        self.status = self._known_status
        lines = self._known_lines
        special = self._known_special.copy()
        if repeat.passes:
            lines = lines.copy()
        for number in range(len(values)):
            place = repeat.places[number]
            if place >= 0:
                lines[place] = values[number]
            else:
                special[repeat.names[number]] = values[number]
        self.lines = lines
        self.special = special
        if len(data) > start:
            self.parts.append(data[start:])
        self.head_ready = self.complete = self.reusable = True
        return True

    def _learn(self, data: bytes) -> None:
        """As RequestReader does: the shape of a whole answer whose length is told by content-length."""
        self._parsed += 1
        repeat = self._repeat
        worked = repeat is not None and repeat.hits > 1
        head = head_of(data)
        before, self._last_head = self._last_head, head if len(head) <= LONGEST_KEPT_BYTES else b""
        if self._parsed % LEARN_EVERY != 2 and not worked:
            return
        special = self.special
        whole = len(data) == len(head) + sum(map(len, self.parts))
        if not head or not whole or not self.reusable or not NEVER_REPEATED.isdisjoint(special):
            return
        if self.status in WITHOUT_LENGTH:
            return
        varied = ANSWER_VARIES if repeat is None else ANSWER_VARIES.union(repeat.names)
        shape = repeat_of(head, varied, before, ANSWER_SPECIAL)
        self._repeat = shape if shape is not None and shape.place(self.lines, special) else None
        self._known_status = self.status
        self._known_lines = self.lines
        self._known_special = special

    def _parse(self, data: bytes) -> None:
        self._quiet += len(data)
        self._between_chunks = False
        self.framed = b""
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            if not (self.no_body and self.complete):
                raise ValueError(f"not an HTTP answer: {error}") from error
        if self._between_chunks:  # and not within the line that begins the next one
            self._between_chunks = data.endswith(CRLF)
        if self._quiet > self._head_limit:
            raise ValueError(f"a head of more than {self._head_limit} bytes")

    def on_header(self, name: bytes, value: bytes) -> None:
        """httptools: one header line."""
        lower = name.lower()
        passed_on = ANSWER_SPECIAL.get(lower)
        if passed_on is None:
            self.lines += (lower, COLON, value, CRLF)
            return
        self.special[lower] = value
        if passed_on:
            self.lines += (lower, COLON, value, CRLF)

    def on_headers_complete(self) -> None:
        """httptools: the head is whole."""
        status = self._parser.get_status_code()
        self._informational = 100 <= status < 200
        if self._informational:
            self.lines, self.special = [], {}
            if status == 101:
                raise ValueError("an upgrade that nobody asked for")
            return
        self._quiet = 0
        self.status = status
        self.head_ready = True
        connection = self.special.get(b"connection")
        if connection is not None:
            self.lines = without_named(self.lines, connection)
        if self.no_body:
            self.complete = True
            self.reusable = False

    def on_body(self, part: bytes) -> None:
        """httptools: a piece of the body."""
        self._quiet = 0
        self.parts.append(part)

    def on_chunk_header(self) -> None:
        """httptools: the line that begins a chunk."""
        self._between_chunks = False

    def on_chunk_complete(self) -> None:
        """httptools: the end of a chunk."""
        self._between_chunks = True

    def on_message_complete(self) -> None:
        """httptools: the answer is whole."""
        self._between_chunks = False
        if self._informational or self.complete:
            return
        self._quiet = 0
        self.complete = True
        self.reusable = self._parser.should_keep_alive()
