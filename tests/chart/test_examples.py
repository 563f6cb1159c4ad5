"""Every example, and every resource that a page shows, is one that the API and the operator take."""

from typing import Any

import pytest
import yaml

from chart.programs import ROOT, Program, served
from cluster import tools
from cluster.apiserver import ControlPlane
from documents.manifests import EXAMPLES, FOREIGN, check_object, examples, shown
from pools import scaled_objects

ALL = [*examples(), *shown()]
RESOURCES = [pytest.param(resource, id=name) for name, resource in ALL]
POOLS = {resource["metadata"]["name"] for _, resource in ALL if resource["kind"] == "ModelPool"}
WORKFLOWS = {one["metadata"]["name"] for _, one in ALL if one["kind"] == "AgentWorkflow"}


@pytest.mark.parametrize("resource", RESOURCES)
def test_the_models_and_the_review_take_it(resource: dict[str, Any]) -> None:
    check_object(resource, POOLS, WORKFLOWS)


def test_there_are_examples_of_both_kinds_and_the_readme_shows_both() -> None:
    shown_at = {(name.partition(":")[0], resource["kind"]) for name, resource in ALL}

    assert {("README.md", "ModelPool"), ("README.md", "AgentWorkflow")} <= shown_at
    assert {path.name for path in EXAMPLES} >= {"modelpool-gpu.yaml", "research-workflow.yaml"}


def test_an_example_of_a_kind_that_others_bring_says_so_in_its_first_line() -> None:
    for path in EXAMPLES:
        foreign = {
            FOREIGN[one["apiVersion"]] for name, one in ALL if name == path.name and one["apiVersion"] in FOREIGN
        }
        first = path.read_text().partition("\n")[0]
        assert all(first.startswith(f"# Needs {what} ") for what in foreign), path.name


@pytest.mark.apiserver
def test_the_api_server_takes_every_one_strictly() -> None:
    """Ours, those of Kubernetes, and KEDA's; of others the API server has no definition."""
    unknown = {*FOREIGN} - {scaled_objects.API_VERSION}
    known = [resource for _, resource in ALL if resource["apiVersion"] not in unknown]
    assert {one["apiVersion"] for _, one in examples()} <= {one["apiVersion"] for one in known}
    with ControlPlane() as plane:
        kubectl = Program(tools.tool_path("kubectl"), (f"--kubeconfig={plane.kubeconfig}",))
        kubectl("apply", "--server-side", "-f", str(ROOT / "crds" / "manifests"))
        kubectl("apply", "-f", "-", stdin=yaml.safe_dump(scaled_objects.definition()))
        served(kubectl)
        for namespace in sorted({one["metadata"].get("namespace", "default") for one in known} - {"default"}):
            kubectl("create", "namespace", namespace)

        kubectl("apply", "--dry-run=server", "--validate=strict", "-f", "-", stdin=yaml.safe_dump_all(known))
