"""Policies: which of several pods takes a request."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pools.candidates import fake_pod
from tidepool_api.routing import Policy
from tidepool_router.facts import Api, RequestFacts
from tidepool_router.ledger import Estimate
from tidepool_router.picking import LeastLoad, Picker, RoundRobin, make_picker
from tidepool_router.picking.candidate import Candidate

FACTS = RequestFacts(api=Api.CHAT, path="/v1/chat/completions", model="m")
REQUEST = Estimate(100, 100)


def pods(*loads: tuple[int, int]) -> list[Candidate]:
    return [
        fake_pod(key=str(index), load_tokens=tokens, load_requests=requests)
        for index, (tokens, requests) in enumerate(loads)
    ]


@pytest.mark.parametrize(
    ("loads", "index", "why"),
    [
        ([(5, 0)], 0, "the only one"),
        ([(900, 1), (100, 9), (500, 2)], 1, "tokens count, not requests"),
        ([(100, 3), (100, 2), (100, 4)], 1, "with equal tokens the one with fewer requests"),
        ([(0, 0), (0, 1)], 0, "an idle pod before one that has a request without tokens"),
    ],
)
def test_least_load(loads: list[tuple[int, int]], index: int, why: str) -> None:
    for _ in range(4):  # wherever the scan begins
        picker = LeastLoad()
        for _ in range(len(loads)):
            pick = picker.pick(pods(*loads), REQUEST, FACTS)
            assert (pick.index, pick.reason) == (index, "least-load"), why


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), min_size=1, max_size=30), st.integers(0, 40))
def test_least_load_is_the_minimum_wherever_it_begins(loads: list[tuple[int, int]], turns: int) -> None:
    picker = LeastLoad()
    candidates = pods(*loads)
    for _ in range(turns):
        picker.pick(candidates, REQUEST, FACTS)

    assert loads[picker.pick(candidates, REQUEST, FACTS).index] == min(loads)


@pytest.mark.parametrize("picker", [LeastLoad(), RoundRobin()], ids=["least-load", "round-robin"])
def test_equal_pods_take_turns(picker: Picker) -> None:
    candidates = pods(*[(7, 1)] * 5)

    picked = Counter(picker.pick(candidates, REQUEST, FACTS).index for _ in range(500))

    assert picked == dict.fromkeys(range(5), 100)


def test_ties_are_fair_among_some_of_the_pods() -> None:
    """Pods 0 and 3 are idle, 1 and 2 busy: a scan that only starts elsewhere each time would favour pod 3."""
    picker = LeastLoad()
    candidates = pods((0, 0), (9, 1), (9, 1), (0, 0))

    picked = Counter(picker.pick(candidates, REQUEST, FACTS).index for _ in range(400))

    assert picked == {0: 200, 3: 200}


def test_round_robin_goes_on_when_a_pod_leaves() -> None:
    picker = RoundRobin()
    for _ in range(3):
        picker.pick(pods((0, 0), (0, 0), (0, 0), (0, 0)), REQUEST, FACTS)

    assert picker.pick(pods((0, 0), (0, 0)), REQUEST, FACTS).index in (0, 1)


@pytest.mark.parametrize(
    ("policy", "reason"),
    [
        (Policy.LEAST_LOAD, "least-load"),
        (Policy.ROUND_ROBIN, "round-robin"),
        (Policy.PREDICTED, "predicted"),
        (Policy.PREFIX_HASH, "least-requests"),  # of a request without any prefix
    ],
)
def test_each_setting_runs_a_policy_that_names_itself(policy: Policy, reason: str) -> None:
    assert make_picker(policy).pick(pods((0, 0)), REQUEST, FACTS).reason == reason
