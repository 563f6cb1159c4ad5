"""OpenAI's own client."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from fakes.faults import Fault, Wrong
from scripted.later import openai
from scripted.plain import plain
from scripted.stacks import Stack

pytestmark = pytest.mark.traffic  # its models are two thousand, and take seconds to load

_TALK: Any = [{"role": "user", "content": "hello"}]


@pytest.fixture
async def client(stack: Stack) -> AsyncIterator[Any]:
    async with openai.AsyncOpenAI(
        base_url=f"{stack.url}/v1", api_key="none", max_retries=0, http_client=plain()
    ) as client:
        yield client


async def test_chat(client: Any) -> None:
    answer = await client.chat.completions.create(model="alias", messages=_TALK, max_tokens=3)

    assert answer.choices[0].message.content == " reef tide pool"
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 3


@pytest.mark.parametrize("usage", [False, True])
async def test_chat_streams_bring_usage_when_asked_and_only_then(client: Any, usage: bool) -> None:
    stream = await client.chat.completions.create(
        model="tiny", messages=_TALK, max_tokens=3, stream=True, stream_options={"include_usage": usage}
    )
    events = [event async for event in stream]

    assert "".join(event.choices[0].delta.content or "" for event in events if event.choices) == " reef tide pool"
    assert [event.usage.completion_tokens for event in events if event.usage] == ([3] if usage else [])
    assert all(event.choices for event in events) is not usage


async def test_completions(client: Any) -> None:
    answer = await client.completions.create(model="tiny", prompt=["one", "two"], max_tokens=2)
    stream = await client.completions.create(model="tiny", prompt="one", max_tokens=2, stream=True)

    assert [choice.text for choice in answer.choices] == [" reef tide"] * 2
    assert "".join([event.choices[0].text async for event in stream]) == " reef tide"


async def test_responses(client: Any) -> None:
    answer = await client.responses.create(model="tiny", input="hello", max_output_tokens=3)
    stream = await client.responses.create(model="tiny", input="hello", max_output_tokens=3, stream=True)
    events = [event async for event in stream]

    assert answer.output_text == " reef tide pool"
    assert (
        "".join(event.delta for event in events if event.type == "response.output_text.delta") == " reef tide pool"
    )
    assert [event.sequence_number for event in events] == list(range(len(events)))
    last = events[-1]
    assert last.type == "response.completed"
    assert last.response.usage is not None
    assert last.response.usage.output_tokens == 3


async def test_embeddings(client: Any) -> None:
    answer = await client.embeddings.create(model="alias", input=["a", "b", "a"], encoding_format="float")

    first, second, third = (item.embedding for item in answer.data)
    assert first == third != second
    assert answer.usage.prompt_tokens == 3


async def test_transcriptions(client: Any, stack: Stack) -> None:
    audio = ("speech.wav", b"RIFF" + bytes(range(256)) * 100, "audio/wav")
    answer = await client.audio.transcriptions.create(model="alias", file=audio, prompt="model")

    assert answer.text == " reef tide"
    assert b"alias" not in stack.engine.journal.records[-1].body


async def test_models(client: Any) -> None:
    names = [model.id async for model in client.models.list()]

    assert names == ["tiny", "alias"]
    assert (await client.models.retrieve("alias")).id == "alias"


async def test_tokens_of_an_engine_that_dies_are_followed_by_an_error(client: Any, stack: Stack) -> None:
    stack.engine.order(Fault(Wrong.RESET_MID_STREAM, after_tokens=2))
    texts: list[str] = []

    async def read() -> None:
        async for event in await client.chat.completions.create(model="tiny", messages=_TALK, stream=True):
            texts.append(event.choices[0].delta.content or "")  # noqa: PERF401 (what came before the error counts)

    with pytest.raises(openai.APIError, match="the answer is not complete"):
        await read()

    assert "".join(texts) == " reef tide"


@pytest.mark.parametrize(
    ("request_of", "error", "message"),
    [
        (
            lambda c: c.chat.completions.create(model="x", messages=_TALK),
            "NotFoundError",
            "known models: tiny",
        ),
        (lambda c: c.chat.completions.create(model="", messages=_TALK), "BadRequestError", "names no model"),
        (lambda c: c.embeddings.create(model="x", input="a"), "NotFoundError", "known models: tiny"),
        (lambda c: c.responses.create(model="x", input="a"), "NotFoundError", "known models: tiny"),
        (lambda c: c.models.retrieve("x"), "NotFoundError", "known models: tiny"),
        (lambda c: c.moderations.create(model="tiny", input="a"), "NotFoundError", "is not served here"),
        (
            lambda c: c.chat.completions.create(model="tiny", messages=_TALK, max_tokens=99_999),
            "BadRequestError",
            "cannot be greater than max_model_len",
        ),
        (
            lambda c: c.completions.create(model="tiny", prompt="x" * (2 << 20)),
            "APIStatusError",
            "--max-body-bytes",
        ),
    ],
)
async def test_errors_are_of_the_class_that_a_program_catches(
    client: Any, request_of: Any, error: str, message: str
) -> None:
    with pytest.raises(getattr(openai, error), match=message) as caught:
        await request_of(client)

    # Of bytes that are no whole request there is nothing to give an id to.
    assert bool(caught.value.request_id) is (caught.value.status_code != 413)


async def test_a_full_queue_is_a_rate_limit(full: str) -> None:
    async with openai.AsyncOpenAI(
        base_url=f"{full}/v1", api_key="none", max_retries=0, http_client=plain()
    ) as client:
        with pytest.raises(openai.RateLimitError) as caught:
            await client.chat.completions.create(model="tiny", messages=_TALK)

    assert int(caught.value.response.headers["retry-after"]) >= 1


async def test_an_engine_that_fails_is_a_server_error(client: Any, stack: Stack) -> None:
    stack.engine.order(Fault(Wrong.STATUS, status=500, times=None))
    with pytest.raises(openai.InternalServerError, match="ordered by the test"):
        await client.chat.completions.create(model="tiny", messages=_TALK)


async def test_a_stream_that_the_program_leaves_is_aborted_at_the_engine(client: Any, stack: Stack) -> None:
    stack.engine.order(Fault(Wrong.HANG_MID_STREAM))
    stream = await client.chat.completions.create(model="tiny", messages=_TALK, stream=True)
    await anext(aiter(stream))
    await stream.close()

    await stack.engine.until(lambda: stack.engine.aborted == 1)
