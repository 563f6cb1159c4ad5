"""The same pool on several kinds of accelerator: what comes first, what goes first, and what stays as it is."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fakes.readings import asked, blind, pod, pool
from scripted.examples import examples
from tidepool_api.scaling import Mode, Scaling
from tidepool_operator.scaling.capacity import SETTLED
from tidepool_operator.scaling.decide import decide
from tidepool_operator.scaling.mix import Kind, Limits, capacity_of, cheapest, cost_of
from tidepool_operator.scaling.model import (
    Behavior,
    Decision,
    Known,
    Memory,
    PodReading,
    PodState,
    PoolReading,
    RatePolicy,
    ScalingSpec,
    VariantMemory,
)
from tidepool_operator.scaling.spec import from_api
from tidepool_operator.scaling.variants import known, learned

L4 = Kind("l4", cost=1.0, capacity=1.0)
A100 = Kind("a100", cost=3.0, capacity=4.0)
H100 = Kind("h100", cost=9.0, capacity=9.0)
SPEC = ScalingSpec(1, 40, variants=(L4, A100, H100))


@dataclass
class Fleet:
    """Engines whose KV use follows from the demand, in the unit of the kinds' capacities; time goes in ticks.

    Pods of `away` find no node. Demand is spread by capacity, as the router does.
    """

    spec: ScalingSpec
    demand: float
    mix: dict[str, int] = field(default_factory=lambda: {"l4": 1})
    startup_seconds: float = 60.0
    away: frozenset[str] = frozenset()
    now: float = 1_000_000.0
    memory: Memory = field(default_factory=Memory)
    decisions: list[Decision] = field(default_factory=list)
    _born: dict[str, list[float]] = field(default_factory=dict)

    def _state(self, name: str, born: float) -> PodState:
        if name in self.away:
            return PodState.PENDING
        return PodState.READY if self.now - born >= self.startup_seconds else PodState.STARTING

    def carries(self) -> float:
        """Capacity that serves now."""
        return sum(
            kind.capacity * sum(self._state(kind.name, born) is PodState.READY for born in self._born[kind.name])
            for kind in self.spec.variants
        )

    def reading(self) -> PoolReading:
        carried = self.carries()
        kv = min(20.0, self.spec.kv_utilization * self.demand / carried) if carried else 0.0
        pods = []
        for kind in self.spec.variants:
            for index, born in enumerate(self._born[kind.name]):
                state, name = self._state(kind.name, born), f"{kind.name}-{index}"
                made = (
                    pod(name, kv=kv, running=1.0, requests=1.0) if state is PodState.READY else blind(name, state)
                )
                pods.append(replace(made, variant=kind.name))
        return pool(*pods, demand=asked(held=0 if carried else 3, in_flight=1))

    def tick(self, seconds: float = 5.0) -> Decision:
        self.now += seconds
        for kind in self.spec.variants:
            born = self._born.setdefault(kind.name, [])
            wanted = self.mix.get(kind.name, 0)
            while len(born) < wanted:
                born.append(self.now if self.decisions else self.now - self.startup_seconds)
            del born[wanted:]
        count = sum(self.mix.values())
        decision, self.memory = decide(self.now, self.reading(), self.spec, count, self.memory, None, self.mix)
        self.decisions.append(decision)
        self.mix = dict(decision.mix)
        assert decision.replicas == sum(self.mix.values())
        return decision

    def run(self, seconds: float) -> list[dict[str, int]]:
        return [dict(self.tick().mix) for _ in range(int(seconds // 5))]


def present(mix: Mapping[str, int]) -> dict[str, int]:
    return {name: count for name, count in mix.items() if count}


def test_what_is_added_is_the_cheapest_that_carries_the_need() -> None:
    fleet = Fleet(SPEC, demand=4.6, mix={"l4": 1})

    fleet.run(120)

    assert present(fleet.mix) == {"l4": 1, "a100": 1}, "the one that runs stays, and one large one comes"
    assert fleet.decisions[-1].message.endswith("1 l4 + 1 a100 at a cost of 4")


def test_the_dearest_goes_first_and_one_at_a_time() -> None:
    fleet = Fleet(SPEC, demand=4.2, mix={"l4": 2, "a100": 1, "h100": 2})

    seen = [fleet.mix, *fleet.run(900)]

    assert present(seen[-1]) == {"l4": 1, "a100": 1}
    gone = [name for before, after in pairwise(seen) for name in before if after.get(name, 0) < before[name]]
    assert gone == ["h100", "h100", "l4"]
    assert [after.reason for before, after in pairwise(fleet.decisions) if after.mix != before.mix] == [
        "ScaleDown"
    ] * 3


def test_a_mix_that_is_dear_for_long_is_replaced_and_never_carries_less_meanwhile() -> None:
    fleet = Fleet(SPEC, demand=7.2, mix={"l4": 8})
    carried = []
    for _ in range(400):
        fleet.tick()
        carried.append(fleet.carries())

    assert present(fleet.mix) == {"a100": 2}
    assert min(carried) >= 7.2
    assert "CheaperMix" in [decision.reason for decision in fleet.decisions]


def test_a_variant_without_nodes_is_left_alone_and_others_carry_its_part() -> None:
    fleet = Fleet(SPEC, demand=4.6, mix={"l4": 1}, away=frozenset({"a100"}))

    fleet.run(240)

    assert "a100" not in present(fleet.mix)
    assert fleet.carries() >= 4.6


def test_pods_that_lose_their_nodes_are_carried_by_others_though_the_count_would_do() -> None:
    """Three replicas are asked for and three would do; one of them is on a kind that has no nodes."""
    fleet = Fleet(SPEC, demand=3.0, mix={"l4": 2, "a100": 1}, away=frozenset({"a100"}))

    fleet.run(120)

    assert present(fleet.mix) == {"l4": 3}
    assert "VariantLacking" in [decision.reason for decision in fleet.decisions]


def test_pods_wait_where_no_other_variant_could_carry_their_part() -> None:
    """Who adds nodes acts on pods that wait; more of them are not asked for."""
    spec = replace(SPEC, variants=(A100,))
    fleet = Fleet(spec, demand=3.0, mix={"a100": 1})
    fleet.tick()
    fleet.away = frozenset()
    fleet.demand = 11.0
    fleet.startup_seconds = 1e9

    seen = fleet.run(300)

    assert {mix["a100"] for mix in seen} <= {1, 2, 3}
    assert seen[-1] == seen[-20]


@pytest.mark.parametrize(
    ("spec", "mix", "after", "why"),
    [
        (
            replace(SPEC, min_replicas=4),
            {"l4": 1, "h100": 1},
            {"l4": 3, "h100": 1},
            "the cheapest replicas fill up",
        ),
        (replace(SPEC, max_replicas=2), {"l4": 2, "a100": 1}, {"l4": 1, "a100": 1}, "the smallest make place"),
    ],
)
def test_bounds_count_replicas_of_all_kinds(
    spec: ScalingSpec, mix: dict[str, int], after: dict[str, int], why: str
) -> None:
    assert present(Fleet(spec, demand=4.5, mix=mix).tick().mix) == after, why


def test_a_pool_at_zero_wakes_on_the_cheapest_replica() -> None:
    spec = replace(SPEC, min_replicas=0)
    held = PoolReading("n/p", demand=asked(held=2))

    decision, _ = decide(1e6, held, spec, 0, Memory(), None, {})

    assert (present(decision.mix), decision.reason) == ({"l4": 1}, "WokenByDemand")


def test_a_gap_changes_no_mix() -> None:
    fleet = Fleet(SPEC, demand=1.0, mix={"h100": 2, "l4": 1})
    fleet.run(600)
    before = dict(fleet.mix)
    holes = replace(fleet.reading(), pods=tuple(blind(one.name, one.state) for one in fleet.reading().pods))
    named = tuple(
        replace(hole, variant=one.variant) for hole, one in zip(holes.pods, fleet.reading().pods, strict=True)
    )

    decision, _ = decide(
        fleet.now + 900, replace(holes, pods=named), SPEC, sum(before.values()), fleet.memory, None, before
    )

    assert (dict(decision.mix), decision.reason) == (before, "MetricsMissing")


kinds = st.lists(
    st.tuples(st.sampled_from([0.5, 1.0, 2.0, 5.0]), st.sampled_from([0.5, 1.0, 2.5, 6.0])), min_size=1, max_size=3
).map(lambda pairs: tuple(Kind(f"k{at}", cost, capacity) for at, (cost, capacity) in enumerate(pairs)))


@pytest.mark.traffic  # hours of decisions, many times
@examples(5)
@given(
    chosen=kinds,
    demand=st.floats(0.3, 30.0),
    start=st.lists(st.integers(0, 4), min_size=3, max_size=3),
    startup_seconds=st.sampled_from([5.0, 90.0]),
    most=st.integers(1, 30),
)
def test_constant_demand_ends_in_a_mix_that_stays_within_bounds_and_carries_it(
    chosen: tuple[Kind, ...], demand: float, start: list[int], startup_seconds: float, most: int
) -> None:
    spec = ScalingSpec(1, most, variants=chosen, scale_down=Behavior(60.0, (RatePolicy(15.0, percent=100.0),)))
    mix = {kind.name: count for kind, count in zip(chosen, start, strict=False)}
    if not any(mix.values()):
        mix[chosen[0].name] = 1
    fleet = Fleet(spec, demand=demand, mix=mix, startup_seconds=startup_seconds)

    seen = fleet.run(3600)

    assert all(1 <= sum(mix.values()) <= most for mix in seen)
    assert all(mix == seen[-1] for mix in seen[-200:]), (seen[-200], seen[-1])
    free = Limits((0,) * len(chosen), (most,) * len(chosen), 1, most)
    best = {kind.name: count for kind, count in zip(chosen, cheapest(demand, chosen, free), strict=True)}
    if most >= 25 and capacity_of(best, chosen) >= demand:
        assert capacity_of(seen[-1], chosen) >= demand / 1.11  # the HPA's tolerance
        bound = {
            kind.name: count for kind, count in zip(chosen, cheapest(1.1 * demand, chosen, free), strict=True)
        }
        if sum(max(count, bound[name]) for name, count in seen[-1].items()) <= most:
            assert cost_of(seen[-1], chosen) <= cost_of(bound, chosen) / 0.85 + 1e-6


def reading_of(name: str, pace: float, running: float, prompts: float) -> tuple[str, tuple[float, float, float]]:
    """Running, prompt and output tokens a second of a pod that is `pace` times as fast as one of 8 ms a step."""
    step = (0.008 + 3e-4 * running) / pace / (1 - 5e-5 * prompts / pace)
    return name, (running, prompts, running / step)


def test_capacity_is_learned_by_kind_and_replaces_what_the_spec_says() -> None:
    wrong = (L4, replace(A100, capacity=2.0), H100)
    memory = VariantMemory()
    for turn in range(2 * SETTLED):
        running, prompts = 4.0 + turn, 200.0 + 60 * turn
        loads = [reading_of("l4", 1.0, running, prompts), reading_of("a100", 4.0, 3 * running, 4 * prompts)]
        memory = learned(memory, loads, "r1", wrong)

    found = {kind.name: kind.capacity for kind in known(wrong, memory)}

    assert found["a100"] / found["l4"] == pytest.approx(4.0, rel=0.2)
    assert known(wrong, learned(memory, [], "r2", wrong)) == wrong, "another model is learned anew"


def test_what_the_spec_states_is_the_prior() -> None:
    """Readings of one load alone tell nothing new of a pool that is as its spec says."""
    memory = VariantMemory()
    for _ in range(2 * SETTLED):
        loads = [reading_of("l4", 1.0, 8.0, 400.0), reading_of("a100", 4.0, 8.0, 400.0)]
        memory = learned(memory, loads, "r1", SPEC.variants)

    found = {kind.name: kind.capacity for kind in known(SPEC.variants, memory)}

    assert found["a100"] / found["l4"] == pytest.approx(4.0, rel=0.15)


def test_without_readings_the_spec_is_believed() -> None:
    assert known(SPEC.variants, VariantMemory()) == SPEC.variants


def test_variants_arrive_in_plain_numbers() -> None:
    written = [{"name": "l4", "cost": "0.7"}, {"name": "a100", "cost": "3", "capacity": "4500m"}]

    spec = from_api(Scaling.model_validate({"maxReplicas": 4, "variants": written}))

    assert spec.variants == (Kind("l4", 0.7, 1.0), Kind("a100", 3.0, 4.5))
    assert spec.mode is Mode.AUTO


def test_a_pool_without_variants_has_no_mix() -> None:
    pods = (PodReading("a", PodState.READY, kv_usage=Known(0.4)),)

    decision, memory = decide(1e6, PoolReading("n/p", pods), ScalingSpec(1, 4), 1, Memory())

    assert (decision.mix, memory.variants) == ({}, VariantMemory())
