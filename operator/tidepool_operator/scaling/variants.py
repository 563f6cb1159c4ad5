"""Which kinds of accelerator a decision's replicas are: cheapest first up, dearest first down.

`decide` judges the pool as a whole, in replicas as those that serve are on average. Here the need becomes
capacity, and the capacity a mix:
- more: what runs stays, and the cheapest replicas are added that carry the need;
- fewer: of what serves, the cheapest part stays that carries all that was needed within the window of shrinking;
  of the rest the dearest goes, one at a time;
- cheaper: where another mix has been cheaper by GAIN for long, its replicas are added first, and then the rest
  goes by the rule before. Its margins are wider than those of fewer, so a mix that came stays;
- elsewhere: a variant whose pods find no node is left alone for a while, and the others carry its part.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from tidepool_operator.scaling import behavior
from tidepool_operator.scaling import capacity as learning
from tidepool_operator.scaling.capacity import Capacity, Load
from tidepool_operator.scaling.mix import Kind, Limits, capacity_of, cheapest, cost_of
from tidepool_operator.scaling.model import Memory, PodState, PoolReading, ScalingSpec, VariantMemory

# The scheduler tries a pod again after ten seconds at most (podMaxBackoffSeconds).
PENDING_SECONDS: Final = 30.0
LACKING_SECONDS: Final = 300.0
# A change of kinds costs a start-up and a drain: a mix must be cheaper by GAIN, also with MARGIN more to carry.
GAIN: Final = 0.15
MARGIN: Final = 0.10
CHEAPER_SECONDS: Final = 600.0
# Starting pods carry nothing yet, and those of a broken variant never will.
START_SECONDS: Final = 3600.0
# Learned capacities are told apart in steps of so much, so that a mix does not follow their noise.
_STEP: Final = 0.05
# Prompt and output tokens a second, in whose proportion capacities are compared; most prompts are longer.
_PROPORTION: Final = (4.0, 1.0)
_BOUND: Final = ("bounds", "idle", "demand")


@dataclass(frozen=True, slots=True)
class Wish:
    """What `decide` wants: whole replicas, and where it rests on load the need in serving replicas as they are."""

    replicas: int
    binding: str
    need: float | None = None


@dataclass(frozen=True, slots=True)
class Mixed:
    """Replicas by variant; `reason` says why they change where it is not the wish's."""

    mix: Mapping[str, int]
    words: str
    reason: str = ""


def mixed(
    now: float, reading: PoolReading, spec: ScalingSpec, wish: Wish, before: Mapping[str, int], memory: Memory
) -> tuple[Mixed, Memory]:
    """The mix for a wish, from the mix before it."""
    kinds = known(spec.variants, memory.variants)
    pending = _counts(reading, PodState.PENDING)
    remembered = _pending(now, pending, memory.variants)
    lacking = {name: pending.get(name, 0) for name, until in remembered.lacking_until.items() if until > now}
    if wish.need is None:
        needed = capacity_of(before, kinds)
        mix = _counted(wish, kinds, before, lacking) if wish.binding in _BOUND else before
        reason = ""
    else:
        needed = wish.need * _mean(reading, kinds, before)
    remembered = _remember(now, needed, spec, remembered)
    if wish.need is not None:
        look = _Look(now, spec, kinds, dict(before), lacking, replace(memory, variants=remembered))
        mix, reason, remembered = _by_need(look, reading, wish, needed)
    words = _words(mix, kinds)
    return Mixed(dict(mix), words, reason), replace(memory, variants=remembered)


def known(kinds: Sequence[Kind], memory: VariantMemory) -> tuple[Kind, ...]:
    """The kinds with learned capacities, in the unit of the spec's; one that never served is as the spec says."""
    paces = _paces(kinds)
    served = {
        kind.name: paces[kind.name] / found.load(*_PROPORTION)
        for kind in kinds
        if (found := memory.learned.get(kind.name)) is not None and found.readings >= learning.SETTLED
    }
    if not served:
        return tuple(kinds)
    stated = {kind.name: kind.capacity for kind in kinds}
    scale = sum(served[name] / stated[name] for name in served) / len(served)
    carried = {name: served.get(name, each * scale) / scale for name, each in stated.items()}
    return tuple(
        replace(kind, capacity=_stepped(carried[kind.name] / kind.capacity) * kind.capacity) for kind in kinds
    )


def learned(
    before: VariantMemory,
    loads: Iterable[tuple[str, tuple[float, float, float]]],
    identity: str,
    kinds: Sequence[Kind],
) -> VariantMemory:
    """With one reading more of each variant; `loads` are (variant, (running, prompt, output tokens a second)).

    Each is learned on a clock that goes by the capacity that the spec states, so that the prior is right where the
    spec is, and figures are of that clock.
    """
    paces = _paces(kinds)
    by_name: dict[str, list[tuple[float, float, float]]] = {}
    for name, load in loads:
        by_name.setdefault(name, []).append(load)
    found = {name: each for name, each in before.learned.items() if each.identity == identity}
    for name, each in by_name.items():
        running, prompt, output = (sum(column) / len(each) for column in zip(*each, strict=True))
        pace = paces.get(name, 1.0)
        mean = Load(running, prompt / pace, output / pace)
        found[name] = learning.learned(found.get(name, Capacity(identity=identity)), mean)
    return replace(before, learned=found)


def without(now: float, before: VariantMemory, lacking: Iterable[str]) -> VariantMemory:
    """With variants that got no place: none is asked for, for a while."""
    until = dict.fromkeys(lacking, now + LACKING_SECONDS)
    return replace(before, lacking_until={**before.lacking_until, **until}) if until else before


def composite(
    pool: Capacity, variants: VariantMemory, counts: Mapping[str, int], kinds: Sequence[Kind]
) -> Capacity:
    """The pool's capacity as that of the mean serving replica: each figure's harmonic mean over the replicas."""
    paces = _paces(kinds)
    serving = [
        (variants.learned[name], paces.get(name, 1.0), count)
        for name, count in counts.items()
        if name in variants.learned
    ]
    total = sum(count for _, _, count in serving)
    if not total:
        return pool
    base, prefill, output = (
        total / sum(count * pace / each.figures[index] for each, pace, count in serving) for index in range(3)
    )
    first = max((each for each, _, _ in serving), key=lambda each: each.readings)
    return replace(first, figures=(base, prefill, output), load_limit=pool.load_limit)


def _paces(kinds: Sequence[Kind]) -> dict[str, float]:
    """How fast each kind is beside their mean, as the spec states."""
    mean = sum(kind.capacity for kind in kinds) / len(kinds)
    return {kind.name: kind.capacity / mean for kind in kinds}


@dataclass(frozen=True, slots=True)
class _Look:
    now: float
    spec: ScalingSpec
    kinds: tuple[Kind, ...]
    before: dict[str, int]
    lacking: Mapping[str, int]  # pods that find no node, by variants that are left alone
    memory: Memory

    @property
    def current(self) -> int:
        return sum(self.before.values())

    @property
    def high(self) -> float:
        """The most that was needed within the window."""
        return self.memory.variants.needed[0][1]

    def grown(self) -> int:
        """As many replicas as there may be now."""
        return behavior.limited(self.now, self.current, self.spec.max_replicas, self.spec, self.memory)


def _by_need(
    look: _Look, reading: PoolReading, wish: Wish, needed: float
) -> tuple[Mapping[str, int], str, VariantMemory]:
    remembered = look.memory.variants
    if wish.replicas > look.current:
        return _more(look, needed), "", replace(remembered, cheaper_since=None)
    if any(look.lacking.values()):
        return *_elsewhere(look), remembered
    if _starts(look, reading) or not _looked(look):
        return look.before, "", remembered
    fewer = _fewer(look, reading)
    return (fewer, "", remembered) if fewer != look.before else _cheaper(look)


def _cheaper(look: _Look) -> tuple[Mapping[str, int], str, VariantMemory]:
    """Together with another mix that has been cheaper for long; what is too much then goes."""
    remembered = look.memory.variants
    best = _fitted(look.high * (1 + MARGIN), look, [0] * len(look.kinds), look.spec.max_replicas)
    if cost_of(best, look.kinds) > (1 - GAIN) * cost_of(look.before, look.kinds):
        return look.before, "", replace(remembered, cheaper_since=None)
    since = look.now if remembered.cheaper_since is None else remembered.cheaper_since
    both = {name: max(count, best[name]) for name, count in look.before.items()}
    if look.now - since < CHEAPER_SECONDS or sum(both.values()) > look.grown():
        return look.before, "", replace(remembered, cheaper_since=since)
    return both, "CheaperMix", replace(remembered, cheaper_since=None)


def _more(look: _Look, needed: float) -> dict[str, int]:
    least = [look.before[kind.name] - look.lacking.get(kind.name, 0) for kind in look.kinds]
    found = _fitted(needed, look, least, look.grown())
    # Pods that find no node wait on, unless others carry their part.
    return found if capacity_of(found, look.kinds) >= needed else _with_waiting(found, look)


def _elsewhere(look: _Look) -> tuple[dict[str, int], str]:
    """What pods without a node should carry, on other kinds; as before where those cannot either."""
    least = [look.before[kind.name] - look.lacking.get(kind.name, 0) for kind in look.kinds]
    placed = {kind.name: count for kind, count in zip(look.kinds, least, strict=True)}
    found = _fitted(min(look.high, capacity_of(look.before, look.kinds)), look, least, look.grown())
    if found == placed or capacity_of(found, look.kinds) <= capacity_of(placed, look.kinds):
        return look.before, ""
    return found, "VariantLacking"


def _with_waiting(found: dict[str, int], look: _Look) -> dict[str, int]:
    room = max(0, look.grown() - sum(found.values()))
    for name, waits in look.lacking.items():
        kept = min(waits, room)
        found[name] = found.get(name, 0) + kept
        room -= kept
    return found


def _fewer(look: _Look, reading: PoolReading) -> dict[str, int]:
    """Without the dearest replica of those that need not be; as before while all are needed."""
    lowest = max(1, look.spec.min_replicas)
    if look.current <= lowest or not behavior.may_step_down(look.now, look.memory):
        return look.before
    if behavior.limited(look.now, look.current, look.current - 1, look.spec, look.memory) == look.current:
        return look.before
    ready = _counts(reading, PodState.READY)
    most = tuple(min(look.before[kind.name], ready.get(kind.name, 0)) for kind in look.kinds)
    kept = _named(
        cheapest(look.high, look.kinds, Limits((0,) * len(most), most, lowest, look.current)), look.kinds
    )
    if capacity_of(kept, look.kinds) < look.high - 1e-6:
        return look.before
    spare = [kind for kind in look.kinds if look.before[kind.name] > kept[kind.name]]
    if not spare or cost_of(kept, look.kinds) >= cost_of(look.before, look.kinds):
        return look.before
    dearest = max(spare, key=lambda kind: (kind.cost, kind.price, kind.name))
    return {**look.before, dearest.name: look.before[dearest.name] - 1}


def _fitted(needed: float, look: _Look, least: Sequence[int], highest: int) -> dict[str, int]:
    most = tuple(
        low if kind.name in look.lacking else max(low, look.spec.max_replicas)
        for kind, low in zip(look.kinds, least, strict=True)
    )
    if not any(least):  # a whole new mix: what finds no node may stay as it is
        most = tuple(
            look.before[kind.name] if kind.name in look.lacking else count
            for kind, count in zip(look.kinds, most, strict=True)
        )
    lowest = max(1, look.spec.min_replicas)
    return _named(cheapest(needed, look.kinds, Limits(tuple(least), most, lowest, highest)), look.kinds)


def _counted(
    wish: Wish, kinds: tuple[Kind, ...], before: Mapping[str, int], lacking: Mapping[str, int]
) -> Mapping[str, int]:
    """A count that does not rest on load: of bounds, or to zero and back."""
    now = tuple(before[kind.name] for kind in kinds)
    current, wanted = sum(now), wish.replicas
    if wanted == current:
        return before
    if wanted > current:
        most = tuple(
            count if kind.name in lacking else max(count, wanted) for kind, count in zip(kinds, now, strict=True)
        )
        if sum(most) < wanted:
            most = tuple(max(count, wanted) for count in now)
        return _named(cheapest(0.0, kinds, Limits(now, most, wanted, wanted)), kinds)
    need = 0.0 if wish.binding == "idle" else capacity_of(before, kinds)
    return _named(cheapest(need, kinds, Limits((0,) * len(now), now, wanted, wanted)), kinds)


def _mean(reading: PoolReading, kinds: Sequence[Kind], before: Mapping[str, int]) -> float:
    """Capacity of the mean serving replica."""
    ready = _counts(reading, PodState.READY)
    serving = {kind.name: ready.get(kind.name, 0) for kind in kinds}
    counts = serving if sum(serving.values()) else before
    return capacity_of(counts, kinds) / max(1, sum(counts.values()))


def _counts(reading: PoolReading, state: PodState) -> dict[str, int]:
    found: dict[str, int] = {}
    for pod in reading.pods:
        if pod.state is state:
            found[pod.variant] = found.get(pod.variant, 0) + 1
    return found


def _pending(now: float, pending: Mapping[str, int], before: VariantMemory) -> VariantMemory:
    since = {name: before.pending_since.get(name, now) for name in pending}
    lacking = {name: until for name, until in before.lacking_until.items() if until > now}
    for name, begun in since.items():
        if now - begun >= PENDING_SECONDS:
            lacking.setdefault(name, now + LACKING_SECONDS)
    return replace(before, pending_since=since, lacking_until=lacking)


def _remember(now: float, needed: float, spec: ScalingSpec, before: VariantMemory) -> VariantMemory:
    """The window keeps only entries that no later one outdoes, so its first entry is the highest."""
    since = now - spec.scale_down.stabilization_seconds
    kept = tuple(entry for entry in before.needed if entry[0] > since and entry[1] > needed)
    return replace(before, needed=(*kept, (now, needed)))


def _looked(look: _Look) -> bool:
    since = look.memory.since
    return since is not None and look.now - since >= look.spec.scale_down.stabilization_seconds


def _starts(look: _Look, reading: PoolReading) -> bool:
    since = look.memory.starting_since
    coming = any(pod.state is PodState.STARTING for pod in reading.pods)
    asked = sum(look.before.values()) > len(reading.pods)  # pods that nobody has seen yet
    return (coming and (since is None or look.now - since < START_SECONDS)) or asked


def _named(counts: Sequence[int], kinds: Sequence[Kind]) -> dict[str, int]:
    return {kind.name: count for kind, count in zip(kinds, counts, strict=True)}


def _words(mix: Mapping[str, int], kinds: Sequence[Kind]) -> str:
    parts = [f"{count} {name}" for name, count in mix.items() if count]
    return f"{' + '.join(parts) or 'none'} at a cost of {cost_of(mix, kinds):g}"


def _stepped(ratio: float) -> float:
    return math.exp(round(math.log(ratio) / _STEP) * _STEP)
