"""One request and its answer: sent upstream, relayed to the client, observed in passing, closed exactly once.

States, by what is set: `_task` waits for a pod or a connection; `_upstream` is the connection on which the request
is; `_head_sent` says that the client has begun to get the answer, from where nothing can be tried again;
`_done` ends everything. All transitions are synchronous calls from the sockets; only waiting needs a task.

The head of a stream is kept until its first event: until then an engine that dies costs nothing but a retry.
"""

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Coroutine
from time import monotonic
from typing import Any, Final

from tidepool_router.errors import Refusal, UpstreamError
from tidepool_router.facts import Api
from tidepool_router.ledger import Entry, Outcome
from tidepool_router.proxy.framing import frame, request_head
from tidepool_router.proxy.server import ServerConnection
from tidepool_router.proxy.services import Services
from tidepool_router.proxy.upstream import ConnectionPool, UpstreamConnection
from tidepool_router.tracing.life import Life
from tidepool_router.wire import usage as usages
from tidepool_router.wire.answers import AnswerReader
from tidepool_router.wire.errors import REASONS, blames_engine, error_event, refusal_answer
from tidepool_router.wire.messages import Request
from tidepool_router.wire.sse import SseObserver
from tidepool_router.wire.usage import Usage

_log: Final = logging.getLogger("tidepool.router")
_STREAM: Final = b"text/event-stream"
_LAST_CHUNK: Final = b"0\r\n\r\n"
# Usage stands at the end of an answer; this much of the end is kept to read it from.
_TAIL_BYTES: Final = 16_384
_STATUS_LINES: Final = {code: b"HTTP/1.1 %d %b\r\n" % (code, reason) for code, reason in REASONS.items()}


class Exchange(ABC):
    """What both roles share. A subclass finds the pod, opens the books and closes them."""

    __slots__ = (
        "_api",
        "_body_bytes",
        "_body_gone",
        "_choices",
        "_chunked",
        "_client",
        "_deadline",
        "_done",
        "_drop_usage",
        "_entry",
        "_head_sent",
        "_life",
        "_observer",
        "_replaying",
        "_request",
        "_request_id",
        "_services",
        "_started_at",
        "_tail",
        "_task",
        "_upstream",
    )

    mark = b""  # a header line that is added to the request
    holds_drain = True
    watched = True  # whether spans and access lines tell of it
    first_byte_seconds: float | None = None  # None: the limit for inference

    def __init__(self, services: Services, request: Request, client: ServerConnection, api: Api) -> None:
        self._services = services
        self._request = request
        self._client = client
        self._api = api
        self._request_id = request.special.get(b"x-request-id") or services.new_request_id()
        self._entry: Entry | None = None
        self._upstream: UpstreamConnection | None = None
        self._task: asyncio.Task[None] | None = None
        self._observer: SseObserver | None = None
        self._drop_usage = False
        self._choices = 1
        self._tail = b""
        self._head_sent = False
        self._chunked = False
        self._done = False
        self._started_at = monotonic()
        # Of the first byte or of the next piece; a task has deadlines of its own.
        self._deadline: float | None = None
        # The body: how much of it is held, whether it is held for a replay only, whether it is gone.
        self._body_bytes = len(request.body)
        self._replaying = False
        self._body_gone = False
        services.bodies_bytes += self._body_bytes
        if request.feed is not None:
            request.feed.enter(self)
        sight = services.sight
        self._life: Life | None = None
        if sight is not None and self.watched:
            self._life = sight.begin(request, client.remote_address, client.arriving_since, self._started_at)

    def begin(self) -> None:
        """Start; a defect on the way must not leave the books open."""
        try:
            self._start()
        except Exception:
            self._finish(Outcome.ERROR, 500)
            raise

    # For subclasses.

    @abstractmethod
    def _start(self) -> None:
        """Find out where the request goes and send it there, or wait for it."""

    @abstractmethod
    def _answer_lines(self, answer: AnswerReader) -> bytes:
        """Header lines that are added to the answer for the client."""

    @abstractmethod
    def _try_elsewhere(self, error: UpstreamError) -> bool:
        """After a failure with nothing sent to the client: True when another attempt has begun."""

    def _broke_off(self) -> None:  # noqa: B027 - most need not know
        """An answer that the client has begun to get will not be whole, and the engine is to blame."""

    @abstractmethod
    def _close_books(self, outcome: Outcome, status: int, usage: Usage | None, now: float) -> None:
        """Called exactly once, whatever happened; `usage` is what the engine counted."""

    def _describe(self, life: Life) -> None:  # noqa: B027 (what is not watched has nothing to tell)
        """Tell whoever watches what this request was to its subclass."""

    def _send(self, pool: ConnectionPool) -> None:
        """Send the request to an endpoint, over an idle connection or a new one."""
        upstream = pool.take()
        if upstream is None:
            self._spawn(self._connect(pool))
        else:
            self._send_on(upstream)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        self._deadline = None
        self._task = self._services.spawn(self._guarded(work))

    async def _guarded(self, work: Coroutine[Any, Any, None]) -> None:
        """A defect in a task must not leave its request without an end."""
        try:
            await work
        except Exception:
            _log.exception("waiting for a pod or a connection failed; this is a fault of the router")
            self._task = None
            message = "the router failed on this request; its log says why"
            self._refuse(Refusal(500, "server_error", "internal_error", message), Outcome.ERROR)

    async def _connect(self, pool: ConnectionPool) -> None:
        began_at = monotonic()
        try:
            upstream = await pool.connect()
        except UpstreamError as error:
            self._task = None
            self._fail(error)
            return
        self._task = None
        if self._life is not None:
            self._life.passed("connect", began_at, monotonic())
        if self._done:  # cancelled too late for the connection to notice
            pool.give(upstream)
        else:
            self._send_on(upstream)

    def _send_on(self, upstream: UpstreamConnection) -> None:
        request = self._request
        self._upstream = upstream
        body, feed, life, mark = request.body, request.feed, self._life, self.mark
        lines = request.joined if life is None else life.sent(request.lines, monotonic())
        head = request_head(request, lines, self._request_id, mark, self._services.proof if mark else b"")
        if feed is not None:
            feed.start(upstream)
            body = feed.front(body)
        upstream.send(self, head, body, no_answer_body=request.method == b"HEAD")
        self._keep_for_replay()
        self._deadline = monotonic() + (self.first_byte_seconds or self._services.first_byte_seconds)
        if feed is not None:
            feed.pump()
        if self._client.writing_paused:
            self.pause()

    # A BodyFeed calls these: more of a large body has come, or does not.

    def body_waits(self, *, client: bool) -> None:
        """Owner."""
        if not self._head_sent:
            limits = self._services.limits
            self._deadline = monotonic() + (limits.body_seconds if client else limits.first_byte_seconds)

    def body_failed(self, refusal: Refusal) -> None:
        """Owner: the client is to blame, and not the engine."""
        upstream, self._upstream = self._upstream, None
        if upstream is not None:
            upstream.drop()
        self._request.keep_alive = False
        if not self._head_sent:
            self._refuse(refusal, Outcome.REFUSED)
        elif not self._done:
            self._finish(Outcome.CANCELLED, refusal.status)
            self._client.abort()

    # UpstreamConnection calls these.

    def upstream_data(self, upstream: UpstreamConnection) -> None:
        """AnswerSink."""
        answer = upstream.answer
        if not answer.head_ready:
            return
        out: list[bytes] = []
        now = monotonic()
        if not self._head_sent:
            if answer.status in (502, 503) and self._unavailable(upstream):
                return
            if not self._open_answer(answer, out):
                return  # a stream's head waits for its first event
        self._deadline = now + self._services.chunk_seconds
        parts = answer.parts
        if parts:
            framed = answer.framed
            answer.parts, answer.framed = [], b""
            self._relay(parts[0] if len(parts) == 1 else b"".join(parts), framed, out, now)
        if answer.complete:
            self._complete(upstream, out, now)
        elif out:
            self._client.write(b"".join(out))

    def upstream_lost(self, upstream: UpstreamConnection, error: UpstreamError) -> None:
        """AnswerSink."""
        self._upstream = None
        if self._done:
            return
        fresh_try = upstream.used > 1 and not upstream.answer.began and error.kind == "reset"
        if fresh_try and self._replayable():
            # An idle connection that the other side had closed already: no engine has seen this request.
            self._spawn(self._connect(upstream.pool))
            return
        self._fail(error)

    # ServerConnection calls these.

    def client_gone(self) -> None:
        """ActiveExchange."""
        self._finish(Outcome.CANCELLED, 499)

    def pause(self) -> None:
        """ActiveExchange."""
        if self._upstream is not None:
            self._upstream.pause()

    def resume(self) -> None:
        """ActiveExchange."""
        if self._upstream is not None:
            self._deadline = monotonic() + self._services.chunk_seconds
            self._upstream.resume()

    def check(self, now: float) -> None:
        """ActiveExchange."""
        if self._deadline is not None and now >= self._deadline:
            self._deadline = None
            self._time_out()

    # The answer.

    def _unavailable(self, upstream: UpstreamConnection) -> bool:
        """Whether a 502 or 503 is not passed on, because the request goes elsewhere."""
        error = UpstreamError("http_5xx", f"the engine answered {upstream.answer.status}")
        self._upstream = None
        upstream.sink = None
        if self._replayable() and self._try_elsewhere(error):
            upstream.drop()
            return True
        self._upstream = upstream
        upstream.sink = self
        return False

    def _open_answer(self, answer: AnswerReader, out: list[bytes]) -> bool:
        """Write the head; False when it must wait."""
        special = answer.special
        stream = special.get(b"content-type", b"")[:17] == _STREAM and answer.status == 200
        if stream and not answer.parts and not answer.complete:
            return False
        if stream and b"content-encoding" not in special:
            self._observer = SseObserver(self._api, self._choices, drop_usage=self._drop_usage)
        out.append(_STATUS_LINES.get(answer.status) or b"HTTP/1.1 %d\r\n" % answer.status)
        out += answer.lines
        out += (self._answer_lines(answer), b"x-request-id: ", self._request_id, b"\r\n")
        dropping = self._observer is not None and self._drop_usage
        last = self._client.last_answer
        self._chunked = frame(answer, self._request, out, dropping=dropping, last=last)
        if answer.status >= 400 and self._entry is not None:
            self._entry.code = answer.status  # before its first byte counts as a first token
        out.append(b"\r\n")
        self._head_sent = True
        self.forget_body()
        return True

    def _relay(self, data: bytes, framed: bytes, out: list[bytes], now: float) -> None:
        """Pass on a piece of the body; `framed`: the whole chunks in which it came, if it came so."""
        observer = self._observer
        entry = self._entry
        if observer is not None:
            kept = observer.feed(data)
            if kept is not data:
                data, framed = kept, b""
            if entry is not None:
                entry.progress(max(0, observer.tokens), now)
            if not data:
                return
        else:
            if entry is not None and entry.first_token_at is None:
                entry.first_token(now)
            self._tail = data if len(data) >= _TAIL_BYTES else self._tail[-_TAIL_BYTES:] + data
        if not self._chunked:
            out.append(data)
        elif framed:
            out.append(framed)
        else:
            out += (b"%x\r\n" % len(data), data, b"\r\n")

    def _complete(self, upstream: UpstreamConnection, out: list[bytes], now: float) -> None:
        observer = self._observer
        answer = upstream.answer
        if observer is not None:
            whole = observer.complete
            rest = observer.end()
            if rest:
                out += (b"%x\r\n" % len(rest), rest, b"\r\n") if self._chunked else (rest,)
            # However orderly the framing ends: without the API's last event a client would take half for whole.
            if not whole and (self._chunked or answer.ends_with_connection):
                self._client.write(b"".join(out))
                self._cut(UpstreamError("reset", "the engine ended the stream before its last event"))
                return
        if self._chunked:
            out.append(_LAST_CHUNK)
        self._client.write(b"".join(out))
        self._upstream = None
        upstream.release()
        status = answer.status
        outcome = Outcome.OK if status < 500 else Outcome.ERROR
        if observer is not None and observer.error is not None:
            outcome = Outcome.ERROR
            if blames_engine(observer.error):
                self._broke_off()
        self._finish(outcome, status, now)
        self._client.finished(keep_alive=self._request.keep_alive)

    # Ends.

    def _time_out(self) -> None:
        feed = self._request.feed
        if feed is not None and feed.starving and not self._head_sent:
            feed.time_out()
            return
        upstream, self._upstream = self._upstream, None
        services = self._services
        if upstream is None:
            return
        began = upstream.answer.began
        upstream.drop()
        if self._head_sent:
            self._cut(UpstreamError("reset", f"the engine sent nothing for {services.chunk_seconds:g} s"))
            return
        limit = self.first_byte_seconds or services.first_byte_seconds
        message = f"the engine did not begin to answer within {limit:g} s"
        error = UpstreamError("first_byte_timeout", message)
        if began or not self._replayable() or not self._try_elsewhere(error):
            self._answer_error(504, "upstream_timeout", message)

    def _fail(self, error: UpstreamError) -> None:
        """The upstream failed: elsewhere, or an error to the client, in whichever way it can still be told."""
        if self._done:
            return
        if self._head_sent:
            self._cut(error)
        elif not (self._replayable() and self._try_elsewhere(error)):
            self._fail_for_good(error)

    def _fail_for_good(self, error: UpstreamError) -> None:
        if error.kind == "first_byte_timeout":
            self._answer_error(504, "upstream_timeout", str(error))
            return
        status = 503 if error.kind == "connect" else 502
        self._answer_error(status, "upstream_unavailable" if status == 503 else "upstream_error", str(error))

    def _cut(self, error: UpstreamError) -> None:
        """End an answer that has begun and cannot be completed, so that nobody takes it for whole."""
        client, observer = self._client, self._observer
        self._warn("an answer was cut", str(error))
        self._broke_off()
        if self._life is not None:
            self._life.error = error.kind
        self._finish(Outcome.ERROR, 502)
        if observer is None:
            client.abort()
            return
        event = error_event(self._api, f"{error}; the answer is not complete", observer.events)
        if observer.inside_event:
            event = b"\n\n" + event
        if self._chunked:
            # The framing is whole, and the client may have sent its next request already: a close would lose that.
            client.write(b"%x\r\n%b\r\n0\r\n\r\n" % (len(event), event))
            client.finished(keep_alive=self._request.keep_alive)
        else:
            client.write(event)
            client.close()

    def _answer_error(self, status: int, code: str, message: str) -> None:
        retry_after = 1.0 if status == 503 else None
        self._warn("a request failed", message)
        self._refuse(Refusal(status, "server_error", code, message, retry_after), Outcome.ERROR)

    def _warn(self, what: str, why: str) -> None:
        request_id = self._request_id.decode("latin-1")
        self._services.warn(what, reason=why, request_id=request_id, api=self._api.value, **self._whereabouts())

    def _whereabouts(self) -> dict[str, str]:
        """Pool and pod, for the log of what went wrong."""
        return {}

    def _refuse(self, refusal: Refusal, outcome: Outcome) -> None:
        """Answer with an error of the router's own."""
        if self._done:
            return
        client, request = self._client, self._request
        if self._life is not None:
            self._life.error = refusal.code
        self._finish(outcome, refusal.status)
        close = not request.keep_alive or client.last_answer
        extra = b"x-request-id: %b\r\n" % self._request_id
        head_only = request.method == b"HEAD"
        client.write(refusal_answer(self._api, refusal, extra, close=close, head_only=head_only))
        client.finished(keep_alive=not close)

    def _finish(self, outcome: Outcome, status: int, now: float | None = None) -> None:
        """Let go of everything and close the books; only the first call counts."""
        if self._done:
            return
        self._done = True
        self._deadline = None
        if self._request.feed is not None:
            self._request.feed.leave(self)
        upstream, self._upstream = self._upstream, None
        if upstream is not None:
            upstream.drop()
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
        self.forget_body()
        if now is None:
            now = monotonic()
        self._close_books(outcome, status, self._usage(), now)
        if self._life is not None:
            self._tell(self._life, outcome, status, now)

    def _tell(self, life: Life, outcome: Outcome, status: int, now: float) -> None:
        """The request is over, and somebody watches."""
        self._life = None
        life.request_id = self._request_id.decode("latin-1")
        self._describe(life)
        sight = self._services.sight
        if sight is not None:
            sight.ended(life, outcome, status, now)

    def _usage(self) -> Usage | None:
        if self._observer is not None:
            return self._observer.usage
        return usages.of_answer(self._tail) if self._tail else None

    # Bodies.

    def _replayable(self) -> bool:
        """Whether the body is still there to be sent again."""
        return not self._body_gone

    def _keep_for_replay(self) -> None:
        """The body has been sent: keep it if there is room."""
        if self._replaying:
            return
        if self._services.replay.take(self._body_bytes):
            self._replaying = True
        else:
            self.forget_body()

    def forget_body(self) -> None:
        """Owner: the body is not needed any more, or more of it has gone out than is kept; safe to call again."""
        if self._body_gone:
            return
        self._body_gone = True
        self._services.bodies_bytes -= self._body_bytes
        self._request.body = b""
        if self._replaying:
            self._services.replay.give(self._body_bytes)
