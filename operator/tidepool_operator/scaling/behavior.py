"""How fast a pool may grow and shrink: the HPA's stabilisation windows and rate policies.

Rules and order follow https://kubernetes.io/docs/tasks/run-application/horizontal-pod-autoscale/#scaling-policies
and the HPA controller: the window first, then the rate.
"""

import math
from dataclasses import replace
from typing import Final

from tidepool_api.scaling import SelectPolicy
from tidepool_operator.scaling.model import Behavior, Memory, RatePolicy, ScalingSpec

# After a replica went, those that stay must show the load that they took over before the next one goes: two
# scrapes of 15 s.
STEP_SECONDS: Final = 30.0
CHANGES_KEPT: Final = 256


def remember_wanted(now: float, wanted: int, spec: ScalingSpec, memory: Memory) -> Memory:
    """Add what is wanted now to both windows.

    Each window keeps only entries that no later one outdoes, so its first entry is the extreme of the window.
    """
    since_high, since_low = now - spec.scale_down.stabilization_seconds, now - spec.scale_up.stabilization_seconds
    high = (entry for entry in memory.wanted_high if entry[0] > since_high and entry[1] > wanted)
    low = (entry for entry in memory.wanted_low if entry[0] > since_low and entry[1] < wanted)
    return replace(memory, wanted_high=(*high, (now, wanted)), wanted_low=(*low, (now, wanted)))


def stabilised(now: float, current: int, wanted: int, spec: ScalingSpec, memory: Memory) -> int:
    """The replicas that the whole window agrees on: its highest when shrinking, its lowest when growing."""
    if wanted < current:
        looked = _looked_for(now, memory) >= spec.scale_down.stabilization_seconds
        return min(current, memory.wanted_high[0][1]) if looked else current
    if wanted > current:
        looked = _looked_for(now, memory) >= spec.scale_up.stabilization_seconds
        return max(current, memory.wanted_low[0][1]) if looked else current
    return current


def seconds_left(now: float, current: int, spec: ScalingSpec, memory: Memory) -> float:
    """Seconds until the window would let a pool shrink if nothing more were wanted."""
    last_high = max((time for time, wanted in memory.wanted_high if wanted >= current), default=-math.inf)
    begin = max(last_high, memory.since if memory.since is not None else now)
    return max(0.0, begin + spec.scale_down.stabilization_seconds - now)


def limited(now: float, current: int, target: int, spec: ScalingSpec, memory: Memory) -> int:
    """`target`, no further from `current` than the rate policies allow now."""
    if target > current:
        return max(current, min(target, _up_limit(now, current, spec.scale_up, memory)))
    if target < current:
        return min(current, max(target, _down_limit(now, current, spec.scale_down, memory)))
    return target


def may_step_down(now: float, memory: Memory) -> bool:
    """Whether the last replica that went has been gone for long enough to see what came of it."""
    return all(added > 0 or now - time >= STEP_SECONDS for time, added in memory.changes)


def remember_change(now: float, added: int, spec: ScalingSpec, memory: Memory) -> Memory:
    """Add a change that was carried out, and forget those that no policy looks back to."""
    periods = [policy.period_seconds for policy in (*spec.scale_up.policies, *spec.scale_down.policies)]
    since = now - max([STEP_SECONDS, *periods])
    kept = tuple(change for change in memory.changes if change[0] > since)
    return replace(memory, changes=(*kept, (now, added))[-CHANGES_KEPT:])


def _looked_for(now: float, memory: Memory) -> float:
    return now - memory.since if memory.since is not None else 0.0


def _up_limit(now: float, current: int, behavior: Behavior, memory: Memory) -> int:
    limits = [_grown(_at_start(now, current, policy, memory), policy) for policy in behavior.policies]
    if behavior.select is SelectPolicy.DISABLED or not limits:
        return current
    return max(limits) if behavior.select is SelectPolicy.MAX else min(limits)


def _down_limit(now: float, current: int, behavior: Behavior, memory: Memory) -> int:
    limits = [_shrunk(_at_start(now, current, policy, memory), policy) for policy in behavior.policies]
    if behavior.select is SelectPolicy.DISABLED or not limits:
        return current
    return min(limits) if behavior.select is SelectPolicy.MAX else max(limits)


def _at_start(now: float, current: int, policy: RatePolicy, memory: Memory) -> int:
    """Replicas at the start of the policy's period."""
    return current - sum(added for time, added in memory.changes if now - time < policy.period_seconds)


def _grown(start: int, policy: RatePolicy) -> int:
    return (
        start + policy.pods if policy.pods is not None else math.ceil(start * (1 + (policy.percent or 0.0) / 100))
    )


def _shrunk(start: int, policy: RatePolicy) -> int:
    return (
        start - policy.pods if policy.pods is not None else math.floor(start * (1 - (policy.percent or 0.0) / 100))
    )
