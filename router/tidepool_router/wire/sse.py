"""Server-sent events in passing: tokens counted, usage read, and one event that we asked for taken out.

Theory: a read from the socket is split at its last blank line. What stands before is whole events; what follows
is the beginning of one and is kept (`_rest`) until its end arrives. The client gets every byte of a read at once,
except where an event may have to be taken out: then an unfinished event waits for its end, because nobody can use
half an event anyway. The work is one `count` and one `in` for each read, whatever the number of events.
"""

from typing import Final

from tidepool_router.facts import Api
from tidepool_router.wire import usage as usages
from tidepool_router.wire.usage import Usage

# What stands once in each event that brings a token. JSON escapes quotes, so generated text cannot contain it.
_TOKEN_MARKS: Final = {
    Api.CHAT: b'"delta"',
    Api.COMPLETIONS: b'"text"',
    Api.RESPONSES: b".delta\ndata:",
    Api.MESSAGES: b"event: content_block_delta",
    Api.TRANSCRIPTIONS: b'"delta"',
}
# The last event of each API: a line of its own, or a type in quotes, so that no generated text can stand for it.
_FINAL_TYPES: Final = (b"message_stop", b"response.completed", b"response.incomplete", b"response.failed")
_USUAL_END: Final = b"data: [DONE]\n\n"
_FINAL_MARKS: Final = (
    b"\ndata: [DONE]",
    b"\ndata:[DONE]",
    *(b"\nevent: %b" % kind for kind in _FINAL_TYPES),
    *(b'"%b"' % kind for kind in _FINAL_TYPES),
)
# Beyond this an unfinished event is passed on unseen.
REST_LIMIT_BYTES: Final = 1 << 20


class SseObserver:
    """Watches one stream. `tokens`, `usage`, `events` and `error` say what has gone by so far.

    `error` is an error event of the engine's own, None while there was none.
    """

    __slots__ = ("_drop", "_known", "_last", "_mark", "_rest", "error", "events", "tokens", "usage")

    def __init__(self, api: Api, choices: int = 1, *, drop_usage: bool = False) -> None:
        self._known = api in _TOKEN_MARKS
        self._mark = _TOKEN_MARKS.get(api, b"data:")
        self._drop = drop_usage
        self._rest = b""
        self._last = b""
        # A chat opens each choice with an event that brings the role and no token.
        self.tokens = -choices if api is Api.CHAT else 0
        self.events = 0
        self.usage: Usage | None = None
        self.error: bytes | None = None

    def feed(self, chunk: bytes) -> bytes:
        """Takes what arrived; returns what goes to the client now."""
        if not self._rest and chunk.endswith(b"\n\n"):
            whole = chunk
        else:
            joined = self._rest + chunk
            end = _last_end(joined)
            whole, self._rest = joined[:end], joined[end:]
            if len(self._rest) > REST_LIMIT_BYTES:
                whole, self._rest = joined, b""
        if not whole:
            return b"" if self._drop else chunk
        events, tokens = whole.count(b"\n\n") or 1, whole.count(self._mark)
        self.events += events
        self.tokens += tokens
        if tokens >= events:
            self._last = whole
        else:
            if b"data:" in whole:  # a comment after the last event does not undo it
                self._last = whole
            if b'"error"' in whole:
                self._look_for_error(whole)
        kept = self._read_usage(whole) if b'"usage"' in whole else whole
        return kept if self._drop else chunk

    def end(self) -> bytes:
        """What was kept back when the stream ended in the middle of an event."""
        rest, self._rest = self._rest, b""
        return rest if self._drop else b""

    @property
    def complete(self) -> bool:
        """Whether the API's own last event has gone by, or an error in its place; always so for unknown APIs."""
        if not self._known or self.error is not None or self._last == _USUAL_END:
            return True
        end = b"\n%b%b" % (self._last, self._rest)
        return any(mark in end for mark in _FINAL_MARKS)

    @property
    def inside_event(self) -> bool:
        """Whether the client holds the beginning of an event whose end has not been passed on."""
        return bool(self._rest) and not self._drop

    def _look_for_error(self, whole: bytes) -> None:
        """Finished answers of the responses API have an `error` too, which is null."""
        for event in _events(whole):
            if b'"error"' in event and usages.is_error(_data(event)):
                self.error = event

    def _read_usage(self, whole: bytes) -> bytes:
        kept: list[bytes] = []
        for event in _events(whole):
            alone = False
            if b'"usage"' in event:
                usage, alone = usages.of_event(_data(event))
                self.usage = _merged(self.usage, usage)
            if not alone:
                kept.append(event)
        return b"".join(kept)


def _last_end(text: bytes) -> int:
    """Index behind the last blank line, 0 when there is none."""
    end = text.rfind(b"\n\n")
    if end >= 0:
        return end + 2
    end = text.rfind(b"\r\n\r\n")
    return end + 4 if end >= 0 else 0


def _events(whole: bytes) -> list[bytes]:
    separator = b"\n\n" if b"\n\n" in whole else b"\r\n\r\n"
    pieces = whole.split(separator)
    events = [piece + separator for piece in pieces[:-1]]
    return [*events, pieces[-1]] if pieces[-1] else events


def _data(event: bytes) -> bytes:
    lines = [line[5:].lstrip() for line in event.splitlines() if line.startswith(b"data:")]
    return b"\n".join(lines)


def _merged(before: Usage | None, now: Usage | None) -> Usage | None:
    """The messages API tells the prompt at the start and the output at the end."""
    if before is None or now is None:
        return now or before
    cached = now.cached_tokens if now.cached_tokens is not None else before.cached_tokens
    return Usage(now.prompt_tokens or before.prompt_tokens, now.output_tokens or before.output_tokens, cached)
