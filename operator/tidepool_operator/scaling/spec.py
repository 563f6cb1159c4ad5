"""The resource's `spec.scaling` in plain numbers."""

import math

from tidepool_api.scaling import PolicyType, ScaleDown, ScaleUp, Scaling, ScalingPolicy
from tidepool_api.scaling import Schedule as ApiSchedule
from tidepool_api.units import Duration, duration_seconds, quantity_value
from tidepool_operator.scaling import schedules
from tidepool_operator.scaling.mix import Kind
from tidepool_operator.scaling.model import (
    SCALE_DOWN_DEFAULT,
    SCALE_UP_DEFAULT,
    Behavior,
    RatePolicy,
    ScalingSpec,
    Schedule,
)


def from_api(scaling: Scaling) -> ScalingSpec:
    """Plain numbers of a validated `spec.scaling`; where it has no policies, the HPA's defaults hold.

    Raises ValueError, naming the field, for a schedule that never begins.
    """
    if faults := schedules.faults(scaling):
        raise ValueError(faults[0])
    targets, pace, prediction = scaling.targets, scaling.behavior, scaling.prediction
    return ScalingSpec(
        min_replicas=scaling.min_replicas,
        max_replicas=scaling.max_replicas,
        mode=scaling.mode,
        kv_utilization=float(quantity_value(targets.kv_utilization)),
        time_to_first_token_seconds=_seconds(targets.time_to_first_token),
        time_per_output_token_seconds=_seconds(targets.time_per_output_token),
        idle_after_seconds=duration_seconds(scaling.idle_after),
        predicts=prediction.enabled,
        season_seconds=duration_seconds(prediction.season),
        scale_up=_behavior(pace.scale_up, SCALE_UP_DEFAULT),
        scale_down=_behavior(pace.scale_down, SCALE_DOWN_DEFAULT),
        schedules=tuple(_schedule(each) for each in scaling.schedules),
        variants=kinds(scaling),
    )


def _seconds(text: Duration | None) -> float | None:
    return None if text is None else duration_seconds(text)


def kinds(scaling: Scaling | None) -> tuple[Kind, ...]:
    """The variants of a pool, none without."""
    return tuple(
        Kind(each.name, float(quantity_value(each.cost)), float(quantity_value(each.capacity)))
        for each in (scaling.variants if scaling is not None else ())
    )


def _schedule(schedule: ApiSchedule) -> Schedule:
    return Schedule(
        schedule.cron,
        schedule.time_zone,
        schedule.min_replicas,
        schedule.max_replicas,
        math.inf if schedule.duration is None else duration_seconds(schedule.duration),
    )


def _behavior(pace: ScaleUp | ScaleDown, default: Behavior) -> Behavior:
    return Behavior(
        stabilization_seconds=duration_seconds(pace.stabilization_window),
        policies=tuple(_policy(policy) for policy in pace.policies) or default.policies,
        select=pace.select_policy,
    )


def _policy(policy: ScalingPolicy) -> RatePolicy:
    period_seconds = duration_seconds(policy.period)
    if policy.type is PolicyType.PODS:
        return RatePolicy(period_seconds, pods=policy.value)
    return RatePolicy(period_seconds, percent=float(policy.value))
