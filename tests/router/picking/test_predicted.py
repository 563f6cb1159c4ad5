"""Predicted: the pod where a request does the least harm, in the seconds of everybody there."""

from collections import Counter

import pytest

from pools.candidates import FakePod as Pod
from pools.candidates import FakeSpeed as Speed
from tidepool_router.facts import Api, RequestFacts
from tidepool_router.ledger import Estimate
from tidepool_router.picking import Predicted

TOKENS, BYTES = 1000, 4000


def facts(adapter: str | None = None) -> RequestFacts:
    return RequestFacts(Api.CHAT, "/v1/chat/completions", "m", prompt_bytes=BYTES, adapter=adapter)


@pytest.mark.parametrize(
    ("pods", "cached", "output", "adapter", "chosen", "why"),
    [
        ([Pod(0, queued_tokens=900), Pod(1)], {}, 100, None, 1, "nobody waits before it"),
        ([Pod(0), Pod(1)], {1: 3000}, 100, None, 1, "three quarters of the prompt need no work there"),
        ([Pod(0), Pod(1, queued_tokens=500)], {1: 3000}, 100, None, 1, "750 tokens saved are more than 500 ahead"),
        ([Pod(0), Pod(1, queued_tokens=900)], {1: 3000}, 100, None, 0, "750 tokens saved are less than 900 ahead"),
        ([Pod(0, live_requests=40), Pod(1, live_requests=2)], {}, 100, None, 1, "few streams wait for its prompt"),
        ([Pod(0, speed=Speed(0.0002)), Pod(1)], {}, 100, None, 1, "the pod that is twice as fast"),
        (
            [Pod(0, queued_tokens=400), Pod(1, kv_tokens=97_500)],
            {},
            10,
            None,
            0,
            "a short wait is better than a preemption",
        ),
        (
            [Pod(0, queued_tokens=600), Pod(1, kv_tokens=90_000, expected_tokens=14_000, live_requests=1)],
            {},
            4000,
            None,
            0,
            "a long output avoids a pod whose KV runs short by what is expected there already",
        ),
        (
            [Pod(0, queued_tokens=600), Pod(1, kv_tokens=80_000, expected_tokens=14_000, live_requests=1)],
            {},
            40,
            None,
            1,
            "a short output fits there",
        ),
        ([Pod(0), Pod(1, adapters=frozenset({"sql"}))], {}, 10, "sql", 1, "the adapter is loaded there"),
        (
            [Pod(0, adapters=frozenset({"a", "b"})), Pod(1, adapters=frozenset({"a"}))],
            {},
            10,
            "sql",
            1,
            "there is room for the adapter",
        ),
        (
            [Pod(0), Pod(1, adapters=frozenset({"sql"}), queued_tokens=9000)],
            {},
            10,
            "sql",
            0,
            "loading is sooner done than the queue",
        ),
    ],
)
def test_least_harm(
    pods: list[Pod], cached: dict[int, int], output: int, adapter: str | None, chosen: int, why: str
) -> None:
    pick = Predicted().pick(pods, Estimate(TOKENS, output), facts(adapter), cached)

    assert pick.index == chosen, why
    assert pick.cached_tokens == cached.get(chosen, 0) * TOKENS // BYTES


def test_says_when_the_pod_has_a_part_of_the_prompt() -> None:
    pods = [Pod(0), Pod(1)]

    assert Predicted().pick(pods, Estimate(TOKENS, 10), facts(), {1: 2000}).reason == "predicted-cached"
    assert Predicted().pick(pods, Estimate(TOKENS, 10), facts(), {}).reason == "predicted"


def test_equal_pods_take_turns_also_among_others() -> None:
    picker = Predicted()
    pods = [Pod(0), Pod(1, queued_tokens=900), Pod(2), Pod(3, queued_tokens=900)]

    picked = Counter(picker.pick(pods, Estimate(TOKENS, 10), facts()).index for _ in range(100))

    assert picked == {0: 50, 2: 50}


def test_a_pod_that_does_not_tell_its_kv_is_not_taken_for_full() -> None:
    pods = [Pod(0, kv_capacity_tokens=0), Pod(1, queued_tokens=100)]

    assert Predicted().pick(pods, Estimate(TOKENS, 10), facts()).index == 0


def test_a_match_counts_by_the_blocks_of_the_pods_engine() -> None:
    """Both hold 500 of the 1,000 tokens: in blocks of 16 that is 496, in blocks of 128 it is 384."""
    pods = [Pod(0, kv_block_tokens=128), Pod(1, kv_block_tokens=16, queued_tokens=100)]

    pick = Predicted().pick(pods, Estimate(TOKENS, 10), facts(), {0: 2000, 1: 2000})
    assert (pick.index, pick.cached_tokens) == (1, 496)


def test_a_match_of_less_than_a_block_is_none() -> None:
    pick = Predicted().pick([Pod(0, kv_block_tokens=128)], Estimate(TOKENS, 10), facts(), {0: 400})

    assert (pick.reason, pick.cached_tokens) == ("predicted", 0)
