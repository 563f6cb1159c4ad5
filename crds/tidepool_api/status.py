"""What the operator reports of a pool. Bounds are wide: a status that is refused tells nobody anything."""

from enum import StrEnum
from typing import Annotated, Final

from pydantic import Field

from tidepool_api.kube import ATOMIC_LIST, Document, ShortText, map_list

HISTORY_LENGTH: Final = 10

Message = Annotated[str, Field(max_length=32_768)]
# As metav1.Time and metav1.MicroTime write it.
Time = Annotated[str, Field(max_length=64, json_schema_extra={"format": "date-time"})]
Count = Annotated[int, Field(ge=0)]


class ConditionStatus(StrEnum):
    """Whether a condition holds."""

    TRUE = "True"
    FALSE = "False"
    UNKNOWN = "Unknown"


class PoolCondition(StrEnum):
    """Types of a pool's conditions."""

    READY = "Ready"
    PROGRESSING = "Progressing"
    MODEL_LOADED = "ModelLoaded"
    CAPACITY_AVAILABLE = "CapacityAvailable"
    SCALING_ACTIVE = "ScalingActive"
    DEGRADED = "Degraded"


class Condition(Document):
    """One aspect of the state, as metav1.Condition."""

    type: Annotated[str, Field(min_length=1, max_length=316)] = Field(description="Which aspect this is.")
    status: ConditionStatus = Field(description="Whether it holds.")
    observed_generation: Count | None = Field(default=None, description="Generation of the spec this speaks of.")
    last_transition_time: Time = Field(description="When status last changed.")
    reason: Annotated[str, Field(min_length=1, max_length=1024, pattern="^[A-Za-z][A-Za-z0-9_]*$")] = Field(
        description="Stable word for programs."
    )
    message: Message = Field(default="", description="What happened and what to do.")


class Percentiles(Document):
    """How long something takes, in seconds."""

    p50: float | None = Field(default=None, description="Half of all took no longer.")
    p90: float | None = Field(default=None, description="Nine in ten took no longer.")


class Capacity(Document):
    """What one replica can serve, learned from the pool's own figures."""

    prefill_tokens_per_second: float | None = Field(default=None, description="Prompt tokens computed a second.")
    output_tokens_per_second: float | None = Field(default=None, description="Output tokens made a second.")
    kv_tokens: Count | None = Field(default=None, description="Tokens that the KV cache holds.")
    startup_seconds: Percentiles | None = Field(default=None, description="Time from a pod's creation to Ready.")
    learned_from: ShortText | None = Field(default=None, description="What the figures were learned from.")


class Figures(Document):
    """Live figures, rounded, and written at most once a minute."""

    time: Time | None = Field(default=None, description="When they were read.")
    kv_utilization: ShortText | None = Field(
        default=None, description="Share of the KV cache in use, such as 40%."
    )
    output_tokens_per_second: ShortText | None = Field(
        default=None, description="Output tokens a second, all pods."
    )
    time_to_first_token: ShortText | None = Field(default=None, description="Median time to the first token.")


class ScalingDecision(Document):
    """One answer of the autoscaler."""

    time: Time = Field(description="When it was taken.")
    replicas: Count = Field(description="Replicas that are wanted.")
    reason: Annotated[str, Field(max_length=1024)] = Field(description="Stable word for programs.")
    message: Message = Field(default="", description="Why, in words, with the figures behind it.")
    forecast: Message | None = Field(default=None, description="What is expected, where the decision rests on it.")


class RefusedReplicas(Document):
    """Replicas that were wanted and not given."""

    replicas: Count = Field(description="How many.")
    reason: Annotated[str, Field(max_length=1024)] = Field(description="Stable word for programs.")
    message: Message = Field(default="", description="Why, and what to do.")


class ScalingStatus(Document):
    """What the autoscaler decided."""

    last_decision: ScalingDecision | None = Field(default=None, description="The decision that is in force.")
    refused: RefusedReplicas | None = Field(
        default=None, description="What the cluster, a quota or other pools leave this pool without."
    )
    history: tuple[ScalingDecision, ...] = Field(
        default=(),
        max_length=HISTORY_LENGTH,
        description="Decisions that changed the count, the newest first.",
        json_schema_extra=ATOMIC_LIST,
    )


class AdapterState(StrEnum):
    """How far an adapter has come."""

    WAITING = "Waiting"  # no engine is up that could take it
    FETCHING = "Fetching"
    LOADING = "Loading"
    LOADED = "Loaded"
    FAILED = "Failed"


class AdapterStatus(Document):
    """One LoRA adapter."""

    name: Annotated[str, Field(min_length=1, max_length=253)] = Field(description="Name that clients ask for.")
    state: AdapterState = Field(description="Loaded: every engine of the newest revision answers to it.")
    loaded_replicas: Count | None = Field(default=None, description="Pods whose engine answers to it.")
    reason: ShortText | None = Field(default=None, description="Stable word for programs, where it failed.")
    message: Message | None = Field(default=None, description="What happened and what to do.")


class VariantStatus(Document):
    """The pods of one kind of accelerator."""

    name: Annotated[str, Field(min_length=1, max_length=63)] = Field(description="Name of the variant.")
    replicas: Count = Field(default=0, description="Replicas of it that are wanted.")
    ready_replicas: Count = Field(default=0, description="Pods of it that serve.")
    current_revision: ShortText | None = Field(default=None, description="Revision of it that serves.")
    update_revision: ShortText | None = Field(default=None, description="Revision of it that the spec asks for.")
    stuck: bool = Field(default=False, description="Its newest revision did not come up in time.")


class RoleStatus(Document):
    """The pods of one role beside those that spec.replicas counts."""

    replicas: Count | None = Field(default=None, description="Pods of the role.")
    ready_replicas: Count | None = Field(default=None, description="Pods that serve.")
    updated_replicas: Count | None = Field(default=None, description="Pods of the newest revision.")
    desired_replicas: Count | None = Field(default=None, description="Pods that are wanted.")
    current_revision: ShortText | None = Field(default=None, description="Revision that serves.")
    update_revision: ShortText | None = Field(default=None, description="Revision that the spec asks for.")
    conditions: tuple[Condition, ...] = Field(
        default=(), max_length=16, description="Progressing.", json_schema_extra=map_list("type")
    )


class ModelPoolStatus(Document):
    """Observed state of a pool."""

    observed_generation: Count | None = Field(default=None, description="Generation of the spec this speaks of.")
    replicas: Count | None = Field(default=None, description="Pods of the pool.")
    ready_replicas: Count | None = Field(default=None, description="Pods that serve.")
    updated_replicas: Count | None = Field(default=None, description="Pods of the newest revision.")
    desired_replicas: Count | None = Field(
        default=None, description="Replicas that are wanted; in mode Recommend, that would be."
    )
    selector: Annotated[str, Field(max_length=4096)] | None = Field(
        default=None, description="Label selector of the pods, for the scale subresource."
    )
    url: Annotated[str, Field(max_length=2048)] | None = Field(
        default=None, description="Base address of the pool's own OpenAI API inside the cluster."
    )
    current_revision: ShortText | None = Field(default=None, description="Revision that serves.")
    update_revision: ShortText | None = Field(default=None, description="Revision that the spec asks for.")
    engine_args: tuple[Annotated[str, Field(max_length=8192)], ...] = Field(
        default=(),
        max_length=512,
        description="Arguments that the engine is started with.",
        json_schema_extra=ATOMIC_LIST,
    )
    adapters: tuple[AdapterStatus, ...] = Field(
        default=(),
        max_length=64,
        description="LoRA adapters of the spec.",
        json_schema_extra=map_list("name"),
    )
    prefill: RoleStatus | None = Field(
        default=None,
        description="The prefill pods, where prefill and decode are apart; the rest is of the others.",
    )
    figures: Figures | None = Field(default=None, description="Live figures of the pool, rounded.")
    capacity: Capacity | None = Field(default=None, description="What one replica can serve.")
    variants: tuple[VariantStatus, ...] = Field(
        default=(),
        max_length=16,
        description="The pods by kind of accelerator, where scaling has variants.",
        json_schema_extra=map_list("name"),
    )
    scaling: ScalingStatus | None = Field(default=None, description="What the autoscaler decided.")
    conditions: tuple[Condition, ...] = Field(
        default=(),
        max_length=16,
        description="Ready, Progressing, ModelLoaded, CapacityAvailable, ScalingActive and Degraded.",
        json_schema_extra=map_list("type"),
    )
