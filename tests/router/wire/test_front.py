"""The front of a large body: what it says, however little of it has come."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scripted.examples import examples
from tidepool_router.facts import Api, RequestFacts
from tidepool_router.wire.body import inspect
from tidepool_router.wire.front import read_front, rename_front, told_of, with_told
from tidepool_router.wire.models import NOTHING, Body

PATH = "/v1/chat/completions"
FORM = b"multipart/form-data; boundary=b"

_keys = st.text(max_size=5) | st.sampled_from(["model", "messages", "stream", "n", 'mo"del', "{"])
_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_keys, inner, max_size=3),
    max_leaves=5,
)
_dumps = st.sampled_from(
    [
        lambda value: json.dumps(value).encode(),
        lambda value: json.dumps(value, ensure_ascii=False).encode("utf-8", "surrogatepass"),
        lambda value: b" \r\n" + json.dumps(value, indent=1).encode(),
    ]
)


def front(body: bytes, end: int) -> Any:
    return read_front(Api.CHAT, PATH, body[:end], len(body))


@examples(20)
@given(st.dictionaries(_keys, _values, max_size=5), st.text(min_size=1), _dumps, st.data())
def test_wherever_a_body_is_cut_its_front_says_what_the_whole_says_or_less(
    others: dict[str, Any], model: str, dumps: Any, data: Any
) -> None:
    body = dumps(others | {"model": model})
    end = data.draw(st.integers(0, len(body)))
    found = front(body, end)

    if found is not None and found.model_at:
        assert found.facts.model == model
        whole = rename_front(body[:end], "new", found.model_at) + body[end:]
        assert json.loads(whole) == others | {"model": "new"}
    if found is not None:
        assert found.facts.body_bytes == len(body)
        assert found.facts.stream <= (others.get("stream") is True)


@given(st.binary(max_size=200))
def test_whatever_comes_is_read_without_a_fault(junk: bytes) -> None:
    for content_type in (b"", FORM):
        read_front(Api.CHAT, PATH, b'{"model":' + junk, 1000, content_type)
        read_front(Api.CHAT, PATH, junk, 0, content_type)


@pytest.mark.parametrize(
    ("body", "model", "why"),
    [
        (b'{"model":"a","messages":[{"content":"x', "a", "it stands before what is long"),
        (b'{"messages":[{"content":"x","model":"b"', "", "a nested name is not ours"),
        (b'{"messages":["\\"model\\":\\"b\\",', "", "nor is text that looks like a member"),
        (b'{"model":"a', "", "it may go on"),
        (b'{"model":"a"', "", "and so may what stands at the very end"),
        (b'{"mod\\u0065l":"\\u00e9\xc3\xa9","k":', "\xe9\xe9", "names as parsers read them"),
        (b'{"model":7,"k":', "", "the whole is refused, in the words for it"),
        (b'{"model":"a","model":"b","k":', "b", "the last one counts"),
    ],
)
def test_the_model_is_known_when_it_is_there_whole(body: bytes, model: str, why: str) -> None:
    found = front(body, len(body))
    assert (found.facts.model, bool(found.model_at)) == (model, bool(model)), why


@pytest.mark.parametrize("body", [b"", b" ", b"[1,2", b'"model"', b"\x1f\x8b\x08", b"x" * 50])
def test_what_begins_no_object_is_waited_for(body: bytes) -> None:
    assert front(body, len(body)) is None


def test_depth_without_end_is_waited_for_and_does_no_harm() -> None:
    assert read_front(Api.CHAT, PATH, b'{"a":' + b"[" * 200_000, 300_000) is None


def test_a_prompt_counts_with_what_has_not_come_and_begins_as_the_whole_one() -> None:
    body = json.dumps({"model": "a", "max_tokens": 9, "messages": [{"content": "word " * 4000}]}).encode()
    whole = inspect(Api.CHAT, PATH, body)
    found = front(body, 9000).facts

    assert found.max_tokens == 9
    assert abs(found.prompt_bytes - whole.prompt_bytes) < 10
    tight = body.replace(b'": ', b'":').replace(b", ", b",")
    part, all_of_it = front(tight, 9000).facts.prefix, inspect(Api.CHAT, PATH, tight).prefix
    assert len(part) > 3
    assert part == all_of_it[: len(part)]


def test_every_member_that_is_a_prompt_is_counted_as_one() -> None:
    raw = [name for name in Body.__struct_fields__ if getattr(Body(), name) is NOTHING]
    for name in raw:
        body = b'{"%b":["%b"],"k":' % (name.encode(), b"x" * 100)
        assert front(body, len(body)).facts.prompt_bytes == 104, name


def test_fields_of_a_form_are_known_before_its_file_has_come() -> None:
    field = b'--b\r\nContent-Disposition: form-data; name="%b"\r\n\r\n%b\r\n'
    file = b'--b\r\nContent-Disposition: form-data; name="file"; filename="a.mp3"\r\n\r\n' + b"\0" * 500
    body = field % (b"prompt", b"hello") + field % (b"model", b"whisper") + file
    found = read_front(Api.TRANSCRIPTIONS, "/v1/audio/transcriptions", body, 80_000, FORM)

    assert found is not None
    assert (found.facts.model, found.facts.prompt_bytes) == ("whisper", 5 + 1000)
    renamed = rename_front(body, "other", found.model_at, FORM)
    assert renamed == body.replace(b"whisper", b"other")
    late = read_front(Api.TRANSCRIPTIONS, "/v1/audio/transcriptions", file, 80_000, FORM)
    assert late is not None
    assert late.facts.model == ""


@pytest.mark.parametrize("model", ["tiny", "модель", 'a"b\r\n'])
def test_what_a_gateway_tells_of_a_body_arrives_in_a_header(model: str) -> None:
    facts = RequestFacts(Api.CHAT, "/", "alias", stream=True, max_tokens=0, choices=3)
    told = told_of(facts, model)
    heard = with_told(RequestFacts(Api.CHAT, "/", "", prompt_bytes=7), told)

    assert told.isascii()
    assert told.decode().isprintable()
    assert heard == RequestFacts(Api.CHAT, "/", model, stream=True, max_tokens=0, choices=3, prompt_bytes=7)


@pytest.mark.parametrize("told", [b"", b"tiny", b"[]", b'{"stream":true}', b'{"model":7}', b'{"model":"\xff"}'])
def test_what_cannot_be_read_tells_nothing(told: bytes) -> None:
    facts = RequestFacts(Api.CHAT, "/", "")

    assert with_told(facts, told) == facts


def test_a_later_release_may_tell_more_and_nobody_is_believed_beyond_reason() -> None:
    told = b'{"model":"m","n":99999999,"max_tokens":-1,"what":"ever"}'
    heard = with_told(RequestFacts(Api.CHAT, "/", ""), told)

    assert (heard.model, heard.choices, heard.max_tokens) == ("m", 1024, None)
