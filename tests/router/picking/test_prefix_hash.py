"""PrefixHash: one place for what begins alike, no pod above its share."""

from collections import Counter
from math import ceil

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from pools.candidates import fake_pod
from tidepool_router.facts import Api, RequestFacts
from tidepool_router.ledger import Estimate
from tidepool_router.picking import PrefixHash
from tidepool_router.picking.candidate import Candidate

REQUEST = Estimate(1000, 100)


def facts(name: int | None = None, session: str | None = None, adapter: str | None = None) -> RequestFacts:
    prefix = () if name is None else (1, 2, 3, name * 7919 & 0xFFFFFFFF, 5)
    return RequestFacts(Api.CHAT, "/v1/chat/completions", "m", session=session, prefix=prefix, adapter=adapter)


def pods(count: int) -> tuple[Candidate, ...]:
    return tuple(fake_pod(slot=slot, key=f"10.0.0.{slot}:8000") for slot in range(count))


def test_what_begins_alike_goes_to_one_pod_at_every_gateway() -> None:
    candidates = pods(8)
    first, second = PrefixHash(), PrefixHash()

    for name in range(100):
        longer = msgspec.structs.replace(facts(name), prefix=(*facts(name).prefix, 99))
        home = first.pick(candidates, REQUEST, facts(name)).index
        assert second.pick(candidates, REQUEST, longer).index == home


def test_places_are_spread_over_the_pods() -> None:
    candidates, picker = pods(8), PrefixHash()

    homes = Counter(picker.pick(candidates, REQUEST, facts(name)).index for name in range(4000))

    assert len(homes) == 8
    assert max(homes.values()) < 1.5 * 4000 / 8


def test_a_pod_that_leaves_moves_only_its_own() -> None:
    candidates, picker = pods(8), PrefixHash()
    before = {name: candidates[picker.pick(candidates, REQUEST, facts(name)).index].key for name in range(400)}
    left = candidates[:3] + candidates[4:]

    for name, key in before.items():
        now = left[picker.pick(left, REQUEST, facts(name)).index].key
        assert now == key or key == candidates[3].key


def test_a_pod_at_its_bound_passes_on_to_the_next() -> None:
    candidates, picker = pods(4), PrefixHash()
    picked: Counter[int] = Counter()
    for _ in range(100):
        pick = picker.pick(candidates, REQUEST, facts(1))
        candidates[pick.index].load_requests += 1
        picked[pick.index] += 1

    assert max(picked.values()) <= ceil(1.25 * 100 / 4) + 1
    assert picker.pick(candidates, REQUEST, facts(1)).reason in ("prefix-hash", "prefix-hash-spilled")


@given(st.lists(st.integers(0, 12), min_size=1, max_size=12), st.integers(0, 50))
def test_no_pick_goes_above_the_bound(loads: list[int], name: int) -> None:
    candidates = pods(len(loads))
    for pod, load in zip(candidates, loads, strict=True):
        pod.load_requests = load

    picked = PrefixHash().pick(candidates, REQUEST, facts(name)).index

    bound = 1.25 * (sum(loads) + 1) / len(loads)
    assert loads[picked] <= bound


def test_a_session_goes_before_the_prefix_and_an_adapter_apart() -> None:
    candidates, picker = pods(8), PrefixHash()

    by_session = {picker.pick(candidates, REQUEST, facts(name, session="s")).index for name in range(50)}
    by_adapter = {picker.pick(candidates, REQUEST, facts(1, adapter=str(name))).index for name in range(50)}

    assert len(by_session) == 1
    assert len(by_adapter) > 1


def test_without_a_prefix_the_pod_with_the_fewest_requests() -> None:
    candidates = pods(3)
    candidates[0].load_requests = 2
    picker = PrefixHash()

    picked = [picker.pick(candidates, REQUEST, facts()) for _ in range(4)]

    assert {pick.index for pick in picked} == {1, 2}
    assert {pick.reason for pick in picked} == {"least-requests"}
