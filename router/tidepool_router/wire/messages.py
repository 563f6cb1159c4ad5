"""HTTP/1.x messages: bytes in, whole requests and parts of answers out (sans-I/O, on httptools).

Both readers split each head into two: `lines`, the header lines that are passed on, flat as
[name, b": ", value, CRLF, ...] so that one join writes them; and `special`, the values that the router itself
acts on. Hop-by-hop headers are only in `special`: nothing of one connection's framing reaches the other.
Names are lower case from here on, values are the bytes that came.
"""

from collections import deque
from typing import Final

import httptools

from tidepool_api import contract
from tidepool_router.errors import Refusal, Refused
from tidepool_router.wire.paths import Route, find

CRLF: Final = b"\r\n"
_COLON: Final = b": "
GATEWAY_MARK: Final = contract.HEADER_GATEWAY.encode()
HANDED_ON_MARK: Final = contract.HEADER_HANDED_ON.encode()
REQUEST_ID: Final = contract.HEADER_REQUEST_ID.encode()
PRIORITY: Final = contract.HEADER_PRIORITY.encode()
SESSION: Final = contract.HEADER_SESSION.encode()
TENANT: Final = contract.HEADER_TENANT.encode()
DEADLINE: Final = contract.HEADER_DEADLINE.encode()
LOAD: Final = contract.HEADER_LOAD.encode()
POD: Final = contract.HEADER_POD.encode()
AUTHORIZATION: Final = b"authorization"
API_KEY: Final = b"x-api-key"

# RFC 9110 7.6.1, and what proxies in the wild take for it. True: the router reads it but passes it on.
_HOP_BY_HOP: Final = dict.fromkeys(
    (
        b"connection",
        b"keep-alive",
        b"proxy-connection",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
        b"http2-settings",
    ),
    False,
)
_REQUEST_SPECIAL: Final = _HOP_BY_HOP | {
    b"content-length": False,
    b"expect": False,
    GATEWAY_MARK: False,
    HANDED_ON_MARK: False,
    LOAD: False,
    b"content-type": True,
    b"content-encoding": True,
    REQUEST_ID: True,
    PRIORITY: True,
    SESSION: True,
    TENANT: True,
    DEADLINE: True,
    AUTHORIZATION: True,
    API_KEY: True,
}
_ANSWER_SPECIAL: Final = _HOP_BY_HOP | {
    b"content-length": False,
    LOAD: False,
    POD: True,
    b"content-type": True,
    b"content-encoding": True,
    REQUEST_ID: False,  # the router sets it, so that a client sees one id and not two
}
# Options of Connection that name no header.
_USUAL_CONNECTIONS: Final = frozenset((b"keep-alive", b"Keep-Alive", b"close", b"Close"))
_CONNECTION_OPTIONS: Final = frozenset((b"close", b"keep-alive", b"upgrade"))


class Request:
    """One whole request; `body` is without any transfer coding."""

    __slots__ = ("body", "http10", "keep_alive", "lines", "method", "special", "target")

    def __init__(self, method: bytes, target: bytes) -> None:
        self.method = method
        self.target = target
        self.lines: list[bytes] = []
        self.special: dict[bytes, bytes] = {}
        self.body = b""
        self.http10 = False
        self.keep_alive = True

    @property
    def route(self) -> Route | None:
        """What the path is to the router; None: unknown."""
        return find(self.target)

    def headers(self) -> list[tuple[bytes, bytes]]:
        """Name and value of the headers that are passed on."""
        return list(zip(self.lines[::4], self.lines[2::4], strict=True))

    def __repr__(self) -> str:
        return f"<Request {self.method.decode('latin-1')} {self.target.decode('latin-1')} {len(self.body)} bytes>"


class RequestReader:
    """Reads requests from one connection into `ready`.

    `head_limit` bounds the bytes of a head (431), `body_limit` those of a body (413). `reading_head` and
    `reading_body` say what a timeout would be about.
    """

    __slots__ = (
        "_body_limit",
        "_head_limit",
        "_lines",
        "_parser",
        "_parts",
        "_quiet",
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

    def __init__(self, head_limit: int, body_limit: int) -> None:
        self.ready: deque[Request] = deque()
        self.reading_head = False
        self.reading_body = False
        self.wants_continue = False
        self._head_limit = head_limit
        self._body_limit = body_limit
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

    def feed(self, data: bytes) -> None:
        """Raises Refused when the bytes are no request that can be served; the connection is then of no use."""
        self._quiet += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            self._decline_upgrade(data[upgrade.args[0] :])
        except httptools.HttpParserError as error:
            if isinstance(error.__context__, Refused):
                raise error.__context__ from None
            raise _malformed(error) from error
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
        passed_on = _REQUEST_SPECIAL.get(lower)
        if passed_on is None:
            self._lines += (lower, _COLON, value, CRLF)
            return
        special = self._special
        special[lower] = special[lower] + b", " + value if lower in special else value
        if passed_on:
            self._lines += (lower, _COLON, value, CRLF)

    def on_headers_complete(self) -> None:
        """httptools: the head is whole."""
        parser = self._parser
        self.reading_head = False
        if self._quiet > self._head_limit:
            self._check_head()
        self._upgrading = parser.should_upgrade()
        request = Request(parser.get_method(), self._target)
        request.lines, request.special = self._lines, self._special
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
        self._parts.append(part)

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
        parser = self._parser
        request.keep_alive = parser.should_keep_alive()
        request.http10 = parser.get_http_version() == "1.0"
        self._request = None
        self._quiet = 0
        self.reading_body = self.wants_continue = False
        self.ready.append(request)

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
        framing = (b"content-length", b"transfer-encoding", b"expect", GATEWAY_MARK, HANDED_ON_MARK)
        lines = [b"%b %b HTTP/1.1\r\n" % (request.method, request.target), *request.lines]
        for name in framing:
            if name in request.special:
                lines += (name, _COLON, request.special[name], CRLF)
        self._upgrading = False
        self._parser = httptools.HttpRequestParser(self)
        self.feed(b"".join(lines) + CRLF + rest)


def without_named(lines: list[bytes], connection: bytes) -> list[bytes]:
    """The lines without those that the Connection header names as hop-by-hop."""
    if connection in _USUAL_CONNECTIONS:
        return lines
    named = {option.strip().lower() for option in connection.split(b",")} - _CONNECTION_OPTIONS
    if not named:
        return lines
    kept: list[bytes] = []
    for at in range(0, len(lines), 4):
        if lines[at] not in named:
            kept += lines[at : at + 4]
    return kept


class AnswerReader:
    """Reads the answers of one upstream connection, one request at a time.

    `head_ready`: status, `lines` and `special` hold. `parts` collects body pieces until the caller takes them.
    `complete`: the answer has ended and the connection may be used again when `reusable`.
    """

    __slots__ = (
        "_head_limit",
        "_informational",
        "_parser",
        "_quiet",
        "complete",
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
        self.no_body = False
        self.reset(no_body=False)

    def reset(self, *, no_body: bool) -> None:
        """Expect the answer to a new request; `no_body` for HEAD, whose answers announce what they do not send."""
        self.status = 0
        self.lines: list[bytes] = []
        self.special: dict[bytes, bytes] = {}
        self.parts: list[bytes] = []
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
        self._quiet += len(data)
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            if not (self.no_body and self.complete):
                raise ValueError(f"not an HTTP answer: {error}") from error
        if self._quiet > self._head_limit:
            raise ValueError(f"a head of more than {self._head_limit} bytes")

    def on_header(self, name: bytes, value: bytes) -> None:
        """httptools: one header line."""
        lower = name.lower()
        passed_on = _ANSWER_SPECIAL.get(lower)
        if passed_on is None:
            self.lines += (lower, _COLON, value, CRLF)
            return
        self.special[lower] = value
        if passed_on:
            self.lines += (lower, _COLON, value, CRLF)

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

    def on_message_complete(self) -> None:
        """httptools: the answer is whole."""
        if self._informational or self.complete:
            return
        self._quiet = 0
        self.complete = True
        self.reusable = self._parser.should_keep_alive()


def _malformed(error: Exception) -> Refused:
    return Refused(Refusal(400, "invalid_request_error", "malformed_request", f"malformed HTTP request: {error}"))


def _head_too_large(limit: int) -> Refused:
    message = f"the request's headers are larger than {limit} bytes"
    return Refused(Refusal(431, "invalid_request_error", "headers_too_large", message))


def _body_too_large(limit: int) -> Refused:
    message = f"the request's body is larger than {limit} bytes; the limit is the router's --max-body-bytes"
    return Refused(Refusal(413, "invalid_request_error", "body_too_large", message))
