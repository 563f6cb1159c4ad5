"""All decisions of a look held against the cluster: when it is looked at, and what decisions become."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from decimal import Decimal

import pytest

from tidepool_api.scaling import Mode
from tidepool_operator.arbiter import Arbiter, Asks, Decided
from tidepool_operator.cluster.quotas import Bounds
from tidepool_operator.pool.room import Node, Place, Room, Shape
from tidepool_operator.scaling.mix import Kind
from tidepool_operator.scaling.model import Decision, LivePod, PodState, ScaledPool, ScalingSpec

GPU = "nvidia.com/gpu"
ONE = Shape({GPU: Decimal(1)})


@dataclass
class Cluster:
    """A node with `free` devices beside those that pods hold, and everybody's priority by class."""

    free: int = 0
    placed: dict[str, Place] = field(default_factory=dict)
    bound: Bounds = field(default_factory=Bounds)
    classes: Mapping[str, str] = field(default_factory=dict)
    blind: bool = False
    looks: int = 0

    async def room(self) -> Room | None:
        self.looks += 1
        node = Node("n0", {}, (), True, {GPU: Decimal(self.free)})
        return None if self.blind else Room((node,), self.placed)

    async def bounds(self) -> Bounds:
        return self.bound

    def asks(self, key: str) -> Asks | None:
        shapes = dict.fromkeys(("", "l4", "a100"), (ONE, GPU, 1))
        return None if key.endswith("unsound") else Asks(self.classes.get(key, ""), shapes)

    def decided(self, name: str, current: int, want: int, **spec: object) -> Decided:
        pods = tuple(LivePod(f"{name}-{at}", PodState.READY, uid=f"{name}-{at}") for at in range(current))
        self.placed |= {pod.uid: Place("n0", ONE.requests) for pod in pods}
        made = replace(ScalingSpec(1, 20), **spec)  # type: ignore[arg-type]
        pool = ScaledPool("team", name, current, made, pods)
        return pool, Decision(1e6, want, "ScaleUp", f"{current} -> {want}: KV use; binding: kv"), {}

    async def settled(self, *decided: Decided) -> list[Decision]:
        return await Arbiter(self, self, self).settled(1e6, decided)


async def test_the_cluster_is_not_looked_at_while_nobody_wants_more() -> None:
    cluster = Cluster()
    asked = (cluster.decided("a", 2, 2), cluster.decided("b", 3, 1))

    assert await cluster.settled(*asked) == [decision for _, decision, _ in asked]
    assert cluster.looks == 0


async def test_what_there_is_room_for_is_left_as_decided() -> None:
    cluster = Cluster(free=2)
    asked = cluster.decided("a", 1, 3)

    assert await cluster.settled(asked) == [asked[1]]
    assert cluster.looks == 1


@pytest.mark.parametrize("blind", [True, False])
async def test_without_a_look_at_the_nodes_nothing_is_refused(blind: bool) -> None:
    cluster = Cluster(free=0, blind=blind)
    (decision,) = await cluster.settled(cluster.decided("a", 1, 4))

    assert (decision.refused is None) == blind
    assert (decision.replicas == 4) == blind


async def test_a_refusal_is_in_the_decision_with_its_remedy() -> None:
    cluster = Cluster(free=1, classes={"team/high": "gold"}, bound=Bounds(priorities={"": 0, "gold": 100}))
    low, high = await cluster.settled(cluster.decided("low", 1, 4), cluster.decided("high", 1, 2))

    assert (high.replicas, high.refused) == (2, None)
    assert (low.replicas, low.reason) == (2, "AcceleratorsShort"), "one pod waits for a node"
    assert low.refused is not None
    assert low.refused.replicas == 3
    assert low.message.startswith("1 -> 4: KV use; binding: kv; 3 of 4 replicas find no node")
    assert low.message.endswith("; given 2")


async def test_a_pool_that_loses_a_place_says_so() -> None:
    cluster = Cluster(classes={"team/high": "gold"}, bound=Bounds(priorities={"": 0, "gold": 100}))
    low, high = await cluster.settled(cluster.decided("low", 3, 3), cluster.decided("high", 1, 2))

    assert (low.replicas, low.reason) == (2, "GaveWay")
    assert (high.replicas, high.reason) == (2, "ScaleUp")


async def test_pools_that_only_recommend_take_no_part() -> None:
    cluster = Cluster(classes={"team/high": "gold"}, bound=Bounds(priorities={"": 0, "gold": 100}))
    low, high = await cluster.settled(
        cluster.decided("low", 3, 3, mode=Mode.RECOMMEND), cluster.decided("high", 1, 2, mode=Mode.RECOMMEND)
    )

    assert (low.replicas, high.replicas) == (3, 2)
    assert cluster.looks == 0


async def test_a_pool_whose_spec_is_unsound_keeps_its_decision() -> None:
    cluster = Cluster(free=0)
    (decision,) = await cluster.settled(cluster.decided("unsound", 1, 2))

    assert (decision.replicas, decision.refused) == (2, None)


async def test_variants_are_given_apart_and_those_refused_are_named() -> None:
    cluster = Cluster(free=1)
    pool, decision, _ = cluster.decided("a", 1, 4, variants=(Kind("l4", 1.0, 1.0), Kind("a100", 3.0, 4.0)))
    pods = tuple(replace(pod, variant="l4") for pod in pool.pods)
    wanted = replace(decision, mix={"l4": 2, "a100": 2})

    (found,) = await cluster.settled((replace(pool, pods=pods), wanted, {"l4": 1, "a100": 0}))

    assert found.replicas == sum(found.mix.values()) < 4
    assert found.refused is not None
    assert found.lacking
    assert set(found.lacking) <= {"l4", "a100"}
    assert f"{found.lacking[0]}: " in found.message
