"""AgentWorkflowRun: one run of a workflow, for people and CI. Runs that clients begin over HTTP make no object."""

from enum import StrEnum
from typing import Annotated, Final, cast

from pydantic import Field, ValidationError, ValidatorFunctionWrapHandler, field_validator, model_validator

from tidepool_api.contract import API_VERSION
from tidepool_api.kube import Document, FreeObject, ObjectName, ShortText
from tidepool_api.metadata import Metadata
from tidepool_api.status import Count, Time
from tidepool_api.units import DurationUpToWeek

KIND: Final = "AgentWorkflowRun"
# An object lives in etcd: what is longer is asked for at the gateway.
MOST_OUTPUT_CHARACTERS: Final = 8192
MOST_REASON_CHARACTERS: Final = 1024
MOST_INPUT_BYTES: Final = 65_536


class RunPhase(StrEnum):
    """Where a run stands."""

    PENDING = "Pending"
    RUNNING = "Running"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"
    CANCELLED = "Cancelled"


ENDED: Final = frozenset((RunPhase.SUCCEEDED, RunPhase.FAILED, RunPhase.CANCELLED))


class AgentWorkflowRunSpec(Document):
    """What is run. But for cancel, changes have no effect once the run has begun."""

    workflow: ObjectName = Field(description="AgentWorkflow of the same namespace.")
    input: FreeObject | None = Field(
        default=None, description="Input of the run, as the workflow's input schema wants it; at most 64 KiB."
    )
    cancel: bool = Field(default=False, description="Set it to end the run; deleting the object ends it, too.")
    ttl_after_finished: DurationUpToWeek = Field(
        default="24h", description="The object is deleted so long after the run has ended."
    )


class AgentWorkflowRunStatus(Document):
    """Observed state of a run."""

    phase: RunPhase = Field(default=RunPhase.PENDING, description="Where the run stands.")
    reason: Annotated[str, Field(max_length=4096)] = Field(
        default="", description="Why it waits, failed or was cancelled."
    )
    run: ShortText | None = Field(default=None, description="The run's id at the gateway, which has all of it.")
    started: Time | None = Field(default=None, description="When the run began.")
    finished: Time | None = Field(default=None, description="When the run ended.")
    tokens: Count = Field(default=0, description="Tokens that its steps have used.")
    steps: Count = Field(default=0, description="Steps, and items of steps, that have ended.")
    output: Annotated[str, Field(max_length=32_768)] | None = Field(
        default=None, description="The answer, cut after 8192 characters."
    )
    output_cut: bool = Field(default=False, description="Whether the answer is longer than output.")


class AgentWorkflowRun(Document):
    """One run of an AgentWorkflow, begun by kubectl create. For many runs a second, use the gateway's API."""

    api_version: str = API_VERSION
    kind: str = KIND
    metadata: Metadata = Field(default_factory=Metadata)
    spec: AgentWorkflowRunSpec = Field(description="What is run.")
    status: AgentWorkflowRunStatus = Field(
        default_factory=AgentWorkflowRunStatus, description="Observed state of the run."
    )

    @field_validator("status", mode="wrap")
    @classmethod
    def _tolerate(cls, value: object, read: ValidatorFunctionWrapHandler) -> AgentWorkflowRunStatus:
        # As in ModelPool: a status of another release is written anew.
        try:
            return cast(AgentWorkflowRunStatus, read(value))
        except ValidationError:
            return AgentWorkflowRunStatus()


class RunOrder(Document):
    """What the operator asks of a gateway: this run is to be there. The object's uid stands in the path.

    `begun`: it has been there before, so it is not to be begun again where nothing of it is kept any more.
    """

    namespace: str
    workflow: str
    input: FreeObject | None = None
    begun: bool = False


class RunReport(Document):
    """What a gateway answers: how the run stands. Times in Unix seconds.

    A phase that a later release has says whether the run is over by `ended`: one that is not is asked for again.
    """

    run: str
    phase: RunPhase
    reason: str = ""
    created: float
    ended: float | None = None
    tokens: int = 0
    steps: int = 0
    output: str | None = None
    output_cut: bool = False

    @model_validator(mode="before")
    @classmethod
    def _known_phase(cls, value: object) -> object:
        phase = value.get("phase") if isinstance(value, dict) else None
        if not isinstance(value, dict) or not isinstance(phase, str) or phase in frozenset(RunPhase):
            return value
        return {**value, "phase": RunPhase.RUNNING if value.get("ended") is None else RunPhase.FAILED}


class OpenRun(Document):
    """The run of an object that is not over."""

    uid: str
    namespace: str


class OpenRuns(Document):
    """As many as are told at once."""

    runs: tuple[OpenRun, ...] = ()


class RunSummary(Document):
    """A run in a list, for people who look. Times in Unix seconds; `reason` is without what models wrote."""

    id: str
    workflow: str = ""  # "namespace/name"
    phase: str = RunPhase.RUNNING.value
    reason: str = ""
    created: float
    ended: float | None = None
    tokens: int = 0


class RunList(Document):
    """Runs of one workflow, the newest first, as many as are told at once."""

    runs: tuple[RunSummary, ...] = ()


class RunTotals(Document):
    """Runs of a workflow at all gateways of a store: in progress, and ended of those that it keeps, a day's.

    The seconds that half of these, and nineteen in twenty, took at most; None where none has ended.
    """

    workflow: str  # "namespace/name"
    active: int = 0
    succeeded: int = 0
    failed: int = 0
    p50_seconds: float | None = None
    p95_seconds: float | None = None


class AllTotals(Document):
    """Of every workflow that has runs."""

    workflows: tuple[RunTotals, ...] = ()


class RunEvent(Document):
    """A unit of a step began (Running), waits for another try, or ended. `at` in Unix seconds.

    Of the call that ended it, where it was a model's: the pool, how long the gateway held it, and how long it took
    to the first token, None where the answer came whole.
    """

    step: str
    item: int | None = None
    phase: str
    reason: str = ""
    tokens: int = 0
    at: float = 0.0
    pool: str | None = None
    prompt_tokens: int | None = None
    queue_seconds: float | None = None
    first_seconds: float | None = None


class RunStory(Document):
    """One run: `steps` as the store has them, `events` as far as the gateway that answers knows of them."""

    summary: RunSummary
    deadline: float | None = None
    moves: int = 0
    steps: tuple[RunEvent, ...] = ()
    events: tuple[RunEvent, ...] = ()
