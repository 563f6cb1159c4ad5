"""Bodies are read without being changed, and changed in one place only."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidepool_router.errors import Refused
from tidepool_router.facts import Api
from tidepool_router.wire.body import ask_usage, inspect, rename_model

_scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
_keys = st.text() | st.sampled_from(["model", "stream_options", "include_usage", "messages", 'mo"del', "{", "\\"])
_values = st.recursive(
    _scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_keys, inner, max_size=3),
    max_leaves=4,
)
_dumps = st.sampled_from(
    [
        lambda value: json.dumps(value).encode(),
        lambda value: json.dumps(value, ensure_ascii=False).encode("utf-8", "surrogatepass"),
        lambda value: json.dumps(value, indent=2).encode(),
        lambda value: b" \r\n" + json.dumps(value, separators=(",", ":")).encode() + b"\n ",
    ]
)


@given(st.dictionaries(_keys, _values, max_size=5), st.text(), st.text(), _dumps)
def test_renaming_changes_the_top_level_model_and_no_other_byte(
    others: dict[str, Any], old: str, new: str, dumps: Any
) -> None:
    body = dumps(others | {"model": old})
    renamed = rename_model(body, new)

    assert json.loads(renamed) == others | {"model": new}
    # The bytes around the one value are those of the original.
    value = json.dumps(new).encode()
    starts = [at for at in range(len(renamed)) if renamed.startswith(value, at)]
    gap = len(body) - (len(renamed) - len(value))
    assert any(renamed[:at] == body[:at] and renamed[at + len(value) :] == body[at + gap :] for at in starts)


@pytest.mark.parametrize(
    ("body", "expected", "why"),
    [
        (b'{"model":"a","x":{"model":"a"}}', b'{"model":"n","x":{"model":"a"}}', "a nested name is not ours"),
        (
            b'{"x":"\\"model\\":","model":"a"}',
            b'{"x":"\\"model\\":","model":"n"}',
            "text that looks like a member",
        ),
        (b'{"mod\\u0065l":"a"}', b'{"mod\\u0065l":"n"}', "an escaped name is the same name"),
        (b'{"model":"a","model":"b"}', b'{"model":"n","model":"n"}', "a parser may take the first or the last"),
        (b'{"model" :\t"\xc3\xa9","k":1}', b'{"model" :\t"n","k":1}', "bytes beyond ASCII keep their places"),
        (
            b'{"k":"\xf0\x9f\x8c\x8a","model":"a"}',
            b'{"k":"\xf0\x9f\x8c\x8a","model":"n"}',
            "also before the value",
        ),
    ],
)
def test_renaming_by_table(body: bytes, expected: bytes, why: str) -> None:
    assert rename_model(body, "n") == expected, why


@pytest.mark.parametrize("body", [b"[]", b"", b'{"model"', b'{"model" "a"}', b'{"a":tru}'])
def test_renaming_refuses_what_is_no_object(body: bytes) -> None:
    with pytest.raises(ValueError, match="no JSON object"):
        rename_model(body, "n")


def test_renaming_a_form_changes_its_part_of_that_name() -> None:
    form = (
        b'--b\r\nContent-Disposition: form-data; name="model"\r\n\r\nalias\r\n'
        b'--b\r\nContent-Disposition: form-data; name="file"; filename="model"\r\n\r\nRIFFalias\r\n--b--\r\n'
    )
    content_type = b"multipart/form-data; boundary=b"

    assert (
        inspect(Api.TRANSCRIPTIONS, "/v1/audio/transcriptions", form, content_type=content_type).model == "alias"
    )
    assert rename_model(form, "whisper", content_type) == form.replace(b"\r\n\r\nalias", b"\r\n\r\nwhisper")


@given(st.dictionaries(_keys.filter(lambda key: key != "stream_options"), _values, max_size=5), _dumps)
def test_asking_for_usage_adds_one_member_and_moves_nothing(others: dict[str, Any], dumps: Any) -> None:
    body = dumps(others)
    asked = ask_usage(body)

    assert json.loads(asked) == others | {"stream_options": {"include_usage": True}}
    added = b'"stream_options":{"include_usage":true}' + (b"," if others else b"")
    at = body.index(b"{") + 1
    assert asked == body[:at] + added + body[at:]


@given(st.dictionaries(_keys, _scalars, max_size=3), st.dictionaries(_keys, _values, max_size=3), _dumps)
def test_asking_for_usage_keeps_the_options_that_were_there(
    options: dict[str, Any], others: dict[str, Any], dumps: Any
) -> None:
    asked = json.loads(ask_usage(dumps(others | {"stream_options": options})))

    assert asked == others | {"stream_options": options | {"include_usage": True}}


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b'{"stream_options":null}', b'{"stream_options":{"include_usage":true}}'),
        (b'{"stream_options": { } }', b'{"stream_options": {"include_usage":true } }'),
        (b'{"stream_options":{"include_usage":false}}', b'{"stream_options":{"include_usage":true}}'),
        (b'{"a":"\\"stream_options\\""}', b'{"stream_options":{"include_usage":true},"a":"\\"stream_options\\""}'),
    ],
)
def test_asking_for_usage_by_table(body: bytes, expected: bytes) -> None:
    assert ask_usage(body) == expected


@given(st.dictionaries(_keys, _values, max_size=5), _dumps)
def test_facts_are_what_json_says(document: dict[str, Any], dumps: Any) -> None:
    document = document | {"model": "m", "stream": True, "n": 2, "max_tokens": 5}
    document.pop("max_completion_tokens", None)
    document.pop("stream_options", None)
    facts = inspect(Api.CHAT, "/v1/chat/completions", dumps(document))

    assert (facts.model, facts.stream, facts.choices, facts.max_tokens) == ("m", True, 2, 5)
    assert facts.body_bytes == len(dumps(document))


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"", "not valid JSON"),
        (b"{oops", "not valid JSON"),
        (b'{"model":"a"} trailing', "not valid JSON"),
        ('{"model":"a"}'.encode("utf-16"), "not valid JSON"),
        (b"[1]", "JSON object"),
        (b'"text"', "JSON object"),
        (b'{"model":3}', "the field model"),
        (b'{"a":' * 100_000, "nested too deeply"),
    ],
)
def test_a_body_that_cannot_be_read_is_refused_with_400(body: bytes, message: str) -> None:
    with pytest.raises(Refused, match=message) as caught:
        inspect(Api.CHAT, "/v1/chat/completions", body)

    assert caught.value.refusal.status == 400


@pytest.mark.parametrize("body", [b'{"model":"a","temperature":NaN}', b'\xef\xbb\xbf{"model":"a"}'])
def test_what_engines_read_though_it_is_no_strict_json_passes(body: bytes) -> None:
    assert inspect(Api.CHAT, "/v1/chat/completions", body).model == "a"


def test_prompt_bytes_are_those_of_the_prompt_alone() -> None:
    messages = [{"role": "user", "content": "x" * 1000}]
    body = json.dumps(
        {"model": "m", "messages": messages, "logit_bias": {str(key): 1 for key in range(500)}}
    ).encode()

    assert inspect(Api.CHAT, "/v1/chat/completions", body).prompt_bytes == len(json.dumps(messages))
