"""HTTP/1.x requests: bytes in, whole requests out (sans-I/O, on httptools).

Both readers, this one and that of answers, split each head into two: `lines`, the header lines that are passed on,
flat as [name, b": ", value, CRLF, ...] so that one join writes them; and `special`, the values that the router
itself acts on. Hop-by-hop headers are only in `special`: nothing of one connection's framing reaches the other.
Names are lower case from here on, values are the bytes that came.
"""

from collections import deque
from collections.abc import Collection
from typing import cast

import httptools

from tidepool_router.errors import Refusal, Refused
from tidepool_router.wire.headers import (
    COLON,
    CRLF,
    GATEWAY_MARK,
    HANDED_ON_MARK,
    LEARN_EVERY,
    NEVER_REPEATED,
    REQUEST_ID,
    REQUEST_SPECIAL,
    REQUEST_VARIES,
    without_named,
)
from tidepool_router.wire.paths import Route, find
from tidepool_router.wire.pieces import BodyFeed, Source
from tidepool_router.wire.repeats import LONGEST_KEPT_BYTES, Repeat, head_of, repeat_of


class Request:
    """One whole request; `body` is without any transfer coding.

    With a `feed` it is not whole: `body` is the front of it, and the rest comes by the feed.
    """

    __slots__ = ("_joined", "body", "feed", "http10", "keep_alive", "lines", "method", "special", "target")

    def __init__(
        self,
        method: bytes,
        target: bytes,
        lines: list[bytes] | None = None,
        special: dict[bytes, bytes] | None = None,
    ) -> None:
        self.method = method
        self.target = target
        self.lines = [] if lines is None else lines
        self.special = {} if special is None else special
        self._joined: bytes | None = None
        self.body = b""
        self.feed: BodyFeed | None = None
        self.http10 = False
        self.keep_alive = True

    @property
    def route(self) -> Route | None:
        """What the path is to the router; None: unknown."""
        return find(self.target)

    @property
    def joined(self) -> bytes:
        """`lines` as they go on the wire."""
        joined = self._joined
        if joined is None:
            joined = self._joined = b"".join(self.lines)
        return joined

    def again(self, repeat: Repeat, values: list[bytes], body: bytes) -> "Request":
        """The next request with this one's head, but for the values that vary."""
        special = self.special.copy()
        if not repeat.passes:
            for number in range(len(values)):
                special[repeat.names[number]] = values[number]
            request = Request(self.method, self.target, self.lines, special)
            request._joined = self.joined
        else:
            lines = self.lines.copy()
            for number in range(len(values)):
                place = repeat.places[number]
                if place < 0:
                    special[repeat.names[number]] = values[number]
                else:
                    lines[place] = values[number]
            request = Request(self.method, self.target, lines, special)
        request.body = body
        return request

    def as_came(self) -> "Request":
        """Its head alone, which nobody changes."""
        return Request(self.method, self.target, self.lines, self.special.copy())

    def rewrite(self, drop: Collection[bytes], add: list[bytes]) -> None:
        """Pass on other lines than those that came, which the connection's next request may share and keeps."""
        lines = self.lines
        kept: list[bytes] = []
        for at in range(0, len(lines), 4):
            if lines[at] not in drop:
                kept += lines[at : at + 4]
        self.lines = kept + add
        self._joined = None

    def headers(self) -> list[tuple[bytes, bytes]]:
        """Name and value of the headers that are passed on."""
        return list(zip(self.lines[::4], self.lines[2::4], strict=True))

    def __repr__(self) -> str:
        return f"<Request {self.method.decode('latin-1')} {self.target.decode('latin-1')} {len(self.body)} bytes>"


class RequestReader:
    """Reads requests from one connection into `ready`.

    `head_limit` bounds the bytes of a head (431), `body_limit` those of a body (413). `reading_head` and
    `reading_body` say what a timeout would be about. A body of more than `large_bytes` can be opened when
    `front_bytes` of it have come; 0: none can.
    """

    __slots__ = (
        "_asked",
        "_body_limit",
        "_feed",
        "_front_bytes",
        "_head_limit",
        "_known",
        "_large_bytes",
        "_last_head",
        "_lines",
        "_parsed",
        "_parser",
        "_parts",
        "_quiet",
        "_repeat",
        "_request",
        "_size",
        "_special",
        "_target",
        "_upgrading",
        "reading_body",
        "reading_head",
        "ready",
        "wants_continue",
    )

    def __init__(self, head_limit: int, body_limit: int, front_bytes: int = 0, large_bytes: int = 0) -> None:
        self.ready: deque[Request] = deque()
        self.reading_head = False
        self.reading_body = False
        self.wants_continue = False
        self._head_limit = head_limit
        self._body_limit = body_limit
        self._front_bytes = front_bytes
        self._large_bytes = large_bytes
        self._feed: BodyFeed | None = None  # of the request whose rest is coming
        self._asked = False  # whether the request that is coming was opened, or is not to be
        # Bytes that have led to nothing yet: a head, a trailer or a chunk extension without an end.
        self._quiet = 0
        self._target = b""
        self._lines: list[bytes] = []
        self._special: dict[bytes, bytes] = {}
        self._request: Request | None = None
        self._parts: list[bytes] = []
        self._size = 0
        self._upgrading = False
        self._parser = httptools.HttpRequestParser(self)
        self._repeat: Repeat | None = None
        self._known: Request | None = None  # of whose head `_repeat` is the shape
        self._last_head = b""
        self._parsed = 0

    @property
    def arrived_bytes(self) -> int:
        """What is held of a body that is not whole yet."""
        return self._size if self._feed is None else 0

    @property
    def length(self) -> int | None:
        """What the head says of the size of the body that is coming; None: nothing."""
        request = self._request
        length = None if request is None else request.special.get(b"content-length")
        return None if length is None else int(length)

    @property
    def may_open(self) -> bool:
        """Whether enough of a large body has come for its request to begin."""
        request = self._request
        if self._asked or not 0 < self._front_bytes <= self._size or request is None or self._upgrading:
            return False
        length = request.special.get(b"content-length")
        return length is None or int(length) > self._large_bytes

    def open(self, source: Source) -> Request | None:
        """The request whose body is coming, with what has come of it; once a request."""
        request = self._request
        if request is None:
            return None
        length = request.special.get(b"content-length")
        self._asked = True
        request.body = b"".join(self._parts)
        self._parts = []
        self._feed = request.feed = BodyFeed(source, None if length is None else int(length) - self._size)
        self._end_head(request)
        return request

    def close_again(self, request: Request) -> None:
        """It cannot begin before its end: collect it as any other."""
        self._parts = [request.body]
        request.body = b""
        self._feed = request.feed = None

    def take_parts(self) -> list[bytes]:
        """What has been collected of a body that is not whole yet, for who keeps it elsewhere."""
        parts, self._parts = self._parts, []
        return parts

    def end(self) -> None:
        """The connection is closed; nothing may be fed any more.

        The parser and this hold each other, and collections are rare: connections that come and go would be kept
        for minutes.
        """
        self._parser = cast("httptools.HttpRequestParser", None)

    def feed(self, data: bytes) -> None:
        """Raises Refused when the bytes are no request that can be served; the connection is then of no use."""
        between = self._request is None and not self.reading_head and not self._quiet
        if not between:
            self._parse(data)
            return
        repeat, known = self._repeat, self._known
        if repeat is not None and known is not None:
            data = self._feed_known(data, repeat, known)
            if not data:
                return
        before = len(self.ready)
        self._parse(data)
        if len(self.ready) == before + 1:
            self._learn(data, self.ready[-1])

    def _feed_known(self, data: bytes, repeat: Repeat, known: Request) -> bytes:
        """Take whole requests of the known shape off the front; returns the rest, for the parser."""
        while data:
            values = repeat.match(data)
            if values is None:
                break
            size = int(values[repeat.length_at])
            start = repeat.end
            if size > self._body_limit or start > self._head_limit or len(data) < start + size:
                break
            self.ready.append(known.again(repeat, values, data[start : start + size]))
            data = data[start + size :]
        return data

    def _learn(self, data: bytes, request: Request) -> None:
        """Keep the shape of a head that the parser has accepted: of the second one, as more may come."""
        self._parsed += 1
        repeat = self._repeat
        worked = repeat is not None and repeat.hits > 1
        head = head_of(data)
        before, self._last_head = self._last_head, head if len(head) <= LONGEST_KEPT_BYTES else b""
        if self._parsed % LEARN_EVERY != 2 and not worked:
            return
        special = request.special
        whole = len(data) == len(head) + len(request.body)
        if (
            not head
            or not whole
            or request.http10
            or not request.keep_alive
            or not NEVER_REPEATED.isdisjoint(special)
        ):
            return
        varied = REQUEST_VARIES if repeat is None else REQUEST_VARIES.union(repeat.names)
        shape = repeat_of(head, varied, before, REQUEST_SPECIAL)
        self._repeat = shape if shape is not None and shape.place(request.lines, special) else None
        # Whoever serves the request may write other lines and another target into it.
        self._known = None if self._repeat is None else request.as_came()

    def _parse(self, data: bytes) -> None:
        self._quiet += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            self._decline_upgrade(data[upgrade.args[0] :])
        except httptools.HttpParserError as error:
            if isinstance(error.__context__, Refused):
                raise error.__context__ from None
            raise _malformed(error, data) from error
        if self._quiet > self._head_limit:
            raise _head_too_large(self._head_limit)

    def on_message_begin(self) -> None:
        """httptools: the first byte of a request."""
        self.reading_head = True
        self._target = b""
        self._lines = []
        self._special = {}

    def on_url(self, url: bytes) -> None:
        """httptools: the request target, in as many pieces as it came."""
        self._target = self._target + url if self._target else url

    def on_header(self, name: bytes, value: bytes) -> None:
        """httptools: one header line, of the head or of a trailer."""
        lower = name.lower()
        passed_on = REQUEST_SPECIAL.get(lower)
        if passed_on is None:
            self._lines += (lower, COLON, value, CRLF)
            return
        special = self._special
        special[lower] = special[lower] + b", " + value if lower in special else value
        if passed_on:
            self._lines += (lower, COLON, value, CRLF)

    def on_headers_complete(self) -> None:
        """httptools: the head is whole."""
        parser = self._parser
        self.reading_head = False
        if self._quiet > self._head_limit:
            self._check_head()
        self._upgrading = parser.should_upgrade()
        request = Request(parser.get_method(), self._target, self._lines, self._special)
        # A trailer's headers go here and are forgotten.
        self._lines, self._special = [], {}
        self._request = request
        self._quiet = 0
        special = request.special
        if b"connection" in special:
            request.lines = without_named(request.lines, special[b"connection"])
        if not self._upgrading:
            self._expect_body(special)

    def _expect_body(self, special: dict[bytes, bytes]) -> None:
        length = special.get(b"content-length")
        if length is not None:
            if int(length) > self._body_limit:
                raise _body_too_large(self._body_limit)
            self.reading_body = length != b"0"
        else:
            self.reading_body = b"transfer-encoding" in special
        self.wants_continue = self.reading_body and special.get(b"expect", b"").lower() == b"100-continue"

    def on_body(self, part: bytes) -> None:
        """httptools: a piece of the body."""
        self._quiet = 0
        self._size += len(part)
        if self._size > self._body_limit:
            raise _body_too_large(self._body_limit)
        feed = self._feed
        if feed is None:
            self._parts.append(part)
        else:
            feed.put(part)

    def on_message_complete(self) -> None:
        """httptools: the request is whole."""
        request = self._request
        if request is None or self._upgrading:
            return
        parts = self._parts
        if parts:
            request.body = parts[0] if len(parts) == 1 else b"".join(parts)
            self._parts = []
        self._size = 0
        self._request = None
        self._quiet = 0
        self.reading_body = self.wants_continue = False
        feed = self._feed
        if feed is None:
            self._end_head(request)
            self._asked = False
            self.ready.append(request)
        else:  # it began long ago
            feed.whole = True
            self._feed = None
            self._asked = False

    def _end_head(self, request: Request) -> None:
        parser = self._parser
        request.keep_alive = parser.should_keep_alive()
        request.http10 = parser.get_http_version() == "1.0"

    def _check_head(self) -> None:
        size = len(self._target) + sum(map(len, self._lines)) + sum(map(len, self._special.values()))
        if size > self._head_limit:
            raise _head_too_large(self._head_limit)

    def _decline_upgrade(self, rest: bytes) -> None:
        """Serve the request as plain HTTP/1.1, as RFC 9110 7.8 allows.

        The parser has stopped at the head and takes what follows for another protocol, so a new one reads the
        same request without the wish to upgrade.
        """
        request, self._request = self._request, None
        if request is None or request.method == b"CONNECT":
            raise Refused(Refusal(405, "invalid_request_error", "method_not_allowed", "CONNECT is not served"))
        framing = (b"content-length", b"transfer-encoding", b"expect", GATEWAY_MARK, HANDED_ON_MARK, REQUEST_ID)
        lines = [b"%b %b HTTP/1.1\r\n" % (request.method, request.target), *request.lines]
        for name in framing:
            if name in request.special:
                lines += (name, COLON, request.special[name], CRLF)
        self._upgrading = False
        self._parser = httptools.HttpRequestParser(self)
        self.feed(b"".join(lines) + CRLF + rest)


def _malformed(error: Exception, data: bytes) -> Refused:
    if data.startswith(b"PRI * HTTP/2"):
        message = "this is HTTP/2, and here HTTP/1.1 is spoken; let your client use it (curl: --http1.1)"
        return Refused(Refusal(400, "invalid_request_error", "malformed_request", message))
    return Refused(Refusal(400, "invalid_request_error", "malformed_request", f"malformed HTTP request: {error}"))


def _head_too_large(limit: int) -> Refused:
    message = f"the request's headers are larger than {limit} bytes"
    return Refused(Refusal(431, "invalid_request_error", "headers_too_large", message))


def _body_too_large(limit: int) -> Refused:
    message = f"the request's body is larger than {limit} bytes; the limit is the router's --max-body-bytes"
    return Refused(Refusal(413, "invalid_request_error", "body_too_large", message))
