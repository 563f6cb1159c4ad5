"""Each baseline does what its source says, on an example worked out there."""

from collections import Counter
from collections.abc import Sequence

import pytest

from sim.baselines.cache_aware import CacheAware, imbalanced
from sim.baselines.kubeai import KubeAI, ring_hash
from sim.baselines.least_inflight import LeastInFlight
from sim.baselines.llm_d_blend import LlmDBlend, kv_scores, prefix_scores, queue_scores
from sim.baselines.llm_d_sticky import LlmDSticky, sticky_pods, token_load_score
from sim.baselines.power_of_two import PowerOfTwo
from sim.baselines.round_robin import RoundRobin
from sim.picker import Gauges, SimPicker
from sim.request import Request


class Still:
    """A board that shows what a test wrote on it."""

    def __init__(self, gauges: Sequence[Gauges]) -> None:
        self._gauges = gauges

    def gauges(self, now: float) -> Sequence[Gauges]:
        return self._gauges


IDLE = Still([Gauges(), Gauges(), Gauges()])


def request(number: int, pieces: list[int] | None = None, tokens: int = 1024) -> Request:
    return Request(number, tokens, 10, pieces or [100 * number, 100 * number + 1], opening=number)


def end(picker: SimPicker, one: Request, pod: int) -> None:
    picker.ended(one, pod, 0.0, failed=False, cached_tokens=0)


def test_round_robin_takes_turns_and_passes_by_who_just_failed() -> None:
    picker = RoundRobin(3, IDLE, seed=0)
    assert [picker.pick(request(i), 0.0) for i in range(4)] == [0, 1, 2, 0]
    assert picker.pick(request(9), 0.0, exclude=[1]) == 2


def test_least_in_flight_evens_out_and_shares_ties() -> None:
    # KubeAI's own test of its least-load strategy: 2 requests on 2 pods, 100 more, then 10 of one pod's end and
    # 12 more come: 1 and 11.
    picker = LeastInFlight(2, IDLE, seed=0)
    sent = [(one := request(i), picker.pick(one, 0.0)) for i in range(102)]
    assert Counter(pod for _, pod in sent) == {0: 51, 1: 51}
    for one in [one for one, pod in sent if pod == 1][:10]:
        end(picker, one, 1)
    assert Counter(picker.pick(request(200 + i), 0.0) for i in range(12)) == {0: 1, 1: 11}


def test_power_of_two_never_takes_the_fullest_of_three() -> None:
    picker = PowerOfTwo(3, IDLE, seed=1)
    picker.in_flight = [50, 10, 0]
    taken = Counter(picker.pick(request(i), 0.0) for i in range(9))
    assert 0 not in taken  # in every pair it is the fuller one
    assert set(taken) == {1, 2}  # and a pair without the emptiest takes the middle one


def test_kubeai_holds_to_the_bound_of_its_own_worked_example() -> None:
    # internal/loadbalancer/load_balancer_test.go, "prefix hash strategy": one point a pod, factor 1.5, 10 each in
    # flight. A prefix that prefers a pod: 1 + 20 go there, and of 4 more 3, for 34 > 1.5 * (34 + 10 + 1) / 2;
    # then 20 that prefer the other go to it.
    picker = KubeAI(2, IDLE, seed=0, replication=1, load_factor=1.5)
    picker.in_flight, picker._total = [10, 10], 20
    prefers = {_owner(picker, f"prefix {i}"): f"prefix {i}" for i in range(64)}
    first = [picker.pick_for(prefers[0]) for _ in range(25)]
    assert Counter(first[:21]) == {0: 21}
    assert first[21:] == [0, 0, 0, 1]
    assert Counter(picker.pick_for(prefers[1]) for _ in range(20)) == {1: 20}


def _owner(picker: KubeAI, prefix: str) -> int:
    """Whose point comes first after the prefix's hash."""
    points = [(point, pod) for point, pod in zip(picker._points, picker._owners, strict=True)]
    return next((pod for point, pod in points if point >= ring_hash(prefix)), points[0][1])


def test_kubeai_sends_a_conversation_where_it_was() -> None:
    picker = KubeAI(8, IDLE, seed=0)
    first = request(5)
    pod = picker.pick(first, 0.0)
    end(picker, first, pod)
    assert picker.pick(request(5), 0.0) == pod


def test_llm_d_scores_are_those_of_its_tests() -> None:
    # scorer/queuedepth/queue_test.go, kvcacheutilization_test.go, prefix/plugin_test.go at ebab687.
    assert queue_scores([Gauges(waiting=10), Gauges(waiting=5), Gauges(waiting=0)]) == [0.0, 0.5, 1.0]
    assert queue_scores([Gauges(waiting=5), Gauges(waiting=5)]) == [1.0, 1.0]
    assert kv_scores([Gauges(kv_usage=0.8), Gauges(kv_usage=0.5), Gauges()]) == pytest.approx([0.2, 0.5, 1.0])
    assert prefix_scores([5, 2], 10) == [0.5, 0.2]


def test_llm_d_blend_weighs_two_two_three() -> None:
    # Pod 0 knows all of the prompt (3 x 1.0) and has the longer queue (2 x 0); pod 1 has 2 x 1 for its queue and
    # nothing of the prompt; KV 0.4 fuller costs pod 0 another 0.8: 3 + 0 + 1.2 against 0 + 2 + 2.
    board = Still([Gauges(waiting=0), Gauges(waiting=0)])
    picker = LlmDBlend(2, board, seed=0)
    one = request(1)
    pod = picker.pick(one, 0.0)
    fuller = [Gauges(), Gauges()]
    fuller[pod] = Gauges(waiting=1, kv_usage=0.4)
    board._gauges = fuller
    assert picker.pick(request(1), 0.0) == pod
    fuller[pod] = Gauges(waiting=1, kv_usage=0.6)  # 3 + 0 + 0.8 against 4
    assert picker.pick(request(1), 0.0) == 1 - pod


@pytest.mark.parametrize(
    ("scores", "tokens", "penalty_seconds", "kept", "reason"),
    [
        ([0.10, 0.20, 0.50], [0, 0, 0], 18.0, [0, 1, 2], "nobody is sticky"),
        ([0.90, 0.85, 0.10], [100, 120, 50], 5.0, [0, 1], "two are"),
        ([0.90, 0.10], [500, 50], 0.1, [0, 1], "0.5 s against 0.05 s is more than 0.1 s worse"),
        ([0.90, 0.10], [500, 50], 1.0, [0], "but not more than 1 s"),
        ([0.90, 0.10], [5000, 50], 0.0, [0], "no penalty: always sticky"),
        ([0.90, 0.10], [5000, 4900], 1.0, [0], "the others are as busy"),
    ],
)
def test_llm_d_sticky_filter_is_that_of_its_tests(
    scores: list[float], tokens: list[int], penalty_seconds: float, kept: list[int], reason: str
) -> None:
    # filter/prefixcacheaffinity/plugin_test.go at ebab687, with 1,000 tokens/s.
    found = sticky_pods(scores, tokens, penalty_seconds=penalty_seconds, tokens_per_second=1000.0)
    assert found == kept, reason


def test_llm_d_token_load_score_is_that_of_its_tests() -> None:
    # scorer/tokenload/token_load_test.go: a threshold of 1,000.
    scores = [token_load_score(tokens, 1000) for tokens in (0, 500, 1000, 250, 5000)]
    assert scores == [1.0, 0.5, 0.0, 0.75, 0.0]


def test_llm_d_sticky_counts_uncached_tokens_until_the_first_chunk() -> None:
    picker = LlmDSticky(2, IDLE, seed=0)
    one, again = request(1), request(1)
    pod = picker.pick(one, 0.0)
    assert picker.tokens_in_flight[pod] == 1024
    picker.first_token(one, pod, 0.0)
    assert picker.tokens_in_flight == [0, 0]
    assert picker.pick(again, 0.0) == pod
    assert picker.tokens_in_flight == [0, 0]  # all of it is known there


@pytest.mark.parametrize(
    ("loads", "expected", "reason"),
    [
        ([70, 0], True, "70 above 64, and more than 1.5 times 0"),
        ([64, 0], False, "64 is not above 64"),
        ([200, 150], False, "50 is not above 64"),
        ([300, 220], False, "80 is above 64, but 300 is not above 330"),
        ([400, 220], True, "180 above 64, and 400 above 330"),
    ],
)
def test_cache_aware_is_imbalanced_when_both_bounds_are_passed(
    loads: list[int], expected: bool, reason: str
) -> None:
    # `vllm-router --help`: (max - min) > abs_threshold and max > min * rel_threshold; the defaults are 64, 1.5.
    assert imbalanced(loads) is expected, reason


def test_cache_aware_follows_a_prefix_above_the_threshold_and_else_the_load() -> None:
    picker = CacheAware(3, IDLE, seed=0)
    shared = [7, 8, 9]
    first = picker.pick(request(1, [*shared, 100], tokens=2048), 0.0)
    assert picker.pick(request(2, [*shared, 200], tokens=2048), 0.0) == first  # 0.75 of it is known there
    other = picker.pick(request(3, [7, 300, 301, 302], tokens=2048), 0.0)
    assert other != first  # 0.25 is not above 0.3, and the first pod has two already


def test_cache_aware_balances_when_imbalanced() -> None:
    picker = CacheAware(2, IDLE, seed=0, abs_threshold=4, rel_threshold=1.5)
    pods = [picker.pick(request(1), 0.0) for _ in range(8)]
    assert pods[:5] == [pods[0]] * 5
    assert 1 - pods[0] in pods[5:]
