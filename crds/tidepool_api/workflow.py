"""AgentWorkflow: a graph of steps that run on the pools and are called as one model."""

from enum import StrEnum
from typing import Annotated, Final, cast

from pydantic import Field, ValidationError, ValidatorFunctionWrapHandler, field_validator

from tidepool_api.contract import API_VERSION
from tidepool_api.kube import Document, FreeObject, Rule, Ruled, ShortText, map_list, unique
from tidepool_api.metadata import Metadata
from tidepool_api.status import Condition, Count
from tidepool_api.units import DurationUpToDay
from tidepool_api.workflow_steps import Step, StepName, Template

KIND: Final = "AgentWorkflow"
# Clients call a workflow as the model "workflow/NAME".
MODEL_PREFIX: Final = "workflow/"


class OnExceeded(StrEnum):
    """What becomes of a run whose budget is spent."""

    DEGRADE = "Degrade"
    FAIL = "Fail"


class Measure(StrEnum):
    """What a run does without to use fewer tokens."""

    SMALLER_MODEL = "SmallerModel"
    FEWER_BRANCHES = "FewerBranches"
    SKIP_SOFT = "SkipSoft"


class Degradation(Document):
    """One measure, and from when on it is taken."""

    measure: Measure = Field(
        description="SmallerModel: of a step's candidates the one of least quality is asked. FewerBranches: of a "
        "fan-out no item begins any more but its first, and choosers take no further turn. SkipSoft: Soft steps "
        "that have not begun are omitted."
    )
    at_percent: Annotated[int, Field(ge=1, le=1000)] = Field(
        default=100, description="It is taken when the run has used so much of the budget's tokens, in percent."
    )


MAX_DEGRADATIONS: Final = 3
Degradations = Annotated[
    tuple[Degradation, ...],
    Field(min_length=1, max_length=MAX_DEGRADATIONS, json_schema_extra=map_list("measure")),
    unique("measure"),
]
DEGRADE_ALONE: Final = Rule(
    "!has(self.degrade) || self.onExceeded == 'Degrade'",
    "has an effect with onExceeded: Degrade alone; leave it out, or set that",
    holds=lambda budget: budget.degrade is None or budget.on_exceeded is OnExceeded.DEGRADE,
    field=".degrade",
)
DEGRADE_IN_ORDER: Final = Rule(
    # Each beside the next: Kubernetes 1.29 takes isSorted() of a mapped list for endless.
    "!has(self.degrade) || ("
    + " && ".join(
        f"(self.degrade.size() <= {at} || self.degrade[{at - 1}].atPercent <= self.degrade[{at}].atPercent)"
        for at in range(1, MAX_DEGRADATIONS)
    )
    + ")",
    "is out of order: the measures are taken from the first to the last, so atPercent may not fall",
    holds=lambda budget: (
        budget.degrade is None
        or [one.at_percent for one in budget.degrade] == sorted(one.at_percent for one in budget.degrade)
    ),
    field=".degrade",
)


class Budget(Ruled):
    """Tokens that a run may use, prompts and answers together."""

    RULES = (DEGRADE_ALONE, DEGRADE_IN_ORDER)

    tokens: Annotated[int, Field(ge=1, le=10**9)] = Field(description="Tokens that a run may use.")
    on_exceeded: OnExceeded = Field(
        default=OnExceeded.DEGRADE,
        description="Degrade: go on with less, as degrade says. Fail: end the run.",
    )
    degrade: Degradations | None = Field(
        default=None,
        description="What a run does without, in this order. Absent: SmallerModel, FewerBranches and SkipSoft, "
        "all of them when the tokens are used.",
    )


class AgentWorkflowSpec(Document):
    """What a run does."""

    input: FreeObject | None = Field(default=None, description="JSON Schema of the input. Absent: any.")
    deadline: DurationUpToDay = Field(default="300s", description="Longest time of a run.")
    budget: Budget | None = Field(default=None, description="Tokens that a run may use. Absent: no bound.")
    fail_fast: bool = Field(
        default=True,
        description="The first hard failure stops the steps that still run; otherwise they end first.",
    )
    on_exit: StepName | None = Field(
        default=None, description="Step that runs last, whatever happened, on a budget of its own."
    )
    steps: Annotated[tuple[Step, ...], unique("name")] = Field(
        min_length=1,
        max_length=64,
        description="The steps. Their order does not matter; depends says what waits for what.",
        json_schema_extra=map_list("name"),
    )
    output: Template | None = Field(
        default=None, description="Template of the answer. Absent: the text of the last step."
    )


class WorkflowCondition(StrEnum):
    """Types of a workflow's conditions."""

    ACCEPTED = "Accepted"
    READY = "Ready"


class Runs(Document):
    """Counts of runs, from a hundred on in two digits."""

    active: Count = Field(default=0, description="Runs in progress.")
    succeeded: Count = Field(
        default=0, description="Runs that succeeded in the last 24 hours, of the newest 5,000 of all."
    )
    failed: Count = Field(
        default=0, description="Runs that failed in the last 24 hours, of the newest 5,000 of all."
    )


class Latency(Document):
    """How long runs take, rounded: the last 500 that succeeded or failed in the last 24 hours."""

    p50: ShortText | None = Field(default=None, description="Half of them took no longer.")
    p95: ShortText | None = Field(default=None, description="Nineteen in twenty of them took no longer.")


class AgentWorkflowStatus(Document):
    """Observed state of a workflow."""

    observed_generation: Count | None = Field(default=None, description="Generation of the spec this speaks of.")
    runs: Runs | None = Field(
        default=None,
        description="Counts of runs at the gateways, at most a minute old; from a hundred on in two digits.",
    )
    latency: Latency | None = Field(
        default=None, description="How long the last 500 runs took of those that ended in the last 24 hours."
    )
    conditions: tuple[Condition, ...] = Field(
        default=(), max_length=16, description="Accepted and Ready.", json_schema_extra=map_list("type")
    )


class AgentWorkflow(Document):
    """A graph of steps that run on the pools and are called as one model."""

    api_version: str = API_VERSION
    kind: str = KIND
    metadata: Metadata = Field(default_factory=Metadata)
    spec: AgentWorkflowSpec = Field(description="What a run does.")
    status: AgentWorkflowStatus = Field(
        default_factory=AgentWorkflowStatus, description="Observed state of the workflow."
    )

    @field_validator("status", mode="wrap")
    @classmethod
    def _tolerate(cls, value: object, read: ValidatorFunctionWrapHandler) -> AgentWorkflowStatus:
        # As in ModelPool: a status of another release is written anew.
        try:
            return cast(AgentWorkflowStatus, read(value))
        except ValidationError:
            return AgentWorkflowStatus()

    @property
    def key(self) -> str:
        """`namespace/name`."""
        return f"{self.metadata.namespace}/{self.metadata.name}"
