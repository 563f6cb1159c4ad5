"""Known paths, closed paths, and the shapes of errors."""

import json

import pytest

from tidepool_router.errors import Refusal
from tidepool_router.facts import Api
from tidepool_router.wire.errors import error_body, error_event, refusal_answer
from tidepool_router.wire.paths import Kind, find


@pytest.mark.parametrize(
    ("target", "kind"),
    [
        (b"/v1/chat/completions", Kind.INFERENCE),
        (b"/v1/messages?beta=true", Kind.INFERENCE),
        (b"http://host:80/v1/completions", Kind.INFERENCE),
        (b"HTTPS://host/v1/completions?x", Kind.INFERENCE),
        (b"/v1/models/meta-llama/Llama?x", Kind.MODEL),
        (b"/v1/models", Kind.MODELS),
        (b"/sleep?level=2", Kind.CLOSED),
        (b"/v1/load_lora_adapter", Kind.CLOSED),
        (b"/metrics", Kind.CLOSED),
    ],
)
def test_known_paths(target: bytes, kind: Kind) -> None:
    route = find(target)

    assert route is not None
    assert route.kind is kind


@pytest.mark.parametrize(
    "target",
    [
        b"/",
        b"*",
        b"/v1//load_lora_adapter",
        b"/v1/../sleep",
        b"/%73leep",
        b"/SLEEP",
        b"/v1/chat/completions/",
        b"/v1/models/",
        b"//sleep",
        b"http://",
        b"http:///sleep/",
    ],
)
def test_no_other_spelling_reaches_an_engine(target: bytes) -> None:
    """What is not in the table is not forwarded, so a closed path cannot be reached by writing it differently."""
    assert find(target) is None


def test_errors_have_the_shape_of_the_api() -> None:
    openai = json.loads(error_body(Api.CHAT, 404, "invalid_request_error", 'no "x"', "model_not_found"))
    anthropic = json.loads(error_body(Api.MESSAGES, 404, "invalid_request_error", "no", "model_not_found"))

    assert openai["error"] == {
        "message": 'no "x"', "type": "invalid_request_error", "param": None, "code": "model_not_found",
    }  # fmt: skip
    assert anthropic == {"type": "error", "error": {"type": "not_found_error", "message": "no"}}


@pytest.mark.parametrize("api", list(Api))
def test_error_events_are_one_event_without_a_forged_end(api: Api) -> None:
    event = error_event(api, "gone\n\nfor good", 7)

    assert event.count(b"\n\n") == 1
    assert event.endswith(b"\n\n")
    assert b"[DONE]" not in event
    data = json.loads(event[event.index(b"data: ") + 6 :])
    assert "gone" in json.dumps(data)
    if api is Api.RESPONSES:
        assert data["sequence_number"] == 7


@pytest.mark.parametrize(
    ("status", "kind"),
    [(404, "not_found_error"), (413, "request_too_large"), (429, "rate_limit_error"), (503, "overloaded_error"),
     (504, "timeout_error"), (418, "api_error")],
)  # fmt: skip
@pytest.mark.parametrize("api", [Api.MESSAGES, Api.COUNT_TOKENS])
def test_anthropics_errors_have_anthropics_names(api: Api, status: int, kind: str) -> None:
    assert json.loads(error_body(api, status, "x", "m", "c")) == {
        "type": "error", "error": {"type": kind, "message": "m"},
    }  # fmt: skip


def test_a_refusal_says_when_to_come_back() -> None:
    answer = refusal_answer(Api.CHAT, Refusal(429, "t", "c", "m", 0.2), close=False)

    assert b"\r\nretry-after: 1\r\n" in answer
    assert b"connection: close" not in answer
