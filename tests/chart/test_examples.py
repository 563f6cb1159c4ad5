"""Every example, and every resource that a page shows, is one that the API and the operator take."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from chart.programs import ROOT, Program
from cluster import tools
from cluster.apiserver import ControlPlane
from tidepool_api.contract import API_VERSION
from tidepool_api.language.review import review
from tidepool_api.modelpool import ModelPoolSpec
from tidepool_api.problems import problems, run_problems, unknown_fields, workflow_problems
from tidepool_api.workflow import AgentWorkflowSpec
from tidepool_api.workflow_run import AgentWorkflowRunSpec

EXAMPLES = sorted((ROOT / "examples").glob("*.yaml"))
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
_BLOCK = re.compile(r"^```yaml\n(.*?)^```", re.M | re.S)


def _resources() -> Iterator[tuple[str, dict[str, Any]]]:
    for path in EXAMPLES:
        for resource in yaml.safe_load_all(path.read_text()):
            yield path.name, resource
    for page in PAGES:
        for number, block in enumerate(_BLOCK.findall(page.read_text()), 1):
            for resource in yaml.safe_load_all(block):
                if isinstance(resource, dict) and resource.get("apiVersion") == API_VERSION:
                    yield f"{page.name}-{number}", resource


RESOURCES = [pytest.param(resource, id=name) for name, resource in _resources()]
POOLS = {resource["metadata"]["name"] for _, resource in _resources() if resource["kind"] == "ModelPool"}
WORKFLOWS = {one["metadata"]["name"] for _, one in _resources() if one["kind"] == "AgentWorkflow"}


@pytest.mark.parametrize("resource", RESOURCES)
def test_the_models_and_the_review_take_it(resource: dict[str, Any]) -> None:
    spec, name = resource["spec"], resource["metadata"]["name"]
    if resource["kind"] == "ModelPool":
        assert [str(problem) for problem in problems(spec, name)] == []
        assert unknown_fields(ModelPoolSpec, spec) == []
    elif resource["kind"] == "AgentWorkflowRun":
        assert [str(problem) for problem in run_problems(spec)] == []
        assert unknown_fields(AgentWorkflowRunSpec, spec) == []
        assert spec["workflow"] in WORKFLOWS
    else:
        assert [str(problem) for problem in workflow_problems(spec)] == []
        assert unknown_fields(AgentWorkflowSpec, spec) == []
        assert [str(problem) for problem in review(resource, POOLS)] == []


def test_there_are_examples_of_both_kinds_and_the_readme_shows_both() -> None:
    shown = {(name.split("-")[0], resource["kind"]) for name, resource in _resources()}

    assert {("README.md", "ModelPool"), ("README.md", "AgentWorkflow")} <= shown
    assert {path.name for path in EXAMPLES} >= {"modelpool-gpu.yaml", "research-workflow.yaml"}


@pytest.mark.apiserver
def test_the_api_server_takes_every_one_strictly() -> None:
    text = yaml.safe_dump_all(resource for _, resource in _resources())
    with ControlPlane() as plane:
        kubectl = Program(tools.tool_path("kubectl"), (f"--kubeconfig={plane.kubeconfig}",))
        kubectl("apply", "--server-side", "-f", str(ROOT / "crds" / "manifests"))
        kubectl("wait", "--for=condition=Established", "--timeout=30s", "crd", "--all")

        kubectl("apply", "--dry-run=server", "--validate=strict", "-n", "default", "-f", "-", stdin=text)


def test_links_between_pages_lead_somewhere() -> None:
    pages = [*PAGES, ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md"]
    texts = {page: re.sub(r"```.*?```|`[^`\n]*`", "", page.read_text(), flags=re.S) for page in pages}
    links = [(page, link) for page, text in texts.items() for link in re.findall(r"\]\(([^)#]+)[^)]*\)", text)]

    broken = [
        f"{page.name}: {link}"
        for page, link in links
        if not link.startswith(("http://", "https://")) and not Path(page.parent, link).exists()
    ]
    assert links
    assert broken == []
