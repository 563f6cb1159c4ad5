"""Which settings a pool's own past would change: each change is played, and told only where it pays.

A change pays where it brings more requests within their targets at hardly more cost, or saves cost and loses
hardly any.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from tidepool_operator.backtest.plant import Engine
from tidepool_operator.backtest.replay import Demand, Outcome, Targets
from tidepool_operator.scaling.model import ScalingSpec

# What makes a change worth telling: points of service level, and shares of GPU hours.
LEVEL_GAIN: Final = 0.002
COST_GAIN: Final = 0.03
LEVEL_SLACK: Final = 0.0005
COST_SLACK: Final = 0.02
# A maximum so many times what was ever used bounds nothing that a mistake could cost.
LOOSE: Final = 3
HEADROOM: Final = 1.25
# Demand below so many requests a second is nobody's.
NOBODY: Final = 1e-3


@dataclass(frozen=True, slots=True)
class Case:
    """What was played: the pool's settings, and what came of them."""

    demand: Demand
    spec: ScalingSpec
    targets: Targets
    engine: Engine
    startup_seconds: float
    needed: Sequence[float]  # replicas, by tick
    outcome: Outcome


@dataclass(frozen=True, slots=True)
class Advice:
    """A change of one field below spec.scaling, and why."""

    field: str
    now: str
    better: str
    why: str

    def told(self) -> str:
        """One line."""
        return f"scaling.{self.field}: {self.now} -> {self.better}: {self.why}"


@dataclass(frozen=True, slots=True)
class _Change:
    field: str
    now: str
    better: str
    spec: ScalingSpec
    why: str


def advice(case: Case, play: Callable[[ScalingSpec], Outcome]) -> list[Advice]:
    """Changes that pay, each by itself; `play` replays the same past with other settings."""
    found = list(_unplayed(case))
    for change in _changes(case):
        outcome = play(change.spec)
        if (gain := _gain(case.outcome, outcome)) is not None:
            found.append(Advice(change.field, change.now, change.better, f"{change.why}; {gain}"))
    return found


def _gain(before: Outcome, after: Outcome) -> str | None:
    """What a change brings in words; None where it does not pay."""
    level = after.service_level - before.service_level
    cost = after.gpu_hours / before.gpu_hours - 1.0 if before.gpu_hours else 0.0
    # More requests in time are worth their share of the cost, and some more.
    better = level >= LEVEL_GAIN and cost <= max(COST_SLACK, 5.0 * level)
    cheaper = cost <= -COST_GAIN and level >= -LEVEL_SLACK
    if not better and not cheaper:
        return None
    return (
        f"{100 * after.service_level:.2f} % within targets instead of {100 * before.service_level:.2f} %, "
        f"{after.gpu_hours:.1f} GPU hours instead of {before.gpu_hours:.1f}"
    )


def _unplayed(case: Case) -> Iterator[Advice]:
    """What follows from the figures alone."""
    spec, base = case.spec, case.engine.figures[0]
    target, most = case.targets.per_token_seconds, max(case.outcome.replicas, default=0)
    if target <= base:
        yield Advice(
            "targets.timePerOutputToken",
            f"{1000 * target:.0f}ms",
            f"{math.ceil(2000 * base)}ms",
            f"a step of this engine takes {1000 * base:.1f} ms with nothing beside it, so no replica can hold it; "
            "take a faster accelerator, or a target of twice a step",
        )
    first = case.targets.first_token_seconds
    if spec.min_replicas == 0 and first < case.startup_seconds and _idle_share(case) > 0:
        yield Advice(
            "minReplicas",
            "0",
            "1",
            f"who wakes the pool waits {case.startup_seconds:.0f} s for the first token, beyond the target of "
            f"{first:g} s; keep 0 where that is meant",
        )
    if spec.max_replicas > LOOSE * max(most, spec.min_replicas, 1):
        better = max(math.ceil(HEADROOM * most), most + 1)
        yield Advice(
            "maxReplicas",
            str(spec.max_replicas),
            str(better),
            f"never more than {most} ran; a bound so far above lets a mistake cost that much",
        )


def _changes(case: Case) -> Iterator[_Change]:
    """Changes worth playing."""
    yield from _of_bounds(case)
    yield from _of_idleness(case)
    yield from _of_targets(case)


def _of_bounds(case: Case) -> Iterator[_Change]:
    spec, needed = case.spec, case.needed
    peak = math.ceil(HEADROOM * max(needed, default=0.0))
    capped = sum(count >= spec.max_replicas for count in case.outcome.replicas)
    if capped and peak > spec.max_replicas:
        share = 100 * capped / len(case.outcome.replicas)
        why = f"{share:.1f} % of the time the pool was at its maximum"
        yield _Change("maxReplicas", str(spec.max_replicas), str(peak), replace(spec, max_replicas=peak), why)
    ordered = sorted(needed)
    trough = max(1, math.ceil(ordered[len(ordered) // 20])) if ordered else 1
    if spec.min_replicas > trough:
        why = f"a twentieth of the time {trough} would have done"
        yield _Change("minReplicas", str(spec.min_replicas), str(trough), replace(spec, min_replicas=trough), why)
    raised = min(spec.max_replicas, max(trough + 1, spec.min_replicas + 1))
    if raised > spec.min_replicas:
        why = "what demand begins with is there before it"
        yield _Change("minReplicas", str(spec.min_replicas), str(raised), replace(spec, min_replicas=raised), why)


def _of_idleness(case: Case) -> Iterator[_Change]:
    spec, gaps = case.spec, _gaps(case)
    if not gaps:
        return
    longest, now = max(gaps), spec.idle_after_seconds
    if spec.min_replicas > 0 and longest >= 2 * (now + case.startup_seconds):
        why = f"nobody asked for {longest / 3600:.1f} h on end"
        yield _Change("minReplicas", str(spec.min_replicas), "0", replace(spec, min_replicas=0), why)
    if spec.min_replicas == 0:
        for seconds, why in (
            (now / 2, "the pool stays long after the last request"),
            (now * 3, "the pool goes to zero between requests that belong together"),
        ):
            if any(min(now, seconds) <= gap for gap in gaps):
                yield _Change(
                    "idleAfter", f"{now:.0f}s", f"{seconds:.0f}s", replace(spec, idle_after_seconds=seconds), why
                )


def _of_targets(case: Case) -> Iterator[_Change]:
    spec = case.spec
    # A cache that was never half as full as it may be decided nothing, nor did one fill that was not nearly full.
    for ratio, why, from_peak in (
        (min(0.95, spec.kv_utilization + 0.1), "the cache could be fuller", 0.5 * spec.kv_utilization),
        (max(0.3, spec.kv_utilization - 0.15), "the cache filled before new replicas came", 0.9),
    ):
        if abs(ratio - spec.kv_utilization) > 0.01 and case.outcome.kv_peak >= from_peak:
            changed = replace(spec, kv_utilization=ratio)
            yield _Change("targets.kvUtilization", f'"{spec.kv_utilization:g}"', f'"{ratio:g}"', changed, why)
    window = spec.scale_down.stabilization_seconds
    for seconds, why in (
        (window / 3, "replicas stay long after they are needed"),
        (min(3600.0, max(window, 60.0) * 3), "replicas go that are needed again at once"),
    ):
        pace = replace(spec.scale_down, stabilization_seconds=seconds)
        field = "behavior.scaleDown.stabilizationWindow"
        yield _Change(field, f"{window:.0f}s", f"{seconds:.0f}s", replace(spec, scale_down=pace), why)


def _gaps(case: Case) -> list[float]:
    """Seconds without a request, of each stretch of some ticks."""
    tick, run = case.demand.tick_seconds, 0
    found: list[float] = []
    for each in (*case.demand.arrivals, None):
        if each is not None and each.requests / tick < NOBODY:
            run += 1
            continue
        if run > 1:
            found.append(run * tick)
        run = 0
    return found


def _idle_share(case: Case) -> float:
    length = len(case.demand.arrivals) * case.demand.tick_seconds
    return sum(gap for gap in _gaps(case) if gap > case.spec.idle_after_seconds) / length if length else 0.0
