"""Nothing that clients send makes the router grow for ever. Report 21."""

import asyncio
import gc
import tracemalloc
from typing import Any

import pytest

from pools.gateway import make_pool
from scripted.clients import RawClient, chat, post
from scripted.upstreams import ScriptedEngine, Seen
from tidepool_router.facts import Api, RequestFacts
from tidepool_router.fleet import fusion
from tidepool_router.fleet.fusion import LoadFusion
from tidepool_router.ledger import Outcome, prefix


class Clock:
    """Time that a test moves."""

    seconds = 1000.0

    def __call__(self) -> float:
        return self.seconds


@pytest.mark.interpreted
def test_prompts_that_are_all_different_do_not_grow_the_pool(monkeypatch: Any) -> None:
    """Report 21 (production-stack #687, #707, PR #1072): a trie and dicts without a bound; 14 kills in 12 days."""
    monkeypatch.setattr(prefix, "_MOST_HASHES", 500)
    monkeypatch.setattr(fusion, "_LONGEST_LINE", 64)
    clock = Clock()
    pool = make_pool(clock, 3)

    def serve(count: int, first: int) -> None:
        for number in range(first, first + count):
            clock.seconds += 0.01
            facts = RequestFacts(
                api=Api.CHAT, path="/v1/chat/completions", model="m", prompt_bytes=4000, session=f"s{number}",
                prefix=tuple(hash((number, block)) for block in range(8)),
            )  # fmt: skip
            reservation = pool.pick(facts, clock())
            assert reservation is not None
            reservation.entry.first_token(clock())
            reservation.entry.usage(1000 + number, 10, 0)
            reservation.close(Outcome.OK, clock())

    serve(300, 0)
    gc.collect()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        serve(1000, 300)
        gc.collect()
        grown = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()

    # What is replaced while it is traced counts as new, up to the bounds above.
    assert grown < 400_000, f"{grown / 1000:.0f} bytes a request"
    assert len(pool.prefixes) <= 500


def test_dispatches_without_reports_are_bounded() -> None:
    """Report 21: a pod that never reports, and whose requests never end."""
    line = LoadFusion()
    for number in range(3 * fusion._LONGEST_LINE):
        line.dispatched(100, float(number), 100)

    assert line.kept <= 2 * fusion._LONGEST_LINE


async def test_names_that_clients_invent_make_no_series(gateway: Any) -> None:
    """Report 21: metrics whose labels clients can choose are a memory of everything that was ever sent."""
    async with ScriptedEngine() as engine:
        door = await gateway(engine.url)
        async with RawClient(door.port) as client:
            await client.ask(post(chat()))
            await client.ask(post(chat("nobody")))
            before = len(door.state.metrics.registry.render().splitlines())
            for number in range(50):
                extra = b"x-tidepool-priority: p%d\r\nx-tidepool-session: s%d\r\n" % (number, number)
                await client.ask(post(chat(f"model-{number}"), extra=extra))
                await client.ask(post(chat(), b"/v1/path/%d" % number, extra))
                await client.ask(post(chat(), extra=extra))

            assert len(door.state.metrics.registry.render().splitlines()) <= before + 5


async def test_a_stream_that_passes_is_not_kept(gateway: Any) -> None:
    """Read in production-stack's code: the whole text of each stream was collected until its end."""
    block = b'data: {"choices":[{"delta":{"content":"' + b"x" * 100_000 + b'"}}]}\n\n'
    looked = asyncio.Event()

    async def script(seen: Seen) -> None:
        await seen.begin_stream()
        for _ in range(100):
            await seen.chunk(block)
        await looked.wait()
        await seen.chunk(b"data: [DONE]\n\n")
        await seen.chunk(b"")

    async with ScriptedEngine(script) as engine:
        door = await gateway(engine.url)
        async with RawClient(door.port) as client:
            tracemalloc.start()
            try:
                await client.send(post(chat(stream=True)))
                await client.head()
                received = 0
                while received < 100 * len(block):
                    received += len(await client.chunk())
                router_only = tracemalloc.Filter(inclusive=True, filename_pattern="*/tidepool_router/*")
                kept = tracemalloc.take_snapshot().filter_traces([router_only])
            finally:
                tracemalloc.stop()
            looked.set()
            while await client.chunk():
                pass

    size = sum(trace.size for trace in kept.traces)
    assert size < 500_000, f"{size} bytes kept of a stream of {received}"
