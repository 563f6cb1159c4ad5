"""The model that a pool serves and the engine that serves it."""

from enum import StrEnum
from typing import Annotated, Final

from pydantic import Field

from tidepool_api.engine_args import SPECULATIVE_CONFIG, Argument
from tidepool_api.kube import (
    ATOMIC_LIST,
    SET_LIST,
    Document,
    ObjectName,
    Rule,
    Ruled,
    map_list,
    unique,
)
from tidepool_api.texts import EnvName, Image, ModelUri, Revision, SecretOrMapKey, ServedName, Word
from tidepool_api.units import Fraction

DEFAULT_IMAGE: Final = "vllm/vllm-openai:v0.32.0"

REVISION: Final = Rule(
    "!has(self.revision) || self.uri.startsWith('hf://')",
    "only hf:// models have revisions; leave it out, or point uri at hf://owner/name",
    holds=lambda model: model.revision is None or model.uri.startswith("hf://"),
    field=".revision",
)
TOKEN: Final = Rule(
    "!has(self.authSecretRef) || !(self.uri.startsWith('pvc://') || self.uri.startsWith('file://'))",
    "is for models that are fetched, and pvc:// and file:// ones are not; leave it out",
    holds=lambda model: model.auth_secret_ref is None or not model.uri.startswith(("pvc://", "file://")),
    field=".authSecretRef",
)
ALIASES: Final = Rule(
    "!has(self.name) || !has(self.aliases) || !self.aliases.exists(alias, alias == self.name)",
    "repeats model.name; an alias is a further name, so take it out",
    holds=lambda model: model.name not in model.aliases,
    field=".aliases",
)
ENV_SOURCE: Final = Rule(
    "[has(self.secretKeyRef), has(self.configMapKeyRef), has(self.fieldRef)].filter(set, set).size() == 1",
    "needs exactly one of secretKeyRef, configMapKeyRef and fieldRef",
    holds=lambda source: [source.secret_key_ref, source.config_map_key_ref, source.field_ref].count(None) == 2,
)
ENV_VALUE: Final = Rule(
    "!(has(self.value) && has(self.valueFrom))",
    "has both value and valueFrom; keep one of the two",
    holds=lambda variable: variable.value is None or variable.value_from is None,
)
SPECULATIVE: Final = Rule(
    "!has(self.speculative) || !has(self.args) || "
    f"!self.args.exists(argument, argument.matches(r'{SPECULATIVE_CONFIG.pattern}'))",
    f"--speculative-config is not allowed here; {SPECULATIVE_CONFIG.remedy}",
    holds=lambda engine: (
        engine.speculative is None or not any(SPECULATIVE_CONFIG.sets(argument) for argument in engine.args)
    ),
    field=".args",
)


class SecretKey(Document):
    """One key of a Secret in the pool's namespace. The operator refers to it and never reads it."""

    name: ObjectName = Field(description="Name of the Secret.")
    key: SecretOrMapKey = Field(
        default="token",
        description="Key in the Secret: the token of hf://, or for gs:// the key of a service account as JSON. "
        "Not looked at for s3:// and oci://.",
    )


ADAPTER_PLACE: Final = Rule(
    "!self.uri.startsWith('oci://')",
    "is an image, which a running pod cannot mount; put the adapter on hf://, s3://, gs://, pvc:// or file://",
    holds=lambda adapter: not adapter.uri.startswith("oci://"),
    field=".uri",
)
ADAPTER_NAMES: Final = Rule(
    "!has(self.adapters) || !self.adapters.exists(adapter, (has(self.name) && adapter.name == self.name)"
    " || (has(self.aliases) && adapter.name in self.aliases))",
    "has the name of the model itself or of an alias; give the adapter another",
    holds=lambda model: not {adapter.name for adapter in model.adapters} & {model.name, *model.aliases},
    field=".adapters",
)


class Adapter(Ruled):
    """A LoRA adapter that is served beside the model under a name of its own."""

    RULES = (ADAPTER_PLACE,)

    name: ServedName = Field(description="Name that clients ask for.")
    uri: ModelUri = Field(
        description="Where the adapter lies: hf://owner/name, s3://bucket/path, gs://bucket/path (these two need "
        "a cache with a claim and preload), pvc://claim/path or file:///path."
    )


class Model(Ruled):
    """What is served, and under which names."""

    RULES = (REVISION, TOKEN, ALIASES, ADAPTER_NAMES)

    uri: ModelUri = Field(
        description="Where the model lies: hf://owner/name (Hugging Face), s3://bucket/path, gs://bucket/path, "
        "oci://registry/image:tag#path (an image of files, mounted as a volume), pvc://claim/path (a "
        "PersistentVolumeClaim of the namespace), file:///path (in the image or a podTemplate's volume)."
    )
    name: ServedName | None = Field(
        default=None, description="What clients call the model. Absent: the name of the ModelPool."
    )
    aliases: Annotated[tuple[ServedName, ...], unique()] = Field(
        default=(),
        max_length=32,
        description="Further names that clients may use.",
        json_schema_extra=SET_LIST,
    )
    revision: Revision | None = Field(
        default=None,
        description="Branch, tag or commit of an hf:// model. Absent: the repository's main branch.",
    )
    auth_secret_ref: SecretKey | None = Field(
        default=None,
        description="Secret of the namespace with what it takes to fetch the model, given to the container that "
        "does so. hf://: a token. gs://: the key of a service account. s3://: keys AWS_ACCESS_KEY_ID, "
        "AWS_SECRET_ACCESS_KEY and, where needed, AWS_SESSION_TOKEN. oci://: a Secret of type "
        "kubernetes.io/dockerconfigjson.",
    )
    adapters: Annotated[tuple[Adapter, ...], unique("name")] = Field(
        default=(),
        max_length=64,
        description="LoRA adapters served beside the model. Running engines load and drop them; only the first "
        "one of a pool without adapterSlots, or one on a claim that the pods do not mount yet, takes new pods.",
        json_schema_extra=map_list("name"),
    )
    adapter_slots: int | None = Field(
        default=None,
        ge=1,
        le=64,
        description="Adapters that an engine holds in its accelerator at once; requests for more wait for one "
        "another. Set: engines are ready to take adapters while there are none. Absent: 4 where there are any.",
    )


class Preset(StrEnum):
    """What the engine is tuned for."""

    BALANCED = "Balanced"
    LOW_LATENCY = "LowLatency"
    HIGH_THROUGHPUT = "HighThroughput"


class Speculative(Document):
    """Speculative decoding without a second model."""

    method: Word = Field(description="Method as vLLM names it, such as ngram.")
    tokens: int = Field(ge=1, le=32, description="Tokens proposed at a time.")


class KeyRef(Document):
    """A key of a Secret or a ConfigMap."""

    name: ObjectName = Field(description="Name of the object, in the pool's namespace.")
    key: SecretOrMapKey = Field(description="Key in the object.")
    optional: bool | None = Field(default=None, description="Start also when the object or the key is missing.")


class FieldRef(Document):
    """A field of the pod."""

    api_version: Annotated[str, Field(max_length=63)] | None = Field(
        default=None, description="Version that the path is written in; absent: v1."
    )
    field_path: Annotated[str, Field(min_length=1, max_length=253)] = Field(
        description="Path of the field, such as status.podIP."
    )


class EnvSource(Ruled):
    """Where the value of an environment variable comes from; exactly one."""

    RULES = (ENV_SOURCE,)

    secret_key_ref: KeyRef | None = Field(default=None, description="A key of a Secret.")
    config_map_key_ref: KeyRef | None = Field(default=None, description="A key of a ConfigMap.")
    field_ref: FieldRef | None = Field(default=None, description="A field of the pod.")


class EnvVar(Ruled):
    """An environment variable of the engine, as in a pod."""

    RULES = (ENV_VALUE,)

    name: EnvName = Field(description="Name of the variable.")
    value: Annotated[str, Field(max_length=8192)] | None = Field(
        default=None, description="Value as it stands; keep secrets out of it and use valueFrom."
    )
    value_from: EnvSource | None = Field(default=None, description="Where the value is read from instead.")


class Engine(Ruled):
    """The vLLM engine of each pod."""

    RULES = (SPECULATIVE,)

    image: Image = Field(
        default=DEFAULT_IMAGE, description="Container image with a vLLM server as its entrypoint."
    )
    preset: Preset = Field(
        default=Preset.BALANCED,
        description="What the engine is tuned for. Expands to the flags that status.engineArgs shows.",
    )
    max_model_len: int | None = Field(
        default=None,
        ge=1,
        le=100_000_000,
        description="Longest prompt and answer together, in tokens. Absent: what the model allows.",
    )
    gpu_memory_utilization: Fraction | None = Field(
        default=None,
        description='Share of the device memory that the engine may take, above 0 and up to 1, such as "0.9". '
        "Absent: the engine's own default.",
    )
    quantization: Word | None = Field(
        default=None, description="Quantization as vLLM names it, such as awq. Absent: what the model says."
    )
    prefix_caching: bool | None = Field(
        default=None, description="Keep the KV blocks of prompts for later ones. Absent: the engine's own default."
    )
    chunked_prefill: bool | None = Field(
        default=None,
        description="Mix parts of long prompts with running answers. Absent: the engine's own default.",
    )
    speculative: Speculative | None = Field(default=None, description="Speculative decoding. Absent: none.")
    args: tuple[Argument, ...] = Field(
        default=(),
        max_length=128,
        description="Further arguments of vLLM, after all others. An argument that a field stands for is refused.",
        json_schema_extra=ATOMIC_LIST,
    )
    env: Annotated[tuple[EnvVar, ...], unique("name")] = Field(
        default=(),
        max_length=128,
        description="Environment variables of the engine.",
        json_schema_extra=map_list("name"),
    )
