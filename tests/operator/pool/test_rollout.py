"""Rollouts: tables of single steps, and a model in which everything happens in any order."""

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from pools.objects import condition
from pools.world import World
from scripted.examples import examples
from tidepool_operator.pool.rollout import Allowance, Group, allowance, targets

NEW, OLD, OLDER = "new", "old", "older"


@pytest.mark.parametrize(
    ("wanted", "new", "olds", "allowed", "expected", "why"),
    [
        (3, (0, 0), [], (3, 0), {NEW: 3}, "nothing runs: all at once"),
        (2, (0, 0), [(2, 2)], (2, 0), {NEW: 2, OLD: 2}, "surge: the old one stays until the new one serves"),
        (2, (2, 1), [(2, 2)], (2, 0), {NEW: 2, OLD: 1}, "one new pod serves: one old pod may go"),
        (2, (2, 2), [(2, 2)], (2, 0), {NEW: 2, OLD: 0}, "all new pods serve: the old ones go"),
        (2, (2, 0), [(2, 2)], (2, 1), {NEW: 2, OLD: 1}, "no room for a surge: one old pod makes place"),
        (2, (2, 0), [(1, 1)], (2, 1), {NEW: 2, OLD: 1}, "one is missing already: no second one goes"),
        (4, (0, 0), [(4, 4)], (1, 0), {NEW: 1, OLD: 4}, "a surge of one"),
        (4, (1, 1), [(4, 4)], (1, 0), {NEW: 1, OLD: 3}, "the place of the surge moves on when an old pod is gone"),
        (4, (0, 0), [(4, 4)], (0, 1), {NEW: 0, OLD: 3}, "no surge: delete first"),
        (4, (0, 0), [(3, 3)], (0, 1), {NEW: 1, OLD: 3}, "no surge: the free place is taken"),
        (2, (2, 0), [(4, 4)], (2, 0), {NEW: 2, OLD: 2}, "fewer are wanted: the old revision shrinks at once"),
        (4, (4, 0), [(4, 2)], (4, 0), {NEW: 4, OLD: 4}, "too few serve: even idle old pods may come back"),
        (3, (3, 3), [(2, 0)], (3, 0), {NEW: 3, OLD: 0}, "idle old pods go when the new ones serve"),
        (2, (2, 1), [(1, 1), (1, 1)], (2, 0), {NEW: 2, OLD: 0, OLDER: 1}, "over all revisions, one may go"),
        (0, (2, 2), [(2, 2)], (0, 0), {NEW: 0, OLD: 0}, "to zero: nothing is kept"),
    ],
)
def test_targets(
    wanted: int,
    new: tuple[int, int],
    olds: list[tuple[int, int]],
    allowed: tuple[int, int],
    expected: dict[str, int],
    why: str,
) -> None:
    groups = [Group(name, *counts) for name, counts in zip((OLD, OLDER), olds, strict=False)]

    found = targets(wanted, Group(NEW, *new), groups, Allowance(*allowed), stuck=False)

    assert found == expected, why


@pytest.mark.parametrize(
    ("surge", "unavailable", "wanted", "short", "expected", "why"),
    [
        ("Auto", "Auto", 4, False, (4, 0), "room is assumed until a pod finds none"),
        ("Auto", "Auto", 4, True, (4, 1), "no room: one at a time"),
        (0, "Auto", 4, False, (0, 1), "no surge allowed: something must go first"),
        ("25%", "25%", 6, False, (2, 1), "surge rounds up, unavailable rounds down, as in a Deployment"),
        (1, 0, 4, True, (1, 0), "what was asked for in numbers is never exceeded"),
    ],
)
def test_allowance(
    surge: int | str, unavailable: int | str, wanted: int, short: bool, expected: tuple[int, int], why: str
) -> None:
    found = allowance(surge, unavailable, wanted, short=short)

    assert (found.surge, found.unavailable) == expected, why


def test_a_stuck_revision_neither_grows_nor_costs_an_old_pod() -> None:
    found = targets(4, Group(NEW, 4, 1), [Group(OLD, 3, 3)], Allowance(4, 1), stuck=True)

    assert found == {NEW: 4, OLD: 3}


def test_while_stuck_the_old_revision_follows_the_wanted_count() -> None:
    found = targets(6, Group(NEW, 4, 0), [Group(OLD, 4, 4)], Allowance(4, 0), stuck=True)

    assert found == {NEW: 4, OLD: 6}


def world(accelerators: int = 8, **spec: object) -> World:
    made = World(accelerators, {"replicas": 4, **spec})
    made.settle()
    return made


def test_with_room_the_new_revision_comes_up_beside_the_old_one() -> None:
    pool = world()
    pool.change(engine={"args": ["--max-num-seqs=8"]})
    lowest = pool.serving()
    for _ in range(40):
        pool.settle(1)
        lowest = min(lowest, pool.serving())

    assert lowest == 4
    assert list(pool.replicas().values()) == [4]


def test_without_room_pods_are_replaced_one_at_a_time() -> None:
    pool = world(accelerators=4)
    pool.change(engine={"args": ["--max-num-seqs=8"]})
    lowest = pool.serving()
    for _ in range(60):
        pool.settle(1)
        lowest = min(lowest, pool.serving())

    assert lowest == 3
    assert list(pool.replicas().values()) == [4]


def test_a_change_back_uses_the_old_deployment_again() -> None:
    pool = world()
    before = set(pool.pods)
    pool.change(engine={"args": ["--max-num-seqs=8"]})
    pool.settle(1)
    pool.change(engine={})
    pool.settle()

    assert set(pool.pods) == before


def test_a_revision_that_never_comes_up_stops_and_the_old_one_serves() -> None:
    pool = world(rollout={"progressDeadline": "600s"})
    served = set(pool.replicas())
    pool.change(engine={"args": ["--max-num-seqs=8"]})
    pool.reconcile()
    pool.broken = set(pool.replicas()) - served
    pool.settle(20)
    pool.now += 601
    pool.settle(20)

    assert pool.serving() == 4
    assert condition(pool.status, "Progressing")["reason"] == "ProgressDeadlineExceeded"
    assert condition(pool.status, "Ready")["status"] == "False"


VARIANTS: list[dict[str, object]] = [{}, {"args": ["--max-num-seqs=8"]}, {"args": ["--max-num-seqs=16"]}]


class AnyOrder(RuleBasedStateMachine):
    """Whatever happens in whatever order: what serves is never taken below the bound, and all converges."""

    @initialize(accelerators=st.integers(2, 10), replicas=st.integers(1, 4))
    def begin(self, accelerators: int, replicas: int) -> None:
        self.world = World(max(accelerators, replicas), {"replicas": replicas})
        self.world.settle()

    @rule()
    def reconcile(self) -> None:
        before, replicas = self.world.serving(), self.world.spec["replicas"]
        self.world.reconcile()
        # Auto leaves at most one place empty. Where fewer serve already, nothing that serves goes.
        assert self.world.serving() >= min(before, replicas - 1)

    @rule()
    def sync_replicas(self) -> None:
        self.world.sync_replicas()

    @rule()
    def schedule(self) -> None:
        self.world.schedule()

    @rule()
    def start(self) -> None:
        self.world.start_one()

    @rule(index=st.integers(0, 9))
    def fail(self, index: int) -> None:
        self.world.fail_one(index)

    @rule()
    def finish(self) -> None:
        self.world.finish_one()

    @rule(seconds=st.sampled_from([1.0, 60.0, 4000.0]))
    def wait(self, seconds: float) -> None:
        self.world.now += seconds

    @rule(variant=st.sampled_from(VARIANTS))
    def change(self, variant: dict[str, object]) -> None:
        self.world.change(engine=variant)

    @rule(replicas=st.integers(0, 4))
    def scale(self, replicas: int) -> None:
        if replicas <= self.world.accelerators:
            self.world.change(replicas=replicas)

    def teardown(self) -> None:
        if not hasattr(self, "world"):
            return
        self.world.settle(60)
        replicas = self.world.spec["replicas"]
        assert list(self.world.replicas().values()) == [replicas]
        assert self.world.serving() == replicas
        assert len(self.world.pods) == replicas
        assert condition(self.world.status, "Ready")["status"] == "True"
        assert condition(self.world.status, "Progressing")["reason"] == "Complete"
        last = self.world.look()
        assert last == self.world.look()
        assert (last.applies, last.scales, last.marks, last.deletes, last.status) == ((), (), (), (), None)


TestAnyOrder = AnyOrder.TestCase
TestAnyOrder.settings = examples(6, stateful_step_count=25)
