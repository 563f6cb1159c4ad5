"""What is written somewhere slow holds up nobody, keeps its order, and has a bound."""

import asyncio
import threading

from tidepool_router.tracing.batches import Batches


async def test_items_are_written_once_in_their_order_also_at_the_end() -> None:
    written: list[list[int]] = []
    batches = Batches("test", written.append, bound=10, interval_seconds=0.001)
    batches.start()
    batches.put(1)
    batches.put(2)
    async with asyncio.timeout(20):
        while not written:  # noqa: ASYNC110 (a thread writes)
            await asyncio.sleep(0.001)
    batches.put(3)
    await batches.close()

    assert [item for batch in written for item in batch] == [1, 2, 3]
    assert batches.dropped == 0


async def test_beyond_the_bound_items_are_dropped_and_counted_while_the_writer_is_stuck() -> None:
    stuck, go = threading.Event(), threading.Event()
    written: list[int] = []

    def write(items: list[int]) -> None:
        stuck.set()
        go.wait(5)
        written.extend(items)

    batches = Batches("test", write, bound=3, interval_seconds=0.0)
    batches.start()
    batches.put(0)
    await asyncio.get_running_loop().run_in_executor(None, stuck.wait, 5)
    for item in range(1, 6):
        batches.put(item)
    go.set()
    await batches.close()

    assert written == [0, 1, 2, 3]
    assert batches.dropped == 2


async def test_a_writer_that_fails_is_asked_again() -> None:
    seen: list[int] = []

    def write(items: list[int]) -> None:
        seen.extend(items)
        raise OSError("full")

    batches = Batches("test", write, bound=3, interval_seconds=0.0)
    batches.start()
    for item in range(2):
        batches.put(item)
        async with asyncio.timeout(20):
            while len(seen) <= item:  # noqa: ASYNC110 (a thread writes)
                await asyncio.sleep(0.001)
    await batches.close()

    assert seen == [0, 1]
