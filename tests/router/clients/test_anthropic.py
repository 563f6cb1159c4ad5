"""Anthropic's own client."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from fakes.faults import Fault, Wrong
from scripted.later import anthropic
from scripted.plain import NOBODY
from scripted.stacks import Stack

pytestmark = pytest.mark.traffic  # its models are two thousand, and take seconds to load

_TALK: Any = [{"role": "user", "content": "hello"}]
_PATH = "/v1/messages"


@pytest.fixture
async def client(stack: Stack) -> AsyncIterator[Any]:
    async with anthropic.AsyncAnthropic(
        base_url=stack.url,
        api_key="none",
        max_retries=0,
        http_client=anthropic.DefaultAsyncHttpxClient(verify=NOBODY),
    ) as client:
        yield client


async def test_messages(client: Any) -> None:
    answer = await client.messages.create(model="alias", messages=_TALK, max_tokens=3)

    assert [block.text for block in answer.content if block.type == "text"] == [" reef tide pool"]
    assert answer.usage.output_tokens == 3


async def test_streams(client: Any) -> None:
    async with client.messages.stream(model="tiny", messages=_TALK, max_tokens=3) as stream:
        texts = [text async for text in stream.text_stream]
        last = await stream.get_final_message()

    assert texts == [" reef", " tide", " pool"]
    assert (last.stop_reason, last.usage.output_tokens) == ("max_tokens", 3)


async def test_counts_of_tokens(client: Any) -> None:
    assert (await client.messages.count_tokens(model="alias", messages=_TALK)).input_tokens == 7


async def test_an_engine_that_dies_is_an_error_and_no_end(client: Any, stack: Stack) -> None:
    stack.engine.order(Fault(Wrong.RESET_MID_STREAM, after_tokens=2, path=_PATH))
    texts: list[str] = []

    async def read() -> None:
        async with client.messages.stream(model="tiny", messages=_TALK, max_tokens=9) as stream:
            async for text in stream.text_stream:
                texts.append(text)  # noqa: PERF401 (what came before the error counts)

    with pytest.raises(anthropic.APIStatusError, match="the answer is not complete"):
        await read()

    assert texts == [" reef", " tide"]


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"model": "x"}, "NotFoundError", "known models: tiny"),
        ({"max_tokens": 0}, "BadRequestError", "max_tokens must be positive"),
    ],
)
async def test_errors_are_of_the_class_that_a_program_catches(
    client: Any, change: dict[str, Any], error: str, message: str
) -> None:
    asked: dict[str, Any] = {"model": "tiny", "messages": _TALK, "max_tokens": 3}
    with pytest.raises(getattr(anthropic, error), match=message):
        await client.messages.create(**asked | change)


async def test_an_unknown_model_is_of_anthropics_type(client: Any) -> None:
    for ask in (client.messages.create(model="x", messages=_TALK, max_tokens=3),
                client.messages.count_tokens(model="x", messages=_TALK)):  # fmt: skip
        with pytest.raises(anthropic.NotFoundError) as caught:
            await ask
        assert caught.value.type == "not_found_error"


async def test_a_full_queue_is_a_rate_limit(full: str) -> None:
    async with anthropic.AsyncAnthropic(
        base_url=full, api_key="none", max_retries=0, http_client=anthropic.DefaultAsyncHttpxClient(verify=NOBODY)
    ) as client:
        with pytest.raises(anthropic.RateLimitError) as caught:
            await client.messages.create(model="tiny", messages=_TALK, max_tokens=3)

    assert caught.value.type == "rate_limit_error"
