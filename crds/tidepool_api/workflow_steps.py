"""The steps of an AgentWorkflow: what each does, when, how often, and what its failure means."""

from enum import StrEnum
from typing import Annotated, Final

from pydantic import AfterValidator, Field

from tidepool_api.kube import (
    ATOMIC_LIST,
    INT_OR_STRING,
    SET_LIST,
    Document,
    FreeObject,
    ObjectName,
    Rule,
    Ruled,
    map_list,
    matching,
    patterned,
    unique,
)
from tidepool_api.units import DurationUpToDay, DurationUpToHour

# Templates read steps.NAME, so a hyphen would be a minus there.
STEP_NAME_PATTERN: Final = r"^[a-z][a-z0-9_]*$"
STEP_NAME: Final = matching(
    STEP_NAME_PATTERN, "is not a step's name; use lower case letters, digits and _ and begin with a letter"
)
KINDS: Final = ("llm", "http", "mcp", "workflow", "choose")
ONE_KIND: Final = Rule(
    f"[{', '.join(f'has(self.{kind})' for kind in KINDS)}].filter(set, set).size() == 1",
    f"needs exactly one of {', '.join(KINDS)}",
    holds=lambda step: len([kind for kind in KINDS if getattr(step, kind) is not None]) == 1,
)
ONE_SOURCE: Final = Rule(
    "!(has(self.withItems) && has(self.withParam))",
    "is set beside withItems; keep one of the two",
    holds=lambda step: step.with_items is None or step.with_param is None,
    field=".withParam",
)

StepName = Annotated[
    str,
    Field(min_length=1, max_length=63, json_schema_extra=patterned(STEP_NAME_PATTERN, STEP_NAME)),
    AfterValidator(STEP_NAME.check),
]
Template = Annotated[str, Field(max_length=32_768)]
ItemText = Annotated[str, Field(max_length=4096)]
ShortTemplate = Annotated[str, Field(min_length=1, max_length=4096)]
# Items of other shapes are written as JSON in withParam: CEL sees no list whose items have no type.
Item = Annotated[int | ItemText, Field(json_schema_extra={INT_OR_STRING: True, "maxLength": 4096})]


class PoolChoice(Document):
    """A pool that may answer, and how well it does."""

    name: ObjectName = Field(description="Name of a ModelPool in the workflow's namespace.")
    quality: Annotated[float, Field(ge=0, le=1)] | None = Field(
        default=None, description="Measured quality of its answers for this step, 0 to 1."
    )


class Role(StrEnum):
    """Who speaks."""

    SYSTEM = "system"
    USER = "user"
    ASSISTANT = "assistant"


class ChatMessage(Document):
    """One message of a chat."""

    role: Role = Field(description="Who speaks.")
    content: Template = Field(description="What is said; a template.")


Pools = Annotated[
    tuple[PoolChoice, ...],
    Field(min_length=1, max_length=16, json_schema_extra=map_list("name")),
    unique("name"),
]
Messages = Annotated[tuple[ChatMessage, ...], Field(max_length=64, json_schema_extra=ATOMIC_LIST)]


class Llm(Document):
    """Ask a model."""

    pools: Pools = Field(description="Pools that may answer; the best for quality, latency and load is taken.")
    messages: Messages = Field(
        default=(), description="What is asked. Empty: the messages that the workflow was called with."
    )
    response_format: FreeObject | None = Field(
        default=None, description="JSON Schema of the answer, passed on to the engine."
    )
    max_tokens: Annotated[int, Field(ge=1, le=10_000_000)] | None = Field(
        default=None,
        description="Most tokens of the answer, which ends there. Absent: as many as the engine gives.",
    )


class Method(StrEnum):
    """HTTP method."""

    GET = "GET"
    POST = "POST"
    PUT = "PUT"
    PATCH = "PATCH"
    DELETE = "DELETE"


class Http(Document):
    """Call an address."""

    method: Method = Field(default=Method.GET, description="HTTP method.")
    url: ShortTemplate = Field(description="The address; a template.")
    body: Template | None = Field(default=None, description="Body of the request; a template.")


class Mcp(Document):
    """Call a tool of an MCP server."""

    server: ShortTemplate = Field(description="Address of the server.")
    tool: Annotated[str, Field(min_length=1, max_length=253)] = Field(description="Name of the tool.")
    arguments: FreeObject | None = Field(default=None, description="Arguments of the tool; texts are templates.")


class SubWorkflow(Document):
    """Run another workflow."""

    name: ObjectName = Field(description="Name of an AgentWorkflow in the same namespace.")
    input: FreeObject | None = Field(default=None, description="Its input; texts are templates.")


class Choose(Document):
    """Let a model pick what to do next, turn by turn, until it picks nothing."""

    pools: Pools = Field(description="Pools that may pick.")
    messages: Messages = Field(
        default=(), description="What is asked. Empty: the messages that the workflow was called with."
    )
    among: Annotated[tuple[StepName, ...], unique()] = Field(
        min_length=1,
        max_length=32,
        description="Steps that may be picked, once a turn; they run only when picked.",
        json_schema_extra=SET_LIST,
    )
    max_turns: Annotated[int, Field(ge=1, le=64)] = Field(default=8, description="Most turns.")


class Backoff(Document):
    """How long to wait between tries."""

    duration: DurationUpToHour = Field(default="1s", description="Wait before the second try.")
    factor: Annotated[float, Field(ge=1, le=10)] = Field(default=2, description="Growth of the wait.")
    cap: DurationUpToHour = Field(default="30s", description="Longest wait.")


class RetryStrategy(Document):
    """How often a step that failed is tried again."""

    limit: Annotated[int, Field(ge=0, le=10)] = Field(default=2, description="Tries after the first.")
    backoff: Backoff = Field(default_factory=Backoff, description="How long to wait between tries.")


class Dependency(StrEnum):
    """What a step's failure means for the run."""

    HARD = "Hard"
    SOFT = "Soft"


class Step(Ruled):
    """One step: exactly one of llm, http, mcp, workflow and choose."""

    RULES = (ONE_KIND, ONE_SOURCE)

    name: StepName = Field(description="Name; templates read what came of the step at steps.NAME.")
    depends: Annotated[str, Field(min_length=1, max_length=2048)] | None = Field(
        default=None,
        description='Steps to be done before, in Argo\'s words, such as "a && (b || c.Failed)". Absent: none.',
    )
    when: ShortTemplate | None = Field(
        default=None, description="Template; the step is skipped unless it comes out true."
    )
    with_items: tuple[Item, ...] | None = Field(
        default=None,
        max_length=256,
        description="Fan out: one run of the step per item (a number or a text), at {{ item }}; results in the "
        "order of the items.",
        json_schema_extra=ATOMIC_LIST,
    )
    with_param: ShortTemplate | None = Field(
        default=None, description="Fan out over the JSON list, of any items, that this template makes."
    )
    max_parallel: Annotated[int, Field(ge=1, le=256)] = Field(
        default=8, description="Runs of a fanned out step at a time."
    )
    llm: Llm | None = Field(default=None, description="Ask a model.")
    http: Http | None = Field(default=None, description="Call an address.")
    mcp: Mcp | None = Field(default=None, description="Call a tool of an MCP server.")
    workflow: SubWorkflow | None = Field(default=None, description="Run another workflow.")
    choose: Choose | None = Field(default=None, description="Let a model pick what to do next.")
    retry_strategy: RetryStrategy | None = Field(
        default=None, description="How often the step is tried again. Absent: not at all."
    )
    timeout: DurationUpToDay | None = Field(
        default=None, description="Longest time of one try. Absent: what is left of the deadline."
    )
    dependency: Dependency = Field(
        default=Dependency.HARD, description="Hard: its failure fails the run. Soft: the run goes on."
    )
