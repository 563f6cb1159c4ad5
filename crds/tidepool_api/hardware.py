"""What a pod needs of its nodes, and how the model is split over it."""

from enum import StrEnum
from typing import Annotated, Final

from pydantic import AfterValidator, Field

from tidepool_api.kube import ATOMIC_LIST, Document, Labels, Rule, Ruled, matching, patterned

Ways = Annotated[int, Field(ge=1, le=1024)]
RESOURCE_PATTERN: Final = r"^[a-z0-9][-a-z0-9.]*/[A-Za-z0-9][-A-Za-z0-9_.]*$"
RESOURCE: Final = matching(RESOURCE_PATTERN, "is not the resource of a device; write it like nvidia.com/gpu")
ResourceName = Annotated[
    str,
    Field(min_length=1, max_length=317, json_schema_extra=patterned(RESOURCE_PATTERN, RESOURCE)),
    AfterValidator(RESOURCE.check),
]


class TolerationOperator(StrEnum):
    """How a taint's value is compared."""

    EQUAL = "Equal"
    EXISTS = "Exists"


class TaintEffect(StrEnum):
    """What a taint does to pods that do not bear it."""

    NO_SCHEDULE = "NoSchedule"
    PREFER_NO_SCHEDULE = "PreferNoSchedule"
    NO_EXECUTE = "NoExecute"


KEYLESS: Final = Rule(
    "has(self.key) || self.operator == 'Exists'",
    "is needed with operator Equal; set it, or make the operator Exists",
    holds=lambda toleration: toleration.key is not None or toleration.operator is TolerationOperator.EXISTS,
    field=".key",
)


class Toleration(Ruled):
    """A taint that the pods bear, as in a pod."""

    RULES = (KEYLESS,)

    key: Annotated[str, Field(max_length=317)] | None = Field(
        default=None, description="Key of the taint. Absent: every key, with operator Exists."
    )
    operator: TolerationOperator = Field(default=TolerationOperator.EQUAL, description="Exists or Equal.")
    value: Annotated[str, Field(max_length=253)] | None = Field(
        default=None, description="Value of the taint, with operator Equal."
    )
    effect: TaintEffect | None = Field(
        default=None, description="NoSchedule, PreferNoSchedule or NoExecute. Absent: every effect."
    )
    toleration_seconds: Annotated[int, Field(ge=0, le=2**31 - 1)] | None = Field(
        default=None, description="How long a NoExecute taint is borne, in seconds. Absent: for ever."
    )


class Accelerator(Document):
    """The device that each pod asks for, and the nodes that have it."""

    resource: ResourceName = Field(
        default="nvidia.com/gpu", description="Name of the device's resource on the nodes."
    )
    count: Annotated[int, Field(ge=0, le=1024)] = Field(
        default=1, description="Devices of each pod. 0 asks for none, for engines that run on the CPU."
    )
    node_selector: Labels = Field(default_factory=dict, description="Labels of the nodes that may run the pods.")
    tolerations: tuple[Toleration, ...] = Field(
        default=(), max_length=32, description="Taints that the pods bear.", json_schema_extra=ATOMIC_LIST
    )


class Parallelism(Document):
    """How the model is split: tensor x pipeline = accelerator.count x hosts."""

    tensor: Ways = Field(default=1, description="Devices that share each layer.")
    pipeline: Ways = Field(default=1, description="Stages that the layers are split into.")
    hosts: Ways = Field(
        default=1,
        description="Nodes of one replica. More than 1 makes each replica a group of pods, by a LeaderWorkerSet, "
        "which the cluster must have.",
    )


# Of whatever has an accelerator and a parallelism.
SHARDS: Final = Rule(
    "self.accelerator.count == 0 || self.parallelism.tensor * self.parallelism.pipeline"
    " == self.accelerator.count * self.parallelism.hosts",
    "does not fit the accelerators; make tensor x pipeline equal to accelerator.count x hosts",
    holds=lambda spec: (
        spec.accelerator.count == 0
        or spec.parallelism.tensor * spec.parallelism.pipeline == spec.accelerator.count * spec.parallelism.hosts
    ),
    field=".parallelism",
)
