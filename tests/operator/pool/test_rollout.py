"""Rollouts: tables of single steps, and a model in which everything happens in any order."""

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from pools.objects import condition
from pools.world import World
from scripted.examples import examples
from tidepool_operator.pool.plan import HISTORY
from tidepool_operator.pool.rollout import Allowance, Group, Space, allowance, targets

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


PLACED = [Group(NEW, 0, 0), Group(OLD, 4, 4)]
COMING = [Group(NEW, 1, 0), Group(OLD, 4, 4)]
SHORT = [Group(NEW, 1, 0, short=1), Group(OLD, 4, 4)]


@pytest.mark.parametrize(
    ("surge", "unavailable", "groups", "space", "expected", "why"),
    [
        ("Auto", "Auto", PLACED, Space(), (4, 0, 0), "nodes unknown: room is assumed until a pod finds none"),
        ("Auto", "Auto", SHORT, Space(), (4, 1, 0), "nodes unknown, a pod found no room: one at a time"),
        ("Auto", "Auto", PLACED, Space(2), (4, 0, 0), "room: nothing goes first"),
        ("Auto", "Auto", PLACED, Space(0), (4, 1, 0), "no room: one goes first"),
        ("Auto", "Auto", COMING, Space(0), (4, 0, 0), "the surge that had room is on its way"),
        ("Auto", "Auto", SHORT, Space(-1), (4, 1, 0), "somebody else took the place of the surge"),
        ("Auto", "Auto", PLACED, Space(0, going=1), (4, 0, 0), "a pod that goes leaves a place soon"),
        ("Auto", "Auto", PLACED, Space(0, helps=False), (4, 0, 1), "leaving would not help: one is asked for"),
        (0, "Auto", PLACED, Space(9), (0, 1, 0), "no surge allowed: something must go first"),
        ("Auto", 0, PLACED, Space(0), (4, 0, 1), "nothing may go: one is asked for, so that nodes are added"),
        ("50%", "50%", PLACED, Space(), (2, 2, 0), "shares of the wanted count"),
        ("30%", "30%", PLACED, Space(), (2, 1, 0), "surge rounds up, unavailable down, as in a Deployment"),
        (0, "10%", PLACED, Space(), (0, 1, 0), "rounded down to nothing, no pod could ever be replaced"),
        (1, 0, SHORT, Space(), (1, 0, 1), "what was asked for in numbers is never exceeded"),
    ],
)
def test_allowance(
    surge: int | str,
    unavailable: int | str,
    groups: list[Group],
    space: Space,
    expected: tuple[int, int, int],
    why: str,
) -> None:
    found = allowance(surge, unavailable, 4, groups, space)

    assert (found.surge, found.unavailable, found.asks) == expected, why


@pytest.mark.parametrize(
    ("wanted", "new", "old", "allowed", "space", "expected", "why"),
    [
        (4, (0, 0), (4, 4), (4, 0), Space(2), {NEW: 2, OLD: 4}, "as many as there is room for"),
        (4, (0, 0), (4, 4), (1, 0), Space(2), {NEW: 1, OLD: 4}, "and no more than the surge allows"),
        (4, (0, 0), (4, 4), (4, 1), Space(0), {NEW: 0, OLD: 3}, "no room: one goes"),
        (4, (0, 0), (3, 3), (4, 0), Space(0, going=1), {NEW: 0, OLD: 3}, "its place is waited for"),
        (4, (0, 0), (3, 3), (4, 1), Space(1), {NEW: 1, OLD: 3}, "its place is taken"),
        (4, (0, 0), (3, 3), (4, 1), Space(0), {NEW: 1, OLD: 3}, "somebody else was quicker: it is asked for"),
        (6, (1, 1), (3, 3), (6, 0), Space(0), {NEW: 3, OLD: 3}, "more are wanted: asked for without room"),
        (4, (0, 0), (4, 4), (4, 0, 1), Space(0), {NEW: 1, OLD: 4}, "one beyond the room, where it must be asked"),
        (4, (3, 3), (0, 0), (4, 0), Space(0, going=1), {NEW: 3, OLD: 0}, "the last place is waited for, too"),
        (4, (2, 0), (4, 4), (4, 0), Space(-2), {NEW: 2, OLD: 4}, "pods that wait are not taken back"),
    ],
)
def test_targets_follow_the_room(
    wanted: int,
    new: tuple[int, int],
    old: tuple[int, int],
    allowed: tuple[int, ...],
    space: Space,
    expected: dict[str, int],
    why: str,
) -> None:
    found = targets(wanted, Group(NEW, *new), [Group(OLD, *old)], Allowance(*allowed), stuck=False, space=space)

    assert found == expected, why


def test_a_stuck_revision_neither_grows_nor_costs_an_old_pod() -> None:
    found = targets(4, Group(NEW, 4, 1), [Group(OLD, 3, 3)], Allowance(4, 1), stuck=True)

    assert found == {NEW: 4, OLD: 3}


def test_while_stuck_the_old_revision_follows_the_wanted_count() -> None:
    found = targets(6, Group(NEW, 4, 0), [Group(OLD, 4, 4)], Allowance(4, 0), stuck=True)

    assert found == {NEW: 4, OLD: 6}


def test_a_stuck_revision_gives_the_places_back_that_old_pods_need() -> None:
    found = targets(4, Group(NEW, 2, 1), [Group(OLD, 3, 2, short=1)], Allowance(4, 1), stuck=True)

    assert found == {NEW: 1, OLD: 3}


def world(accelerators: int = 8, *, sees: bool = False, **spec: object) -> World:
    made = World(accelerators, {"replicas": 4, **spec}, sees=sees)
    made.settle()
    return made


def live(pool: World) -> list[int]:
    """Replica counts without the Deployments that are kept for a change back."""
    return [count for count in pool.replicas().values() if count]


def test_with_room_the_new_revision_comes_up_beside_the_old_one() -> None:
    pool = world()
    pool.change(engine=ARGS)

    assert roll(pool)[0] == 4
    assert live(pool) == [4]


def test_without_room_pods_are_replaced_one_at_a_time() -> None:
    pool = world(accelerators=4)
    pool.change(engine=ARGS)

    assert roll(pool)[0] == 3
    assert live(pool) == [4]


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


ARGS: dict[str, object] = {"args": ["--max-num-seqs=8"]}


def roll(pool: World, rounds: int = 60) -> tuple[int, int]:
    """Lets a rollout happen; the fewest pods that served, and the most that waited for a place."""
    fewest, waiting = pool.serving(), 0
    for _ in range(rounds):
        pool.settle(1)
        fewest = min(fewest, pool.serving())
        waiting = max(waiting, sum(not found.scheduled for found in pool.pods.values()))
        if condition(pool.status, "Progressing")["reason"] == "Complete":
            break
    return fewest, waiting


@pytest.mark.parametrize(
    ("accelerators", "fewest", "why"),
    [
        (8, 4, "room for all"),
        (5, 4, "one place to spare: one after the other, and nobody goes first"),
        (4, 3, "no place to spare: one at a time goes first"),
    ],
)
def test_where_nodes_are_known_no_pod_waits_for_a_place(accelerators: int, fewest: int, why: str) -> None:
    pool = world(accelerators, sees=True)
    pool.change(engine=ARGS)

    assert roll(pool) == (fewest, 0), why
    assert live(pool) == [4]


def test_a_pod_that_is_about_to_leave_is_waited_for() -> None:
    pool = world(4, sees=True)
    pool.change(engine=ARGS)
    for _ in range(4):
        pool.reconcile()

    assert sorted(pool.replicas().values()) == [0, 3], (
        "its controller has not acted yet, and the place is still held"
    )


def test_room_that_somebody_else_takes_does_not_stop_the_rollout() -> None:
    pool = world(5, sees=True)
    pool.change(engine=ARGS)
    pool.reconcile()
    pool.others = {"n2": 1}
    roll(pool)

    assert (live(pool), pool.serving()) == ([4], 4)


def test_room_that_comes_is_looked_for_while_a_rollout_waits() -> None:
    pool = world(4, sees=True, rollout={"maxUnavailable": 0})
    pool.change(engine=ARGS)
    pool.settle(5)

    assert pool.requeued == 2.0
    assert pool.serving() == 4
    assert condition(pool.status, "CapacityAvailable")["status"] == "False", "one waits, and it is told"


def test_nodes_that_cannot_take_the_new_shape_cost_no_old_pod() -> None:
    pool = world(4, sees=True)
    pool.change(accelerator={"nodeSelector": {"gpu": "none-has-it"}})
    pool.settle(20)

    assert pool.serving() == 4


def test_a_broken_revision_on_a_full_cluster_gives_the_only_place_back() -> None:
    pool = world(1, sees=True, replicas=1)
    served = set(pool.replicas())
    pool.change(engine=ARGS)
    pool.reconcile()
    pool.broken = set(pool.replicas()) - served
    pool.settle(20)
    assert pool.serving() == 0, "with one accelerator the old pod had to go first"
    pool.now += 3601
    pool.settle(20)
    told = condition(pool.status, "Progressing")
    pool.now += 7200
    pool.settle(20)

    assert pool.serving() == 1
    assert condition(pool.status, "Progressing") == told
    assert told["reason"] == "ProgressDeadlineExceeded"
    assert "p2" in told["message"], "what was the matter is still told"
    assert condition(pool.status, "Ready")["reason"] == "ProgressDeadlineExceeded"


def test_a_stopped_rollout_goes_on_when_its_late_pods_come_after_all() -> None:
    pool = world(8, sees=True)
    served = set(pool.replicas())
    pool.change(engine=ARGS)
    pool.reconcile()
    pool.broken = set(pool.replicas()) - served
    pool.now += 3601
    pool.settle(5)
    pool.now += 3601
    pool.settle(5)
    assert condition(pool.status, "Progressing")["reason"] == "ProgressDeadlineExceeded"
    pool.broken = set()
    pool.settle()

    assert condition(pool.status, "Progressing")["reason"] == "Complete"


def test_a_change_after_a_stopped_rollout_is_rolled_out() -> None:
    pool = world(1, sees=True, replicas=1)
    served = set(pool.replicas())
    pool.change(engine=ARGS)
    pool.reconcile()
    pool.broken = set(pool.replicas()) - served
    pool.settle(20)
    pool.now += 3601
    pool.settle(20)
    pool.change(engine={"args": ["--max-num-seqs=16"]})
    pool.settle(20)

    assert condition(pool.status, "Progressing")["reason"] == "Complete"


def test_a_change_back_after_days_is_not_late() -> None:
    pool = world(8, sees=True)
    pool.change(engine=ARGS)
    pool.settle()
    pool.now += 10 * 86400
    pool.change(engine={})
    pool.reconcile()
    pool.reconcile()

    assert condition(pool.status, "Progressing")["reason"] == "RollingOut"


def test_a_few_old_revisions_are_kept_for_a_change_back_and_no_more() -> None:
    pool = world(8, sees=True)
    for number in range(HISTORY + 2):
        pool.now += 60
        pool.change(engine={"args": [f"--max-num-seqs={number + 1}"]})
        pool.settle()

    assert sorted(pool.replicas().values()) == [0] * HISTORY + [4]


VARIANTS: list[dict[str, object]] = [{}, {"args": ["--max-num-seqs=8"]}, {"args": ["--max-num-seqs=16"]}]


class AnyOrder(RuleBasedStateMachine):
    """Whatever happens in whatever order: what serves is never taken below the bound, nothing is asked for beyond
    the room there is, and all converges."""

    @initialize(accelerators=st.integers(2, 10), replicas=st.integers(1, 4), sees=st.booleans())
    def begin(self, accelerators: int, replicas: int, sees: bool) -> None:
        self.world = World(max(accelerators, replicas), {"replicas": replicas}, sees=sees)
        self.world.settle()

    @rule()
    def reconcile(self) -> None:
        world = self.world
        before, asked, replicas = world.serving(), world.replicas(), world.spec["replicas"]
        free, helps = sum(world.free().values()), self._old_is_placed()
        made = world.reconcile()
        # Auto leaves at most one place empty. Where fewer serve already, nothing that serves goes.
        assert world.serving() >= min(before, replicas - 1)
        homeless = self._homeless()
        if world.sees and free > 0 and homeless <= free:
            assert world.serving() >= min(before, replicas), "there is room, and a pod that serves went first"
        new = world.status["updateRevision"]
        grown = world.replicas()[new] > asked.get(new, 0)
        if world.sees and helps and grown and homeless > free:
            # Without a place only what the pool lacks is asked for, and pods that are about to leave lack nothing.
            assert self._holding() + homeless <= replicas, f"asked for beyond the room: {made.scales}"

    def _homeless(self) -> int:
        """Pods that are asked for and have no place."""
        placed = [found.revision for found in self.world.pods.values() if found.scheduled and not found.deleting]
        return sum(max(0, count - placed.count(name)) for name, count in self.world.replicas().items())

    def _holding(self) -> int:
        """Pods that have a place, but for those that should have left long ago."""
        late = self.world.now - 360
        return sum(
            found.scheduled and (not found.deleting or found.told > late) for found in self.world.pods.values()
        )

    def _old_is_placed(self) -> bool:
        new = self.world.look().status or self.world.status
        return any(
            found.scheduled and not found.deleting and found.revision != new.get("updateRevision")
            for found in self.world.pods.values()
        )

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

    @rule(taken=st.integers(0, 4))
    def neighbours(self, taken: int) -> None:
        """Somebody else takes what is free, or gives it back."""
        self.world.others = {}
        for name, free in self.world.free().items():
            self.world.others[name] = min(free, taken)
            taken -= self.world.others[name]

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
        self.world.others = {}
        self.world.settle(80)
        replicas = self.world.spec["replicas"]
        if condition(self.world.status, "Progressing")["reason"] == "ProgressDeadlineExceeded":
            # Stopped, since a pod was late: the pool is whole, and the next change is rolled out.
            assert self.world.serving() == replicas
            self.world.change(engine={"args": ["--max-num-seqs=32"]})
            self.world.settle(80)
        assert live(self.world) == [replicas] * (replicas > 0)
        assert self.world.serving() == replicas
        assert len(self.world.pods) == replicas
        assert condition(self.world.status, "Ready")["status"] == "True"
        assert condition(self.world.status, "Progressing")["reason"] == "Complete"
        last = self.world.look()
        assert last == self.world.look()
        assert (last.applies, last.scales, last.marks, last.deletes, last.status) == ((), (), (), (), None)


TestAnyOrder = AnyOrder.TestCase
TestAnyOrder.settings = examples(6, stateful_step_count=25)
