"""Routing settings of a pool, and the two documents that carry them to routers: Fleet and SidecarSettings.

Both documents are read leniently: a router of the release before must not stop at a field, or at a policy, that it
does not know.
"""

import hashlib
from enum import StrEnum
from typing import Annotated, Any, Final

from pydantic import AfterValidator, BeforeValidator, Field, ValidationInfo

from tidepool_api.kube import Document, Rule, validations
from tidepool_api.traffic import Traffic
from tidepool_api.trust import TrustedCallers
from tidepool_api.units import Duration, Quantity

Name = Annotated[str, Field(min_length=1, max_length=253)]


class Policy(StrEnum):
    """How a pod is picked for a request."""

    PREDICTED = "Predicted"
    LEAST_LOAD = "LeastLoad"
    PREFIX_HASH = "PrefixHash"
    ROUND_ROBIN = "RoundRobin"


class Queue(Document):
    """Bounds of the requests that wait, for each router process."""

    max_waiting: int = Field(default=256, ge=0, le=100_000, description="Requests that may wait at once.")
    max_bytes: Quantity = Field(default="64Mi", description="Bytes of request bodies that may wait at once.")
    timeout: Duration = Field(default="60s", description="Longest wait for a place on a pod that runs.")
    cold_start_timeout: Duration = Field(
        default="600s", description="Longest wait for the first pod of a pool that was at zero."
    )


PRIORITY_NAMES: Final = Rule(
    "self.all(name, size(name) <= 63)",
    "has a name of more than 63 characters; shorten it",
    holds=lambda priorities: all(len(name) <= 63 for name in priorities),
)
Priorities = Annotated[
    dict[str, Annotated[int, Field(ge=-1000, le=1000)]],
    Field(max_length=16, json_schema_extra=validations([PRIORITY_NAMES])),
    AfterValidator(PRIORITY_NAMES.check),
]


class Routing(Document):
    """Settings that change without restarting an engine."""

    policy: Policy = Field(default=Policy.PREDICTED, description="How a pod is picked for a request.")
    queue: Queue = Field(default_factory=Queue, description="Bounds of the requests that wait.")
    priorities: Priorities = Field(
        default_factory=lambda: {"interactive": 100, "batch": 0},
        description="Names that x-tidepool-priority may carry; the higher number goes first.",
    )
    retries: int = Field(
        default=2, ge=0, le=10, description="Other pods tried before the first byte of an answer."
    )


# Context of a validation that takes no policy it does not know: a person's mistake must not pass in silence.
STRICT: Final = {"strict": True}


def _known_policy(value: object, info: ValidationInfo) -> object:
    """A policy of a later release becomes the default one."""
    if info.context == STRICT or not isinstance(value, dict):
        return value
    policy = value.get("policy")
    unknown = isinstance(policy, str) and policy not in frozenset(Policy)
    return {**value, "policy": Policy.PREDICTED} if unknown else value


LenientRouting = Annotated[Routing, BeforeValidator(_known_policy)]


class WantedAdapter(Document):
    """A LoRA adapter that an engine is to have, and where it finds it: a path, or a repository of the hub."""

    name: Name
    path: Annotated[str, Field(min_length=1, max_length=2048)]


class SidecarSettings(Document):
    """What a sidecar knows of its pool: start value from a mounted file, then pushed by the operator."""

    pool: Name
    namespace: Name = "default"
    model: Name | None = None  # what the engine must serve to be ready; None: whatever it serves
    aliases: tuple[Name, ...] = ()
    routing: LenientRouting = Routing()
    drain_timeout: Duration = "300s"
    ask_usage: bool = True
    # The engine schedules by priority: then requests tell it theirs. One that does not refuses them.
    engine_priority: bool = False
    # Whose word on priority, tenant and deadline counts; None: everybody's.
    trust: TrustedCallers | None = None
    # Adapters that the engine is to have, and no others; None: whatever it was started with.
    adapters: Annotated[tuple[WantedAdapter, ...], Field(max_length=256)] | None = None

    def digest(self) -> str:
        """Short hash that a load report carries, so that the operator sees which settings are in force."""
        return hashlib.sha256(self.model_dump_json(by_alias=True).encode()).hexdigest()[:12]


class FleetPrefill(Document):
    """The pods that compute a pool's prompts, where others decode: `endpoints` as in FleetPool.

    A prompt with fewer uncached tokens than `min_tokens` is computed where it is decoded: passing its blocks on
    would take longer than computing them.
    """

    endpoints: tuple[str, ...] = Field(default=(), max_length=10_000)
    min_tokens: int = Field(default=256, ge=0, le=10_000_000)


class FleetPool(Document):
    """One pool as a gateway sees it.

    `endpoints` are base URLs of sidecars or of bare engines; `dns+http://host:port` stands for every A record of
    the host, asked again and again. `models[0]` is what the engine calls the model. `adapters` are the names of
    LoRA adapters that its engines serve beside it; those that sidecars tell of are found without. With `prefill`
    the endpoints decode, and compute only what is short, cached, or left over by the others. `hosts` are those at
    which classifiers of its `traffic` may be, beside those of the gateway's flags.
    """

    name: Name
    models: tuple[Name, ...] = Field(min_length=1, max_length=64)
    adapters: tuple[Name, ...] = Field(default=(), max_length=256)
    endpoints: tuple[str, ...] = Field(default=(), max_length=10_000)
    routing: LenientRouting = Routing()
    traffic: Traffic | None = None
    hosts: tuple[Name, ...] = Field(default=(), max_length=64)
    prefill: FleetPrefill | None = None
    # Somebody starts a pod when a request waits: hold it for coldStartTimeout, not for timeout.
    wakes: bool = False


class FleetWorkflow(Document):
    """One workflow as a gateway sees it: its name (`namespace/name`), its spec as its writer wrote it, which the
    gateway judges itself, and the hosts that its steps may call beside those of the gateway's flags."""

    name: Name
    spec: dict[str, Any]
    hosts: tuple[Name, ...] = Field(default=(), max_length=64)


class Fleet(Document):
    """All pools of a gateway, and the workflows that run on them.

    `issued_at` (Unix seconds) orders the documents of the operator: an older one is ignored.
    """

    issued_at: float | None = None
    # How many gateways share the limits of an API key, this one included.
    gateways: int = Field(default=1, ge=1, le=10_000)
    pools: tuple[FleetPool, ...] = Field(default=(), max_length=10_000)
    workflows: tuple[FleetWorkflow, ...] = Field(default=(), max_length=1000)
