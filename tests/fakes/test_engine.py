"""The double itself: tests of the router lean on it, so what it promises is tested here."""

import asyncio
import json
from collections.abc import AsyncIterator

import httpx
import pytest

from fakes.engine import EngineDouble
from fakes.faults import Fault, Wrong
from fakes.journal import Ending
from fakes.settings import EngineSettings, Pace
from scripted.plain import plain

JSON = {"content-type": "application/json"}


@pytest.fixture
async def engine() -> AsyncIterator[EngineDouble]:
    async with EngineDouble() as running:
        yield running


def chat(**extra: object) -> dict[str, object]:
    return {"model": "tiny", "messages": [{"role": "user", "content": "hello"}]} | extra


async def post(engine: EngineDouble, body: object, path: str = "/v1/chat/completions") -> httpx.Response:
    async with plain(engine.url, timeout=10) as client:
        return await client.post(path, json=body)


def events(text: str) -> list[str]:
    return [line.removeprefix("data: ") for line in text.split("\n\n") if line]


async def test_a_chat_is_answered_with_exactly_the_tokens_asked_for(engine: EngineDouble) -> None:
    answer = (await post(engine, chat(max_tokens=7, ignore_eos=True))).json()
    assert answer["usage"]["completion_tokens"] == 7
    assert len(answer["choices"][0]["message"]["content"].split()) == 7
    assert answer["choices"][0]["finish_reason"] == "length"


async def test_a_stream_has_role_tokens_usage_and_done(engine: EngineDouble) -> None:
    body = chat(max_tokens=3, stream=True, stream_options={"include_usage": True})
    got = events((await post(engine, body)).text)
    assert got[-1] == "[DONE]"
    parsed = [json.loads(one) for one in got[:-1]]
    assert parsed[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert [one["choices"][0]["finish_reason"] for one in parsed[1:-1]] == [None, None, "length"]
    assert parsed[-1]["choices"] == []
    assert parsed[-1]["usage"]["completion_tokens"] == 3


async def test_bodies_are_kept_byte_for_byte(engine: EngineDouble) -> None:
    raw = b'{"model":"tiny", "prompt":"a\\u00e9 ",\n "max_tokens":1}'
    async with plain(engine.url) as client:
        await client.post("/v1/completions", content=raw, headers={"X-Odd-Case": "kept"} | JSON)
    (record,) = engine.journal.of("/v1/completions")
    assert record.body == raw
    assert (b"X-Odd-Case", b"kept") in record.headers
    assert record.ending is Ending.ANSWERED


async def test_the_same_prompt_again_is_cached_but_for_its_last_block() -> None:
    settings = EngineSettings(prompt_tokens_details=True, block_size=16)
    async with EngineDouble(settings) as engine:
        body = {"model": "tiny", "prompt": "abcd" * 40, "max_tokens": 1}
        first = (await post(engine, body, "/v1/completions")).json()
        again = (await post(engine, body, "/v1/completions")).json()
    assert [answer["usage"]["prompt_tokens_details"]["cached_tokens"] for answer in (first, again)] == [0, 32]


@pytest.mark.parametrize("stream", [True, False])
async def test_a_client_that_leaves_frees_its_slot_and_blocks(stream: bool) -> None:
    async with EngineDouble(EngineSettings(pace=Pace.MANUAL)) as engine:
        task = asyncio.create_task(post(engine, chat(max_tokens=50, stream=stream)))
        await engine.until_waiting(1)
        await engine.step()
        assert engine.running == 1
        assert engine.kv_blocks_used > 0
        task.cancel()
        await engine.until(lambda: engine.aborted == 1)
        await engine.until(lambda: engine.ended(Ending.ABORTED) == 1)
        assert (engine.running, engine.kv_blocks_used) == (0, 0)


async def test_slots_and_priorities_decide_who_runs() -> None:
    async with EngineDouble(EngineSettings(pace=Pace.MANUAL, max_num_seqs=1)) as engine:
        finished: list[str] = []

        async def ask(name: str, priority: int) -> None:
            await post(engine, chat(max_tokens=2, priority=priority))
            finished.append(name)

        tasks = []
        for count, (name, priority) in enumerate((("late", 5), ("soon", -5), ("normal", 0)), 1):
            tasks.append(asyncio.create_task(ask(name, priority)))
            await engine.until_waiting(count)
        for count in range(1, 4):
            await engine.step(2)
            await asyncio.wait_for(asyncio.shield(tasks[(1, 2, 0)[count - 1]]), 5)
        assert finished == ["soon", "normal", "late"]


async def test_a_full_kv_cache_makes_the_newest_wait_and_preempts_it() -> None:
    settings = EngineSettings(pace=Pace.MANUAL, max_model_len=64, num_gpu_blocks=4, block_size=16)
    async with EngineDouble(settings) as engine:
        bodies = [{"model": "tiny", "prompt": letter * 4 * 30, "max_tokens": 10} for letter in "ab"]
        tasks = []
        for count, body in enumerate(bodies, 1):
            tasks.append(asyncio.create_task(post(engine, body, "/v1/completions")))
            await engine.until_waiting(count)
        await engine.step(4)
        assert (engine.running, engine.waiting, engine.core.scheduler.preemptions) == (1, 1, 1)
        await engine.step(20)
        answers = [(await task).json() for task in tasks]
        assert [answer["usage"]["completion_tokens"] for answer in answers] == [10, 10]
        assert engine.kv_blocks_used == 0


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        (Wrong.RESET, httpx.ReadError),
        (Wrong.CLOSE, httpx.RemoteProtocolError),
        (Wrong.NOT_HTTP, httpx.RemoteProtocolError),
        (Wrong.HANG, httpx.ReadTimeout),
        (Wrong.RESET_MID_STREAM, httpx.ReadError),
        (Wrong.CLOSE_MID_STREAM, httpx.RemoteProtocolError),
        (Wrong.HANG_MID_STREAM, httpx.ReadTimeout),
    ],
)
async def test_an_ordered_fault_hits_one_request_and_no_more(
    engine: EngineDouble, wrong: Wrong, error: type[Exception]
) -> None:
    engine.order(Fault(wrong))
    patience = 0.5 if error is httpx.ReadTimeout else 10
    async with plain(engine.url, timeout=10) as client:
        with pytest.raises(error):
            await client.post("/v1/chat/completions", json=chat(max_tokens=5, stream=True), timeout=patience)
        assert (await client.post("/v1/chat/completions", json=chat(max_tokens=5))).status_code == 200
    await engine.until(lambda: engine.running == 0)
    assert engine.kv_blocks_used == 0


async def test_an_engine_that_dies_says_so_in_the_stream(engine: EngineDouble) -> None:
    engine.order(Fault(Wrong.ERROR_MID_STREAM, after_tokens=2))
    got = events((await post(engine, chat(max_tokens=5, stream=True))).text)
    assert [json.loads(one).get("error", {}).get("code") for one in got[:-1]] == [None, None, None, 500]
    await engine.until(lambda: engine.running == 0)


async def test_a_head_that_never_ends_is_never_an_answer(engine: EngineDouble) -> None:
    engine.order(Fault(Wrong.SLOW_HEADERS, seconds=0.01))
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.2):
            await post(engine, chat())


async def test_connections_are_counted(engine: EngineDouble) -> None:
    async with plain(engine.url) as client:
        for _ in range(3):
            await client.get("/health")
        assert (engine.connections_accepted, engine.connections_open) == (1, 1)
    await engine.until(lambda: engine.connections_open == 0)
    assert engine.connections_accepted == 1


async def test_statuses_and_health_to_order(engine: EngineDouble) -> None:
    engine.order(Fault(Wrong.STATUS, status=429, retry_after_seconds=7))
    refused = await post(engine, chat())
    assert (refused.status_code, refused.headers["retry-after"]) == (429, "7")
    engine.api.health_status = 503
    async with plain(engine.url) as client:
        assert (await client.get("/health")).status_code == 503


async def test_nothing_listens_until_the_model_is_loaded() -> None:
    async with EngineDouble(loading=True) as engine, plain(engine.url) as client:
        with pytest.raises(httpx.ConnectError):
            await client.get("/health")
        await engine.listen()
        assert (await client.get("/health")).status_code == 200
        await engine.refuse(drop=True)
        with pytest.raises(httpx.ConnectError):
            await client.get("/health")


async def test_the_rates_set_how_long_an_answer_takes() -> None:
    settings = EngineSettings(output_tokens_per_second=50)
    async with EngineDouble(settings) as engine:
        loop = asyncio.get_running_loop()
        start = loop.time()
        await post(engine, chat(max_tokens=10))
        assert loop.time() - start >= 0.18  # ten steps of 20 ms: never sooner, whatever the machine does
