"""The queue of due keys."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidepool_operator.cluster.workqueue import WorkQueue


async def taken(queue: WorkQueue[str]) -> str:
    return await asyncio.wait_for(queue.take(), 5)


async def nothing_due(queue: WorkQueue[str]) -> bool:
    waiting = asyncio.ensure_future(queue.take())
    for _ in range(5):
        await asyncio.sleep(0)
    done = waiting.done()
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    return not done


async def test_many_causes_are_one_piece_of_work() -> None:
    queue: WorkQueue[str] = WorkQueue()
    for _ in range(5):
        queue.add("a")

    assert await taken(queue) == "a"
    queue.done("a")
    assert await nothing_due(queue)


async def test_a_key_has_one_worker_at_a_time_and_no_cause_is_lost() -> None:
    queue: WorkQueue[str] = WorkQueue()
    queue.add("a")
    await taken(queue)
    queue.add("a")

    assert await nothing_due(queue), "its worker still has it"
    queue.done("a")
    assert await taken(queue) == "a"


async def test_the_earlier_time_wins() -> None:
    queue: WorkQueue[str] = WorkQueue()
    queue.add("a", 60)
    assert await nothing_due(queue)
    queue.add("a")
    queue.add("a", 60)

    assert await taken(queue) == "a"


async def test_a_busy_key_does_not_hold_up_others() -> None:
    queue: WorkQueue[str] = WorkQueue()
    queue.add("a")
    await taken(queue)
    queue.add("a")
    queue.add("b")

    assert await taken(queue) == "b"


async def test_failures_wait_longer_and_longer_up_to_a_cap_and_success_forgets_them() -> None:
    queue: WorkQueue[str] = WorkQueue()
    pauses = []
    for _ in range(10):
        queue.add("a")
        await taken(queue)
        pauses.append(queue.failed("a"))

    assert pauses[:4] == [0.5, 1.0, 2.0, 4.0]
    assert pauses[-1] == 120.0
    queue.add("a")
    await taken(queue)
    queue.done("a")
    queue.add("a")
    await taken(queue)
    assert queue.failed("a") == 0.5


async def test_a_servers_wish_for_patience_is_heard_whatever_happens_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    queue: WorkQueue[str] = WorkQueue()
    queue.add("a")
    await taken(queue)
    queue.add("a")  # while it is worked on
    assert queue.failed("a", at_least_seconds=7) == 7
    queue.add("a")  # and after it has failed

    assert await nothing_due(queue)
    loop = asyncio.get_running_loop()
    now = loop.time()
    monkeypatch.setattr(loop, "time", lambda: now + 7.1)
    assert await taken(queue) == "a"
    queue.done("a")
    queue.add("a")
    assert await taken(queue) == "a", "it is granted once"


async def test_patience_has_a_bound() -> None:
    queue: WorkQueue[str] = WorkQueue()
    queue.add("a")
    await taken(queue)

    assert queue.failed("a", at_least_seconds=86_400) == 120.0


async def test_an_event_shortens_a_pause_that_nobody_asked_for() -> None:
    queue: WorkQueue[str] = WorkQueue()
    queue.add("a")
    await taken(queue)
    queue.failed("a")
    queue.add("a")

    assert await taken(queue) == "a"


async def test_work_that_hangs_shows_its_age(monkeypatch: pytest.MonkeyPatch) -> None:
    queue: WorkQueue[str] = WorkQueue()
    queue.add("a")
    await taken(queue)
    loop = asyncio.get_running_loop()
    now = loop.time()
    monkeypatch.setattr(loop, "time", lambda: now + 400)

    assert 399 < queue.oldest_seconds() < 401
    queue.done("a")
    assert queue.oldest_seconds() == 0


STEPS = st.lists(st.tuples(st.sampled_from(["add", "take", "done", "fail"]), st.sampled_from("abc")), max_size=40)


@given(steps=STEPS)
def test_every_cause_is_worked_on_after_it_came(steps: list[tuple[str, str]]) -> None:
    async def run() -> None:
        queue: WorkQueue[str] = WorkQueue()
        active: set[str] = set()
        owed: set[str] = set()
        for step, key in steps:
            if step == "add":
                queue.add(key)
                owed.add(key)
            elif step == "take" and owed - active:
                found = await taken(queue)
                assert found not in active
                active.add(found)
                owed.discard(found)
            elif step in ("done", "fail") and key in active:
                active.remove(key)
                if step == "done":
                    queue.done(key)
                else:
                    queue.failed(key)
                    queue.add(key)
                    owed.add(key)
        for key in active:
            queue.done(key)
        for _ in range(len(owed)):
            found = await taken(queue)
            owed.remove(found)
            queue.done(found)
        assert not owed

    asyncio.run(run())


@pytest.mark.parametrize("turns", range(4))
async def test_a_worker_that_is_cancelled_just_as_something_comes_ends_all_the_same(turns: int) -> None:
    """Else an operator that lost its Lease waits for this worker for ever."""
    queue: WorkQueue[str] = WorkQueue()
    queue.add("later", 7200.0)
    worker = asyncio.ensure_future(queue.take())
    await asyncio.sleep(0)
    await asyncio.sleep(0)

    queue.add("sooner", 3600.0)
    for _ in range(turns):
        await asyncio.sleep(0)
    worker.cancel()
    await asyncio.wait([worker], timeout=1)
    ended = worker.done()
    worker.cancel()

    assert ended
