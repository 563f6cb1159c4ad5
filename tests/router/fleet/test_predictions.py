"""What a gateway's pod says of its load between reports, and what a pool learns of caches, sessions and speed."""

from dataclasses import replace
from typing import Any

import msgspec
import pytest

from pools.gateway import READY, chat, endpoints, first, must_pick
from tidepool_api.routing import FleetPool
from tidepool_router.facts import RequestFacts
from tidepool_router.fleet.gateway_metrics import GatewayMetrics
from tidepool_router.fleet.pool import PoolState
from tidepool_router.ledger import Outcome
from tidepool_router.picking.decision import Decision


@pytest.fixture
def pool(clock: Any) -> PoolState:
    made = PoolState(FleetPool.model_validate({"name": "ns/p", "models": ["m"]}), GatewayMetrics(), clock)
    made.set_pods(endpoints(4))
    for pod in made.pods.values():
        made.pod_heard(pod, replace(READY, kv_capacity_tokens=100_000))
    return made


def prompt(name: int, size: int = 8000, **changes: Any) -> RequestFacts:
    prefix = tuple((name * 7919 + border) & 0xFFFFFFFF for border in range(16))
    return msgspec.structs.replace(chat(size), prefix=prefix, stream=True, **changes)


def finish(pool: PoolState, reservation: Any, now: float, cached: int | None = None) -> None:
    reservation.entry.first_token(now)
    reservation.entry.usage(2000, 50, cached)
    reservation.close(Outcome.OK, now)


def test_what_begins_alike_goes_where_it_is_cached(pool: PoolState, clock: Any) -> None:
    homes = {}
    for name in range(8):
        reservation = must_pick(pool, prompt(name))
        homes[name] = reservation.endpoint.key
        finish(pool, reservation, clock.pass_(0.3))

    for name, home in homes.items():
        reservation = must_pick(pool, prompt(name))
        assert (reservation.endpoint.key, reservation.reason) == (home, "predicted-cached")
        finish(pool, reservation, clock.pass_(0.3))


def test_a_pod_that_was_restarted_has_nothing_cached(pool: PoolState, clock: Any) -> None:
    reservation = must_pick(pool, prompt(1))
    finish(pool, reservation, clock.pass_(0.3))
    pod = pool.pods[reservation.endpoint.key]

    pool.pod_heard(pod, replace(READY, boot="another", kv_capacity_tokens=100_000))

    assert must_pick(pool, prompt(1)).reason == "predicted"


def test_a_session_stays_where_its_last_answer_is(pool: PoolState, clock: Any) -> None:
    short = msgspec.structs.replace(chat(200), session="s", stream=True)
    home = must_pick(pool, short)
    finish(pool, home, clock.pass_(0.3))

    for _ in range(8):
        again = must_pick(pool, short)
        assert again.endpoint.key == home.endpoint.key
        finish(pool, again, clock.pass_(0.3))


def test_late_reports_do_not_hide_own_requests(pool: PoolState, clock: Any) -> None:
    """Reports five seconds old: the own ledger tells the queue, exactly, while nobody else sends there."""
    pod = first(pool)
    others = tuple(key for key in pool.pods if key != pod.key)
    for _ in range(5):
        must_pick(pool, prompt(1), exclude=others)
    clock.pass_(3.0)

    pool.pod_heard(pod, replace(READY, seq=2, queued_tokens=0, running=0, kv_capacity_tokens=100_000))

    assert pod.live_requests == 5
    assert pod.queued_tokens == pod.ledger.queued_tokens > 0


def test_requests_of_other_gateways_count_where_they_run(pool: PoolState, clock: Any) -> None:
    pod = first(pool)
    for seq in range(2, 30):
        report = replace(READY, seq=seq, opened_total=seq * 2, running=9, queued_tokens=5000, kv_tokens=40_000)
        pool.pod_heard(pod, report)

    assert (pod.live_requests, pod.queued_tokens, pod.kv_tokens) == (9, 5000, 40_000)


def test_a_prompt_whose_answer_does_not_stream_leaves_the_queue_in_time(pool: PoolState, clock: Any) -> None:
    quiet = msgspec.structs.replace(prompt(1), stream=False)
    reservation = must_pick(pool, quiet)
    pod = pool.pods[reservation.endpoint.key]
    assert pod.queued_tokens > 0

    pod.refresh(clock.pass_(30.0))
    assert pod.queued_tokens == 0

    reservation.close(Outcome.OK, clock())
    pod.refresh(clock())
    assert pod.queued_tokens == 0


def test_engines_without_a_prefix_cache_are_found_out(pool: PoolState, clock: Any) -> None:
    for _ in range(200):
        finish(pool, must_pick(pool, prompt(1)), clock.pass_(0.3), cached=0)

    assert must_pick(pool, prompt(1)).reason == "predicted"


def test_scores_and_records_show_the_pick(pool: PoolState, clock: Any) -> None:
    decisions: list[Decision] = []
    pool.record = decisions.append

    scores = pool.scores(prompt(1), clock())
    must_pick(pool, prompt(1))

    assert scores.count("harm=") == 4
    assert pool.scores(prompt(1), clock(), (first(pool).key,)).count("harm=") == 3  # for a retry
    assert all(part in scores for part in ("wait=", "prefill=", "stall=", "decode=", "memory=", "adapter="))
    assert (decisions[0].pool, len(decisions[0].pods), decisions[0].reason) == ("ns/p", 4, "predicted")


def test_streams_to_idle_pods_spread_although_one_was_slow_while_it_had_work(clock: Any) -> None:
    """What is never picked cannot show that it has come to itself."""
    pool = PoolState(FleetPool.model_validate({"name": "ns/p", "models": ["m"]}), GatewayMetrics(), clock)
    pool.set_pods(endpoints(2))
    usual, slow = pool.pods.values()
    seq = 0

    def heartbeats(count: int) -> None:
        nonlocal seq
        for _ in range(count):
            seq += 1
            clock.pass_(1.0)
            for pod in (usual, slow):
                pool.pod_heard(pod, replace(READY, seq=seq, kv_capacity_tokens=100_000))

    def chosen() -> set[str]:
        held = [must_pick(pool, prompt(100 + number)) for number in range(3)]
        for reservation in held:
            reservation.close(Outcome.CANCELLED, clock())
        return {reservation.endpoint.key for reservation in held}

    heartbeats(1)
    for tokens in [500, 2000, 8000] * 20:
        usual.learned.started(tokens, tokens / 10_000)
        slow.learned.started(tokens, tokens / 1_000)

    assert chosen() == {usual.key}
    heartbeats(90)
    assert chosen() == {usual.key, slow.key}
