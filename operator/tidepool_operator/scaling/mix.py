"""How many replicas of each kind of accelerator: the cheapest mix that carries a need, within bounds.

A small integer problem: minimise the cost of counts within a box, whose capacities add up to the need and whose
sum lies within a range. It is solved exactly by branch and bound: kinds in the order of their price for capacity,
the most useful count of each first, and a branch is left as soon as filling the rest at the best price would cost
more than what was found. Where that takes more steps than STEPS (thousands of replicas of kinds that hardly
differ) the best mix found by then is taken, which is the greedy one at worst.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final

STEPS: Final = 2000
_NEAR: Final = 1e-9


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of replica: its price, and what it carries; each in a unit that all kinds share."""

    name: str
    cost: float
    capacity: float

    @property
    def price(self) -> float:
        """Cost for one of capacity."""
        return self.cost / self.capacity


@dataclass(frozen=True, slots=True)
class Limits:
    """Fewest and most replicas of each kind, and of all together."""

    least: tuple[int, ...]
    most: tuple[int, ...]
    fewest: int
    highest: int


# A pool whose demand stays within its window asks the same again at every look.
@lru_cache(maxsize=4096)
def cheapest(need: float, kinds: tuple[Kind, ...], limits: Limits) -> tuple[int, ...]:
    """The cheapest counts that carry `need` within the limits, in the order of `kinds`.

    Where no counts carry it, the cheapest of those that carry most. `least` is kept whatever the range of the sum
    says; where `most` leaves the sum below `fewest`, it stays below.
    """
    search = _Search(kinds, limits)
    search.need = min(need, search.capacity_at_most()) - _NEAR * max(1.0, need)
    search.branch(0, (), 0.0, 0.0)
    best = [0] * len(kinds)
    for place, count in zip(search.order, search.best, strict=True):
        best[place] = count
    return tuple(best)


def settled(total: int, before: Mapping[str, int], kinds: Sequence[Kind]) -> dict[str, int]:
    """`total` replicas by kind, from what there was before: cheapest first up, dearest first down."""
    mix = {kind.name: max(0, before.get(kind.name, 0)) for kind in kinds}
    cheap = sorted(kinds, key=lambda kind: (kind.price, kind.cost, kind.name))
    if not cheap:
        return mix
    mix[cheap[0].name] += max(0, total - sum(mix.values()))
    for kind in reversed(cheap):
        going = min(mix[kind.name], max(0, sum(mix.values()) - total))
        mix[kind.name] -= going
    return mix


def cost_of(mix: Mapping[str, int], kinds: Sequence[Kind]) -> float:
    """Price of a mix."""
    return sum(kind.cost * mix.get(kind.name, 0) for kind in kinds)


def capacity_of(mix: Mapping[str, int], kinds: Sequence[Kind]) -> float:
    """What a mix carries."""
    return sum(kind.capacity * mix.get(kind.name, 0) for kind in kinds)


@dataclass(slots=True)
class _Search:
    kinds: Sequence[Kind]
    limits: Limits
    need: float = 0.0
    order: tuple[int, ...] = ()
    best: tuple[int, ...] = ()
    best_cost: float = math.inf
    steps: int = 0
    _most: list[int] = field(default_factory=list)
    _least: list[int] = field(default_factory=list)
    _least_after: list[int] = field(default_factory=list)
    _most_after: list[int] = field(default_factory=list)
    _cost_after: list[float] = field(default_factory=list)
    _capacity_after: list[float] = field(default_factory=list)
    _largest: list[int] = field(default_factory=list)
    _highest: int = 0
    _fewest: int = 0

    def __post_init__(self) -> None:
        kinds, limits = self.kinds, self.limits
        self.order = tuple(sorted(range(len(kinds)), key=lambda at: (kinds[at].price, kinds[at].cost, at)))
        self._least = [limits.least[at] for at in self.order]
        self._most = [max(limits.least[at], limits.most[at]) for at in self.order]
        self._highest = max(limits.highest, sum(self._least))
        self._fewest = min(limits.fewest, sum(self._most), self._highest)
        places, count = range(len(kinds) + 1), range(len(kinds))
        self._largest = sorted(count, key=lambda place: -self._kind(place).capacity)
        self._cost_after = [
            sum(self._least[one] * self._kind(one).cost for one in count[place:]) for place in places
        ]
        self._capacity_after = [
            sum(self._least[one] * self._kind(one).capacity for one in count[place:]) for place in places
        ]
        self._least_after = [sum(self._least[place:]) for place in places]
        self._most_after = [sum(self._most[place:]) for place in places]

    def capacity_at_most(self) -> float:
        """The largest kinds first, as many as the sum allows."""
        left = self._highest - sum(self._least)
        total = 0.0
        for place in self._largest:
            more = min(left, self._most[place] - self._least[place])
            left -= more
            total += self._kind(place).capacity * (self._least[place] + more)
        return total

    def branch(self, place: int, counts: tuple[int, ...], carried: float, cost: float) -> None:
        """Try the counts of the kind at `place`, those before it being chosen."""
        if place == len(self.order):
            if carried >= self.need and cost < self.best_cost - _NEAR:
                self.best, self.best_cost = counts, cost
            return
        kind, chosen = self._kind(place), sum(counts)
        rest_least, rest_most = self._least_after[place + 1], self._most_after[place + 1]
        low = max(self._least[place], self._fewest - chosen - rest_most)
        high = min(self._most[place], self._highest - chosen - rest_least)
        useful = max(math.ceil((self.need - carried) / kind.capacity), self._fewest - chosen, low)
        for count in range(min(high, useful), low - 1, -1):
            self.steps += 1
            if self.steps > STEPS and self.best:
                return
            made, price = carried + count * kind.capacity, cost + count * kind.cost
            if price + self._rest_costs(place + 1, made) >= self.best_cost - _NEAR:
                continue
            # Fewer of a small kind may leave the sum more room for large ones, so the next count is tried.
            if self._rest_carries(place + 1, made, chosen + count):
                self.branch(place + 1, (*counts, count), made, price)

    def _kind(self, place: int) -> Kind:
        return self.kinds[self.order[place]]

    def _rest_costs(self, place: int, carried: float) -> float:
        """At least: what has to be there, then fractions of replicas at the best price."""
        total = self._cost_after[place]
        lacking = self.need - carried - self._capacity_after[place]
        for one in range(place, len(self.order)):
            if lacking <= 0.0:
                break
            kind = self._kind(one)
            more = min(float(self._most[one] - self._least[one]), lacking / kind.capacity)
            total += more * kind.cost
            lacking -= more * kind.capacity
        return total

    def _rest_carries(self, place: int, carried: float, chosen: int) -> bool:
        """Whether the need can still be met: with the largest of the rest, as many as the sum allows."""
        lacking = self.need - carried - self._capacity_after[place]
        left = self._highest - chosen - self._least_after[place]
        for one in self._largest:
            if lacking <= 0.0:
                break
            if one >= place:
                more = min(left, self._most[one] - self._least[one])
                left -= more
                lacking -= more * self._kind(one).capacity
        return lacking <= 0.0
