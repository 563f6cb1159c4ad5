"""How pods come, go, are placed and are reached."""

import re
from enum import StrEnum
from typing import Annotated, Any, Final

from pydantic import AfterValidator, BeforeValidator, Field

from tidepool_api.kube import (
    ATOMIC_LIST,
    INT_OR_STRING,
    PRESERVE,
    Document,
    Labels,
    ObjectName,
    Rule,
    Ruled,
    validations,
)
from tidepool_api.texts import HostPath
from tidepool_api.units import DurationUpToDay, DurationUpToHour

PERCENT_PATTERN: Final = "^(100|[1-9]?[0-9])%$"
AUTO: Final = "Auto"
MAX_COUNT: Final = 10_000


def _is_count(value: object) -> bool:
    if isinstance(value, int):
        return 0 <= value <= MAX_COUNT
    return isinstance(value, str) and re.fullmatch(PERCENT_PATTERN, value) is not None


SURGE: Final = Rule(
    f"type(self) == int ? self >= 0 && self <= {MAX_COUNT}"
    f" : string(self) == 'Auto' || string(self).matches('{PERCENT_PATTERN}')",
    "is not Auto, a number or a percentage; write Auto, 1 or 25%",
    holds=lambda value: value == AUTO or _is_count(value),
)
COUNT: Final = Rule(
    f"type(self) == int ? self >= 0 && self <= {MAX_COUNT} : string(self).matches('{PERCENT_PATTERN}')",
    "is not a number or a percentage; write 1 or 25%",
    holds=_is_count,
)
STUCK: Final = Rule(
    # The API server judges the default {} before it fills in what is inside.
    "!has(self.maxSurge) || !has(self.maxUnavailable)"
    " || !(string(self.maxSurge) in ['0', '0%'] && string(self.maxUnavailable) in ['0', '0%'])",
    "is 0 and so is maxSurge, so no pod could ever be replaced; raise one of the two",
    holds=lambda rollout: not {rollout.max_surge, rollout.max_unavailable} <= {0, "0%"},
    field=".maxUnavailable",
)
HOST_NETWORK: Final = Rule(
    "!has(self.spec) || !has(self.spec.hostNetwork) || !self.spec.hostNetwork",
    "is refused, since the engine would be open to everybody on the node; leave it out",
    holds=lambda template: not isinstance(template.get("spec"), dict) or not template["spec"].get("hostNetwork"),
    field=".spec.hostNetwork",
)

# Auto, a number of pods, or a percentage of them.
Surge = Annotated[
    int | str,
    BeforeValidator(SURGE.check),
    Field(json_schema_extra={INT_OR_STRING: True} | validations([SURGE])),
]
Count = Annotated[
    int | str,
    BeforeValidator(COUNT.check),
    Field(json_schema_extra={INT_OR_STRING: True} | validations([COUNT])),
]


class Rollout(Ruled):
    """How a change of the pods' shape is rolled out."""

    RULES = (STUCK,)

    max_surge: Surge = Field(
        default=AUTO,
        description="Pods above the wanted count during a rollout; Auto: the operator chooses.",
    )
    max_unavailable: Surge = Field(
        default=AUTO,
        description="Pods below the wanted count during a rollout; Auto: the operator chooses.",
    )
    drain_timeout: DurationUpToHour = Field(
        default="300s", description="How long a pod that goes may finish what it runs."
    )
    progress_deadline: DurationUpToDay = Field(
        default="3600s", description="How long a new pod may take until the rollout counts as stuck."
    )
    restart: Annotated[str, Field(max_length=64)] = Field(
        default="",
        description="A new value, such as a date, replaces all pods in the way of a rollout, although nothing "
        "else changed, and brings them the router of the installed release.",
    )


CACHE_PLACE: Final = Rule(
    "has(self.persistentVolumeClaim) != has(self.hostPath)",
    "needs either persistentVolumeClaim or hostPath; set one of the two",
    holds=lambda cache: (cache.persistent_volume_claim is None) != (cache.host_path is None),
)


class Retention(StrEnum):
    """What becomes of files that the spec does not want any more."""

    RETAIN = "Retain"
    DELETE = "Delete"


CACHE_RETENTION: Final = Rule(
    "!has(self.retention) || self.retention != 'Delete'"
    " || (has(self.persistentVolumeClaim) && (!has(self.preload) || self.preload))",
    "Delete needs persistentVolumeClaim and preload, since Jobs remove only what Jobs have loaded; set Retain",
    holds=lambda cache: (
        cache.retention is not Retention.DELETE or (cache.persistent_volume_claim is not None and cache.preload)
    ),
    field=".retention",
)


class Cache(Ruled):
    """Where model files are kept between pods; exactly one place."""

    RULES = (CACHE_PLACE, CACHE_RETENTION)

    persistent_volume_claim: ObjectName | None = Field(
        default=None,
        description="Name of a PersistentVolumeClaim of the namespace, which all pods of the pool mount.",
    )
    host_path: HostPath | None = Field(
        default=None,
        description="A folder of each node that user 1000 may write to, shared by the pods of that node. The "
        "Pod Security Standards baseline and restricted forbid it.",
    )
    preload: bool = Field(
        default=True,
        description="Load the model's files before the engine starts: into a claim by a Job, before the first pod "
        "of a new model is made, and into a node's folder by the first pod there. False: each engine loads what "
        "it misses.",
    )
    retention: Retention = Field(
        default=Retention.RETAIN,
        description="Delete: files that the spec does not want any more are removed when no revision that is kept "
        "for a change back needs them, and no other pool has loaded them too. Those of a deleted pool stay.",
    )


class Disruption(Document):
    """What an eviction, such as a node's drain, may take away."""

    max_unavailable: Count = Field(
        default=1, description="Pods that may be missing at once because of evictions; a number or a percentage."
    )


class SelectorOperator(StrEnum):
    """How a label is compared."""

    IN = "In"
    NOT_IN = "NotIn"
    EXISTS = "Exists"
    DOES_NOT_EXIST = "DoesNotExist"


class Requirement(Document):
    """A condition on a label."""

    key: Annotated[str, Field(min_length=1, max_length=317)] = Field(description="Key of the label.")
    operator: SelectorOperator = Field(description="How the label is compared.")
    values: tuple[Annotated[str, Field(max_length=63)], ...] = Field(
        default=(), max_length=64, description="Values of In and NotIn.", json_schema_extra=ATOMIC_LIST
    )


class Selector(Document):
    """Labels that are chosen by; empty: everything."""

    match_labels: Labels = Field(default_factory=dict, description="Labels and the values that they must have.")
    match_expressions: tuple[Requirement, ...] = Field(
        default=(), max_length=16, description="Further conditions on labels.", json_schema_extra=ATOMIC_LIST
    )


class IpBlock(Document):
    """A range of addresses."""

    cidr: Annotated[str, Field(min_length=1, max_length=64)] = Field(description="The range, such as 10.0.0.0/8.")
    except_: tuple[Annotated[str, Field(min_length=1, max_length=64)], ...] = Field(
        default=(),
        alias="except",
        max_length=64,
        description="Ranges inside it that are left out.",
        json_schema_extra=ATOMIC_LIST,
    )


PEER: Final = Rule(
    "has(self.ipBlock) != (has(self.podSelector) || has(self.namespaceSelector))",
    "needs podSelector, namespaceSelector or both, or ipBlock alone",
    holds=lambda peer: (
        (peer.ip_block is not None) != (peer.pod_selector is not None or peer.namespace_selector is not None)
    ),
)


class Peer(Ruled):
    """Somebody who may use the pool's own Service, as in a NetworkPolicy."""

    RULES = (PEER,)

    pod_selector: Selector | None = Field(
        default=None, description="Pods, in the pool's namespace unless namespaceSelector is set."
    )
    namespace_selector: Selector | None = Field(default=None, description="Namespaces.")
    ip_block: IpBlock | None = Field(default=None, description="Addresses outside the cluster.")


class Access(Document):
    """Who may use the pool's own Service."""

    from_: tuple[Peer, ...] = Field(
        default=(),
        alias="from",
        max_length=32,
        description="Who may use the pool's own Service. Empty: the same namespace. Gateways always may.",
        json_schema_extra=ATOMIC_LIST,
    )


class Scheduling(Document):
    """Where the pods are placed."""

    priority_class_name: Annotated[str, Field(max_length=253)] = Field(
        default="", description="PriorityClass of the pods. Empty: the cluster's default."
    )
    topology_spread: bool = Field(default=True, description="Spread the pods over nodes and zones where possible.")


class Connector(StrEnum):
    """How KV blocks travel from prefill to decode."""

    NIXL = "Nixl"


class Prefill(Document):
    """The pods that compute prompts."""

    replicas: Annotated[int, Field(ge=1, le=10_000)] = Field(
        default=1, description="Number of prefill pods; none while the pool is at zero."
    )
    min_tokens: Annotated[int, Field(ge=0, le=10_000_000)] = Field(
        default=256,
        description="Prompt tokens, cached ones left out, from which a prefill pod computes the prompt. Shorter "
        "ones are computed where they are decoded. A change restarts nothing.",
    )


class Disaggregation(Document):
    """Prefill and decode in pods of their own; spec.replicas counts the decode pods, and scaling drives it."""

    prefill: Prefill = Field(default_factory=Prefill, description="The pods that compute prompts.")
    connector: Connector = Field(
        default=Connector.NIXL, description="How KV blocks travel from prefill to decode."
    )


# Only what a rule looks at is spelled out; the API server's dry run judges the rest.
POD_TEMPLATE_SCHEMA: Final[dict[str, Any]] = {
    PRESERVE: True,
    "properties": {
        "metadata": {
            "type": "object",
            "description": "Labels and annotations of the pods.",
            PRESERVE: True,
        },
        "spec": {
            "type": "object",
            "description": "Fields of the pod's spec.",
            PRESERVE: True,
            "properties": {"hostNetwork": {"type": "boolean", "description": "Refused where true."}},
        },
    },
} | validations([HOST_NETWORK])
PodTemplate = Annotated[
    dict[str, Any], Field(json_schema_extra=POD_TEMPLATE_SCHEMA), AfterValidator(HOST_NETWORK.check)
]
