"""Prompts in the form that the conventions give them, for those who want them."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidepool_router.facts import Api
from tidepool_router.tracing.prompts import LONGEST_BYTES, input_messages


def text(role: str, *contents: str) -> dict[str, Any]:
    return {"role": role, "parts": [{"type": "text", "content": content} for content in contents]}


@pytest.mark.parametrize(
    ("api", "body", "messages", "why"),
    [
        (Api.CHAT, {"messages": [{"role": "system", "content": "a"}]}, [text("system", "a")], "a plain message"),
        (
            Api.MESSAGES,
            {"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "image"}]}]},
            [{"role": "user", "parts": [{"type": "text", "content": "a"}, {"type": "other"}]}],
            "parts: media is left out",
        ),
        (Api.RESPONSES, {"input": "a"}, [text("user", "a")], "an input that is text"),
        (Api.COMPLETIONS, {"prompt": "a"}, [text("user", "a")], "a prompt"),
        (Api.EMBEDDINGS, {"input": "a"}, [text("user", "a")], "what is embedded"),
        (
            Api.CHAT,
            {"messages": [{"role": "assistant", "content": None}]},
            [text("assistant")],
            "a call of a tool",
        ),
    ],
)
def test_messages(api: Api, body: Any, messages: Any, why: str) -> None:
    told = input_messages(api, json.dumps(body).encode())

    assert json.loads(told["gen_ai.input.messages"]) == messages, why


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (b"", "no body"),
        (b"\xff", "no JSON"),
        (b"[]", "no object"),
        (b"{}", "no messages"),
        (json.dumps({"messages": "x" * LONGEST_BYTES}).encode(), "too long: left out and not cut"),
    ],
)
def test_nothing_is_told_of(body: bytes, why: str) -> None:
    assert input_messages(Api.CHAT, body) == {}, why


@given(st.sampled_from(Api), st.recursive(st.none() | st.text(), lambda each: st.lists(each) | st.dictionaries(
    st.sampled_from(["messages", "content", "role", "text", "input", "prompt"]), each
)))  # fmt: skip
def test_no_body_breaks_it(api: Api, body: Any) -> None:
    input_messages(api, json.dumps(body).encode())
