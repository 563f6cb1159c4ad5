"""ModelPool: serve this model, with so many engines, in this way."""

import re
from typing import Final, Self, cast

from pydantic import Field, ValidationError, ValidatorFunctionWrapHandler, field_validator, model_validator

from tidepool_api.contract import API_VERSION
from tidepool_api.engine import Engine, Model
from tidepool_api.engine_args import ADAPTER_FLAGS, KV_TRANSFER_CONFIG
from tidepool_api.hardware import SHARDS, Accelerator, Parallelism
from tidepool_api.kube import Rule, Ruled
from tidepool_api.metadata import Metadata
from tidepool_api.placement import Access, Cache, Disaggregation, Disruption, PodTemplate, Rollout, Scheduling
from tidepool_api.routing import Routing
from tidepool_api.scaling import Replicas, Scaling
from tidepool_api.status import ModelPoolStatus
from tidepool_api.traffic import Traffic

KIND: Final = "ModelPool"
# The longest name that is derived from a pool's is that of its Services, which are DNS labels.
MAX_NAME_LENGTH: Final = 50

APART_ARGS: Final = Rule(
    "!has(self.disaggregation) || !has(self.engine) || !has(self.engine.args)"
    f" || !self.engine.args.exists(argument, argument.matches(r'{KV_TRANSFER_CONFIG.pattern}'))",
    f"has --kv-transfer-config, but {KV_TRANSFER_CONFIG.remedy}",
    holds=lambda spec: spec.disaggregation is None or not any(map(KV_TRANSFER_CONFIG.sets, spec.engine.args)),
    field=".engine.args",
)
APART_PIPELINE: Final = Rule(
    "!has(self.disaggregation) || self.parallelism.pipeline == 1",
    "does not go with disaggregation: engines that decode what others prefilled have one stage; set it to 1",
    holds=lambda spec: spec.disaggregation is None or spec.parallelism.pipeline == 1,
    field=".parallelism.pipeline",
)
# Ranks of an engine are laid out in equal parts over its nodes.
EVEN_HOSTS: Final = Rule(
    "self.parallelism.tensor * self.parallelism.pipeline % self.parallelism.hosts == 0",
    "does not divide tensor x pipeline; each node has as many parts of the model as the others",
    holds=lambda spec: spec.parallelism.tensor * spec.parallelism.pipeline % spec.parallelism.hosts == 0,
    field=".parallelism.hosts",
)
APART_HOSTS: Final = Rule(
    "!has(self.disaggregation) || self.parallelism.hosts == 1",
    "is more than 1, and with disaggregation an engine is one pod; set it to 1",
    holds=lambda spec: spec.disaggregation is None or spec.parallelism.hosts == 1,
    field=".parallelism.hosts",
)
# The engines find each other by these, which the operator sets for each pod.
_SIDE_CHANNEL: Final = "VLLM_NIXL_SIDE_CHANNEL_"
APART_ENV: Final = Rule(
    "!has(self.disaggregation) || !has(self.engine) || !has(self.engine.env)"
    f" || !self.engine.env.exists(variable, variable.name.startsWith('{_SIDE_CHANNEL}'))",
    f"sets {_SIDE_CHANNEL}HOST or _PORT, which spec.disaggregation sets for each pod; take it out",
    holds=lambda spec: (
        spec.disaggregation is None
        or not any(variable.name.startswith(_SIDE_CHANNEL) for variable in spec.engine.env)
    ),
    field=".engine.env",
)
NAME: Final = Rule(
    f"size(self.metadata.name) <= {MAX_NAME_LENGTH} && self.metadata.name.matches('^[a-z]([-a-z0-9]*[a-z0-9])?$')",
    f"must be at most {MAX_NAME_LENGTH} lower case letters, digits and hyphens and begin with a letter, since "
    "Services are named after it; choose another name",
    holds=lambda pool: re.fullmatch(r"[a-z]([-a-z0-9]{0,48}[a-z0-9])?", pool.metadata.name) is not None,
    field=".metadata.name",
)
# A StatefulSet's name and its revision's hash make a label of its pods, and groups have numbers of up to 4 digits.
MAX_GROUP_NAME_LENGTH: Final = 35
GROUP_NAME: Final = Rule(
    "!has(self.spec.parallelism) || self.spec.parallelism.hosts == 1"
    f" || size(self.metadata.name) <= {MAX_GROUP_NAME_LENGTH}",
    f"must be at most {MAX_GROUP_NAME_LENGTH} characters where parallelism.hosts is above 1, since StatefulSets "
    "are named after it; choose another name",
    holds=lambda pool: pool.spec.parallelism.hosts == 1 or len(pool.metadata.name) <= MAX_GROUP_NAME_LENGTH,
    field=".metadata.name",
)
OWN_ALIAS: Final = Rule(
    "has(self.spec.model.name) || !has(self.spec.model.aliases)"
    " || !self.spec.model.aliases.exists(alias, alias == self.metadata.name)",
    "repeats metadata.name, which clients may use already; take it out",
    holds=lambda pool: pool.spec.model.name is not None or pool.metadata.name not in pool.spec.model.aliases,
    field=".spec.model.aliases",
)
OWN_TRAFFIC: Final = Rule(
    "!has(self.spec.traffic) || ("
    "(!has(self.spec.traffic.split) || self.spec.traffic.split.all(share, share.pool != self.metadata.name))"
    " && (!has(self.spec.traffic.fallback) || !(self.metadata.name in self.spec.traffic.fallback))"
    " && (!has(self.spec.traffic.mirror) || self.spec.traffic.mirror.pool != self.metadata.name))",
    "names this pool itself in split, mirror or fallback, where only other pools have a place; take it out",
    holds=lambda pool: pool.spec.traffic is None or pool.metadata.name not in _elsewhere(pool.spec.traffic),
    field=".spec.traffic",
)
SAME_NAMESPACE: Final = Rule(
    "!has(self.traffic) || ("
    "(!has(self.traffic.split) || self.traffic.split.all(share, !share.pool.contains('/')))"
    " && (!has(self.traffic.fallback) || self.traffic.fallback.all(pool, !pool.contains('/')))"
    " && (!has(self.traffic.mirror) || !self.traffic.mirror.pool.contains('/'))"
    " && (!has(self.traffic.rules) || self.traffic.rules.all(rule,"
    " (!has(rule.pool) || !rule.pool.contains('/'))"
    " && (!has(rule.classifier) || rule.classifier.classes.all(each, !each.pool.contains('/'))))))",
    "names a pool with a slash; only pools of the same namespace can be named, by their plain name",
    holds=lambda spec: spec.traffic is None or not any("/" in pool for pool in spec.traffic.targets),
    field=".traffic",
)
_FETCHED: Final = ("hf://", "s3://", "gs://")
CACHED: Final = Rule(
    "!has(self.cache) || ['hf://', 's3://', 'gs://'].exists(start, self.model.uri.startsWith(start)"
    " || (has(self.model.adapters) && self.model.adapters.exists(adapter, adapter.uri.startsWith(start))))",
    "has nothing to keep, since neither the model nor an adapter is on hf://, s3:// or gs://; take it out",
    holds=lambda spec: spec.cache is None or any(uri.startswith(_FETCHED) for uri in _uris(spec)),
    field=".cache",
)
ADAPTER_CACHE: Final = Rule(
    "!has(self.model.adapters) || !self.model.adapters.exists(adapter, adapter.uri.startsWith('s3://')"
    " || adapter.uri.startsWith('gs://'))"
    " || (has(self.cache) && has(self.cache.persistentVolumeClaim)"
    " && (!has(self.cache.preload) || self.cache.preload))",
    "has one on s3:// or gs://, which comes to running engines by the cache; set spec.cache.persistentVolumeClaim "
    "and leave preload on",
    holds=lambda spec: (
        not any(adapter.uri.startswith(("s3://", "gs://")) for adapter in spec.model.adapters)
        or (spec.cache is not None and spec.cache.persistent_volume_claim is not None and spec.cache.preload)
    ),
    field=".model.adapters",
)
ADAPTER_ARGS: Final = Rule(
    "!(has(self.model.adapterSlots) || (has(self.model.adapters) && size(self.model.adapters) > 0))"
    " || !has(self.engine) || !has(self.engine.args)"
    f" || !self.engine.args.exists(argument, argument.matches(r'{ADAPTER_FLAGS.pattern}'))",
    f"has flags of adapters; {ADAPTER_FLAGS.remedy}",
    holds=lambda spec: (
        not (spec.model.adapter_slots or spec.model.adapters) or not any(map(ADAPTER_FLAGS.sets, spec.engine.args))
    ),
    field=".engine.args",
)
OWN_ADAPTER: Final = Rule(
    "has(self.spec.model.name) || !has(self.spec.model.adapters)"
    " || !self.spec.model.adapters.exists(adapter, adapter.name == self.metadata.name)",
    "has an adapter of metadata.name, by which clients ask for the model; give it another name",
    holds=lambda pool: (
        pool.spec.model.name is not None
        or all(adapter.name != pool.metadata.name for adapter in pool.spec.model.adapters)
    ),
    field=".spec.model.adapters",
)


def _uris(spec: "ModelPoolSpec") -> tuple[str, ...]:
    return (spec.model.uri, *(adapter.uri for adapter in spec.model.adapters))


MIXED: Final = Rule(
    "!has(self.disaggregation) || !has(self.scaling) || !has(self.scaling.variants)"
    " || size(self.scaling.variants) == 0",
    "stands beside disaggregation, whose roles each have pods of one kind; leave one of the two out",
    holds=lambda spec: spec.disaggregation is None or spec.scaling is None or not spec.scaling.variants,
    field=".scaling.variants",
)


def _elsewhere(traffic: Traffic) -> tuple[str, ...]:
    shares = tuple(share.pool for share in traffic.split)
    return shares + traffic.fallback + ((traffic.mirror.pool,) if traffic.mirror is not None else ())


class ModelPoolSpec(Ruled):
    """What is wanted of a pool."""

    RULES = (
        SHARDS, SAME_NAMESPACE, CACHED, ADAPTER_CACHE, ADAPTER_ARGS, MIXED, APART_ARGS, APART_ENV, APART_PIPELINE,
        EVEN_HOSTS, APART_HOSTS,
    )  # fmt: skip

    model: Model = Field(description="What is served, and under which names.")
    engine: Engine = Field(default_factory=Engine, description="The vLLM engine of each pod.")
    accelerator: Accelerator = Field(
        default_factory=Accelerator, description="The device that each pod asks for, and the nodes that have it."
    )
    parallelism: Parallelism = Field(
        default_factory=Parallelism,
        description="How the model is split: tensor x pipeline = accelerator.count x hosts.",
    )
    replicas: Replicas = Field(
        default=1,
        description="Number of engine pods. With scaling, the autoscaler writes it; otherwise people, an HPA or "
        "KEDA do, through the scale subresource.",
    )
    scaling: Scaling | None = Field(
        default=None, description="The built-in autoscaler. Absent: replicas is left to others."
    )
    disaggregation: Disaggregation | None = Field(
        default=None,
        description="Prefill and decode in pods of their own, joined by the gateway. Absent: every pod does both.",
    )
    routing: Routing = Field(
        default_factory=Routing, description="How requests reach the engines; changes restart nothing."
    )
    traffic: Traffic | None = Field(
        default=None,
        description="What the gateway does with requests for this pool's names: rules, shares for other pools, "
        "copies, fallback. Absent: they all go to this pool.",
    )
    rollout: Rollout = Field(default_factory=Rollout, description="How a change of the pods is rolled out.")
    cache: Cache | None = Field(default=None, description="Where model files are kept. Absent: in each pod.")
    disruption: Disruption = Field(default_factory=Disruption, description="What an eviction may take away.")
    access: Access = Field(default_factory=Access, description="Who may use the pool's own Service.")
    scheduling: Scheduling = Field(default_factory=Scheduling, description="Where the pods are placed.")
    pod_template: PodTemplate = Field(
        default_factory=dict,
        description="Strategic merge onto the pod: metadata and spec. The containers are named engine and router.",
    )


class ModelPool(Ruled):
    """A pool of engines that serve one model."""

    RULES = (NAME, GROUP_NAME, OWN_ALIAS, OWN_ADAPTER, OWN_TRAFFIC)

    api_version: str = API_VERSION
    kind: str = KIND
    metadata: Metadata = Field(default_factory=Metadata)
    spec: ModelPoolSpec = Field(description="What is wanted of the pool.")
    status: ModelPoolStatus = Field(default_factory=ModelPoolStatus, description="Observed state of the pool.")

    @model_validator(mode="after")
    def _obey(self) -> Self:
        # A pool whose name breaks a rule is read all the same, so that the operator can say so; see problems().
        return self

    @field_validator("status", mode="wrap")
    @classmethod
    def _tolerate(cls, value: object, read: ValidatorFunctionWrapHandler) -> ModelPoolStatus:
        # A status that an older or newer release wrote must not stop the pool: it is written anew.
        try:
            return cast(ModelPoolStatus, read(value))
        except ValidationError:
            return ModelPoolStatus()

    @property
    def key(self) -> str:
        """`namespace/name`."""
        return f"{self.metadata.namespace}/{self.metadata.name}"

    @property
    def served_name(self) -> str:
        """What clients call the model."""
        return self.spec.model.name or self.metadata.name

    @property
    def served_names(self) -> tuple[str, ...]:
        """The served name, then the aliases."""
        return (self.served_name, *self.spec.model.aliases)
