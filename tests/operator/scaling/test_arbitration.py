"""Who gets accelerators when pools together want more than there are."""

import time
from dataclasses import replace
from decimal import Decimal

from hypothesis import given
from hypothesis import strategies as st

from scripted.examples import examples
from tidepool_operator.pool.room import Node, Place, Room, Shape
from tidepool_operator.scaling.arbitration import Claim, Market, Share, contested, shares

GPU = "nvidia.com/gpu"


def shape(devices: int = 1, **where: str) -> Shape:
    return Shape({GPU: Decimal(devices)}, {"nodeSelector": where} if where else {})


def claim(
    name: str, current: int, want: int, *, minimum: int = 1, priority: int = 0, devices: int = 1, **rest: str
) -> Claim:
    pods = tuple(f"{name}-{index}" for index in range(current))
    namespace = rest.pop("namespace", "team")
    where = shape(devices, **rest)
    return Claim(f"team/{name}", namespace, current, want, minimum, priority, where, pods, GPU, devices)


def market(free: int, *claims: Claim, quota: int | None = None, nodes: int = 1, waiting: int = 0) -> Market:
    """Nodes with `free` devices each, beside those that the claims' pods hold; the last `waiting` have none."""
    made = tuple(Node(f"n{index}", {}, (), True, {GPU: Decimal(free)}) for index in range(nodes))
    uids = [(uid, each.shape) for each in claims for uid in each.pods]
    kept = uids[: len(uids) - waiting]
    placed = {uid: Place("n0", where.requests) for uid, where in kept}
    quotas = {} if quota is None else {("team", GPU): ("gpus", quota)}
    return Market(Room(made, placed, dict(uids[len(kept) :])), quotas)


def given_to(claims: list[Claim], found: Market) -> dict[str, int]:
    return {key.removeprefix("team/"): share.replicas for key, share in shares(claims, found).items()}


def test_enough_for_all_is_given_to_all() -> None:
    claims = [claim("a", 1, 3), claim("b", 2, 4)]

    assert shares(claims, market(4, *claims)) == {"team/a": Share(3), "team/b": Share(4)}


def test_minimums_come_before_priorities() -> None:
    claims = [claim("low", 0, 4, minimum=2), claim("high", 1, 6, priority=10)]

    assert given_to(claims, market(3, *claims)) == {"low": 2, "high": 3}


def test_higher_priority_is_served_first_and_the_rest_waits_with_one_pod() -> None:
    claims = [claim("low", 1, 5), claim("high", 1, 4, priority=10)]

    found = shares(claims, market(3, *claims))

    assert found["team/high"] == Share(4)
    # One of the refused has a pod that waits: who adds nodes acts on pods.
    assert found["team/low"].replicas == 2
    refused = found["team/low"].refused
    assert refused is not None
    assert (refused.replicas, refused.reason) == (4, "AcceleratorsShort")
    assert "4 replicas of pools of higher priority run" in refused.message
    assert "priorityClassName" in refused.message


def test_a_pool_without_accelerators_is_short_of_room() -> None:
    full = Market(Room((), {}, {}), {})
    claims = [Claim("team/cpu", "team", 1, 2, 1, 0, Shape({}, {}), ("cpu-0",), "", 0)]
    refused = shares(claims, full)["team/cpu"].refused

    assert refused is not None
    assert "find no node with the room free" in refused.message


def test_equals_get_equal_shares_of_what_they_want() -> None:
    claims = [claim("a", 1, 8), claim("b", 1, 8)]

    found = given_to(claims, market(6, *claims))

    assert sorted(found.values()) == [4, 5], "one of the two has a pod that waits"


def test_a_pool_with_little_of_what_it_wants_gets_the_next_place() -> None:
    claims = [claim("nearly", 7, 8), claim("little", 1, 8)]

    # The one that is free, one of the other's, and one that waits for a node.
    assert given_to(claims, market(1, *claims)) == {"nearly": 6, "little": 4}


def test_a_place_is_taken_from_lower_priority_one_a_round_and_never_below_the_minimum() -> None:
    claims = [claim("low", 4, 4, minimum=3), claim("high", 1, 5, priority=10)]

    first = given_to(claims, market(0, *claims))

    assert (first["low"], first["high"]) == (3, 3), "one place, and one pod that waits for a node"


def test_among_equals_a_place_changes_hands_only_where_far_more_is_won_than_lost() -> None:
    even = [claim("a", 4, 8), claim("b", 3, 8)]
    uneven = [claim("a", 8, 8), claim("b", 1, 8)]

    assert given_to(even, market(0, *even))["a"] == 4
    assert given_to(uneven, market(0, *uneven))["a"] == 7


def test_a_quota_bounds_a_namespace_and_is_named() -> None:
    claims = [claim("a", 1, 5), claim("b", 1, 5, namespace="other")]

    found = shares(claims, market(8, *claims, quota=2))

    assert (found["team/a"].replicas, found["team/b"]) == (3, Share(5))
    refused = found["team/a"].refused
    assert refused is not None
    assert (refused.replicas, refused.reason) == (2, "QuotaReached")
    assert "ResourceQuota gpus" in refused.message


def test_pods_that_are_not_made_yet_count_in_the_quota() -> None:
    asked = replace(claim("a", 4, 6), pods=("a-0",))

    assert shares([asked], market(8, asked, quota=3))["team/a"].replicas == 4


def test_pods_that_wait_are_kept_and_counted_once() -> None:
    waits = claim("a", 3, 3)

    found = shares([waits], market(0, waits, waiting=2))["team/a"]

    assert found.replicas == 3
    assert found.refused is not None
    assert found.refused.replicas == 2


def test_a_pod_that_goes_gives_its_place_to_the_one_that_waits_for_it_and_to_no_third() -> None:
    """The round after: the loser's pod drains still, the winner's waits."""
    low, high = claim("low", 3, 4, minimum=1), claim("high", 2, 2, priority=10)
    leaving = Place("n0", {GPU: Decimal(1)}, leaving=True)
    placed = {f"low-{index}": Place("n0", {GPU: Decimal(1)}) for index in range(3)}
    room = Room(
        (Node("n0", {}, (), True, {GPU: Decimal(0)}),),
        {**placed, "low-3": leaving, "high-0": Place("n0", {GPU: Decimal(1)})},
        {"high-1": high.shape},
    )

    found = shares([low, high], Market(room))

    assert found["team/high"] == Share(2)
    assert found["team/low"].replicas == 4, "its one more waits for nodes"
    assert found["team/low"].refused is not None


def test_nodes_that_do_not_admit_a_pool_are_no_places_for_it() -> None:
    claims = [claim("a", 0, 2, minimum=0, gpu="h100")]
    nodes = (
        Node("n0", {"gpu": "l4"}, (), True, {GPU: Decimal(8)}),
        Node("n1", {"gpu": "h100"}, (), True, {GPU: Decimal(1)}),
    )

    found = shares(claims, Market(Room(nodes)))["team/a"]

    assert found.refused is not None
    assert found.refused.replicas == 1


def test_the_room_is_looked_at_only_where_somebody_wants_more() -> None:
    assert not contested([claim("a", 2, 2), claim("b", 3, 1)], pending=False)
    assert contested([claim("a", 2, 3)], pending=False)
    assert contested([claim("a", 2, 2)], pending=True)


wants = st.lists(
    st.tuples(
        st.integers(0, 8),  # current
        st.integers(0, 10),  # want
        st.integers(0, 3),  # minimum
        st.sampled_from([0, 0, 0, 100]),
        st.sampled_from([1, 1, 2]),
    ),
    min_size=1,
    max_size=5,
)


def claims_of(rows: list[tuple[int, int, int, int, int]]) -> list[Claim]:
    return [
        claim(f"p{index}", current, max(want, minimum), minimum=minimum, priority=priority, devices=devices)
        for index, (current, want, minimum, priority, devices) in enumerate(rows)
    ]


def carried_out(
    claims: list[Claim], found: dict[str, Share], total: int, quota: int | None
) -> tuple[list[Claim], Market]:
    """The next look: pods that are gone are gone, those that were asked for have a place where there was one."""
    after = []
    free = total
    placed: dict[str, Place] = {}
    waiting: dict[str, Shape] = {}
    held = [(each, [f"{each.key[5:]}-{index}" for index in range(found[each.key].replicas)]) for each in claims]
    for each, uids in sorted(held, key=lambda pair: -pair[0].priority):
        for index, uid in enumerate(uids):
            if index < each.current and free >= each.devices:
                free -= each.devices
                placed[uid] = Place("n0", each.shape.requests)
            else:
                waiting[uid] = each.shape
    for uid, where in list(waiting.items()):
        need = int(where.requests[GPU])
        if free >= need:
            free -= need
            placed[uid] = Place("n0", where.requests)
            del waiting[uid]
    for each, uids in held:
        after.append(replace(each, current=len(uids), pods=tuple(uids)))
    room = Room((Node("n0", {}, (), True, {GPU: Decimal(free)}),), placed, waiting)
    quotas = {} if quota is None else {("team", GPU): ("gpus", quota - sum(c.current * c.devices for c in after))}
    return after, Market(room, quotas)


@examples(20)
@given(wants, st.integers(0, 24), st.sampled_from([None, 10]))
def test_constant_wants_end_in_constant_shares(
    rows: list[tuple[int, int, int, int, int]], free: int, quota: int | None
) -> None:
    claims = claims_of(rows)
    total = free + sum(each.current * each.devices for each in claims)
    found = {each.key: Share(each.current) for each in claims}
    seen = []
    for _ in range(40):
        claims, room = carried_out(claims, found, total, quota)
        found = shares(claims, room)
        seen.append({key: share.replicas for key, share in found.items()})

    assert seen[-1] == seen[-2] == seen[-10], seen[-10:]
    assert all(share.replicas <= max(each.want, 0) for each, share in zip(claims, found.values(), strict=True))


@given(wants, st.integers(0, 12))
def test_nobody_gets_more_than_it_wants_nor_more_than_there_is(
    rows: list[tuple[int, int, int, int, int]], free: int
) -> None:
    claims = claims_of(rows)

    found = shares(claims, market(free, *claims))

    before = sum(each.current * each.devices for each in claims)
    given = 0
    for each in claims:
        share = found[each.key]
        refused = share.refused.replicas if share.refused else 0
        assert share.replicas <= max(each.want, min(each.current, each.want))
        assert share.replicas >= min(each.current, each.want, each.minimum)
        given += (each.want - refused) * each.devices
    assert given <= before + free


def test_five_hundred_pools_that_want_more_are_judged_in_little_time() -> None:
    claims = [claim(f"p{index}", 2, 4, priority=index % 3) for index in range(500)]
    nodes = tuple(Node(f"n{index}", {}, (), True, {GPU: Decimal(0)}) for index in range(125))
    placed = {
        uid: Place(f"n{index % 125}", each.shape.requests)
        for index, each in enumerate(claims)
        for uid in each.pods
    }
    begun = time.process_time()

    found = shares(claims, Market(Room(nodes, placed)))

    assert sum(share.replicas for share in found.values()) <= 1001
    assert time.process_time() - begun < 1.0  # 0.05 s on an idle core
