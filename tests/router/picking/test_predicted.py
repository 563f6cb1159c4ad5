"""Predicted: the pod where a request does the least harm, in the seconds of everybody there."""

from collections import Counter

import pytest

from pools.candidates import fake_pod, fake_speed
from tidepool_router.facts import Api, RequestFacts
from tidepool_router.ledger import Estimate, whole_blocks
from tidepool_router.picking import Candidate, Predicted

TOKENS, BYTES = 1000, 4000


def facts(adapter: str | None = None) -> RequestFacts:
    return RequestFacts(Api.CHAT, "/v1/chat/completions", "m", prompt_bytes=BYTES, adapter=adapter)


@pytest.mark.parametrize(
    ("pods", "cached", "output", "adapter", "chosen", "why"),
    [
        ([fake_pod(0, queued_tokens=900), fake_pod(1)], {}, 100, None, 1, "nobody waits before it"),
        ([fake_pod(0), fake_pod(1)], {1: 3000}, 100, None, 1, "three quarters of the prompt need no work there"),
        (
            [fake_pod(0), fake_pod(1, queued_tokens=500)],
            {1: 3000},
            100,
            None,
            1,
            "750 tokens saved are more than 500 ahead",
        ),
        (
            [fake_pod(0), fake_pod(1, queued_tokens=900)],
            {1: 3000},
            100,
            None,
            0,
            "750 tokens saved are less than 900 ahead",
        ),
        (
            [fake_pod(0, live_requests=40), fake_pod(1, live_requests=2)],
            {},
            100,
            None,
            1,
            "few streams wait for its prompt",
        ),
        (
            [fake_pod(0, queued_tokens=1000), fake_pod(1, live_requests=4)],
            {},
            120,
            None,
            1,
            "long answers make a stall good",
        ),
        (
            [fake_pod(0, queued_tokens=1000), fake_pod(1, live_requests=4)],
            {},
            20,
            None,
            0,
            "short answers have no time to",
        ),
        ([fake_pod(0, speed=fake_speed(0.0002)), fake_pod(1)], {}, 100, None, 1, "the pod that is twice as fast"),
        (
            [fake_pod(0, queued_tokens=400), fake_pod(1, kv_tokens=97_500)],
            {},
            10,
            None,
            0,
            "a short wait is better than a preemption",
        ),
        (
            [
                fake_pod(0, queued_tokens=600),
                fake_pod(1, kv_tokens=90_000, expected_tokens=14_000, live_requests=1),
            ],
            {},
            4000,
            None,
            0,
            "a long output avoids a pod whose KV runs short by what is expected there already",
        ),
        (
            [
                fake_pod(0, queued_tokens=600),
                fake_pod(1, kv_tokens=80_000, expected_tokens=14_000, live_requests=1),
            ],
            {},
            40,
            None,
            1,
            "a short output fits there",
        ),
        ([fake_pod(0), fake_pod(1, adapters=frozenset({"sql"}))], {}, 10, "sql", 1, "the adapter is loaded there"),
        (
            [fake_pod(0, adapters=frozenset({"a", "b"})), fake_pod(1, adapters=frozenset({"a"}))],
            {},
            10,
            "sql",
            1,
            "there is room for the adapter",
        ),
        (
            [fake_pod(0), fake_pod(1, adapters=frozenset({"sql"}), queued_tokens=9000)],
            {},
            10,
            "sql",
            0,
            "loading is sooner done than the queue",
        ),
    ],
)
def test_least_harm(
    pods: list[Candidate], cached: dict[int, int], output: int, adapter: str | None, chosen: int, why: str
) -> None:
    pick = Predicted().pick(pods, Estimate(TOKENS, output), facts(adapter), cached)

    assert pick.index == chosen, why
    assert pick.cached_tokens == whole_blocks(cached.get(chosen, 0), TOKENS / BYTES, TOKENS, 1)


def test_says_when_the_pod_has_a_part_of_the_prompt() -> None:
    pods = [fake_pod(0), fake_pod(1)]

    assert Predicted().pick(pods, Estimate(TOKENS, 10), facts(), {1: 2000}).reason == "predicted-cached"
    assert Predicted().pick(pods, Estimate(TOKENS, 10), facts(), {}).reason == "predicted"


def test_equal_pods_take_turns_also_among_others() -> None:
    picker = Predicted()
    pods = [fake_pod(0), fake_pod(1, queued_tokens=900), fake_pod(2), fake_pod(3, queued_tokens=900)]

    picked = Counter(picker.pick(pods, Estimate(TOKENS, 10), facts()).index for _ in range(100))

    assert picked == {0: 50, 2: 50}


def test_a_pod_that_does_not_tell_its_kv_is_not_taken_for_full() -> None:
    pods = [fake_pod(0, kv_capacity_tokens=0), fake_pod(1, queued_tokens=100)]

    assert Predicted().pick(pods, Estimate(TOKENS, 10), facts()).index == 0


def test_a_match_counts_by_the_blocks_of_the_pods_engine() -> None:
    """Both hold some 530 of the 1,000 tokens: in blocks of 16 that is 528, in blocks of 128 it is 512."""
    pods = [fake_pod(0, kv_block_tokens=128), fake_pod(1, kv_block_tokens=16, queued_tokens=10)]

    pick = Predicted().pick(pods, Estimate(TOKENS, 10), facts(), {0: 2000, 1: 2000})
    assert (pick.index, pick.cached_tokens) == (1, 528)


def test_a_match_of_less_than_a_block_is_none() -> None:
    pick = Predicted().pick([fake_pod(0, kv_block_tokens=128)], Estimate(TOKENS, 10), facts(), {0: 256})

    assert (pick.reason, pick.cached_tokens) == ("predicted", 0)


@pytest.mark.parametrize(
    ("live", "chosen", "why"),
    [
        ((24, 4, 4, 4), 1, "it has twice its part of the requests already, whatever it has cached"),
        ((12, 4, 4, 4), 0, "it has more than its part, and less than twice that"),
        ((7, 0, 0, 0), 0, "a few requests are no crowd"),
    ],
)
def test_no_pod_gets_more_than_twice_its_part(live: tuple[int, ...], chosen: int, why: str) -> None:
    del why  # the reason stands beside the case
    pods = [fake_pod(slot, live_requests=number) for slot, number in enumerate(live)]

    pick = Predicted().pick(pods, Estimate(TOKENS, 1), facts(), {0: BYTES})

    assert pick.index == chosen


def test_the_part_of_a_faster_pod_is_larger() -> None:
    """Nine times as fast as three others it may have three quarters of the requests, and twice that."""
    pods = [fake_pod(0, live_requests=24), *(fake_pod(slot, live_requests=4) for slot in (1, 2, 3))]
    pods[0].speed = fake_speed(prompt_token_seconds=1e-5, step_seconds=0.001)
    for slow in pods[1:]:
        slow.speed = fake_speed(prompt_token_seconds=9e-5, step_seconds=0.009)

    pick = Predicted().pick(pods, Estimate(TOKENS, 1), facts(), {0: BYTES})

    assert pick.index == 0
