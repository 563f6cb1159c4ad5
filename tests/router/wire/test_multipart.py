"""Forms: the fields that an engine sees are the fields that the router sees, whatever the file holds."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidepool_router.errors import Refused
from tidepool_router.facts import Api
from tidepool_router.wire.body import inspect, rename_model
from tidepool_router.wire.multipart import read_parts

_BOUNDARY = b"xYz"
_TYPE = b"multipart/form-data; boundary=xYz"
_PATH = "/v1/audio/transcriptions"


def _field(name: bytes, value: bytes, more: bytes = b"") -> bytes:
    return b'--xYz\r\nContent-Disposition: form-data; name="%b"%b\r\n\r\n%b\r\n' % (name, more, value)


_END = b"--xYz--\r\n"
_AUDIO = _field(b"file", b"RIFF" + bytes(range(256)) * 10, b'; filename="a.wav"\r\nContent-Type: audio/wav')

_names = st.from_regex(rb"[a-z_]{1,10}", fullmatch=True)
_values = st.binary(max_size=200).filter(lambda value: b"\r\n--xYz" not in b"\r\n" + value)


@given(st.lists(st.tuples(_names, _values, st.booleans()), max_size=8), _values, _values)
def test_every_part_is_found_with_its_value(
    fields: list[tuple[bytes, bytes, bool]], preamble: bytes, epilogue: bytes
) -> None:
    wire = b"".join(_field(name, value, b'; filename="f"' if file else b"") for name, value, file in fields)
    body = (preamble + b"\r\n" if preamble else b"") + wire + _END + epilogue

    assert [(part.name, body[part.start : part.end], part.is_file) for part in read_parts(body, _TYPE)] == fields


@given(st.binary(max_size=400) | st.lists(st.sampled_from([b"--xYz", b"\r\n", b"--", _AUDIO, _END])).map(b"".join))
def test_bytes_that_are_no_form_have_parts_inside_them_or_none(body: bytes) -> None:
    edges = [edge for part in read_parts(body, _TYPE) for edge in (part.start, part.end)]

    assert edges == sorted(edges)
    assert all(0 <= edge <= len(body) for edge in edges)


@pytest.mark.parametrize(
    ("body", "model", "why"),
    [
        (_AUDIO + _field(b"model", b"w") + _END, "w", "after the file"),
        (_field(b"model", b"w") + _AUDIO + _END, "w", "before the file"),
        (_field(b"model", b"v") + _field(b"model", b"w") + _END, "w", "the last one counts, as for the engine"),
        (_field(b"f", b"x", b'; filename="a; name=model"') + _field(b"model", b"w") + _END, "w", "a file's name"),
        (
            _field(b"file", b'\r\n; name="model"\r\n\r\nv\r\n', b'; filename="f"') + _field(b"model", b"w") + _END,
            "w",
            "a file that holds a form's text",
        ),
        (_field(b"model", b"v", b'; filename="f"') + _END, "", "a file is no field"),
        (b"--xYz\r\ncontent-disposition:form-data; name=model\r\n\r\nw\r\n" + _END, "w", "bare and in lower case"),
        (
            b'--xYz\r\nContent-Type: a/b\r\nContent-Disposition: form-data; name="model"\r\n\r\nw\r\n' + _END,
            "w",
            "not the part's first header",
        ),
        (_field(b"model", "größe".encode()) + _END, "größe", "names are UTF-8"),
        (_field(b"prompt", b"x") + _END, "", "no model"),
        (_field(b"model", b"w")[:-2], "", "the upload broke off"),
        (b"", "", "nothing"),
    ],
)  # fmt: skip
def test_the_model_of_a_form(body: bytes, model: str, why: str) -> None:
    assert inspect(Api.TRANSCRIPTIONS, _PATH, body, content_type=_TYPE).model == model, why


@pytest.mark.parametrize(
    "content_type",
    [b"multipart/form-data; boundary=xYz", b'Multipart/Form-Data;charset=x; boundary="xYz"; a=b',
     b"multipart/form-data;BOUNDARY=xYz"],
)  # fmt: skip
def test_the_boundary_may_be_written_in_many_ways(content_type: bytes) -> None:
    body = _field(b"model", b"w") + _END

    assert inspect(Api.TRANSCRIPTIONS, _PATH, body, content_type=content_type).model == "w"


def test_a_form_without_a_boundary_is_refused_with_the_remedy() -> None:
    with pytest.raises(Refused, match=r"no boundary.*HTTP library") as caught:
        inspect(Api.TRANSCRIPTIONS, _PATH, b"", content_type=b"multipart/form-data")

    assert caught.value.refusal.status == 400


def test_a_form_with_more_parts_than_an_engine_reads_is_refused() -> None:
    with pytest.raises(Refused, match="1000 parts") as caught:
        inspect(Api.TRANSCRIPTIONS, _PATH, _field(b"a", b"") * 1001 + _END, content_type=_TYPE)

    assert caught.value.refusal.status == 400


def test_renaming_changes_the_field_and_no_byte_of_the_file() -> None:
    body = _field(b"model", b"alias") + _AUDIO + _field(b"prompt", b"alias") + _END

    renamed = rename_model(body, "whisper", _TYPE)

    assert renamed == _field(b"model", b"whisper") + _AUDIO + _field(b"prompt", b"alias") + _END


def test_audio_weighs_what_its_seconds_weigh_and_not_its_bytes() -> None:
    minute = b"\0" * 60 * 16_000  # of mp3
    body = _field(b"file", minute, b'; filename="a.mp3"') + _field(b"stream", b"True") + _END
    facts = inspect(Api.TRANSCRIPTIONS, _PATH, body, content_type=_TYPE)

    assert facts.prompt_bytes / 4 == pytest.approx(60 * 50, rel=0.01)  # tokens of text have about 4 bytes
    assert facts.stream
    assert facts.body_bytes == len(body)
