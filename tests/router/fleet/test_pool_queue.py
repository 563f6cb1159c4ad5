"""A pool at the gateway: requests that are held until a pod can take them."""

import asyncio
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from msgspec.structs import replace as replace_struct

from pools.gateway import READY, chat, first, make_pool, must_pick
from tidepool_router.errors import NoPods, QueueFull, QueueTimeout, TooLate
from tidepool_router.facts import RequestFacts
from tidepool_router.fleet.pool import PoolState
from tidepool_router.fleet.reservation import Reservation
from tidepool_router.ledger import Outcome


async def waiting(pool: PoolState, clock: Any, *requests: RequestFacts) -> list[asyncio.Task[Reservation]]:
    tasks = []
    for facts in requests:
        tasks.append(asyncio.create_task(pool.wait_for_pod(facts, clock)))
        await asyncio.sleep(0)
    return tasks


async def test_held_requests_go_the_moment_a_pod_is_ready(clock: Any) -> None:
    pool = make_pool(clock, 1, ready=False)
    tasks = await waiting(pool, clock, *[chat()] * 8)
    assert (pool.demand(clock()).held, pool.demand(clock()).held_bytes) == (8, 8 * 400)

    clock.pass_(42.0)
    pool.pod_heard(first(pool), READY)

    assert pool.queue.held == 0  # at once, without a tick
    reservations = await asyncio.gather(*tasks)
    assert {r.queued_seconds for r in reservations} == {42.0}
    assert pool.in_flight == 8


async def test_held_requests_go_by_priority_then_age(clock: Any) -> None:
    pool = make_pool(clock, 1, ready=False)
    order: list[int] = []

    async def wait(priority: int, number: int) -> None:
        await pool.wait_for_pod(chat(priority=priority), clock)
        order.append(number)

    tasks = []
    for number, priority in enumerate([0, 100, 0, -5, 100]):
        tasks.append(asyncio.create_task(wait(priority, number)))
        await asyncio.sleep(0)
    pool.pod_heard(first(pool), READY)
    await asyncio.gather(*tasks)

    assert order == [1, 4, 0, 2, 3]


async def test_a_backlog_is_spread_over_pods_that_come_up_one_after_another(clock: Any) -> None:
    pool = make_pool(clock, 4, ready=False)
    tasks = await waiting(pool, clock, *[chat()] * 200)
    for pod in pool.pods.values():
        pool.pod_heard(pod, READY)
        pool.tick(clock.pass_(0.1))
    for _ in range(6):
        pool.tick(clock.pass_(0.1))

    placed = Counter(r.endpoint.key for r in await asyncio.gather(*tasks))

    assert sum(placed.values()) == 200
    assert max(placed.values()) <= 60  # 50 each would be even; the first alone would have had all


async def test_a_large_backlog_is_gone_within_two_seconds_on_one_pod(clock: Any) -> None:
    pool = make_pool(clock, 1, ready=False, maxWaiting=5000)
    tasks = await waiting(pool, clock, *[chat()] * 5000)
    pool.pod_heard(first(pool), READY)
    for _ in range(20):
        pool.tick(clock.pass_(0.1))

    assert pool.queue.held == 0
    await asyncio.gather(*tasks)


async def test_nobody_overtakes_who_is_held(clock: Any) -> None:
    pool = make_pool(clock, 1, ready=False, maxWaiting=100)
    tasks = await waiting(pool, clock, *[chat()] * 12)
    pool.pod_heard(first(pool), READY)
    assert pool.queue.held == 4

    assert pool.pick(chat(), clock()) is None  # must queue behind them
    assert pool.pick(chat(), clock(), exclude=("elsewhere",)) is not None  # a retry has waited before

    pool.tick(clock.pass_(0.1))
    await asyncio.gather(*tasks)


async def test_a_full_queue_refuses_at_once(clock: Any) -> None:
    pool = make_pool(clock, 1, ready=False, maxWaiting=2)
    tasks = await waiting(pool, clock, chat(), chat())

    with pytest.raises(QueueFull) as caught:
        await pool.wait_for_pod(chat(), clock)

    assert caught.value.refusal.status == 429
    assert caught.value.refusal.retry_after_seconds
    assert pool.demand(clock()).refused_total == 1
    pool.close()
    await asyncio.gather(*tasks, return_exceptions=True)


async def test_a_queue_is_bounded_in_bytes(clock: Any) -> None:
    pool = make_pool(clock, 1, ready=False, maxBytes="1Ki")
    tasks = await waiting(pool, clock, chat(1000))

    with pytest.raises(QueueFull):
        await pool.wait_for_pod(chat(100), clock)

    pool.close()
    await asyncio.gather(*tasks, return_exceptions=True)


@pytest.mark.parametrize(
    ("wakes", "seconds", "why"),
    [
        (True, 600.0, "somebody starts a pod"),
        (False, 60.0, "nobody does"),
    ],
)
async def test_a_held_request_is_turned_away_in_time(clock: Any, wakes: bool, seconds: float, why: str) -> None:
    pool = make_pool(clock, 1, ready=False, wakes=wakes)
    (task,) = await waiting(pool, clock, chat())
    pool.tick(clock.pass_(seconds - 0.1))
    assert pool.queue.held == 1, why

    pool.tick(clock.pass_(0.2))
    with pytest.raises(QueueTimeout) as caught:
        await task

    assert caught.value.refusal.status == 503
    assert f"{seconds:.0f} s" in caught.value.refusal.message


async def test_a_pool_that_nothing_starts_refuses_at_once(clock: Any) -> None:
    pool = make_pool(clock, 0, wakes=False)

    with pytest.raises(NoPods) as caught:
        await pool.wait_for_pod(chat(), clock)

    assert caught.value.refusal.status == 503


async def test_who_is_held_when_the_pool_goes_hears_it(clock: Any) -> None:
    pool = make_pool(clock, 0)
    tasks = await waiting(pool, clock, chat(), chat())
    pool.close()

    for task in tasks:
        with pytest.raises(NoPods, match="has been removed"):
            await task


async def test_a_client_that_leaves_while_held_frees_its_place(clock: Any) -> None:
    pool = make_pool(clock, 1, ready=False)
    leaver, stayer = await waiting(pool, clock, chat(), chat())
    leaver.cancel()
    with pytest.raises(asyncio.CancelledError):
        await leaver
    assert pool.queue.held == 1

    pool.pod_heard(first(pool), READY)
    await stayer
    assert pool.in_flight == 1


async def test_a_client_that_leaves_as_its_pod_comes_gives_the_place_back(clock: Any) -> None:
    """The reservation is made, the waiter has not run yet, and its client goes: nobody else would close it."""
    pool = make_pool(clock, 1, ready=False)
    (task,) = await waiting(pool, clock, chat())
    pool.pod_heard(first(pool), READY)
    assert pool.in_flight == 1
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task

    assert pool.in_flight == 0
    assert first(pool).load_requests == 0


async def test_a_pod_on_trial_takes_held_requests_one_by_one(clock: Any) -> None:
    pool = make_pool(clock, 1)
    first(pool).streaming = True
    failed = must_pick(pool)
    failed.failed("connect")
    failed.close(Outcome.ERROR, clock())
    tasks = await waiting(pool, clock, chat(), chat(), chat())
    assert pool.queue.held == 3

    pool.tick(clock.pass_(1.1))
    assert pool.queue.held == 2
    (await tasks[0]).entry.first_token(clock())
    pool.tick(clock.pass_(0.2))

    assert pool.queue.held == 1  # two at once now
    pool.close()
    await asyncio.gather(*tasks, return_exceptions=True)


async def test_when_all_pods_are_full_requests_are_held_here_and_go_as_one_has_room(clock: Any) -> None:
    pool = make_pool(clock, 2)
    one, two = pool.pods.values()
    for pod in (one, two):
        pool.pod_heard(pod, replace(READY, seq=2, running=4, limit=5))
    assert [must_pick(pool) for _ in range(2)]  # each pod has one place

    assert pool.pick(chat(), clock()) is None
    first_task, second_task = await waiting(pool, clock, chat(), chat(priority=100))
    assert pool.demand(clock()).held == 2
    pool.tick(clock.pass_(1.0))
    assert pool.queue.held == 2  # time alone makes no room

    pool.pod_heard(two, replace(READY, seq=3, running=3, limit=5, opened_total=1))
    assert (await second_task).endpoint.key == two.key  # at once, and the higher priority first
    await first_task
    assert pool.queue.held == 0


async def test_a_full_pod_does_not_hold_up_a_pool_that_has_another(clock: Any) -> None:
    pool = make_pool(clock, 2)
    one, two = pool.pods.values()
    pool.pod_heard(one, replace(READY, seq=2, running=9, limit=5))
    pool.pod_heard(two, replace(READY, seq=2, running=1, limit=5))

    assert must_pick(pool).endpoint.key == two.key


async def test_of_a_full_pod_at_which_others_wait_as_many_of_ours_wait_beside_them(clock: Any) -> None:
    """Callers of the pool's Service wait at the pod: while they do it has no room, and ours would never go."""
    pool = make_pool(clock, 2)
    alone, visited = pool.pods.values()
    pool.pod_heard(alone, replace(READY, seq=2, running=5, waiting=3, held=3, limit=5))
    pool.pod_heard(visited, replace(READY, seq=2, running=5, waiting=3, held=3, limit=5))
    tasks = await waiting(pool, clock, *[chat(priority=number) for number in (1, 2, 3, 4)])
    assert pool.queue.held == 4, "whose requests wait there is not told: they may be other gateways'"

    told = replace(READY, seq=3, running=5, waiting=3, held=3, limit=5, held_direct=2)
    pool.pod_heard(visited, told)
    await asyncio.sleep(0)
    went = [task.result() for task in tasks if task.done()]
    assert [reservation.endpoint.key for reservation in went] == [visited.key] * 2
    assert [task.done() for task in tasks] == [False, False, True, True], "the higher priorities"

    went[0].entry.first_token(clock.pass_(0.1))
    pool.tick(clock())
    assert pool.queue.held == 1, "one of ours has got its place, and another one may wait for the next"
    pool.pod_heard(visited, replace(told, seq=4, held_direct=0))
    pool.tick(clock.pass_(0.1))
    assert pool.queue.held == 1, "nobody else waits there any more"
    pool.close()
    await asyncio.gather(*tasks, return_exceptions=True)


async def test_nobody_is_sent_to_a_queue_that_might_refuse_it(clock: Any) -> None:
    """A pod whose own queue is full answers 429, which the client would get in place of a later turn."""
    pool = make_pool(clock, 1)
    most = pool.routing.queue.max_waiting
    told = replace(READY, seq=2, running=5, waiting=most // 2, held=most // 2, limit=5, held_direct=most // 2)
    pool.pod_heard(first(pool), told)
    (task,) = await waiting(pool, clock, chat())
    assert pool.queue.held == 1

    fewer = most // 2 - 1
    pool.pod_heard(first(pool), replace(told, seq=3, waiting=fewer, held=fewer, held_direct=fewer))
    assert (await task).endpoint.key == first(pool).key


async def test_an_answer_that_ends_makes_room_for_who_is_held(clock: Any) -> None:
    pool = make_pool(clock, 1)
    pool.pod_heard(first(pool), replace(READY, seq=2, running=0, limit=1))
    runs = must_pick(pool)
    (task,) = await waiting(pool, clock, chat())
    assert pool.queue.held == 1

    runs.close(Outcome.OK, clock())

    assert (await task).endpoint.key == first(pool).key


async def test_what_cannot_begin_within_its_deadline_is_refused_at_once(clock: Any) -> None:
    pool = make_pool(clock, 1)
    pool.pod_heard(first(pool), replace(READY, seq=2, running=1, limit=1))
    pool.holding.entrance.drain.waiting(clock())
    pool.holding.entrance.drain.left(500, clock.pass_(1.0), empty=True)  # 500 tokens a second
    tasks = await waiting(pool, clock, *[chat()] * 10)  # 200 tokens each: 4 s

    with pytest.raises(TooLate, match="deadline leaves") as caught:
        await pool.wait_for_pod(replace_struct(chat(priority=-1), deadline_seconds=3.0), clock)
    refusal = caught.value.refusal
    assert (refusal.status, refusal.code) == (429, "deadline_unmeetable")
    assert 2.0 <= (refusal.retry_after_seconds or 0) <= 4.0
    assert pool.queue.held == 10

    tasks += await waiting(pool, clock, replace_struct(chat(priority=-1), deadline_seconds=9.0))
    assert pool.queue.held == 11
    pool.close()
    await asyncio.gather(*tasks, return_exceptions=True)


async def test_a_tenant_that_floods_a_full_queue_makes_room_for_others(clock: Any) -> None:
    pool = make_pool(clock, 1, ready=False, maxWaiting=3)
    flood = await waiting(pool, clock, *[replace_struct(chat(), tenant="flood")] * 3)
    (other,) = await waiting(pool, clock, replace_struct(chat(), tenant="quiet"))

    with pytest.raises(QueueFull, match="took the place"):
        await flood[2]
    assert pool.demand(clock()).refused_total == 1
    pool.pod_heard(first(pool), READY)
    await asyncio.gather(other, *flood[:2])
