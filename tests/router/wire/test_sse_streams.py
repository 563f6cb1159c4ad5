"""Streams as engines write them, cut anywhere: the observer takes one event out at most, and counts as if uncut.

The reference reads the whole stream at once, line by line, as the specification of server-sent events says.
"""

import json
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidepool_router.facts import Api
from tidepool_router.wire.sse import SseObserver
from tidepool_router.wire.usage import Usage

_USAGE = {"prompt_tokens": 11, "completion_tokens": 3, "total_tokens": 14}
_NASTY = (
    *("a", "", 'x"usage":{"prompt_tokens":9}', '"delta"', "\n\n", "\r\n\r\n", "data: [DONE]", "}}]}"),
    *("event: message_stop\ndata: {}", '"error"', "\u2028é\U0001f30a"),
)
_texts = st.sampled_from(_NASTY) | st.text(max_size=6)


@dataclass(frozen=True)
class Script:
    """Events of a stream, which of them is asked for, how many tokens they bring, and what usage."""

    api: Api
    events: tuple[bytes, ...]
    tokens: int
    usage: Usage | None
    asked_for: int | None = None

    @property
    def wire(self) -> bytes:
        return b"".join(self.events)

    @property
    def without(self) -> bytes:
        return b"".join(event for at, event in enumerate(self.events) if at != self.asked_for)


def _data(body: Any, name: str = "") -> bytes:
    head = f"event: {name}\n" if name else ""
    return f"{head}data: {json.dumps(body, ensure_ascii=False)}\n\n".encode("utf-8", "surrogatepass")


@st.composite
def _chat_like(draw: st.DrawFn) -> Script:
    """Chat or completions, with usage at the end, in its own event, beside choices, or nowhere."""
    api = draw(st.sampled_from([Api.CHAT, Api.COMPLETIONS]))
    texts = draw(st.lists(_texts, max_size=5))
    if api is Api.CHAT:
        events = [_data({"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]})]
        events += [_data({"choices": [{"index": 0, "delta": {"content": text}}]}) for text in texts]
    else:
        events = [_data({"choices": [{"index": 0, "text": text}]}) for text in texts]
    if draw(st.booleans()):
        events.insert(draw(st.integers(0, len(events))), b": a comment\n\n")
    usage, asked_for = None, None
    if draw(st.booleans()):
        asked_for = len(events)
        events.append(_data({"choices": [], "usage": _USAGE}))
        usage = Usage(11, 3, None)
    return Script(api, (*events, b"data: [DONE]\n\n"), len(texts), usage, asked_for)


@st.composite
def _messages(draw: st.DrawFn) -> Script:
    texts = draw(st.lists(_texts, max_size=5))
    start = {"type": "message_start", "message": {"usage": {"input_tokens": 11, "output_tokens": 0}}}
    end = {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 3}}
    events = [_data(start, "message_start")]
    events += [
        _data({"type": "content_block_delta", "delta": {"text": text}}, "content_block_delta") for text in texts
    ]
    events += [_data(end, "message_delta"), _data({"type": "message_stop"}, "message_stop")]
    return Script(Api.MESSAGES, tuple(events), len(texts), Usage(11, 3, None))


@st.composite
def _responses(draw: st.DrawFn) -> Script:
    texts = draw(st.lists(_texts, max_size=5))
    usage = {"input_tokens": 11, "output_tokens": 3, "input_tokens_details": {"cached_tokens": 8}}
    events = [_data({"type": "response.created", "response": {"usage": None, "error": None}}, "response.created")]
    events += [
        _data({"type": "response.output_text.delta", "delta": text}, "response.output_text.delta")
        for text in texts
    ]
    name = draw(st.sampled_from(["response.completed", "response.incomplete"]))
    events.append(_data({"type": name, "response": {"usage": usage, "error": None}}, name))
    return Script(Api.RESPONSES, tuple(events), len(texts), Usage(11, 3, 8))


_scripts = st.one_of(_chat_like(), _messages(), _responses())


def _crlf(script: Script) -> Script:
    """The same with the other line ends; JSON has none of its own."""
    events = tuple(event.replace(b"\n", b"\r\n") for event in script.events)
    return Script(script.api, events, script.tokens, script.usage, script.asked_for)


def _check(script: Script, pieces: list[bytes], *, drop: bool) -> None:
    observer = SseObserver(script.api, drop_usage=drop)
    passed = b"".join(map(observer.feed, pieces)) + observer.end()

    assert passed == (script.without if drop else script.wire)
    assert observer.usage == script.usage
    assert observer.tokens == script.tokens
    assert observer.complete
    assert observer.error is None


def _pieces(wire: bytes, places: list[int]) -> list[bytes]:
    edges = [0, *sorted(place % (len(wire) + 1) for place in places), len(wire)]
    return [wire[start:end] for start, end in pairwise(edges) if start < end]


@given(_scripts, st.lists(st.integers(0, 2000), max_size=12), st.booleans())
def test_cut_anywhere(script: Script, places: list[int], drop: bool) -> None:
    _check(script, _pieces(script.wire, places), drop=drop)


@given(_scripts, st.booleans())
def test_byte_by_byte(script: Script, drop: bool) -> None:
    _check(script, [bytes([byte]) for byte in script.wire], drop=drop)


@given(_chat_like(), st.lists(st.integers(0, 2000), max_size=12), st.booleans())
def test_cut_anywhere_with_crlf(script: Script, places: list[int], drop: bool) -> None:
    script = _crlf(script)
    _check(script, _pieces(script.wire, places), drop=drop)


@given(_scripts, st.integers(0, 2000))
def test_a_stream_that_stops_before_its_last_event_is_not_complete(script: Script, place: int) -> None:
    wire = b"".join(script.events[:-1])
    observer = SseObserver(script.api)
    for piece in _pieces(wire, [place]):
        observer.feed(piece)

    assert not observer.complete


@given(_scripts, st.lists(st.integers(0, 2000), max_size=6), st.integers(0, 2000))
def test_broken_off_anywhere_nothing_is_lost_that_came(script: Script, places: list[int], end: int) -> None:
    """The client holds a beginning of what it would have got."""
    wire = script.wire[: end % len(script.wire)]
    for drop in (False, True):
        observer = SseObserver(script.api, drop_usage=drop)
        passed = b"".join(map(observer.feed, _pieces(wire, places))) + observer.end()

        assert passed == wire if not drop else script.without.startswith(_whole(passed))


def _whole(passed: bytes) -> bytes:
    """Up to the last whole event: the beginning of the one that is taken out may have gone with `end`."""
    return passed[: passed.rfind(b"\n\n") + 2] if b"\n\n" in passed else b""


@pytest.mark.parametrize("after", [b": ping\n\n", b"\n", b"\n\n"])
def test_what_follows_the_last_event_does_not_undo_it(after: bytes) -> None:
    observer = SseObserver(Api.CHAT)
    for piece in (b"data: [DONE]\n\n", after):
        observer.feed(piece)

    assert observer.complete
