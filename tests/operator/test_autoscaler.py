"""The scaling loop: who acts, on what, how soon, and what it leaves for the status."""

import asyncio
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import pytest

from fakes.readings import NOBODY, asked, blind, pod, pool
from tidepool_api.load import GatewayReport
from tidepool_api.scaling import Mode
from tidepool_operator.autoscaler import HISTORY, Autoscaler, AutoscalerSettings, Board
from tidepool_operator.errors import Unavailable
from tidepool_operator.scaling.capacity import Load
from tidepool_operator.scaling.mix import Kind
from tidepool_operator.scaling.model import (
    Decision,
    Demand,
    Known,
    LivePod,
    PodState,
    PoolReading,
    Refused,
    ScaledPool,
    ScalingSpec,
)
from tidepool_operator.telemetry.history import Past, Work

KEY = "team/llama"
SPEC = ScalingSpec(0, 8)


@dataclass
class Cluster:
    """The API server as a dictionary."""

    pools: dict[str, ScaledPool] = field(default_factory=dict)
    leader: bool = True
    refuses: bool = False
    scaled: asyncio.Queue[tuple[str, int]] = field(default_factory=asyncio.Queue)
    due: list[str] = field(default_factory=list)

    def put(self, replicas: int, name: str = "llama", spec: ScalingSpec = SPEC) -> None:
        self.pools[f"team/{name}"] = ScaledPool("team", name, replicas, spec)

    def scaled_pools(self) -> Sequence[ScaledPool]:
        return list(self.pools.values())

    def gateways(self) -> Mapping[str, str]:
        return {}

    async def scale(self, namespace: str, name: str, replicas: int) -> None:
        self.scaled.put_nowait((f"{namespace}/{name}", replicas))
        if self.refuses:
            raise Unavailable("the API server is unwell", status=503)
        self.pools[f"{namespace}/{name}"] = dataclasses.replace(
            self.pools[f"{namespace}/{name}"], replicas=replicas
        )

    def mark_due(self, key: str) -> None:
        self.due.append(key)

    def leads(self) -> bool:
        return self.leader


@dataclass
class History:
    """Prometheus' part; `gate` holds its answer back."""

    readings: dict[str, PoolReading] = field(default_factory=dict)
    gate: asyncio.Event | None = None
    asked: asyncio.Event = field(default_factory=asyncio.Event)
    fails: int = 0
    closed: bool = False
    worked: dict[str, tuple[tuple[float, Load], ...]] = field(default_factory=dict)

    async def read(self, now: float, pools: Sequence[ScaledPool]) -> Mapping[str, PoolReading]:
        self.asked.set()
        if self.gate is not None:
            await self.gate.wait()
        if self.fails:
            self.fails -= 1
            raise RuntimeError("a defect")
        return {each.key: self.readings.get(each.key, PoolReading(each.key)) for each in pools}

    async def past(self, now: float, pools: Sequence[ScaledPool]) -> Past:
        return {}

    async def work(self, now: float, pools: Sequence[ScaledPool]) -> Work:
        return self.worked

    async def close(self) -> None:
        self.closed = True


@dataclass
class Gateways:
    """The gateways' part."""

    on_demand: Callable[[str], None]
    demands: dict[str, Demand] = field(default_factory=dict)
    running: bool = False

    async def start(self) -> None:
        self.running = True

    async def close(self) -> None:
        self.running = False

    def demand(self, key: str) -> Demand:
        return self.demands.get(key, NOBODY)

    def reports(self) -> Mapping[str, GatewayReport]:
        return {}

    def hold(self, key: str, requests: int) -> None:
        self.demands[key] = asked(held=requests)
        self.on_demand(key)


class World:
    """An autoscaler among doubles, on a clock of the test's own."""

    def __init__(self) -> None:
        self.now = 1_800_000_000.0
        self.cluster, self.history = Cluster(), History()
        self.autoscaler = Autoscaler(
            self.cluster, self.history, Gateways, AutoscalerSettings(interval_seconds=0.01), lambda: self.now
        )
        gateways = self.autoscaler.gateways
        assert isinstance(gateways, Gateways)
        self.gateways = gateways

    def busy(self, kv: float) -> None:
        self.history.readings[KEY] = dataclasses.replace(pool(pod(kv=kv)), key=KEY)

    def judged_by(self, arbiter: "Arbiter") -> "Arbiter":
        """Begin anew with somebody who judges all decisions together."""
        settings = AutoscalerSettings(interval_seconds=0.01)
        self.autoscaler = Autoscaler(
            self.cluster, self.history, Gateways, settings, lambda: self.now, arbiter=arbiter
        )
        gateways = self.autoscaler.gateways
        assert isinstance(gateways, Gateways)
        self.gateways = gateways
        return arbiter

    async def tick(self, seconds: float = 5.0) -> None:
        self.now += seconds
        await self.autoscaler.tick()

    def writes(self) -> list[tuple[str, int]]:
        return [self.cluster.scaled.get_nowait() for _ in range(self.cluster.scaled.qsize())]


@pytest.fixture
def world() -> World:
    return World()


async def test_a_hot_pool_is_scaled_and_told_of(world: World) -> None:
    world.cluster.put(1)
    world.busy(0.93)

    await world.tick()

    assert world.writes() == [(KEY, 2)]
    assert world.cluster.due == [KEY]
    decision = world.autoscaler.board.get(KEY)
    assert decision is not None
    assert decision.message == "1 -> 2: KV use 0.93 of target 0.80 on 1 ready pod; binding: kv"


async def test_an_unchanged_decision_makes_no_pool_due(world: World) -> None:
    world.cluster.put(1)
    world.busy(0.5)

    for _ in range(3):
        await world.tick()

    assert world.writes() == []
    assert world.cluster.due == [KEY]


async def test_live_figures_that_move_are_told_once_a_minute_and_no_sooner(world: World) -> None:
    """Else a pool's status would show the KV use of its last change for as long as nothing else happens to it."""
    world.cluster.put(1)
    world.busy(0.5)
    await world.tick()
    told = []

    for second in range(5, 305, 5):
        world.busy(0.3 if second % 10 else 0.6)
        before = len(world.cluster.due)
        await world.tick()
        told += [second] * (len(world.cluster.due) - before)

    assert len(told) >= 3
    assert all(60 <= later - earlier <= 65 for earlier, later in pairwise(told))


async def test_live_figures_that_stay_within_their_bucket_are_not_told_again(world: World) -> None:
    world.cluster.put(1)

    for number in range(40):
        world.busy(0.5 + 0.001 * (number % 5))
        await world.tick()

    assert world.cluster.due == [KEY]


async def test_recommend_touches_nothing(world: World) -> None:
    world.cluster.put(1, spec=dataclasses.replace(SPEC, mode=Mode.RECOMMEND))
    world.busy(0.93)

    await world.tick()

    assert world.writes() == []
    decision = world.autoscaler.board.get(KEY)
    assert decision is not None
    assert decision.replicas == 2


async def test_the_first_forecast_after_a_restart_looks_as_far_as_this_pools_pods_take_to_start(
    world: World,
) -> None:
    busy = dataclasses.replace(pod("a", kv=0.5, running=8, requests=1.0), output_tokens_rate=Known(100.0))
    world.history.readings[KEY] = dataclasses.replace(pool(busy), key=KEY)
    live = (LivePod("a", PodState.READY, 600.0, world.now - 3600.0),)
    spec = dataclasses.replace(SPEC, predicts=True)
    world.cluster.pools[KEY] = ScaledPool("team", "llama", 1, spec, live)

    await world.tick()

    decision = world.autoscaler.board.get(KEY)
    assert decision is not None
    assert "start-up P90 600 s" in decision.forecast


async def test_what_the_past_taught_of_a_replica_is_known_at_the_first_look(world: World) -> None:
    load = Load(20.0, 1000.0, 500.0)
    world.history.worked[KEY] = tuple((world.now - 60.0 * ago, load) for ago in range(50, 0, -1))
    live = (LivePod("a", PodState.READY, 60.0, world.now - 7200.0),)
    spec = dataclasses.replace(SPEC, predicts=True)
    world.cluster.pools[KEY] = ScaledPool("team", "llama", 1, spec, live, "revision")
    world.busy(0.5)

    await world.tick()

    decision = world.autoscaler.board.get(KEY)
    assert decision is not None
    assert decision.learned is not None
    assert "some 50 readings" in decision.learned.source


@dataclass
class Arbiter:
    """Gives every pool `most` replicas at most."""

    most: int = 8
    judged: int = 0

    async def settled(
        self, now: float, decided: Sequence[tuple[ScaledPool, Decision, Mapping[str, int]]]
    ) -> Sequence[Decision]:
        self.judged += 1
        return [self._given(decision) for _, decision, _ in decided]

    def _given(self, decision: Decision) -> Decision:
        if decision.replicas <= self.most:
            return decision
        refused = Refused(decision.replicas - self.most, "AcceleratorsShort", "add nodes")
        return dataclasses.replace(decision, replicas=self.most, reason=refused.reason, refused=refused)


async def test_what_a_pool_is_refused_is_not_written_and_is_told_once(world: World) -> None:
    arbiter = world.judged_by(Arbiter(most=2))
    world.cluster.put(1)
    world.history.readings[KEY] = dataclasses.replace(pool(pod("a", kv=2.4)), key=KEY)

    for _ in range(4):
        await world.tick()

    assert world.writes() == [(KEY, 2)]
    assert arbiter.judged == 4
    decision = world.autoscaler.board.get(KEY)
    assert decision is not None
    assert (decision.replicas, decision.reason) == (2, "AcceleratorsShort")
    assert decision.refused is not None
    assert decision.refused.replicas == 1
    assert world.cluster.due == [KEY]


async def test_a_pool_wakes_without_being_judged(world: World) -> None:
    """One replica of a pool that somebody waits for does not wait for a look at the cluster."""
    arbiter = world.judged_by(Arbiter(most=0))
    world.cluster.put(0)
    world.gateways.hold(KEY, 1)

    await world.autoscaler.wake()

    assert (world.writes(), arbiter.judged) == ([(KEY, 1)], 0)


async def test_a_mix_goes_on_from_what_was_decided_last(world: World) -> None:
    """Also while the status does not say so yet: its writer comes later."""
    kinds = (Kind("l4", 1.0, 1.0), Kind("a100", 3.0, 4.0))
    world.cluster.put(1, spec=dataclasses.replace(SPEC, min_replicas=1, variants=kinds))
    world.cluster.pools[KEY] = dataclasses.replace(world.cluster.pools[KEY], mix={"l4": 1})
    full = dataclasses.replace(pod("a", kv=3.2), variant="l4")
    world.history.readings[KEY] = dataclasses.replace(pool(full), key=KEY)

    await world.tick()
    first = world.autoscaler.board.get(KEY)
    await world.tick()
    second = world.autoscaler.board.get(KEY)

    assert first is not None
    assert second is not None
    assert first.mix == second.mix == {"l4": 1, "a100": 1}
    assert first.replicas == world.cluster.pools[KEY].replicas == 2


async def test_only_the_leader_decides_and_a_new_one_starts_without_a_past(world: World) -> None:
    """kubeai#67: leaders that did not agree scaled a pool to 0 and to 1 in turn."""
    world.cluster.put(2)
    low = pool(pod("a", kv=0.1), pod("b", kv=0.1))
    world.history.readings[KEY] = dataclasses.replace(low, key=KEY)
    await world.tick()
    await world.tick(299)
    world.cluster.leader = False

    await world.tick(5)

    assert world.autoscaler.board.get(KEY) is None
    world.cluster.leader = True
    await world.tick(5)
    await world.tick(295)
    assert world.writes() == []  # the window began anew
    await world.tick(5)
    assert world.writes() == [(KEY, 1)]


async def test_a_follower_does_not_wake_pools(world: World) -> None:
    world.cluster.put(0)
    world.cluster.leader = False
    world.gateways.hold(KEY, 1)

    await world.autoscaler.wake()

    assert world.writes() == []


async def test_a_refused_write_is_tried_again_and_harms_no_other_pool(world: World) -> None:
    world.cluster.put(1)
    world.cluster.put(1, "other", ScalingSpec(2, 8))
    world.busy(0.93)
    world.cluster.refuses = True

    await world.tick()
    world.cluster.refuses = False
    await world.tick()

    assert world.writes() == [(KEY, 2), ("team/other", 2), (KEY, 2), ("team/other", 2)]


async def test_a_pool_that_is_gone_is_forgotten(world: World) -> None:
    world.cluster.put(1)
    world.busy(0.93)
    await world.tick()
    world.cluster.pools.clear()

    await world.tick()

    assert world.autoscaler.board.get(KEY) is None
    assert world.autoscaler.board.history(KEY) == ()


async def test_replicas_are_those_after_prometheus_answered(world: World) -> None:
    """Somebody scaled while the answer was on its way: their number is the start."""
    world.cluster.put(1)
    world.busy(0.93)
    world.history.gate = asyncio.Event()
    ticking = asyncio.create_task(world.tick())
    await world.history.asked.wait()
    world.cluster.put(2)

    world.history.gate.set()
    await ticking

    assert world.writes() == []


async def test_the_first_held_request_wakes_a_pool_while_prometheus_is_silent(world: World) -> None:
    """Waking waits neither for a tick nor for Prometheus: it hangs through the whole test."""
    world.cluster.put(0)
    world.history.gate = asyncio.Event()
    await world.autoscaler.start()
    await world.history.asked.wait()

    world.gateways.hold(KEY, 1)

    async with asyncio.timeout(10):
        assert await world.cluster.scaled.get() == (KEY, 1)
    decision = world.autoscaler.board.get(KEY)
    await world.autoscaler.close()
    assert decision is not None
    assert decision.reason == "WokenByDemand"


async def test_a_pool_that_is_up_is_not_woken(world: World) -> None:
    world.cluster.put(1)
    world.gateways.hold(KEY, 5)

    await world.autoscaler.wake()

    assert world.writes() == []
    assert world.autoscaler.board.get(KEY) is None


async def test_a_wake_that_was_refused_is_repeated_by_the_next_report(world: World) -> None:
    world.cluster.put(0)
    world.cluster.refuses = True
    world.history.gate = asyncio.Event()  # no tick comes in between
    await world.autoscaler.start()
    world.gateways.hold(KEY, 1)
    async with asyncio.timeout(10):
        await world.cluster.scaled.get()
        world.cluster.refuses = False
        world.gateways.hold(KEY, 1)
        await world.cluster.scaled.get()
    await world.autoscaler.close()

    assert world.cluster.pools[KEY].replicas == 1


async def test_a_defect_in_one_tick_does_not_end_scaling(world: World) -> None:
    world.cluster.put(1)
    world.busy(0.93)
    world.history.fails = 1
    await world.autoscaler.start()

    async with asyncio.timeout(10):
        assert await world.cluster.scaled.get() == (KEY, 2)

    await world.autoscaler.close()


async def test_close_lets_go_of_everything(world: World) -> None:
    await world.autoscaler.start()
    assert world.gateways.running

    await world.autoscaler.close()

    assert (world.gateways.running, world.history.closed) == (False, True)
    assert {task.get_name() for task in asyncio.all_tasks()}.isdisjoint({"autoscaler", "autoscaler wake"})


async def test_wake_from_zero_idle_and_back_to_zero(world: World) -> None:
    world.cluster.put(0)
    world.gateways.hold(KEY, 3)
    await world.autoscaler.wake()
    world.history.readings[KEY] = dataclasses.replace(pool(blind()), key=KEY)
    await world.tick()
    world.gateways.demands.clear()
    world.history.readings[KEY] = dataclasses.replace(pool(pod()), key=KEY)

    for _ in range(121):
        await world.tick()

    assert world.writes() == [(KEY, 1), (KEY, 0)]
    assert [decision.replicas for decision in world.autoscaler.board.history(KEY)] == [0, 1]


def test_the_board_keeps_ten_changes_the_newest_first() -> None:
    board = Board()
    for number in range(25):
        board.put(KEY, Decision(float(number), number // 2, "ScaleUp", f"{number}"))

    assert [decision.replicas for decision in board.history(KEY)] == list(range(12, 2, -1))
    assert len(board.history(KEY)) == HISTORY


def test_the_board_says_what_is_new() -> None:
    board = Board()

    assert board.put(KEY, Decision(1.0, 2, "ScaleUp", "kv 0.93"))
    assert not board.put(KEY, Decision(2.0, 2, "ScaleUp", "kv 0.94"))
    assert board.put(KEY, Decision(3.0, 2, "WithinTargets", "kv 0.7"))
    assert board.put(KEY, Decision(4.0, 1, "WithinTargets", "kv 0.3"))
