"""A stream's observer sees the same whatever the pieces, and changes nothing but the event that was asked for."""

import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidepool_router.facts import Api
from tidepool_router.wire.sse import REST_LIMIT_BYTES, SseObserver
from tidepool_router.wire.usage import Usage


def _event(**members: object) -> bytes:
    return b"data: " + json.dumps(members).encode() + b"\n\n"


def _token(text: str) -> bytes:
    return _event(choices=[{"index": 0, "delta": {"content": text}}])


_ROLE = _event(choices=[{"index": 0, "delta": {"role": "assistant", "content": ""}}])
_TRICKY = 'say "usage":{"prompt_tokens":9} and "delta" and \n\n data: [DONE]'
_USAGE = _event(choices=[], usage={"prompt_tokens": 11, "completion_tokens": 3, "total_tokens": 14})
_DONE = b"data: [DONE]\n\n"
_CHAT = [_ROLE, _token("a"), _token(_TRICKY), _token("\u00e9\U0001f30a"), _USAGE, _DONE]
_WHOLE = b"".join(_CHAT)
_WITHOUT = _WHOLE.replace(_USAGE, b"")


def _pieces(whole: bytes, cuts: list[int]) -> list[bytes]:
    edges = [0, *sorted(cuts), len(whole)]
    return [whole[start:end] for start, end in pairwise(edges) if start < end]


def _observe(observer: SseObserver, pieces: list[bytes]) -> bytes:
    return b"".join(map(observer.feed, pieces)) + observer.end()


def test_split_at_every_byte_the_usage_event_is_taken_out_and_nothing_else() -> None:
    for cut in range(len(_WHOLE) + 1):
        observer = SseObserver(Api.CHAT, drop_usage=True)

        assert _observe(observer, _pieces(_WHOLE, [cut])) == _WITHOUT, cut
        assert (observer.tokens, observer.events, observer.usage) == (3, 6, Usage(11, 3, None))
        assert observer.complete


@given(st.lists(st.integers(0, len(_WHOLE)), max_size=40), st.booleans())
def test_any_pieces_pass_the_same_bytes_and_counts(cuts: list[int], drop: bool) -> None:
    observer = SseObserver(Api.CHAT, drop_usage=drop)

    assert _observe(observer, _pieces(_WHOLE, cuts)) == (_WITHOUT if drop else _WHOLE)
    assert (observer.tokens, observer.usage) == (3, Usage(11, 3, None))


@given(
    st.lists(
        st.binary(max_size=30) | st.sampled_from([b"\n\n", b'"usage"', b"data: ", b"\r\n\r\n", b'{"usage":{}}'])
    )
)
def test_bytes_that_are_no_events_pass_untouched(pieces: list[bytes]) -> None:
    observer = SseObserver(Api.CHAT, drop_usage=False)

    assert _observe(observer, pieces) == b"".join(pieces)


@given(st.lists(st.binary(max_size=30) | st.sampled_from([b"\n\n", b"data: ", b"\r\n\r\n", b'{"usage":{}}'])))
def test_even_an_observer_that_may_drop_loses_no_byte_of_a_stream_without_usage(pieces: list[bytes]) -> None:
    observer = SseObserver(Api.COMPLETIONS, drop_usage=True)

    assert _observe(observer, pieces) == b"".join(pieces)


def test_whole_events_are_passed_on_at_once() -> None:
    observer = SseObserver(Api.CHAT, drop_usage=True)

    assert [observer.feed(event) for event in _CHAT] == [*_CHAT[:4], b"", _DONE]


def test_usage_beside_choices_stays_in_the_stream() -> None:
    both = _event(choices=[{"delta": {"content": "x"}}], usage={"prompt_tokens": 1, "completion_tokens": 1})
    observer = SseObserver(Api.CHAT, drop_usage=True)

    assert observer.feed(both) == both
    assert observer.usage == Usage(1, 1, None)


def test_an_event_without_an_end_is_not_kept_for_ever() -> None:
    observer = SseObserver(Api.CHAT, drop_usage=True)
    flood = b"data: " + b"x" * (REST_LIMIT_BYTES + 1)

    assert observer.feed(flood) == flood


def test_lines_may_end_in_crlf() -> None:
    whole = _WHOLE.replace(b"\n\n", b"\r\n\r\n")
    observer = SseObserver(Api.CHAT, drop_usage=True)

    assert _observe(observer, _pieces(whole, [50, 51, 130])) == whole.replace(_USAGE[:-2] + b"\r\n\r\n", b"")
    assert observer.tokens == 3


_MESSAGES = (
    b'event: message_start\ndata: {"message":{"usage":{"input_tokens":20,"output_tokens":0}}}\n\n'
    b'event: content_block_delta\ndata: {"type":"content_block_delta","delta":{"text":"a"}}\n\n'
    b'event: content_block_delta\ndata: {"type":"content_block_delta","delta":{"text":"b"}}\n\n'
    b'event: message_delta\ndata: {"type":"message_delta","usage":{"output_tokens":2}}\n\n'
    b'event: message_stop\ndata: {"type":"message_stop"}\n\n'
)
_RESPONSES = (
    b'event: response.created\ndata: {"response":{"usage":null},"sequence_number":0}\n\n'
    b'event: response.output_text.delta\ndata: {"delta":"a","sequence_number":1}\n\n'
    b'event: response.completed\ndata: {"response":{"usage":{"input_tokens":5,"output_tokens":1,'
    b'"input_tokens_details":{"cached_tokens":4}}},"sequence_number":2}\n\n'
)


@pytest.mark.parametrize(
    ("api", "whole", "tokens", "usage"),
    [
        (Api.MESSAGES, _MESSAGES, 2, Usage(20, 2, None)),
        (Api.RESPONSES, _RESPONSES, 1, Usage(5, 1, 4)),
        (Api.RESPONSES, _RESPONSES.replace(b"response.completed", b"response.incomplete"), 1, Usage(5, 1, 4)),
        (Api.COMPLETIONS, _event(choices=[{"text": "a"}]) * 3 + _DONE, 3, None),
        (Api.TRANSCRIPTIONS, _token("a") * 2 + _DONE, 2, None),
    ],
)
def test_each_api_tells_its_tokens_and_usage_in_its_own_way(
    api: Api, whole: bytes, tokens: int, usage: Usage | None
) -> None:
    for cut in range(len(whole)):
        observer = SseObserver(api)
        assert _observe(observer, _pieces(whole, [cut])) == whole
        assert (observer.tokens, observer.usage, observer.complete) == (tokens, usage, True)
