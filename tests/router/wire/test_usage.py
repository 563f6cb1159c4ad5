"""Each API tells its tokens in its own place and words; events' are in test_sse."""

import json

import pytest

from tidepool_router.wire.usage import Usage, of_answer, of_event

_CHAT = {"prompt_tokens": 9, "total_tokens": 12, "completion_tokens": 3, "prompt_tokens_details": None}
_RESPONSES = {
    "input_tokens": 9,
    "input_tokens_details": {"cached_tokens": 4},
    "output_tokens": 3,
    "total_tokens": 12,
}
_MESSAGES = {"input_tokens": 1, "output_tokens": 3, "cache_creation_input_tokens": 2, "cache_read_input_tokens": 6}


@pytest.mark.parametrize(
    ("answer", "usage", "why"),
    [
        ({"usage": _CHAT}, Usage(9, 3, None), "chat and completions"),
        ({"usage": _CHAT | {"prompt_tokens_details": {"cached_tokens": 8}}}, Usage(9, 3, 8), "with cached tokens"),
        ({"usage": _RESPONSES, "user": None}, Usage(9, 3, 4), "responses: cached ones are among the input's"),
        ({"usage": _MESSAGES}, Usage(9, 3, 6), "messages: cached and written ones are beside the input's"),
        ({"usage": {"input_tokens": 9, "output_tokens": 3}}, Usage(9, 3, None), "messages without a cache"),
        ({"data": [], "usage": {"prompt_tokens": 9, "total_tokens": 9}}, Usage(9, 0, None), "embeddings, rerank"),
        ({"results": [], "usage": {"total_tokens": 9}}, Usage(9, 0, None), "rerankers of other engines"),
        ({"meta": {"billed_units": {"input_tokens": 9, "image_tokens": 0}}}, Usage(9, 0, None), "Cohere's embed"),
        (
            {"text": "x", "usage": {"type": "tokens", "input_tokens": 9, "output_tokens": 3}},
            Usage(9, 3, None),
            "speech",
        ),
        ({"text": "x", "usage": {"type": "duration", "seconds": 5}}, Usage(0, 0, None), "speech by its length"),
        ({"usage": None}, None, "none told"),
        ({"choices": []}, None, "none there"),
        ({"usage": {"prompt_tokens": "many"}}, None, "no number"),
    ],
)
def test_usage_of_whole_answers(answer: dict[str, object], usage: Usage | None, why: str) -> None:
    assert of_answer(json.dumps(answer).encode()) == usage, why
    if "usage" in answer:  # of a long answer only the end is kept
        assert of_answer(b'xt":"say \\"usage\\":{}"}],' + json.dumps(answer).encode()[1:]) == usage, why


def test_a_stream_of_messages_counts_cached_tokens_as_prompt() -> None:
    event = {"type": "message_delta", "usage": _MESSAGES}

    assert of_event(json.dumps(event).encode()) == (Usage(9, 3, 6), False)


@pytest.mark.parametrize("event", ["response.completed", "response.incomplete"])
def test_usage_of_responses_stands_in_the_last_event(event: str) -> None:
    body = {"type": event, "response": {"usage": _RESPONSES}, "sequence_number": 9}

    assert of_event(json.dumps(body).encode()) == (Usage(9, 3, 4), False)
