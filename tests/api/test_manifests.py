"""The generated files: as the models say, within Kubernetes's rules, and the same on every machine."""

import os
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from api.specs import Json
from tidepool_api.crd import RESOURCES, Resource
from tidepool_api.kube import INT_OR_STRING, PRESERVE
from tidepool_api.manifests import ALERTS, ALERTS_PAGE, CHART, CRDS, DASHBOARDS, DOCS, RULES, generated, main
from tidepool_api.not_yet import MODELPOOL_NOT_YET

ROOT = Path(__file__).parent.parent.parent
# What stands on disk; that it is what is generated, and all of it, is tested first.
PATHS = sorted(
    [
        RULES,
        ALERTS,
        ALERTS_PAGE,
        *(
            path.relative_to(ROOT)
            for folder in (CRDS, CHART, DASHBOARDS, DOCS)
            for path in (ROOT / folder).iterdir()
        ),
    ],
    key=str,
)
SIZE_LIMIT_BYTES = 200_000
# What a structural schema may hold, of what is used here.
ALLOWED = {
    "type", "description", "default", "enum", "format", "pattern", "minimum", "maximum", "minLength", "maxLength",
    "minItems", "maxItems", "maxProperties", "required", "properties", "items", "additionalProperties", PRESERVE,
    INT_OR_STRING, "x-kubernetes-validations", "x-kubernetes-list-type", "x-kubernetes-list-map-keys",
}  # fmt: skip


@cache
def files() -> dict[Path, str]:
    return generated()


@cache
def schema(resource: Resource) -> Json:
    found: Json = resource.crd()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    return found


def nodes(node: Json, path: str) -> Iterator[tuple[str, Json]]:
    yield path, node
    for name, inner in node.get("properties", {}).items():
        yield from nodes(inner, f"{path}.{name}")
    for word in ("items", "additionalProperties"):
        if word in node:
            yield from nodes(node[word], f"{path}[]")


def schema_nodes(resource: Resource) -> Iterator[tuple[str, Json]]:
    for part in ("spec", "status"):
        yield from nodes(schema(resource)["properties"][part], f"{resource.kind}.{part}")


def test_every_generated_file_is_on_disk_and_no_stale_one() -> None:
    assert set(PATHS) == set(files()), "run `make manifests`, and remove what it no longer writes"


@pytest.mark.parametrize("path", PATHS, ids=str)
def test_file_on_disk_is_the_generated_one(path: Path) -> None:
    assert (ROOT / path).read_text() == files()[path], "run `make manifests` and commit what it writes"


@pytest.mark.traffic
def test_generation_does_not_depend_on_the_process() -> None:
    code = "from tidepool_api.manifests import generated; print(repr(generated()))"
    printed = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"PYTHONHASHSEED": "7"},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    ).stdout

    assert printed == repr(files()) + "\n"


def test_main_writes_what_differs_and_names_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "crds").mkdir()

    assert main([str(tmp_path)]) == 0
    first = capsys.readouterr().out.splitlines()
    assert main([str(tmp_path)]) == 0

    assert sorted(first) == sorted(f"wrote {path}" for path in files())
    assert capsys.readouterr().out == ""


def test_main_says_where_to_run_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path)]) == 2

    assert "run it from the repository's root" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("path", [path for path in PATHS if path.suffix == ".yaml"], ids=str)
def test_crd_stays_small(path: Path) -> None:
    # kubectl apply keeps the whole object in an annotation of at most 262,144 bytes.
    assert len(files()[path].encode()) < SIZE_LIMIT_BYTES


@pytest.mark.parametrize("resource", RESOURCES, ids=lambda resource: resource.kind)
def test_only_the_charts_copy_is_kept_at_uninstall(resource: Resource) -> None:
    name = f"tidepool.dev_{resource.plural}.yaml"
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # libyaml's is ten times as fast
    plain, kept = (yaml.load(files()[folder / name], loader) for folder in (CRDS, CHART))

    assert kept["metadata"].pop("annotations") == {"helm.sh/resource-policy": "keep"}
    assert plain == kept


def faults(path: str, node: Json) -> Iterator[str]:
    if unknown := set(node) - ALLOWED:
        yield f"{unknown} is no part of a structural schema"
    if "type" not in node and not node.get(INT_OR_STRING):
        yield "no type"
    if not node.get("description") and not path.endswith("[]"):
        yield "no description"
    if node.get("type") == "string" and "enum" not in node and "maxLength" not in node:
        yield "no maxLength"
    if node.get("type") == "array" and not {"maxItems", "x-kubernetes-list-type"} <= set(node):
        yield "no maxItems, or no x-kubernetes-list-type"
    if "additionalProperties" in node and "maxProperties" not in node:
        yield "no maxProperties"
    if node.get("type") == "integer" and "minimum" not in node:
        yield "no minimum"


@pytest.mark.parametrize("resource", RESOURCES, ids=lambda resource: resource.kind)
def test_every_node_of_the_schema_is_structural_and_bounded(resource: Resource) -> None:
    found = list(schema_nodes(resource))

    assert len(found) > 10
    assert [(path, fault) for path, node in found for fault in faults(path, node)] == []


def test_only_free_objects_keep_unknown_fields() -> None:
    kept = {path for resource in RESOURCES for path, node in schema_nodes(resource) if node.get(PRESERVE)}

    assert kept == {
        "ModelPool.spec.podTemplate",
        "ModelPool.spec.podTemplate.metadata",
        "ModelPool.spec.podTemplate.spec",
        "AgentWorkflow.spec.input",
        "AgentWorkflow.spec.steps[].llm.responseFormat",
        "AgentWorkflow.spec.steps[].mcp.arguments",
        "AgentWorkflow.spec.steps[].workflow.input",
        "AgentWorkflowRun.spec.input",
    }


@pytest.mark.parametrize("entry", MODELPOOL_NOT_YET, ids=lambda entry: entry.path)
def test_reference_says_what_is_not_built_yet(entry: Any) -> None:
    assert f"- `spec.{entry.path}` {entry.message}." in files()[Path("docs/reference/modelpool.md")]


@pytest.mark.parametrize("resource", RESOURCES, ids=lambda resource: resource.kind)
def test_reference_has_every_field(resource: Resource) -> None:
    text = files()[Path(f"docs/reference/{resource.kind.lower()}.md")]
    fields = {
        path.removeprefix(f"{resource.kind}.")
        for path, _ in schema_nodes(resource)
        if not path.endswith(("[]", ".spec"))
    }

    missing = {field for field in fields if f"| `{field}` |" not in text}
    assert missing == set()


@pytest.mark.parametrize("call", [".format(", ".sum()", ".isSorted()"])
def test_no_rule_needs_what_the_oldest_kubernetes_lacks_or_takes_for_endless(call: str) -> None:
    """1.29 has no format(), and takes the sum and the order of a mapped list for endless."""
    assert [path.name for path in (ROOT / CRDS).glob("*.yaml") if call in path.read_text()] == []
