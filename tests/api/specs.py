"""Whole objects that use every field, for tests to break one field at a time."""

import copy
from typing import Any

Json = dict[str, Any]

FULL_POOL: Json = {
    "apiVersion": "tidepool.dev/v1alpha1",
    "kind": "ModelPool",
    "metadata": {"name": "llama-8b", "namespace": "default"},
    "spec": {
        "model": {
            "uri": "hf://meta-llama/Llama-3.1-8B-Instruct",
            "name": "llama-3.1-8b",
            "aliases": ["chat-default"],
            "revision": "0e9e39f",
            "authSecretRef": {"name": "hf-token", "key": "token"},
            "adapters": [{"name": "sql", "uri": "hf://acme/sql-lora"}],
            "adapterSlots": 2,
        },
        "engine": {
            "image": "vllm/vllm-openai:v0.32.0",
            "preset": "Balanced",
            "maxModelLen": 8192,
            "gpuMemoryUtilization": "0.9",
            "quantization": "awq",
            "prefixCaching": True,
            "chunkedPrefill": True,
            "speculative": {"method": "ngram", "tokens": 3},
            "args": ["--max-num-seqs=256"],
            "env": [
                {"name": "VLLM_LOGGING_LEVEL", "value": "INFO"},
                {"name": "PROXY", "valueFrom": {"secretKeyRef": {"name": "proxy", "key": "url"}}},
                {"name": "ZONE", "valueFrom": {"configMapKeyRef": {"name": "zones", "key": "zone"}}},
                {"name": "NODE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
            ],
        },
        "accelerator": {
            "resource": "nvidia.com/gpu",
            "count": 2,
            "nodeSelector": {"gpu": "h100"},
            "tolerations": [{"key": "gpu", "operator": "Equal", "value": "yes", "effect": "NoSchedule"}],
        },
        "parallelism": {"tensor": 2, "pipeline": 1, "hosts": 1},
        "replicas": 2,
        "scaling": {
            "minReplicas": 0,
            "maxReplicas": 8,
            "mode": "Auto",
            "targets": {"timeToFirstToken": "1500ms", "timePerOutputToken": "50ms", "kvUtilization": "0.8"},
            "prediction": {"enabled": True, "season": "24h"},
            "behavior": {
                "scaleUp": {"policies": [{"type": "Percent", "value": 100, "period": "15s"}]},
                "scaleDown": {"stabilizationWindow": "300s", "policies": [{"type": "Pods", "value": 1}]},
            },
            "idleAfter": "10m",
            "variants": [
                {
                    "name": "small",
                    "accelerator": {"count": 1, "tolerations": [{"operator": "Exists"}]},
                    "parallelism": {"tensor": 1},
                    "cost": "1.5",
                    "capacity": "2",
                }
            ],
            "schedules": [
                {"cron": "0 8 * * 1-5", "timeZone": "Europe/Berlin", "minReplicas": 2, "duration": "10h"}
            ],
        },
        "routing": {
            "policy": "Predicted",
            "queue": {"maxWaiting": 256, "maxBytes": "64Mi", "timeout": "60s", "coldStartTimeout": "600s"},
            "priorities": {"interactive": 100, "batch": 0},
            "retries": 2,
        },
        "traffic": {
            "rules": [
                {
                    "name": "long",
                    "when": {
                        "models": ["chat-default"],
                        "types": ["Chat", "Completions"],
                        "minPromptTokens": 8000,
                        "maxPromptTokens": 100000,
                        "headers": [{"name": "x-tier", "values": ["gold"]}],
                        "parameters": [{"name": "reasoning_effort", "values": ["high"]}],
                    },
                    "pool": "llama-long",
                },
                {
                    "name": "hard",
                    "classifier": {
                        "url": "http://classifier.tools/route",
                        "timeout": "300ms",
                        "classes": [{"name": "hard", "pool": "llama-70b"}],
                    },
                },
            ],
            "split": [{"pool": "llama-8b-next", "percent": 5}],
            "mirror": {"pool": "llama-8b-next", "percent": 10},
            "fallback": ["llama-small"],
        },
        "rollout": {
            "maxSurge": 1,
            "maxUnavailable": "25%",
            "drainTimeout": "300s",
            "progressDeadline": "3600s",
        },
        "cache": {"persistentVolumeClaim": "model-cache", "preload": True, "retention": "Retain"},
        "disruption": {"maxUnavailable": 1},
        "access": {
            "from": [
                {"namespaceSelector": {"matchLabels": {"team": "search"}}},
                {"ipBlock": {"cidr": "10.0.0.0/8", "except": ["10.1.0.0/16"]}},
            ]
        },
        "scheduling": {"priorityClassName": "high", "topologySpread": True},
        "podTemplate": {
            "metadata": {"labels": {"team": "search"}},
            "spec": {"containers": [{"name": "engine", "resources": {"limits": {"memory": "64Gi"}}}]},
        },
    },
}

# Variants and disaggregation exclude each other.
APART_POOL: Json = copy.deepcopy(FULL_POOL)
APART_POOL["spec"]["scaling"]["variants"] = []
APART_POOL["spec"]["disaggregation"] = {"prefill": {"replicas": 1, "minTokens": 256}, "connector": "Nixl"}

FULL_RUN: Json = {
    "apiVersion": "tidepool.dev/v1alpha1",
    "kind": "AgentWorkflowRun",
    "metadata": {"name": "research-1", "namespace": "default"},
    "spec": {
        "workflow": "research",
        "input": {"question": "Why is the sea salty?"},
        "cancel": False,
        "ttlAfterFinished": "1h",
    },
}

FULL_WORKFLOW: Json = {
    "apiVersion": "tidepool.dev/v1alpha1",
    "kind": "AgentWorkflow",
    "metadata": {"name": "research", "namespace": "default"},
    "spec": {
        "input": {
            "type": "object",
            "required": ["question"],
            "properties": {"question": {"type": "string"}},
        },
        "deadline": "60s",
        "budget": {"tokens": 20000, "onExceeded": "Degrade"},
        "failFast": True,
        "onExit": "notify",
        "steps": [
            {
                "name": "plan",
                "llm": {
                    "pools": [{"name": "small", "quality": 0.6}, {"name": "llama-8b", "quality": 0.9}],
                    "messages": [{"role": "user", "content": "List search queries for: {{ input.question }}"}],
                    "responseFormat": {"type": "json_object"},
                },
            },
            {
                "name": "search",
                "depends": "plan",
                "when": "{{ steps.plan.json.queries | length > 0 }}",
                "withParam": "{{ steps.plan.json.queries }}",
                "maxParallel": 8,
                "http": {"method": "GET", "url": "http://search.tools/api?q={{ item }}"},
                "retryStrategy": {"limit": 3, "backoff": {"duration": "1s", "factor": 2, "cap": "30s"}},
                "timeout": "10s",
                "dependency": "Soft",
            },
            {
                "name": "analyse",
                "depends": "search",
                "choose": {
                    "pools": [{"name": "small"}],
                    "messages": [],
                    "among": ["lookup", "calculate"],
                    "maxTurns": 4,
                },
            },
            {
                "name": "lookup",
                "mcp": {
                    "server": "http://wiki.tools/mcp",
                    "tool": "lookup",
                    "arguments": {"term": "{{ pick.term }}", "deep": {"any": [1, True]}},
                },
            },
            {
                "name": "calculate",
                "http": {"method": "POST", "url": "http://calc.tools/", "body": "{{ pick.expression }}"},
            },
            {"name": "check", "withItems": [1, "two"], "workflow": {"name": "checker", "input": {"n": 1}}},
            {
                "name": "write",
                "depends": "analyse && check",
                "llm": {"pools": [{"name": "llama-8b"}], "messages": []},
            },
            {"name": "notify", "http": {"method": "POST", "url": "http://hooks.tools/done"}},
        ],
        "output": "{{ steps.write.text }}",
    },
}


def at(document: Json, path: str) -> Any:
    """What stands at a path such as `spec.engine.args[0]`."""
    found: Any = document
    for part in _parts(path):
        found = found[part]
    return found


def changed(document: Json, changes: Json) -> Json:
    """A copy of the document with the value of each path put in place."""
    copied = copy.deepcopy(document)
    for path, value in changes.items():
        *parents, last = _parts(path)
        target: Any = copied
        for part in parents:
            target = target[part]
        target[last] = value
    return copied


def _parts(path: str) -> list[str | int]:
    parts = path.replace("[", ".[").split(".")
    return [int(part[1:-1]) if part.startswith("[") else part for part in parts]
