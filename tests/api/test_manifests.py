"""The generated files: as the models say, within Kubernetes's rules, and the same on every machine."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from api.specs import Json
from tidepool_api.crd import RESOURCES, Resource
from tidepool_api.kube import INT_OR_STRING, PRESERVE
from tidepool_api.manifests import CHART, CRDS, generated, main
from tidepool_api.not_yet import MODELPOOL_NOT_YET

ROOT = Path(__file__).parent.parent.parent
FILES = generated()
SIZE_LIMIT_BYTES = 200_000
# What a structural schema may hold, of what is used here.
ALLOWED = {
    "type", "description", "default", "enum", "format", "pattern", "minimum", "maximum", "minLength", "maxLength",
    "minItems", "maxItems", "maxProperties", "required", "properties", "items", "additionalProperties", PRESERVE,
    INT_OR_STRING, "x-kubernetes-validations", "x-kubernetes-list-type", "x-kubernetes-list-map-keys",
}  # fmt: skip


def nodes(node: Json, path: str) -> Iterator[tuple[str, Json]]:
    yield path, node
    for name, inner in node.get("properties", {}).items():
        yield from nodes(inner, f"{path}.{name}")
    for word in ("items", "additionalProperties"):
        if word in node:
            yield from nodes(node[word], f"{path}[]")


def schema_nodes() -> list[Any]:
    found = []
    for resource in RESOURCES:
        schema = resource.crd()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
        for part in ("spec", "status"):
            found += list(nodes(schema["properties"][part], f"{resource.kind}.{part}"))
    return [pytest.param(path, node, id=path) for path, node in found]


@pytest.mark.parametrize("path", sorted(FILES, key=str), ids=str)
def test_file_on_disk_is_the_generated_one(path: Path) -> None:
    assert (ROOT / path).read_text() == FILES[path], "run `make manifests` and commit what it writes"


@pytest.mark.parametrize("folder", [CRDS, CHART], ids=str)
def test_no_stale_file_stays_behind(folder: Path) -> None:
    found = {path.relative_to(ROOT) for path in (ROOT / folder).iterdir()}

    assert found == {path for path in FILES if path.parent == folder}


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

    assert printed == repr(FILES) + "\n"


def test_main_writes_what_differs_and_names_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "crds").mkdir()

    assert main([str(tmp_path)]) == 0
    first = capsys.readouterr().out.splitlines()
    assert main([str(tmp_path)]) == 0

    assert sorted(first) == sorted(f"wrote {path}" for path in FILES)
    assert capsys.readouterr().out == ""


def test_main_says_where_to_run_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path)]) == 2

    assert "run it from the repository's root" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("path", [path for path in FILES if path.suffix == ".yaml"], ids=str)
def test_crd_stays_small(path: Path) -> None:
    # kubectl apply keeps the whole object in an annotation of at most 262,144 bytes.
    assert len(FILES[path].encode()) < SIZE_LIMIT_BYTES


@pytest.mark.parametrize("resource", RESOURCES, ids=lambda resource: resource.kind)
def test_only_the_charts_copy_is_kept_at_uninstall(resource: Resource) -> None:
    name = f"tidepool.dev_{resource.plural}.yaml"
    plain, kept = yaml.safe_load(FILES[CRDS / name]), yaml.safe_load(FILES[CHART / name])

    assert kept["metadata"].pop("annotations") == {"helm.sh/resource-policy": "keep"}
    assert plain == kept


@pytest.mark.parametrize(("path", "node"), schema_nodes())
def test_schema_node_is_structural_and_bounded(path: str, node: Json) -> None:
    assert set(node) <= ALLOWED, path
    assert "type" in node or node.get(INT_OR_STRING), "no type"
    assert node.get("description") or path.endswith("[]"), "no description"
    if node.get("type") == "string" and "enum" not in node:
        assert "maxLength" in node
    if node.get("type") == "array":
        assert "maxItems" in node
        assert "x-kubernetes-list-type" in node
    if "additionalProperties" in node:
        assert "maxProperties" in node
    if node.get("type") == "integer":
        assert "minimum" in node


def test_only_free_objects_keep_unknown_fields() -> None:
    kept = {param.values[0] for param in schema_nodes() if param.values[1].get(PRESERVE)}

    assert kept == {
        "ModelPool.spec.podTemplate",
        "ModelPool.spec.podTemplate.metadata",
        "ModelPool.spec.podTemplate.spec",
        "AgentWorkflow.spec.input",
        "AgentWorkflow.spec.steps[].llm.responseFormat",
        "AgentWorkflow.spec.steps[].mcp.arguments",
        "AgentWorkflow.spec.steps[].workflow.input",
    }


@pytest.mark.parametrize("entry", MODELPOOL_NOT_YET, ids=lambda entry: entry.path)
def test_reference_says_what_is_not_built_yet(entry: Any) -> None:
    assert f"- `spec.{entry.path}` {entry.message}." in FILES[Path("docs/reference/modelpool.md")]


@pytest.mark.parametrize("resource", RESOURCES, ids=lambda resource: resource.kind)
def test_reference_has_every_field(resource: Resource) -> None:
    text = FILES[Path(f"docs/reference/{resource.kind.lower()}.md")]
    fields = {
        param.values[0].removeprefix(f"{resource.kind}.")
        for param in schema_nodes()
        if param.values[0].startswith(resource.kind) and not param.values[0].endswith(("[]", ".spec"))
    }

    missing = {field for field in fields if f"| `{field}` |" not in text}
    assert missing == set()
