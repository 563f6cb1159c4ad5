"""The built-in autoscaler's settings, which it writes spec.replicas by."""

from enum import StrEnum
from typing import Annotated, Final

from pydantic import AfterValidator, Field

from tidepool_api.hardware import SHARDS, Accelerator, Parallelism
from tidepool_api.kube import (
    ATOMIC_LIST,
    Document,
    LabelName,
    Rule,
    Ruled,
    map_list,
    matching,
    patterned,
    unique,
)
from tidepool_api.units import (
    QUANTITY_PATTERN,
    Duration,
    DurationUpToHour,
    DurationUpToWeek,
    Fraction,
    Quantity,
    quantity_value,
)

MAX_REPLICAS: Final = 10_000
Replicas = Annotated[int, Field(ge=0, le=MAX_REPLICAS)]

BOUNDS: Final = Rule(
    "self.maxReplicas >= self.minReplicas",
    "is below minReplicas; raise maxReplicas or lower minReplicas",
    holds=lambda scaling: scaling.max_replicas >= scaling.min_replicas,
    field=".maxReplicas",
)
# Whether the numbers are those of a clock, and the zone one that exists, only the operator can tell.
CRON_PATTERN: Final = r"^[0-9A-Za-z*/,#-]+( +[0-9A-Za-z*/,#-]+){4}$"
CRON: Final = matching(CRON_PATTERN, "is not a cron expression of five fields; write it like 0 8 * * 1-5")
TIME_ZONE_PATTERN: Final = r"^[A-Za-z][A-Za-z0-9_+-]*(/[A-Za-z0-9_+-]+)*$"
TIME_ZONE: Final = matching(TIME_ZONE_PATTERN, "is not the name of a time zone; write it like Europe/Berlin")
BOUNDLESS: Final = Rule(
    "has(self.minReplicas) || has(self.maxReplicas)",
    "bounds nothing; set minReplicas, maxReplicas or both",
    holds=lambda schedule: schedule.min_replicas is not None or schedule.max_replicas is not None,
)
SCHEDULED_BOUNDS: Final = Rule(
    "!has(self.schedules) || self.schedules.all(each,"
    " (has(each.minReplicas) ? each.minReplicas : self.minReplicas)"
    " <= (has(each.maxReplicas) ? each.maxReplicas : self.maxReplicas))",
    "has a schedule whose minReplicas is above maxReplicas (scaling's own hold where a schedule has none); "
    "raise maxReplicas or lower minReplicas there",
    holds=lambda scaling: all(
        _or(each.min_replicas, scaling.min_replicas) <= _or(each.max_replicas, scaling.max_replicas)
        for each in scaling.schedules
    ),
    field=".schedules",
)


ONE_HOST: Final = Rule(
    "self.parallelism.hosts <= 1",
    "is more than 1, and a variant's replica is one pod; set it to 1",
    holds=lambda variant: variant.parallelism.hosts <= 1,
    field=".parallelism.hosts",
)
CARRIES: Final = Rule(
    f"!self.capacity.matches(r'{QUANTITY_PATTERN}') || quantity(self.capacity).compareTo(quantity('0')) > 0",
    "serves nothing; give a capacity above 0",
    holds=lambda variant: quantity_value(variant.capacity) > 0,
    field=".capacity",
)


def _or(bound: int | None, otherwise: int) -> int:
    return otherwise if bound is None else bound


class Mode(StrEnum):
    """What becomes of a decision."""

    AUTO = "Auto"
    RECOMMEND = "Recommend"


class Targets(Document):
    """What the pool is to hold; the tightest one decides."""

    time_to_first_token: Duration | None = Field(
        default=None, description="Time from a request's arrival to its first token, such as 1500ms."
    )
    time_per_output_token: Duration | None = Field(
        default=None, description="Time between the tokens of an answer, such as 50ms."
    )
    kv_utilization: Fraction = Field(
        default="0.8", description='Share of the KV cache in use that the pool is held at, such as "0.8".'
    )


class Prediction(Document):
    """Scaling ahead of demand."""

    enabled: bool = Field(default=True, description="Forecast demand and scale before it comes.")
    season: DurationUpToWeek = Field(default="24h", description="Length of the cycle that demand follows.")


class PolicyType(StrEnum):
    """Unit of a scaling policy."""

    PODS = "Pods"
    PERCENT = "Percent"


class SelectPolicy(StrEnum):
    """Which policy counts where several allow a change."""

    MAX = "Max"
    MIN = "Min"
    DISABLED = "Disabled"


class ScalingPolicy(Document):
    """A bound on how much the count may change in a period."""

    type: PolicyType = Field(description="Whether value counts pods or is a percentage of them.")
    value: Annotated[int, Field(ge=1, le=100_000)] = Field(description="Change that is allowed in a period.")
    period: DurationUpToHour = Field(default="60s", description="The period.")


class ScaleUp(Document):
    """How fast the count may grow."""

    stabilization_window: DurationUpToHour = Field(
        default="0s", description="The lowest count wanted within this window is taken."
    )
    policies: tuple[ScalingPolicy, ...] = Field(
        default=(),
        max_length=8,
        description="Bounds on the growth. Empty: as in the HPA, the greater of 4 pods and 100 % in 15s.",
        json_schema_extra=ATOMIC_LIST,
    )
    select_policy: SelectPolicy = Field(
        default=SelectPolicy.MAX, description="Which policy counts; Disabled: never grow."
    )


class ScaleDown(Document):
    """How fast the count may shrink."""

    stabilization_window: DurationUpToHour = Field(
        default="300s", description="The highest count wanted within this window is taken."
    )
    policies: tuple[ScalingPolicy, ...] = Field(
        default=(),
        max_length=8,
        description="Bounds on the shrinking, one replica at a time. Empty: as in the HPA, 100 % in 15s.",
        json_schema_extra=ATOMIC_LIST,
    )
    select_policy: SelectPolicy = Field(
        default=SelectPolicy.MAX, description="Which policy counts; Disabled: never shrink."
    )


class Behavior(Document):
    """How fast the count may change, as in a HorizontalPodAutoscaler."""

    scale_up: ScaleUp = Field(default_factory=ScaleUp, description="How fast the count may grow.")
    scale_down: ScaleDown = Field(default_factory=ScaleDown, description="How fast the count may shrink.")


class Variant(Ruled):
    """The pool on one kind of accelerator, with its price."""

    RULES = (SHARDS, ONE_HOST, CARRIES)

    name: LabelName = Field(description="Name of the variant, which its pods carry as a label.")
    accelerator: Accelerator = Field(default_factory=Accelerator, description="The accelerator of its pods.")
    parallelism: Parallelism = Field(default_factory=Parallelism, description="How the model is split there.")
    cost: Quantity = Field(description="Price of one replica, in any unit that all variants share.")
    capacity: Quantity = Field(
        default="1",
        description="What one replica serves, in any unit that all variants share; the pool's own figures replace "
        "it once the variant has served.",
    )


class Schedule(Ruled):
    """Bounds that hold from a point in time on, again and again."""

    RULES = (BOUNDLESS,)

    cron: Annotated[
        str,
        Field(min_length=1, max_length=120, json_schema_extra=patterned(CRON_PATTERN, CRON)),
        AfterValidator(CRON.check),
    ] = Field(description='When the bounds begin to hold, in five fields, such as "0 8 * * 1-5".')
    time_zone: Annotated[
        str,
        Field(min_length=1, max_length=64, json_schema_extra=patterned(TIME_ZONE_PATTERN, TIME_ZONE)),
        AfterValidator(TIME_ZONE.check),
    ] = Field(default="UTC", description="Time zone of cron, such as Europe/Berlin.")
    min_replicas: Replicas | None = Field(
        default=None, description="Fewest replicas from then on; they are asked for a start-up ahead."
    )
    max_replicas: Replicas | None = Field(default=None, description="Most replicas from then on.")
    duration: DurationUpToWeek | None = Field(
        default=None,
        description="How long the bounds hold, such as 10h. Absent: until another one of the same bound begins.",
    )


class Scaling(Ruled):
    """Bounds, targets and pace of the built-in autoscaler."""

    RULES = (BOUNDS, SCHEDULED_BOUNDS)

    min_replicas: Replicas = Field(default=1, description="Fewest replicas; 0 lets an idle pool go to zero.")
    max_replicas: Annotated[int, Field(ge=1, le=MAX_REPLICAS)] = Field(description="Most replicas.")
    mode: Mode = Field(
        default=Mode.AUTO,
        description="Auto writes spec.replicas; Recommend only shows in status what it would write.",
    )
    targets: Targets = Field(default_factory=Targets, description="What the pool is to hold.")
    prediction: Prediction = Field(default_factory=Prediction, description="Scaling ahead of demand.")
    behavior: Behavior = Field(
        default_factory=Behavior, description="How fast the count may change, as in a HorizontalPodAutoscaler."
    )
    idle_after: DurationUpToWeek = Field(
        default="10m", description="With minReplicas 0: go to zero after so long without a request."
    )
    variants: Annotated[tuple[Variant, ...], unique("name")] = Field(
        default=(),
        max_length=16,
        description="All kinds of accelerator that the pool may run on, in place of spec.accelerator and "
        "spec.parallelism; the cheapest mix that holds the targets runs.",
        json_schema_extra=map_list("name"),
    )
    schedules: tuple[Schedule, ...] = Field(
        default=(),
        max_length=32,
        description="Bounds that change by the clock. Of those in force the one that began last decides.",
        json_schema_extra=ATOMIC_LIST,
    )

    @property
    def reaches_zero(self) -> bool:
        """Whether the pool may ever be at zero."""
        bounds = (self.min_replicas, *(each.min_replicas for each in self.schedules))
        return 0 in bounds
