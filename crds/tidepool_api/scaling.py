"""The built-in autoscaler's settings, which it writes spec.replicas by."""

from enum import StrEnum
from typing import Annotated, Final

from pydantic import Field

from tidepool_api.hardware import Accelerator, Parallelism
from tidepool_api.kube import ATOMIC_LIST, Document, LabelName, Rule, Ruled, map_list, unique
from tidepool_api.units import Duration, DurationUpToHour, DurationUpToWeek, Fraction, Quantity

MAX_REPLICAS: Final = 10_000
Replicas = Annotated[int, Field(ge=0, le=MAX_REPLICAS)]

BOUNDS: Final = Rule(
    "self.maxReplicas >= self.minReplicas",
    "is below minReplicas; raise maxReplicas or lower minReplicas",
    holds=lambda scaling: scaling.max_replicas >= scaling.min_replicas,
    field=".maxReplicas",
    expression="'%d is below minReplicas %d; raise maxReplicas or lower minReplicas'"
    ".format([self.maxReplicas, self.minReplicas])",
    words=lambda scaling: (
        f"{scaling.max_replicas} is below minReplicas {scaling.min_replicas}; "
        "raise maxReplicas or lower minReplicas"
    ),
)


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


class Variant(Document):
    """The same pool on another accelerator, with its price."""

    name: LabelName = Field(description="Name of the variant.")
    accelerator: Accelerator = Field(default_factory=Accelerator, description="The accelerator of its pods.")
    parallelism: Parallelism = Field(default_factory=Parallelism, description="How the model is split there.")
    cost: Quantity = Field(description="Price of one replica, in any unit that all variants share.")


class Schedule(Document):
    """Bounds that hold from a point in time on, again and again."""

    cron: Annotated[str, Field(min_length=1, max_length=120)] = Field(
        description='When the bounds begin to hold, in five fields, such as "0 8 * * 1-5".'
    )
    time_zone: Annotated[str, Field(min_length=1, max_length=64)] = Field(
        default="UTC", description="Time zone of cron, such as Europe/Berlin."
    )
    min_replicas: Replicas | None = Field(default=None, description="Fewest replicas from then on.")
    max_replicas: Replicas | None = Field(default=None, description="Most replicas from then on.")


class Scaling(Ruled):
    """Bounds, targets and pace of the built-in autoscaler."""

    RULES = (BOUNDS,)

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
        description="The same pool on other accelerators; the cheapest mix that holds the targets runs.",
        json_schema_extra=map_list("name"),
    )
    schedules: tuple[Schedule, ...] = Field(
        default=(),
        max_length=32,
        description="Bounds that change by the clock.",
        json_schema_extra=ATOMIC_LIST,
    )
