"""YAML of pages and examples: what each piece is a part of, the whole that it makes, and how that is checked."""

import json
import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any, Final

import yaml

from documents.blocks import ROOT, blocks
from tidepool_api import rules
from tidepool_api.contract import API_VERSION
from tidepool_api.language.review import review
from tidepool_api.modelpool import ModelPoolSpec
from tidepool_api.problems import problems, run_problems, unknown_fields, workflow_problems
from tidepool_api.workflow import AgentWorkflowSpec
from tidepool_api.workflow_run import AgentWorkflowRunSpec

EXAMPLES: Final = sorted((ROOT / "examples").glob("*.yaml"))
Object = dict[str, Any]
# Whose definitions no API server of the tests has, and what brings them.
FOREIGN: Final = {
    "cert-manager.io/v1": "cert-manager",
    "keda.sh/v1alpha1": "KEDA",
}
# What a part of a resource is put into.
_POOL: Final[Object] = {"model": {"uri": "hf://acme/small"}}
_WORKFLOW: Final[Object] = {
    "steps": [
        {
            "name": "each",
            "dependency": "Soft",
            "withItems": ["a", "b"],
            "llm": {
                "pools": [{"name": "small", "quality": 0.5}, {"name": "llama-8b", "quality": 0.8}],
                "messages": [{"role": "user", "content": "{{ item }}"}],
            },
        }
    ]
}
_SPEC_OF_A_POOL: Final = frozenset({"scaling", "model", "engine", "cache"})
_SPEC_OF_A_WORKFLOW: Final = frozenset({"budget"})


def examples() -> Iterator[tuple[str, Object]]:
    """Every object of examples/, by its file."""
    for path in EXAMPLES:
        for resource in yaml.safe_load_all(path.read_text()):
            yield path.name, resource


def shown() -> Iterator[tuple[str, Object]]:
    """Every object that a page shows, and for a part of one of ours the whole."""
    for block in blocks():
        if block.language == "yaml":
            for document in yaml.safe_load_all(block.text):
                whole = whole_of(document)
                if whole is not None:
                    yield str(block), whole


def whole_of(document: Mapping[str, Any]) -> Object | None:
    """The object of which this is a part, or itself; None: it is no part of an object of a cluster."""
    if "kind" in document:
        return dict(document)
    names = set(document)
    if names == {"spec"}:
        return _made("ModelPool", _POOL, document["spec"])
    if names <= _SPEC_OF_A_POOL:
        return _made("ModelPool", _POOL, document)
    if names <= _SPEC_OF_A_WORKFLOW:
        return _made("AgentWorkflow", _WORKFLOW, document)
    return None


def ours(resource: Mapping[str, Any]) -> bool:
    """Whether it is a resource of this project."""
    return resource.get("apiVersion") == API_VERSION


def _made(kind: str, base: Object, part: Mapping[str, Any]) -> Object:
    spec = {**base, **part}
    if "scaling" in spec:
        spec["scaling"] = {"maxReplicas": 8, **spec["scaling"]}
    return {"apiVersion": API_VERSION, "kind": kind, "metadata": {"name": "small"}, "spec": spec}


def check_object(resource: Mapping[str, Any], pools: Collection[str], workflows: Collection[str]) -> None:
    """By the models and the review, as the operator would."""
    spec, name = resource["spec"], resource["metadata"].get("name", "")
    if not ours(resource):
        _check_scaler(resource, pools)
    elif resource["kind"] == "ModelPool":
        assert [str(problem) for problem in problems(spec, name)] == []
        assert unknown_fields(ModelPoolSpec, spec) == []
    elif resource["kind"] == "AgentWorkflowRun":
        assert [str(problem) for problem in run_problems(spec)] == []
        assert unknown_fields(AgentWorkflowRunSpec, spec) == []
        assert spec["workflow"] in workflows
    else:
        assert [str(problem) for problem in workflow_problems(spec)] == []
        assert unknown_fields(AgentWorkflowSpec, spec) == []
        assert [str(problem) for problem in review(resource, pools)] == []


def _check_scaler(resource: Mapping[str, Any], pools: Collection[str]) -> None:
    """Of another project: what it says of ours is so."""
    target = resource["spec"].get("scaleTargetRef")
    if target is not None:
        assert (target["apiVersion"], target["kind"]) == ("tidepool.dev/v1alpha1", "ModelPool")
        assert target["name"] in pools
    check_series(json.dumps(resource))


def check_series(text: str) -> None:
    """Every recorded series that a text names is one of the chart's rules."""
    recorded = {rule["record"] for group in rules.rules_file()["groups"] for rule in group["rules"]}
    assert set(re.findall(r"tidepool:\w+", text)) <= recorded
