"""One accepted and one refused object for every rule of the generated CRDs.

`rules()` lists the rules of the CRDs; `case_of` finds the case of one, by its place and message. A rule without a
case raises NoCase, so no rule can be added untested.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from api.specs import APART_POOL, FULL_POOL, FULL_RUN, FULL_WORKFLOW, Json, changed
from tidepool_api.crd import AGENTWORKFLOW, AGENTWORKFLOWRUN, RESOURCES
from tidepool_api.kube import VALIDATIONS
from tidepool_api.not_yet import MODELPOOL_NOT_YET


class NoCase(Exception):
    """A rule of a CRD that nothing here tries."""


@dataclass(frozen=True)
class CrdRule:
    """A rule as the CRD has it: the kind, the path of its schema node ([] for items), its message."""

    kind: str
    path: str
    message: str

    def __str__(self) -> str:
        return f"{self.kind} {self.path}: {self.message}"


@dataclass(frozen=True)
class Case:
    """Objects that the rule accepts and refuses, and what a user reads: the field, then the words."""

    accepted: Json
    refused: Json
    field: str
    words: str
    # The accepted object still holds what no part serves yet, so only this rule lets it pass.


@dataclass(frozen=True)
class Change:
    """Values put into the full object of the kind; `field` is to blame for those refused."""

    good: Json
    bad: Json
    field: str
    words: str = ""


def rules() -> list[CrdRule]:
    """Every rule of every CRD."""
    found = []
    for resource in RESOURCES:
        schema = resource.crd()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
        found += [CrdRule(resource.kind, path, message) for path, message in _walk(schema, "")]
    return found


def _walk(node: Json, path: str) -> Iterator[tuple[str, str]]:
    for rule in node.get(VALIDATIONS, []):
        yield path, rule["message"]
    for name, inner in node.get("properties", {}).items():
        yield from _walk(inner, f"{path}.{name}".removeprefix("."))
    for word, mark in (("items", "[]"), ("additionalProperties", "{}")):
        if isinstance(node.get(word), dict):
            yield from _walk(node[word], path + mark)


# By the start of the message: a value that is accepted and one that is refused, wherever the rule stands.
VALUES: dict[str, tuple[Any, Any]] = {
    "is not a duration": ("1m30s", "10 seconds"),
    "is longer than 10s;": ("10s", "10001ms"),
    "is longer than 1h;": ("60m", "1h1s"),
    "is longer than 24h;": ("24h", "99999999999999h"),
    "is longer than 168h;": ("168h", "169h"),
    "is not a quantity": ("1.5Gi", "64MB"),
    "is not above 0 and up to 1": ("1", "1.01"),
    "is not the name of an object": ("my-secret.v2", "My_Secret"),
    "is not a name;": ("small-1", "Small"),
    "is not a model's name": ("org/model:8b", "my model"),
    "is not a model address": ("hf://acme/llama", "meta-llama/Llama-3.1-8B"),
    "is not a revision": ("refs/pr/1", "main branch"),
    "is not an image": ("registry.local:5000/vllm@sha256:abc", "vllm openai"),
    "is not a word": ("compressed-tensors", "awq, gptq"),
    "is not the name of an environment variable": ("_HTTP_PROXY2", "HTTP-PROXY"),
    "is not the resource of a device": ("amd.com/gpu", "gpu"),
    "is not Auto, a number or a percentage": ("Auto", "fast"),
    "is not a number or a percentage": ("100%", "Auto"),
    "is not the name of a header": ("x-tier", "x tier"),
    "is not an address without a user": ("https://a.b:8443/c?d=e", "http://user@a.b/"),
    "is not a cron expression of five": ("0 8 * * MON-FRI", "@daily"),
    "is not the name of a time zone": ("America/Argentina/Buenos_Aires", "/etc/localtime"),
    "is not a step's name": ("step_2", "Step-2"),
}

# Variants and disaggregation exclude each other.
APART: Json = {"spec.disaggregation": {}, "spec.scaling.variants": []}
POOL: dict[tuple[str, str], Change] = {
    ("", "must be at most 50 lower case"): Change(
        {"metadata.name": "a" * 50}, {"metadata.name": "a" * 51}, "metadata.name"
    ),
    ("", "repeats metadata.name"): Change(
        {"spec.model": {"uri": "hf://a/b", "aliases": ["other"]}},
        {"spec.model": {"uri": "hf://a/b", "aliases": ["llama-8b"]}},
        "spec.model.aliases",
    ),
    ("", "must be at most 35 characters where"): Change(
        {"metadata.name": "a" * 35, "spec.parallelism": {"tensor": 4, "hosts": 2}},
        {"metadata.name": "a" * 36, "spec.parallelism": {"tensor": 4, "hosts": 2}},
        "metadata.name",
    ),
    ("spec", "does not fit the accelerators"): Change(
        {"spec.parallelism": {"tensor": 2}},
        {"spec.parallelism": {"tensor": 4}},
        "spec.parallelism",
        "does not fit the accelerators; make tensor x pipeline equal to accelerator.count x hosts",
    ),
    ("spec", "has --kv-transfer-config"): Change(
        {**APART, "spec.engine": {"args": ["--max-num-seqs=8"]}},
        {**APART, "spec.engine": {"args": ["--kv-t={}"]}},
        "spec.engine.args",
    ),
    ("spec", "does not go with disaggregation"): Change(
        {**APART, "spec.parallelism": {"tensor": 2}},
        {**APART, "spec.parallelism": {"pipeline": 2}},
        "spec.parallelism.pipeline",
    ),
    ("spec", "does not divide tensor x pipeline"): Change(
        {"spec.accelerator": {"count": 0}, "spec.parallelism": {"tensor": 2, "pipeline": 2, "hosts": 4}},
        {"spec.accelerator": {"count": 0}, "spec.parallelism": {"tensor": 2, "pipeline": 2, "hosts": 3}},
        "spec.parallelism.hosts",
    ),
    ("spec", "is more than 1, and with disaggregation"): Change(
        {**APART, "spec.parallelism": {"tensor": 2, "hosts": 1}},
        {**APART, "spec.parallelism": {"tensor": 4, "hosts": 2}},
        "spec.parallelism.hosts",
    ),
    ("spec", "sets VLLM_NIXL_SIDE_CHANNEL_"): Change(
        {**APART, "spec.engine": {"env": [{"name": "UCX_TLS", "value": "tcp"}]}},
        {
            **APART,
            "spec.engine": {"env": [{"name": "VLLM_NIXL_SIDE_CHANNEL_PORT", "value": "1"}]},
        },
        "spec.engine.env",
    ),
    ("spec.model", "only hf:// models have revisions"): Change(
        {"spec.model": {"uri": "hf://a/b", "revision": "main"}},
        {"spec.model": {"uri": "pvc://models/b", "revision": "main"}},
        "spec.model.revision",
    ),
    ("spec.model", "is for models that are fetched"): Change(
        {"spec.model": {"uri": "s3://models/b", "authSecretRef": {"name": "hf"}}},
        {"spec.model": {"uri": "file:///models/b", "authSecretRef": {"name": "hf"}}},
        "spec.model.authSecretRef",
    ),
    ("", "has an adapter of metadata.name"): Change(
        {"spec.model": {"uri": "hf://a/b", "name": "b", "adapters": [{"name": "llama-8b", "uri": "hf://a/c"}]}},
        {"spec.model": {"uri": "hf://a/b", "adapters": [{"name": "llama-8b", "uri": "hf://a/c"}]}},
        "spec.model.adapters",
    ),
    ("spec", "has one on s3:// or gs://"): Change(
        {"spec.model": {"uri": "hf://a/b", "adapters": [{"name": "sql", "uri": "gs://adapters/sql"}]}},
        {
            "spec.model": {"uri": "hf://a/b", "adapters": [{"name": "sql", "uri": "s3://adapters/sql"}]},
            "spec.cache": {"persistentVolumeClaim": "models", "preload": False},
        },
        "spec.model.adapters",
    ),
    ("spec", "has flags of adapters"): Change(
        {"spec.engine.args": ["--max-lora-rank=64"]},
        {"spec.engine.args": ["--max-loras=2"]},
        "spec.engine.args",
    ),
    ("spec.model", "has the name of the model itself"): Change(
        {"spec.model": {"uri": "hf://a/b", "name": "b", "adapters": [{"name": "c", "uri": "hf://a/c"}]}},
        {"spec.model": {"uri": "hf://a/b", "aliases": ["c"], "adapters": [{"name": "c", "uri": "hf://a/c"}]}},
        "spec.model.adapters",
    ),
    ("spec.model.adapters[]", "is an image, which a running pod"): Change(
        {"spec.model.adapters[0].uri": "pvc://adapters/sql"},
        {"spec.model.adapters[0].uri": "oci://registry/acme/sql:v1"},
        "spec.model.adapters[0].uri",
    ),
    ("spec", "has nothing to keep"): Change(
        {"spec.model": {"uri": "pvc://models/b", "adapters": [{"name": "sql", "uri": "hf://a/sql"}]}},
        {"spec.model": {"uri": "pvc://models/b"}},
        "spec.cache",
    ),
    ("spec.cache", "needs either persistentVolumeClaim or hostPath"): Change(
        {"spec.cache": {"hostPath": "/var/cache/models"}},
        {"spec.cache": {"persistentVolumeClaim": "models", "hostPath": "/var/cache/models"}},
        "spec.cache",
    ),
    ("spec.cache", "Delete needs persistentVolumeClaim"): Change(
        {"spec.cache": {"persistentVolumeClaim": "models", "retention": "Delete"}},
        {"spec.cache": {"hostPath": "/var/cache/models", "retention": "Delete"}},
        "spec.cache.retention",
    ),
    ("spec.cache.hostPath", "is not a folder of the node"): Change(
        {"spec.cache": {"hostPath": "/var/cache/models.v1"}},
        {"spec.cache": {"hostPath": "/var/../etc"}},
        "spec.cache.hostPath",
    ),
    ("spec.model", "repeats model.name"): Change(
        {"spec.model": {"uri": "hf://a/b", "name": "b", "aliases": ["c"]}},
        {"spec.model": {"uri": "hf://a/b", "name": "b", "aliases": ["b"]}},
        "spec.model.aliases",
    ),
    ("spec.engine", "--speculative-config"): Change(
        {"spec.engine": {"args": ['--speculative-config={"method": "eagle"}']}},
        {"spec.engine": {"args": ["--spec-method=eagle"], "speculative": {"method": "ngram", "tokens": 3}}},
        "spec.engine.args",
    ),
    ("spec.engine.env[]", "has both value and valueFrom"): Change(
        {"spec.engine.env[0]": {"name": "A", "value": ""}},
        {
            "spec.engine.env[0]": {
                "name": "A",
                "value": "",
                "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}},
            }
        },
        "spec.engine.env[0]",
    ),
    ("spec.engine.env[].valueFrom", "needs exactly one of"): Change(
        {"spec.engine.env[1].valueFrom": {"secretKeyRef": {"name": "a", "key": "b"}}},
        {"spec.engine.env[1].valueFrom": {}},
        "spec.engine.env[1].valueFrom",
    ),
    ("spec.accelerator.tolerations[]", "is needed with operator Equal"): Change(
        {"spec.accelerator.tolerations[0]": {"operator": "Exists"}},
        {"spec.accelerator.tolerations[0]": {"value": "yes"}},
        "spec.accelerator.tolerations[0].key",
    ),
    ("spec.scaling.variants[].accelerator.tolerations[]", "is needed with operator Equal"): Change(
        {"spec.scaling.variants": []},
        {
            "spec.scaling.variants": [
                {"name": "a", "cost": "1", "accelerator": {"tolerations": [{"value": "yes"}]}}
            ]
        },
        "spec.scaling.variants[0].accelerator.tolerations[0].key",
    ),
    ("spec.scaling.variants[]", "does not fit the accelerators"): Change(
        {"spec.scaling.variants[0]": {"name": "a", "cost": "1", "accelerator": {"count": 0}}},
        {"spec.scaling.variants[0]": {"name": "a", "cost": "1", "accelerator": {"count": 2}}},
        "spec.scaling.variants[0].parallelism",
        "does not fit the accelerators; make tensor x pipeline equal to accelerator.count x hosts",
    ),
    ("spec.scaling.variants[]", "is more than 1, and a variant"): Change(
        {"spec.scaling.variants[0]": {"name": "a", "cost": "1", "parallelism": {"hosts": 1}}},
        {"spec.scaling.variants[0]": {"name": "a", "cost": "1", "parallelism": {"tensor": 2, "hosts": 2}}},
        "spec.scaling.variants[0].parallelism.hosts",
    ),
    ("spec.scaling.variants[]", "serves nothing"): Change(
        {"spec.scaling.variants[0]": {"name": "a", "cost": "0", "capacity": "500m"}},
        {"spec.scaling.variants[0]": {"name": "a", "cost": "1", "capacity": "0"}},
        "spec.scaling.variants[0].capacity",
    ),
    ("spec", "stands beside disaggregation"): Change(
        {"spec.scaling.variants": [{"name": "a", "cost": "1"}]},
        {"spec.scaling.variants": [{"name": "a", "cost": "1"}], "spec.disaggregation": {}},
        "spec.scaling.variants",
    ),
    ("spec.scaling", "is below minReplicas"): Change(
        {"spec.scaling": {"minReplicas": 2, "maxReplicas": 2}},
        {"spec.scaling": {"minReplicas": 2, "maxReplicas": 1}},
        "spec.scaling.maxReplicas",
        "is below minReplicas; raise maxReplicas or lower minReplicas",
    ),
    ("spec.scaling", "has a schedule whose minReplicas"): Change(
        {"spec.scaling.schedules": [{"cron": "0 8 * * *", "minReplicas": 9, "maxReplicas": 9}]},
        {"spec.scaling.schedules": [{"cron": "0 8 * * *", "minReplicas": 9}]},
        "spec.scaling.schedules",
    ),
    ("spec.scaling.schedules[]", "bounds nothing"): Change(
        {"spec.scaling.schedules[0]": {"cron": "0 8 * * *", "maxReplicas": 3}},
        {"spec.scaling.schedules[0]": {"cron": "0 8 * * *", "duration": "1h"}},
        "spec.scaling.schedules[0]",
    ),
    ("spec.routing.priorities", "has a name of more than 63"): Change(
        {"spec.routing.priorities": {"p" * 63: 1}},
        {"spec.routing.priorities": {"p" * 64: 1}},
        "spec.routing.priorities",
    ),
    ("", "names this pool itself"): Change(
        {"spec.traffic.fallback": ["other"], "spec.traffic.rules[0].pool": "llama-8b"},
        {"spec.traffic.fallback": ["llama-8b"]},
        "spec.traffic",
    ),
    ("spec", "names a pool with a slash"): Change(
        {"spec.traffic.rules[1].classifier.classes": [{"name": "hard", "pool": "other"}]},
        {"spec.traffic.rules[1].classifier.classes": [{"name": "hard", "pool": "team-b/other"}]},
        "spec.traffic",
    ),
    ("spec.traffic.rules[].classifier.timeout", "is not a duration"): Change(
        {"spec.traffic.rules[1].classifier.timeout": "1.5s"},
        {"spec.traffic.rules[1].classifier.timeout": "fast"},
        "spec.traffic.rules[1].classifier.timeout",
    ),
    ("spec.traffic", "has shares of more than 100"): Change(
        {"spec.traffic.split": [{"pool": "a", "percent": 40}, {"pool": "b", "percent": 60}]},
        {"spec.traffic.split": [{"pool": "a", "percent": 41}, {"pool": "b", "percent": 60}]},
        "spec.traffic.split",
    ),
    ("spec.traffic.rules[]", "needs either pool or classifier"): Change(
        {"spec.traffic.rules[0]": {"name": "all", "pool": "other"}},
        {"spec.traffic.rules[0]": {"name": "all"}},
        "spec.traffic.rules[0]",
    ),
    ("spec.rollout", "is 0 and so is maxSurge"): Change(
        {"spec.rollout": {"maxSurge": "0%", "maxUnavailable": 1}},
        {"spec.rollout": {"maxSurge": "0%", "maxUnavailable": 0}},
        "spec.rollout.maxUnavailable",
    ),
    ("spec.access.from[]", "needs podSelector, namespaceSelector"): Change(
        {"spec.access.from[0]": {"podSelector": {}, "namespaceSelector": {}}},
        {"spec.access.from[0]": {"podSelector": {}, "ipBlock": {"cidr": "10.0.0.0/8"}}},
        "spec.access.from[0]",
    ),
    ("spec.podTemplate", "is refused, since the engine would be open"): Change(
        {"spec.podTemplate.spec": {"hostNetwork": False, "dnsPolicy": "Default"}},
        {"spec.podTemplate.spec": {"hostNetwork": True}},
        "spec.podTemplate.spec.hostNetwork",
    ),
}

WORKFLOW: dict[tuple[str, str], Change] = {
    ("spec.budget", "has an effect with onExceeded: Degrade alone"): Change(
        {"spec.budget": {"tokens": 9, "onExceeded": "Degrade", "degrade": [{"measure": "SkipSoft"}]}},
        {"spec.budget": {"tokens": 9, "onExceeded": "Fail", "degrade": [{"measure": "SkipSoft"}]}},
        "spec.budget.degrade",
    ),
    ("spec.budget", "is out of order"): Change(
        {
            "spec.budget.degrade": [
                {"measure": "SkipSoft", "atPercent": 80},
                {"measure": "SmallerModel", "atPercent": 80},
                {"measure": "FewerBranches"},
            ]
        },
        {"spec.budget.degrade": [{"measure": "SkipSoft"}, {"measure": "SmallerModel", "atPercent": 80}]},
        "spec.budget.degrade",
    ),
    ("spec.steps[]", "needs exactly one of"): Change(
        {"spec.steps[0]": {"name": "plan", "llm": {"pools": [{"name": "small"}]}}},
        {"spec.steps[0]": {"name": "plan", "llm": {"pools": [{"name": "small"}]}, "http": {"url": "http://a"}}},
        "spec.steps[0]",
    ),
    ("spec.steps[]", "is set beside withItems"): Change(
        {"spec.steps[0].withItems": ["a", 1]},
        {"spec.steps[0].withItems": [], "spec.steps[0].withParam": "{{ input.list }}"},
        "spec.steps[0].withParam",
    ),
}

# By the path in not_yet: a use of the field that is refused, and the nearest one that is served.
NOT_YET: dict[str, tuple[Json, Json]] = {}

# By the remedy: an argument that stands beside the refused one in vLLM, and one that sets the field.
ARGUMENTS: dict[str, tuple[str, str]] = {
    "set spec.model.uri instead": ("--model-impl=auto", "--model=other"),
    "set spec.model.name and spec.model.aliases instead": ("--seed=1", "--served_model_name"),
    "set spec.model.revision instead": ("--return-tokens-as-token-ids", "--revision=main"),
    "set spec.model.authSecretRef instead": ("--hf-overrides={}", "--hf-token=abc"),
    "set spec.engine.maxModelLen instead": ("--max-num-seqs=8", "--max-model-len=4096"),
    "set spec.engine.gpuMemoryUtilization instead": ("--device-ids=0", "--gpu-memory-utilization=0.5"),
    "set spec.engine.quantization instead": ("--quantization-config={}", "-q"),
    "set spec.engine.prefixCaching instead": ("--prefix-caching-hash-algo=sha256", "--no-enable-prefix-caching"),
    "set spec.engine.chunkedPrefill instead": ("--enable-log-requests", "--enable-chunked-prefill"),
    "set spec.parallelism.tensor instead": ("--mm-encoder-tp-mode=data", "-tp=2"),
    "set spec.parallelism.pipeline instead": ("--pt-load-map-location=cpu", "--pipeline-parallel-size=2"),
    "set spec.replicas instead": ("--dbo-decode-token-threshold=1", "--data-parallel-size=2"),
    "set spec.parallelism.hosts instead": ("--num-gpu-blocks-override=8", "--nnodes=2"),
    "take it out: the router beside the engine is its only door and reaches it in one fixed way": (
        "--uvicorn-log-level=info",
        "--port",
    ),
    "take it out: the router beside the engine is its only door and reaches it in one fixed way, and keys are "
    "checked at the gateway": ("--allowed-origins=[]", "--api-key=abc"),
    "write its settings into the fields of the spec and into spec.engine.args": (
        "--config-format=hf",
        "--config=/etc/vllm.yaml",
    ),
    "take it out: one server keeps the engine's figures": ("--async-scheduling", "--api-server-count=2"),
    "take it out: the pool is steered by the engine's figures": (
        "--disable-custom-all-reduce",
        "--disable-log-stats",
    ),
    "take it out: the engine always runs by priority, see spec.routing.priorities": (
        "--scheduler-cls=a.B",
        "--scheduling-policy=fcfs",
    ),
}


def cases_without_a_rule() -> list[str]:
    """Cases that no rule of the CRDs answers to: the rule has gone, or says something else now."""
    found = rules()
    places = [
        (kind, path, start)
        for kind, table in (("ModelPool", POOL), ("AgentWorkflow", WORKFLOW))
        for path, start in table
    ]
    places += [("ModelPool", "spec.engine.args[]", f"is not allowed here; {remedy}") for remedy in ARGUMENTS]
    idle = [
        f"{kind} {path}: {start}"
        for kind, path, start in places
        if not any((rule.kind, rule.path) == (kind, path) and rule.message.startswith(start) for rule in found)
    ]
    idle += [start for start in VALUES if not any(rule.message.startswith(start) for rule in found)]
    return idle + sorted(set(NOT_YET) - {entry.path for entry in MODELPOOL_NOT_YET})


def case_of(rule: CrdRule) -> Case:
    """The case of a rule; raises NoCase."""
    base, table = {
        AGENTWORKFLOW.kind: (FULL_WORKFLOW, WORKFLOW),
        AGENTWORKFLOWRUN.kind: (FULL_RUN, {}),
    }.get(rule.kind, (FULL_POOL, POOL))
    for (path, start), change in table.items():
        if path == rule.path and rule.message.startswith(start):
            words = change.words or rule.message
            return Case(changed(base, change.good), changed(base, change.bad), change.field, words)
    return _argument_case(rule) or _not_yet_case(rule) or _value_case(rule, base)


def _argument_case(rule: CrdRule) -> Case | None:
    if rule.path != "spec.engine.args[]":
        return None
    for remedy, (good, bad) in ARGUMENTS.items():
        if rule.message == f"is not allowed here; {remedy}":
            path = "spec.engine.args[0]"
            return Case(changed(FULL_POOL, {path: good}), changed(FULL_POOL, {path: bad}), path, rule.message)
    return None


def _not_yet_case(rule: CrdRule) -> Case | None:
    entries = [entry for entry in MODELPOOL_NOT_YET if entry.message == rule.message]
    if rule.path != "spec" or not entries:
        return None
    path = entries[0].path
    good, bad = NOT_YET[path]
    return Case(changed(FULL_POOL, good), changed(FULL_POOL, bad), f"spec.{path}", rule.message)


def _value_case(rule: CrdRule, base: Json) -> Case:
    values = [pair for start, pair in VALUES.items() if rule.message.startswith(start)]
    if len(values) != 1:
        raise NoCase(str(rule))
    good, bad = values[0]
    for document in (base, APART_POOL):
        place = _place(document, rule.path)
        if place:
            accepted, refused = changed(document, {place: good}), changed(document, {place: bad})
            return Case(accepted, refused, place, rule.message)
    raise NoCase(f"{rule}: no object here has {rule.path}")


def _place(document: Json, path: str) -> str | None:
    """The path with the index of the first entry that has what it goes on with."""
    head, mark, tail = path.partition("[]")
    if not mark:
        return path if _parent_is_there(document, path) else None
    for index in range(16):
        place = _place(document, f"{head}[{index}]{tail}")
        if place:
            return place
    return None


def _parent_is_there(document: Json, path: str) -> bool:
    parent = path.rpartition("[")[0] if path.endswith("]") else path.rpartition(".")[0]
    try:
        changed(document, {path: None})
    except (KeyError, IndexError, TypeError):
        return False
    return bool(parent)
