"""The decision for one pool: what the needs ask for, within bounds, windows and rates, and why, in words."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from tidepool_api.scaling import Mode
from tidepool_operator.scaling import ahead, behavior, figures, idle, needs, schedules, variants
from tidepool_operator.scaling.mix import settled
from tidepool_operator.scaling.model import Decision, Forecast, Memory, PoolReading, ScalingSpec


@dataclass(frozen=True, slots=True)
class _Verdict:
    replicas: int
    reason: str
    words: str
    binding: str = "none"
    need: float | None = None  # serving replicas, where it rests on load


@dataclass(frozen=True, slots=True)
class _Asked:
    """Whole replicas asked for, the need that decides, and what the pool would do without a forecast."""

    replicas: int
    top: needs.Need
    need: float


# What is ahead, and whether that is lacking though it should be there.
_Expected = tuple[ahead.Ahead | None, bool]


def decide(  # noqa: PLR0913 - what a replay leaves out is one more than is allowed
    now: float,
    reading: PoolReading,
    spec: ScalingSpec,
    current: int,
    memory: Memory,
    forecast: Forecast | None = None,
    mix: Mapping[str, int] | None = None,
    *,
    tells: bool = True,
) -> tuple[Decision, Memory]:
    """Replicas that the pool should have at `now` (Unix seconds), and what to remember for the next call.

    `current` is spec.replicas. The result stays within the bounds of the spec and its schedules whatever the
    readings are; readings with gaps or garbage never give fewer replicas than `current` within those bounds.
    `forecast` is heard where the spec asks for prediction. `mix` has the replicas by variant, where the spec has
    any. Without `tells` the decision lacks the figures that only a status shows.
    """
    spec = schedules.bounded(now, spec, ahead.startup_p90(memory))
    memory = ahead.smoothed(now, reading, _observed(now, reading, spec, current, memory))
    expected = ahead.ahead(now, reading, spec, memory, forecast) if spec.predicts else None
    # Where demand was never seen, none can be foreseen, and the pool is held by what is measured alone.
    lacks = spec.predicts and expected is None and (forecast is not None or not ahead.untold(reading))
    verdict, memory = _verdict(now, reading, spec, current, memory, (expected, lacks))
    mix = settled(current, mix or {}, spec.variants)
    if spec.variants:
        verdict, mix, memory = _mixed(now, reading, spec, verdict, mix, memory)
    memory = ahead.observed(now, reading, spec, memory)
    memory = replace(memory, decided=verdict.replicas)
    change = f"{current} -> {verdict.replicas}" if verdict.replicas != current else f"{current}"
    advice = "recommended: " if spec.mode is Mode.RECOMMEND and verdict.replicas != current else ""
    decision = Decision(
        time=now,
        replicas=verdict.replicas,
        reason=verdict.reason,
        message=f"{advice}{change}: {verdict.words}",
        binding=verdict.binding,
        forecast=_told(expected),
        learned=ahead.learned(spec, memory) if spec.predicts and tells else None,
        samples=figures.samples(reading) if tells else {},
        mix=mix,
    )
    return decision, memory


def refused(now: float, memory: Memory, decision: Decision) -> Memory:
    """Memory after a decision that got fewer replicas than it asked for; no more of such variants for a while."""
    return replace(
        memory, decided=decision.replicas, variants=variants.without(now, memory.variants, decision.lacking)
    )


def _mixed(
    now: float, reading: PoolReading, spec: ScalingSpec, verdict: _Verdict, before: dict[str, int], memory: Memory
) -> tuple[_Verdict, dict[str, int], Memory]:
    """The verdict in replicas of the pool's variants."""
    wish = variants.Wish(verdict.replicas, verdict.binding, verdict.need)
    found, memory = variants.mixed(now, reading, spec, wish, before, memory)
    current, replicas = sum(before.values()), sum(found.mix.values())
    reason = found.reason or verdict.reason
    if verdict.need is not None and not found.reason:
        if replicas != current:
            reason = "ScaleUp" if replicas > current else "ScaleDown"
        elif reason in ("ScaleUp", "ScaleDown"):
            reason = "WithinTargets"
    words = f"{verdict.words}; {found.words}"
    return replace(verdict, replicas=replicas, reason=reason, words=words), dict(found.mix), memory


def _observed(now: float, reading: PoolReading, spec: ScalingSpec, current: int, memory: Memory) -> Memory:
    """Memory with what this reading adds to it."""
    if memory.since is None or current not in (memory.replicas, memory.decided):
        # The first look, or somebody else changed the replicas: what was wanted before says nothing now.
        memory = replace(memory, since=now, wanted_high=(), wanted_low=(), changes=())
    elif memory.replicas is not None and current != memory.replicas:
        memory = behavior.remember_change(now, current - memory.replicas, spec, memory)
    ready = reading.ready
    starting_since = _kept(now, memory.starting_since, holds=idle.is_starting(reading))
    memory = replace(
        memory,
        replicas=current,
        starting_since=starting_since,
        idle_since=_kept(
            now, memory.idle_since, holds=idle.is_idle(now, reading, starting_since, memory.requests_ended)
        ),
        requests_ended=idle.ended(reading),
        waiting_since=_kept(now, memory.waiting_since, holds=needs.queued(reading) > 0),
        queued=needs.remember_queued(now, reading, memory),
        ready_pods=ready,
        ready_pods_since=_kept(now, memory.ready_pods_since, holds=ready == memory.ready_pods) or now,
    )
    return _saturation(now, reading, memory)


def _kept(now: float, since: float | None, *, holds: bool) -> float | None:
    if not holds:
        return None
    return now if since is None else since


def _saturation(now: float, reading: PoolReading, memory: Memory) -> Memory:
    """Learn how many requests a pod runs when others have to wait, and that it can run more when none do."""
    runs = _running_at_once(reading)
    if runs is None:
        return memory
    known = memory.saturated_running
    if runs > 0 and needs.crowded(now, reading, memory):
        return replace(memory, saturated_running=runs, saturated_at=now)
    if known is not None and memory.saturated_at is not None:
        if now - memory.saturated_at >= needs.SATURATION_SECONDS:
            return replace(memory, saturated_running=None, saturated_at=None)
        return replace(memory, saturated_running=max(known, runs))
    return memory


def _running_at_once(reading: PoolReading) -> float | None:
    """Requests that one pod runs: the most of those pods that have some waiting, else the mean of all.

    A pod without a queue has room, whatever another one has: an engine that has just restarted runs none.
    """
    serving = reading.serving
    full = [runs for pod, _ in serving if (runs := figures.running(pod)) is not None and figures.waiting(pod)]
    if full:
        return max(full)
    known = figures.count_of(serving, figures.running)
    return figures.total(serving, figures.running) / known if known else None


def _verdict(
    now: float,
    reading: PoolReading,
    spec: ScalingSpec,
    current: int,
    memory: Memory,
    expected: _Expected,
) -> tuple[_Verdict, Memory]:
    if current > spec.max_replicas:
        return _bounds(
            spec.max_replicas, "AboveMaximum", f"maxReplicas is {spec.max_replicas}{spec.max_by}"
        ), memory
    if current < spec.min_replicas:
        return _bounds(
            spec.min_replicas, "BelowMinimum", f"minReplicas is {spec.min_replicas}{spec.min_by}"
        ), memory
    if current == 0:
        return _at_zero(reading, spec), memory
    if (verdict := _to_zero(now, spec, current, memory)) is not None:
        return verdict, memory
    return _by_load(now, reading, spec, current, memory, expected)


def _bounds(replicas: int, reason: str, words: str) -> _Verdict:
    return _Verdict(replicas, reason, words, "bounds")


def _at_zero(reading: PoolReading, spec: ScalingSpec) -> _Verdict:
    """A pool at zero wakes for the first request that a gateway holds or had to refuse."""
    if (asked := idle.wakes(reading)) is not None:
        words = f"requests wait for the first pod; {asked[0]:.0f} held and {asked[1]:.0f} refused at the gateways"
        if spec.max_replicas == 0:
            return _Verdict(0, "AtMaximum", f"{words}; maxReplicas is 0{spec.max_by}", "demand")
        return _Verdict(1, "WokenByDemand", words, "demand")
    if figures.usable(reading.demand.held) is None:
        words = f"no request seen, but demand at the gateways is {figures.told(reading.demand.held)}"
        return _Verdict(0, "DemandUnknown", words, "data")
    return _Verdict(0, "AtZero", "no requests; the next one wakes the pool", "idle")


def _to_zero(now: float, spec: ScalingSpec, current: int, memory: Memory) -> _Verdict | None:
    if spec.min_replicas > 0 or memory.idle_since is None:
        return None
    idle_seconds = now - memory.idle_since
    if idle_seconds < spec.idle_after_seconds:
        return None
    replicas = behavior.limited(now, current, 0, spec, memory)
    if replicas == current:
        return None
    words = f"no requests for {idle_seconds:.0f} s, idleAfter is {spec.idle_after_seconds:.0f} s"
    return _Verdict(replicas, "Idle", words, "idle")


def _by_load(
    now: float,
    reading: PoolReading,
    spec: ScalingSpec,
    current: int,
    memory: Memory,
    expected: _Expected,
) -> tuple[_Verdict, Memory]:
    measured = needs.needs(now, reading, spec, current, memory)
    gaps = figures.gaps(reading, spec)
    if expected[1]:
        gaps.append("the forecast")
    asked = _asked(measured, expected[0], current)
    if asked is None or (not measured and asked.replicas <= current):
        # No figures: what is there now is what is wanted, so that the windows begin anew afterwards.
        return _blind(reading, spec, current), behavior.remember_wanted(now, current, spec, memory)
    top, raw = asked.top, asked.replicas
    held_by_gaps = bool(gaps) and raw < current
    wanted = current if held_by_gaps else min(max(raw, spec.min_replicas, 1), spec.max_replicas)
    memory = behavior.remember_wanted(now, wanted, spec, memory)
    if held_by_gaps:
        words = f"{top.words}; not fewer while figures of {_some(gaps)} are missing{_trouble(reading)}"
        return _Verdict(current, "MetricsMissing", words, "data"), memory
    if wanted > current:
        verdict = _up(now, spec, current, wanted, top, memory)
    elif wanted < current:
        verdict = _down(now, spec, current, wanted, top, memory)
    else:
        verdict = _steady(reading, spec, current, raw, top)
    return replace(verdict, need=asked.need), memory


def _asked(measured: list[needs.Need], expected: ahead.Ahead | None, current: int) -> _Asked | None:
    """What is wanted: the most of what is measured and of what is expected; None without either."""
    top = max(measured, key=lambda need: need.replicas, default=None)
    alone = None if top is None else needs.step(top.replicas, current)
    if expected is None:
        return None if top is None or alone is None else _Asked(alone, top, top.replicas)
    need = expected.need
    foreseen = need.replicas if expected.grows else min(need.replicas, float(current))
    most = max(foreseen, 0.0 if top is None else top.replicas)
    wanted = needs.whole(need.replicas, current)
    if not expected.grows:
        wanted = min(wanted, current)
    if top is not None and alone is not None and alone >= wanted and alone != current:
        return _Asked(alone, top, most)
    told = "unknown" if alone is None else str(alone)
    words = need.words if expected.grows else f"{need.words}, by a prior of what one replica serves"
    return _Asked(max(wanted, alone or 0), replace(need, words=words, beside=f"; reactive alone: {told}"), most)


def _told(expected: ahead.Ahead | None) -> str:
    return "" if expected is None else f"{expected.need.words}; asks for {expected.need.replicas:.1f} replicas"


def _blind(reading: PoolReading, spec: ScalingSpec, current: int) -> _Verdict:
    if reading.ready:
        words = f"no figures of {_some(figures.gaps(reading, spec))}{_trouble(reading)}; held until there are"
        return _Verdict(current, "MetricsMissing", words, "data")
    coming = reading.coming
    if coming:
        return _Verdict(
            current, "Starting", f"no pod is ready yet, {coming} {'is' if coming == 1 else 'are'} starting"
        )
    return _Verdict(current, "NoReadyPods", "no pod is ready; see the pool's Ready condition", "data")


def _up(now: float, spec: ScalingSpec, current: int, wanted: int, top: needs.Need, memory: Memory) -> _Verdict:
    stable = behavior.stabilised(now, current, wanted, spec, memory)
    if stable == current:
        words = (
            f"{top.words}; {wanted} wanted, not for all of the last {spec.scale_up.stabilization_seconds:.0f} s"
        )
        return _Verdict(current, "Stabilizing", words, top.resource)
    target = behavior.limited(now, current, stable, spec, memory)
    if target == current:
        return _Verdict(
            current, "RateLimited", f"{top.words}; {wanted} wanted, behavior.scaleUp forbids", top.resource
        )
    limit = f"; {stable} wanted, behavior.scaleUp allows {target}" if target < stable else ""
    return _Verdict(target, "ScaleUp", f"{top.words}; binding: {top.resource}{top.beside}{limit}", top.resource)


def _down(now: float, spec: ScalingSpec, current: int, wanted: int, top: needs.Need, memory: Memory) -> _Verdict:
    stable = behavior.stabilised(now, current, wanted, spec, memory)
    if stable == current:
        left = behavior.seconds_left(now, current, spec, memory)
        words = f"{top.words}; {wanted} would do, {left:.0f} s of the stabilisation window are left"
        return _Verdict(current, "Stabilizing", words, top.resource)
    if not behavior.may_step_down(now, memory):
        words = f"{top.words}; {stable} would do, the last replica that went is too recent"
        return _Verdict(current, "Stabilizing", words, top.resource)
    target = behavior.limited(now, current, max(stable, current - 1), spec, memory)
    if target == current:
        return _Verdict(
            current, "RateLimited", f"{top.words}; {wanted} would do, behavior.scaleDown forbids", top.resource
        )
    return _Verdict(target, "ScaleDown", f"{top.words}; one replica fewer still holds the targets", top.resource)


def _steady(reading: PoolReading, spec: ScalingSpec, current: int, raw: int, top: needs.Need) -> _Verdict:
    if raw > current and current == spec.max_replicas:
        words = f"{top.words}; {raw} wanted, maxReplicas is {current}{spec.max_by}"
        return _Verdict(current, "AtMaximum", words, top.resource)
    if reading.coming and top.replicas > reading.ready * (1 + needs.TOLERANCE):
        words = f"{top.words}; {reading.coming} replicas already asked for are starting"
        return _Verdict(current, "Starting", words, top.resource)
    beside = ""
    if spec.min_replicas == 0 and current == 1:
        beside = f"; not to zero: {why}" if (why := idle.why_awake(reading)) else ""
    elif raw < current == spec.min_replicas:
        beside = f"; {raw} would do, minReplicas is {current}{spec.min_by}"
    return _Verdict(current, "WithinTargets", f"{top.words}{beside}", top.resource)


def _some(names: list[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def _trouble(reading: PoolReading) -> str:
    return f" ({reading.trouble})" if reading.trouble else ""
