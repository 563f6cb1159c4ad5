"""The bodies of the two steps: what the first engine is asked, what the second is told, who does it whole."""

import json

import pytest

from tidepool_router.facts import Api
from tidepool_router.wire.transfer import first_step, names_transfer, second_step, told_by, whole_again

_TOLD = {"do_remote_prefill": True, "remote_engine_id": "e", "remote_block_ids": [[1, 2]]}


@pytest.mark.parametrize(
    ("api", "more"),
    [
        (Api.CHAT, {"stream": True, "stream_options": {"include_usage": True}, "max_tokens": 9}),
        (Api.CHAT, {"max_completion_tokens": 100, "min_tokens": 50, "n": 1, "echo": False}),
        (Api.MESSAGES, {"system": "be brief", "max_tokens": 100, "stream": True}),
        (Api.COMPLETIONS, {"prompt": "hello", "logprobs": 3}),
        (Api.COMPLETIONS, {"prompt": [5, 6, 7]}),
    ],
)
def test_the_first_step_asks_for_one_token_of_the_same_prompt_and_for_its_blocks(
    api: Api, more: dict[str, object]
) -> None:
    asked = {"model": "tiny", "messages": [{"role": "user", "content": "h\u00fc"}], "seed": 3} | more
    body = first_step(api, json.dumps(asked).encode())

    assert body is not None
    first = json.loads(body)
    assert first.pop("kv_transfer_params")["do_remote_decode"] is True
    assert first.pop("max_tokens") == 1
    assert first.pop("stream") is False
    assert first.pop("max_completion_tokens", 1) == 1
    lengths = {"stream", "stream_options", "max_tokens", "max_completion_tokens", "min_tokens"}
    assert first == {key: value for key, value in asked.items() if key not in lengths}


@pytest.mark.parametrize(
    ("api", "more", "why"),
    [
        (Api.CHAT, {"n": 2}, "two answers"),
        (Api.COMPLETIONS, {"prompt": ["a", "b"]}, "two prompts"),
        (Api.COMPLETIONS, {"prompt": [[1], [2]]}, "two prompts as tokens"),
        (Api.COMPLETIONS, {"prompt": "a", "echo": True}, "the answer has the prompt"),
        (Api.COMPLETIONS, {"prompt": "a", "best_of": 3}, "three answers to choose from"),
        (Api.CHAT, {"prompt_logprobs": 1}, "figures of every prompt token"),
        (Api.CHAT, {"use_beam_search": True}, "many answers under way"),
        (Api.EMBEDDINGS, {"input": "a"}, "nothing is decoded"),
        (Api.RESPONSES, {"input": "a"}, "an API that keeps answers in one engine"),
    ],
)
def test_what_needs_one_engine_has_no_first_step(api: Api, more: dict[str, object], why: str) -> None:
    assert first_step(api, json.dumps({"model": "tiny"} | more).encode()) is None, why


def test_the_second_step_is_the_clients_request_and_one_field_more() -> None:
    body = b' { "model" : "tiny",\n"messages":[] }'
    second = second_step(body, json.dumps(_TOLD).encode())

    assert json.loads(second) == json.loads(body) | {"kv_transfer_params": _TOLD}
    assert body.lstrip()[1:] in second  # every byte of it
    assert json.loads(whole_again(second)) == json.loads(body) | {"kv_transfer_params": None}
    assert json.loads(second_step(b"{ }", b"{}")) == {"kv_transfer_params": {}}


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        ({"choices": [], "kv_transfer_params": _TOLD}, True),
        ({"choices": [], "kv_transfer_params": None}, False),
        ({"choices": []}, False),
        ({"kv_transfer_params": {"do_remote_prefill": False, "remote_engine_id": "e"}}, False),
        ({"kv_transfer_params": {"do_remote_prefill": True}}, False),
        ({"kv_transfer_params": [1]}, False),
        ([], False),
    ],
)
def test_what_an_answer_tells_of_blocks(answer: object, told: bool) -> None:
    found = told_by(json.dumps(answer).encode())
    assert (None if found is None else json.loads(found)) == (_TOLD if told else None)


@pytest.mark.parametrize(
    ("body", "named"),
    [
        (b'{"kv_transfer_params":{}}', True),
        (b'{"kv\\u005ftransfer_params":{}}', True),  # the engine reads it as the same name
        (b'{"a":{"kv_transfer_params":1}}', False),
        (b'{"prompt":"what is kv_transfer_params?"}', False),
        (b'{"prompt":"\\u00fc"}', False),
    ],
)
def test_a_field_of_the_routers_is_known_however_it_is_written(body: bytes, named: bool) -> None:
    assert names_transfer(body) is named


def test_what_is_no_answer_tells_nothing() -> None:
    assert told_by(b"<html>") is None
    assert told_by(b"[" * 100_000) is None
