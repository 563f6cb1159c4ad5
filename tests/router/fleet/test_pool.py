"""A pool at the gateway: picks with their reservation, and who is picked at all."""

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from pools.gateway import READY, chat, endpoints, first, make_pool, must_pick
from scripted.examples import examples
from tidepool_api.load import Health, LoadReport
from tidepool_router.fleet.pod import PodState
from tidepool_router.fleet.reservation import Reservation
from tidepool_router.ledger import Outcome


def test_a_burst_in_one_moment_is_spread_evenly(clock: Any) -> None:
    """Reports are all equal and old; only reservations made in the same step keep a burst off one pod."""
    pool = make_pool(clock, 8)

    picked = Counter(must_pick(pool).endpoint.key for _ in range(800))

    assert set(picked.values()) == {100}


def test_a_report_of_load_by_others_moves_picks_away(clock: Any) -> None:
    pool = make_pool(clock, 2)
    busy = first(pool)
    pool.pod_heard(busy, replace(READY, seq=2, running=9, held_tokens=90_000))

    assert {must_pick(pool).endpoint.key for _ in range(20)}.isdisjoint({busy.key})


def test_where_others_send_an_own_prompt_counts_twice_until_a_report_has_it(clock: Any) -> None:
    """The other gateway sends as much meanwhile, and sees ours as little as we see its own; to all pods alike."""
    pool = make_pool(clock, 2)
    busy, other = pool.pods.values()
    pool.pod_heard(busy, replace(READY, seq=2, running=0, opened_total=50, closed_total=50))
    for reservation in [must_pick(pool, chat(4_000)) for _ in range(2)]:
        assert pool.pods[reservation.endpoint.key].queued_tokens == 2 * reservation.entry.uncached_tokens

    pool.pod_heard(busy, replace(READY, seq=3, queued_tokens=1_000, running=1, opened_total=51, closed_total=50))

    assert busy.queued_tokens == max(1_000, busy.ledger.queued_tokens)
    assert other.queued_tokens == 2 * other.ledger.queued_tokens


def test_whom_nobody_else_sends_to_any_more_counts_once(clock: Any) -> None:
    pool = make_pool(clock, 2)
    shared, own = pool.pods.values()
    pool.pod_heard(shared, replace(READY, seq=2, running=0, opened_total=50, closed_total=50))

    pool.set_pods([own.endpoint])
    pool.pod_heard(shared, replace(READY, boot="another", seq=3))  # was on its way
    must_pick(pool, chat(4_000))

    assert own.queued_tokens == own.ledger.queued_tokens > 0


def test_load_is_never_below_own_in_flight(clock: Any) -> None:
    pool = make_pool(clock, 1)
    for _ in range(5):
        must_pick(pool)
    pod = first(pool)
    # Another gateway's requests moved the counters: the report seems to include ours, and does not.
    pool.pod_heard(pod, replace(READY, seq=2, running=1, opened_total=50, closed_total=49))

    assert pod.load_requests == 5
    assert pod.load_tokens == pod.ledger.load_tokens > 0


def test_a_new_pod_is_as_fast_as_those_of_its_kind(clock: Any) -> None:
    """Its first report says what it runs on; what others of that kind showed is known before it has answered."""
    pool = make_pool(clock, 3)
    fast, slow, new = pool.pods.values()
    for pod, kind, pace in ((fast, "h100", 1.0), (slow, "l4", 4.0)):
        pool.pod_heard(pod, replace(READY, seq=2, variant=kind))
        for tokens in [500, 3000, 8000] * 40:
            pod.learned.started(tokens, pace * tokens / 10_000)
    before = new.speed.prompt_token_seconds

    pool.pod_heard(new, replace(READY, seq=2, variant="l4"))

    assert new.speed.prompt_token_seconds == pytest.approx(slow.speed.prompt_token_seconds, rel=0.2)
    assert new.speed.prompt_token_seconds > 1.3 * before


def test_everything_returns_to_zero(clock: Any) -> None:
    pool = make_pool(clock, 3)
    held = [must_pick(pool, chat(size)) for size in range(1, 400, 7)]
    for reservation in held:
        reservation.entry.progress(17, clock.pass_(0.01))
        assert reservation.close(Outcome.OK, clock()) is True
        assert reservation.close(Outcome.ERROR, clock()) is False

    assert pool.in_flight == 0
    assert {(pod.load_tokens, pod.load_requests) for pod in pool.pods.values()} == {(0, 0)}


@pytest.mark.parametrize("health", [h for h in Health if h is not Health.READY])
def test_a_pod_that_says_it_is_not_ready_gets_nothing(clock: Any, health: Health) -> None:
    pool = make_pool(clock, 2)
    pod = first(pool)
    pool.pod_heard(pod, replace(READY, seq=2, health=health))

    assert pod.state(clock()).value == health.value
    assert {must_pick(pool).endpoint.key for _ in range(10)}.isdisjoint({pod.key})

    pool.pod_heard(pod, replace(READY, seq=3))
    assert pod.key in {must_pick(pool).endpoint.key for _ in range(20)}


def test_a_pod_not_heard_of_yet_gets_nothing(clock: Any) -> None:
    assert make_pool(clock, 2, ready=False).pick(chat(), clock()) is None


def test_a_pod_whose_stream_broke_is_picked_while_connects_succeed(clock: Any) -> None:
    pool = make_pool(clock, 1)
    pod = first(pool)
    pod.streaming = False
    must_pick(pool).close(Outcome.OK, clock())

    refused = must_pick(pool)
    refused.failed("connect")
    refused.close(Outcome.ERROR, clock())

    assert pool.pick(chat(), clock.pass_(100)) is None  # not before something is heard again
    pool.pod_heard(pod, replace(READY, seq=2))
    assert pool.pick(chat(), clock()) is not None


def test_a_pod_that_refuses_connections_does_not_attract_traffic(clock: Any) -> None:
    """Its load is always zero: without ejection every request of a minute would go there first."""
    pool = make_pool(clock, 3)
    bad = first(pool)
    bad.streaming = True  # its stream lives, its traffic does not
    tried = 0
    for _ in range(600):
        clock.pass_(0.1)
        reservation = must_pick(pool)
        if reservation.endpoint.key == bad.key:
            tried += 1
            reservation.failed("connect")
            reservation.close(Outcome.ERROR, clock())
            must_pick(pool, exclude=(bad.key,))

    assert 1 <= tried <= 6  # at 0, 1, 3, 7, 15, 31 s


def test_an_ejected_pod_comes_back_by_the_first_good_byte(clock: Any) -> None:
    pool = make_pool(clock, 1)
    pod = first(pool)
    pod.streaming = True
    failed = must_pick(pool)
    failed.failed("connect")
    failed.close(Outcome.ERROR, clock())
    assert pool.pick(chat(), clock()) is None

    clock.pass_(1.0)
    trial = must_pick(pool)
    assert pool.pick(chat(), clock()) is None  # one at a time
    trial.entry.first_token(clock())  # a long stream has begun: no need to wait for its end

    assert pool.pick(chat(), clock()) is not None


def test_the_first_byte_of_an_error_is_no_success(clock: Any) -> None:
    pool = make_pool(clock, 2)
    pod = first(pool)
    others = tuple(key for key in pool.pods if key != pod.key)

    def bad_answer() -> None:
        reservation = must_pick(pool, exclude=others)
        reservation.failed("http_5xx")
        reservation.entry.first_token(clock())
        reservation.close(Outcome.ERROR, clock())

    for _ in range(5):
        bad_answer()
    assert pod.state(clock()) is PodState.EJECTED

    clock.pass_(1.1)
    bad_answer()  # on its way back
    clock.pass_(1.1)
    assert pod.state(clock()) is PodState.EJECTED


def test_the_last_pod_is_not_ejected_for_its_answers(clock: Any) -> None:
    pool = make_pool(clock, 1)
    for _ in range(50):
        reservation = must_pick(pool)
        reservation.failed("http_5xx")
        reservation.close(Outcome.ERROR, clock())

    assert pool.pick(chat(), clock()) is not None


def test_a_new_process_at_the_address_is_not_judged_by_the_old_one(clock: Any) -> None:
    pool = make_pool(clock, 1)
    pod = first(pool)
    pod.streaming = True
    must_pick(pool).failed("connect")
    assert pod.state(clock()) is PodState.EJECTED

    pool.pod_heard(pod, replace(READY, boot="another", seq=1))

    assert pod.state(clock()) is PodState.READY


@pytest.mark.parametrize(
    ("pool_name", "model", "state", "why"),
    [
        ("ns/p", "m", PodState.READY, "a new pod of this pool"),
        ("ns/other", "other", PodState.FOREIGN, "another pool's pod"),
        ("ns/p", "renamed", PodState.READY, "the pool's model has another name now"),
        ("default/host-2", "m", PodState.READY, "a sidecar without settings calls its pool after itself"),
        ("ns/other", "", PodState.READY, "it does not say yet what it serves"),
    ],
)
def test_who_answers_at_the_address_of_a_pod(
    clock: Any, pool_name: str, model: str, state: PodState, why: str
) -> None:
    pool = make_pool(clock, 1, ready=False)
    pod = first(pool)
    pool.pod_heard(pod, replace(READY, pool="ns/p", model="m"))

    pool.pod_heard(pod, replace(READY, boot="another", pool=pool_name, model=model))

    assert pod.state(clock()) is state, why
    assert (pool.pick(chat(), clock()) is not None) == (state is PodState.READY)
    pool.pod_heard(pod, replace(READY, boot="third", pool="ns/p", model="m"))
    assert pod.state(clock()) is PodState.READY


@pytest.mark.parametrize(("pods", "out"), [(1, 0), (2, 1), (3, 1), (8, 4)])
def test_at_most_half_of_the_pods_are_out_for_their_answers(clock: Any, pods: int, out: int) -> None:
    """What all pods answer with 500 is the requests' fault; with every pod out nobody would get any answer."""
    pool = make_pool(clock, pods)
    for _ in range(50):
        for pod in pool.pods.values():
            pool.pod_failed(pod, "http_5xx")

    assert sum(pod.state(clock()) is PodState.EJECTED for pod in pool.pods.values()) == out


def test_answers_of_4xx_neither_count_nor_wipe_what_counts(clock: Any) -> None:
    pool = make_pool(clock, 2)
    pod = first(pool)
    others = tuple(key for key in pool.pods if key != pod.key)
    for _ in range(5):
        for status in (400, 500, 422, 429):
            reservation = pool.pick(chat(), clock(), others)
            if reservation is None:
                break
            reservation.entry.code = status
            if status == 500:
                reservation.failed("http_5xx")
            reservation.close(Outcome.OK if status < 500 else Outcome.ERROR, clock())

    assert pod.state(clock()) is PodState.EJECTED
    assert all(other.ejection.failure_share == 0.0 for other in pool.pods.values() if other is not pod)


def test_a_pod_that_fails_every_other_request_fast_gets_few_of_them(clock: Any) -> None:
    """It is always idle, so without a look at its share of failures it would get nearly all of the traffic."""
    pool = make_pool(clock, 4)
    bad = first(pool)
    failures, number, running = 0, 0, []
    for _ in range(2000):
        reservation = must_pick(pool)
        clock.pass_(0.01)
        if reservation.endpoint.key == bad.key:
            number += 1
            if number % 2:
                failures += 1
                reservation.failed("http_5xx")
                reservation.close(Outcome.ERROR, clock())
            else:
                reservation.entry.first_token(clock())
                reservation.close(Outcome.OK, clock())
        else:
            running.append(reservation)
        if len(running) > 30:
            done = running.pop(0)
            done.entry.first_token(clock())
            done.close(Outcome.OK, clock())

    assert failures < 100


def test_a_retry_goes_elsewhere_or_nowhere(clock: Any) -> None:
    pool = make_pool(clock, 2)
    keys = list(pool.pods)

    assert {must_pick(pool, exclude=(keys[0],)).endpoint.key for _ in range(9)} == {keys[1]}
    assert pool.pick(chat(), clock(), keys) is None


def test_a_pod_that_left_the_list_ends_its_requests_first(clock: Any) -> None:
    pool = make_pool(clock, 2)
    running = must_pick(pool)
    staying = [pod.endpoint for pod in pool.pods.values() if pod.key != running.endpoint.key]

    added, gone = pool.set_pods(staying)
    assert (added, gone) == ([], [])
    assert {must_pick(pool).endpoint.key for _ in range(9)} == {staying[0].key}

    running.close(Outcome.OK, clock())
    added, gone = pool.set_pods(staying)
    assert [pod.key for pod in gone] == [running.endpoint.key]


def test_new_settings_keep_pods_and_what_was_learned(clock: Any) -> None:
    pool = make_pool(clock, 2)
    reservation = must_pick(pool)
    learned = pool.estimator
    config = pool.config.model_copy(
        update={"routing": pool.routing.model_validate({"policy": "RoundRobin", "queue": {"maxWaiting": 1}})}
    )
    pool.apply(config)

    assert pool.estimator is learned
    assert pool.queue.limits.max_waiting == 1
    assert must_pick(pool).reason == "round-robin"
    assert reservation.close(Outcome.OK, clock()) is True


class PoolMachine(RuleBasedStateMachine):
    """Pods come, go, fail and report while requests run: counts are exact and unfit pods are not picked."""

    def __init__(self) -> None:
        super().__init__()
        self.seconds = 0.0
        self.pool = make_pool(lambda: self.seconds, 3)
        self.live: list[Reservation] = []
        self.seq = 10

    @rule(seconds=st.floats(0, 5))
    def time_passes(self, seconds: float) -> None:
        self.seconds += seconds

    @rule(size=st.integers(0, 10_000))
    def request(self, size: int) -> None:
        fit = {key for key, pod in self.pool.pods.items() if pod.state(self.seconds) is PodState.READY}
        reservation = self.pool.pick(chat(size), self.seconds)
        assert (reservation is None) == (not fit)
        if reservation is not None:
            assert reservation.endpoint.key in fit
            self.live.append(reservation)

    @precondition(lambda self: self.live)
    @rule(data=st.data(), outcome=st.sampled_from(Outcome))
    def end(self, data: st.DataObject, outcome: Outcome) -> None:
        reservation = data.draw(st.sampled_from(self.live))
        self.live.remove(reservation)
        assert reservation.close(outcome, self.seconds)

    @precondition(lambda self: self.live)
    @rule(data=st.data(), kind=st.sampled_from(["connect", "reset", "first_byte_timeout", "http_5xx"]))
    def fail(self, data: st.DataObject, kind: Any) -> None:
        data.draw(st.sampled_from(self.live)).failed(kind)

    @precondition(lambda self: self.live)
    @rule(data=st.data(), tokens=st.integers(1, 500))
    def progress(self, data: st.DataObject, tokens: int) -> None:
        data.draw(st.sampled_from(self.live)).entry.progress(tokens, self.seconds)

    @precondition(lambda self: self.pool.pods)
    @rule(data=st.data(), health=st.sampled_from(Health), opened=st.integers(0, 50), boot=st.sampled_from("bc"))
    def report(self, data: st.DataObject, health: Health, opened: int, boot: str) -> None:
        pod = data.draw(st.sampled_from(sorted(self.pool.pods.values(), key=lambda p: p.key)))
        self.seq += 1
        self.pool.pod_heard(pod, LoadReport(boot=boot, seq=self.seq, health=health, opened_total=opened))

    @rule(count=st.integers(0, 5))
    def resize(self, count: int) -> None:
        added, gone = self.pool.set_pods(endpoints(count))
        assert all(pod.ledger.running == 0 for pod in gone)
        for pod in added:
            self.seq += 1
            self.pool.pod_heard(pod, replace(READY, seq=self.seq))

    @invariant()
    def in_flight_is_exact(self) -> None:
        assert self.pool.in_flight == len(self.live)
        running = Counter(reservation.endpoint.key for reservation in self.live)
        for key, count in running.items():
            pod = self.pool.pods[key]  # a pod with requests is never forgotten
            assert pod.ledger.running == count
            assert pod.load_requests >= count
            assert pod.load_tokens >= pod.ledger.load_tokens or count


PoolMachine.TestCase.settings = examples(15, stateful_step_count=40)
TestPool = PoolMachine.TestCase
