"""The cheapest mix of replicas, held against trying them all."""

import time
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scripted.examples import examples
from tidepool_operator.scaling.mix import Kind, Limits, capacity_of, cheapest, cost_of, settled

L4 = Kind("l4", cost=1.0, capacity=1.0)
A100 = Kind("a100", cost=3.0, capacity=4.0)
H100 = Kind("h100", cost=9.0, capacity=9.0)
KINDS = (L4, A100, H100)


def open_limits(kinds: tuple[Kind, ...], fewest: int = 0, highest: int = 100) -> Limits:
    return Limits((0,) * len(kinds), (highest,) * len(kinds), fewest, highest)


@pytest.mark.parametrize(
    ("need", "counts", "why"),
    [
        (0.0, (0, 0, 0), "nothing costs nothing"),
        (0.4, (1, 0, 0), "the cheapest replica, though another is cheaper for what it carries"),
        (3.0, (0, 1, 0), "one large at the price of three small ones"),
        (4.5, (1, 1, 0), "a small one for the rest"),
        (8.0, (0, 2, 0), "exactly"),
        (9.0, (1, 2, 0), "not one of the dearest, which carries it alone"),
    ],
)
def test_the_cheapest_mix(need: float, counts: tuple[int, ...], why: str) -> None:
    assert cheapest(need, KINDS, open_limits(KINDS)) == counts, why


def test_few_replicas_are_large_ones() -> None:
    assert cheapest(13.0, KINDS, open_limits(KINDS, highest=2)) == (0, 1, 1)


def test_what_cannot_be_carried_gets_the_most_there_is() -> None:
    assert cheapest(100.0, KINDS, open_limits(KINDS, highest=3)) == (0, 0, 3)
    assert cheapest(100.0, KINDS, Limits((0, 0, 0), (2, 1, 0), 0, 10)) == (2, 1, 0)


def test_the_least_count_is_filled_with_the_cheapest_replicas() -> None:
    assert cheapest(0.5, KINDS, open_limits(KINDS, fewest=3)) == (3, 0, 0)


kinds = st.lists(
    st.tuples(st.sampled_from([0.5, 1.0, 2.0, 3.5, 8.0]), st.sampled_from([0.5, 1.0, 1.7, 4.0, 9.0])),
    min_size=1,
    max_size=3,
).map(lambda pairs: tuple(Kind(f"k{at}", cost, capacity) for at, (cost, capacity) in enumerate(pairs)))


@st.composite
def problems(draw: st.DrawFn) -> tuple[float, tuple[Kind, ...], Limits]:
    chosen = draw(kinds)
    least = tuple(draw(st.integers(0, 2)) for _ in chosen)
    most = tuple(low + draw(st.integers(0, 4)) for low in least)
    highest = draw(st.integers(sum(least), sum(most)))
    fewest = draw(st.integers(0, highest))
    return draw(st.floats(0, 40)), chosen, Limits(least, most, fewest, highest)


@examples(30)
@given(problems())
def test_no_mix_within_the_limits_is_cheaper(problem: tuple[float, tuple[Kind, ...], Limits]) -> None:
    need, chosen, limits = problem
    ranges = [range(low, high + 1) for low, high in zip(limits.least, limits.most, strict=True)]
    allowed = [each for each in product(*ranges) if limits.fewest <= sum(each) <= limits.highest]

    def carries(counts: tuple[int, ...]) -> float:
        return sum(count * kind.capacity for count, kind in zip(counts, chosen, strict=True))

    def costs(counts: tuple[int, ...]) -> float:
        return sum(count * kind.cost for count, kind in zip(counts, chosen, strict=True))

    found = cheapest(need, chosen, limits)

    most = max(carries(each) for each in allowed)
    assert found in allowed
    assert carries(found) >= min(need, most) - 1e-6
    assert costs(found) <= min(costs(each) for each in allowed if carries(each) >= min(need, most)) + 1e-6


@given(kinds, st.integers(0, 30), st.dictionaries(st.sampled_from(["k0", "k1", "k2", "gone"]), st.integers(0, 9)))
def test_a_count_is_settled_and_stays(chosen: tuple[Kind, ...], total: int, before: dict[str, int]) -> None:
    mix = settled(total, before, chosen)

    assert sum(mix.values()) == total
    assert set(mix) == {kind.name for kind in chosen}
    assert settled(total, mix, chosen) == mix


def test_up_comes_the_best_price_and_down_goes_the_worst_first() -> None:
    assert settled(5, {"l4": 1, "h100": 1}, KINDS) == {"l4": 1, "a100": 3, "h100": 1}
    assert settled(2, {"l4": 1, "a100": 2, "h100": 2}, KINDS) == {"l4": 0, "a100": 2, "h100": 0}
    assert (cost_of({"l4": 2, "a100": 1}, KINDS), capacity_of({"l4": 2, "a100": 1}, KINDS)) == (5.0, 6.0)


def test_kinds_that_hardly_differ_take_bounded_work() -> None:
    alike = tuple(Kind(f"k{at}", 1.0 + at / 977, 1.0 + at / 991) for at in range(16))
    begun = time.process_time()

    found = cheapest(5000.3, alike, open_limits(alike, highest=10_000))

    assert sum(count * kind.capacity for count, kind in zip(found, alike, strict=True)) >= 5000.3
    assert time.process_time() - begun < 1.0
