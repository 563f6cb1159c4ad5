"""A large body on its way: what comes from the client goes on to the engine, a piece at a time (sans-I/O).

The exchange begins with the body's front. Until a connection upstream has that, and whenever it takes no more, the
client is not read from; so a request holds its front, one read and two sockets' buffers, however large its body
is. The front is kept for a retry until the first piece after it has gone out; then nothing can be retried.
"""

from typing import Final, Protocol

from tidepool_router.errors import Refusal
from tidepool_router.wire.guard import NameGuard

_CHUNKED: Final = b"\r\ntransfer-encoding: chunked"
_LAST_CHUNK: Final = b"0\r\n\r\n"


class Source(Protocol):
    """The client's connection."""

    def hold_body(self) -> None:
        """Read no more of it for now."""

    def take_body(self) -> None:
        """Read on."""


class Target(Protocol):
    """The connection on which the request is."""

    feed: "BodyFeed | None"

    def send_more(self, data: bytes) -> None:
        """Bytes of the body, framed."""


class Owner(Protocol):
    """The exchange."""

    def forget_body(self) -> None:
        """More than the front has gone out, so the front is of no use any more."""

    def body_waits(self, *, client: bool) -> None:
        """The client is waited for, or else the engine: it takes no more, or has all and may answer."""

    def body_failed(self, refusal: Refusal) -> None:
        """The rest cannot be used."""


class BodyFeed:
    """The rest of one body. `whole`: all of it has come. `model_at`: where the front names the model.

    At most one owner and one target at a time; an owner that leaves takes its target away, and what comes after
    that is thrown away unless another owner has entered.
    """

    __slots__ = (
        "_full",
        "_owner",
        "_parts",
        "_source",
        "_target",
        "_to_come_bytes",
        "failed",
        "guard",
        "model_at",
        "moved",
        "whole",
    )

    def __init__(self, source: Source, to_come_bytes: int | None) -> None:
        self._source = source
        self._to_come_bytes = to_come_bytes  # None: chunked
        self._parts: list[bytes] = []
        self._owner: Owner | None = None
        self._target: Target | None = None
        self._full = False
        self.guard: NameGuard | None = None  # through which all pieces go
        self.model_at: tuple[tuple[int, int], ...] = ()
        self.moved = False
        self.failed = False
        self.whole = False

    @property
    def starving(self) -> bool:
        """Whether the client is waited for."""
        return self._target is not None and not self._full and not self.whole

    # The reader of requests and the client's connection call these.

    def put(self, part: bytes) -> None:
        """A piece has come."""
        if self._owner is not None:
            self._parts.append(part)

    def pump(self) -> None:
        """Send on what has come."""
        target, owner = self._target, self._owner
        if target is None or owner is None:
            return
        data = b"".join(self._parts)
        self._parts.clear()
        if self.guard is not None:
            data = self.guard.feed(data) + (self.guard.end() if self.whole else b"")
        if data:
            if not self.moved:
                self.moved = True
                owner.forget_body()
            target.send_more(self._framed(data))
        if self.whole:
            self._target = target.feed = None
            if self._to_come_bytes is None:
                target.send_more(_LAST_CHUNK)
            self._source.take_body()  # the last piece may have filled the target, which now tells nobody
            owner.body_waits(client=False)
        elif not self._full:
            owner.body_waits(client=True)

    def time_out(self) -> None:
        """The client sends no more of it."""
        message = "the request's body did not arrive in time; send the whole request without a pause"
        self.fail(Refusal(408, "invalid_request_error", "request_timeout", message))

    def fail(self, refusal: Refusal) -> None:
        """What came is no body that can be served, and nothing after it can be understood."""
        self.failed = True
        if self._owner is not None:
            self._owner.body_failed(refusal)

    # The exchange calls these.

    def enter(self, owner: Owner) -> None:
        """It has the request now."""
        self._owner = owner

    def leave(self, owner: Owner) -> None:
        """It has ended, or gave the request to another."""
        if self._owner is owner:
            self._owner = self._target = None
            self._parts = []

    def framing(self, front_bytes: int) -> bytes:
        """The header line of the body's length, with the end of the line before it."""
        if self._to_come_bytes is None:
            return _CHUNKED
        return b"\r\ncontent-length: %d" % (front_bytes + self._to_come_bytes)

    def put_back(self, count: int) -> None:
        """So many bytes of the front are held by the guard, and will come with the pieces."""
        if self._to_come_bytes is not None:
            self._to_come_bytes += count

    def front(self, body: bytes) -> bytes:
        """The front as it goes on the wire."""
        return self._framed(body)

    def start(self, target: Target) -> None:
        """The target is given head and front now, then what `pump` finds. It may say at once that it is full."""
        self._target, self._full = target, False
        target.feed = self
        self._source.take_body()

    # The connection upstream calls these.

    def full(self) -> None:
        """It takes no more."""
        self._full = True
        self._source.hold_body()
        if self._owner is not None:
            self._owner.body_waits(client=False)

    def drained(self) -> None:
        """It takes more."""
        self._full = False
        self._source.take_body()
        self.pump()

    def lost(self, target: Target) -> None:
        """It is gone, or of no use any more."""
        target.feed = None
        if self._target is target:
            self._target = None
            self._source.hold_body()

    def _framed(self, data: bytes) -> bytes:
        return data if self._to_come_bytes is not None else b"%x\r\n%b\r\n" % (len(data), data)
