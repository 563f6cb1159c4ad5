"""The chart on a real API server: installed, upgraded, uninstalled; its roles and its pods' standing there."""

import json
import shutil
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from chart.programs import CHART, NAMESPACE, Object, Program, Render, served, sets, until
from cluster.apiserver import ControlPlane
from tidepool_api.crd import RESOURCES

pytestmark = pytest.mark.apiserver

ACCOUNT = f"system:serviceaccount:{NAMESPACE}:demo-tidepool-operator"
NEED = ["team-a", "team-b"]


@pytest.fixture(scope="module")
def helm_there(helm: Program, control_plane: ControlPlane, kubectl: Program) -> Program:
    """Helm that talks to the API server, with the namespaces in place."""
    for name in (NAMESPACE, *NEED):
        kubectl("create", "namespace", name)
        # No controller here makes it, and pods are not admitted without.
        kubectl("create", "serviceaccount", "default", "-n", name)
    # Every pod of this project must pass the strictest standard.
    kubectl("label", "namespace", NAMESPACE, "pod-security.kubernetes.io/enforce=restricted")
    return Program(
        helm.path, (*helm.flags, f"--kubeconfig={control_plane.kubeconfig}", f"--namespace={NAMESPACE}")
    )


@pytest.fixture
def installed(helm_there: Program, kubectl: Program) -> Iterator[Program]:
    helm_there("install", "demo", str(CHART))
    yield helm_there
    helm_there("uninstall", "demo", "--ignore-not-found")
    for name in _crds(kubectl):
        kubectl("delete", "crd", name)


def _crds(kubectl: Program) -> list[str]:
    return kubectl("get", "crd", "-o", "jsonpath={.items[*].metadata.name}").split()


def _may(kubectl: Program, *question: str) -> None:
    """Wait until the account may: the API server learns of roles by a watch of its own."""
    until(f"the account may {' '.join(question)}", lambda: _can(kubectl, *question))


def _may_not(kubectl: Program, *question: str) -> None:
    until(f"the account may not {' '.join(question)}", lambda: not _can(kubectl, *question))


def _can(kubectl: Program, *question: str) -> bool:
    return kubectl.run("auth", "can-i", *question, f"--as={ACCOUNT}").stdout.strip() == "yes"


def test_the_api_server_takes_every_object_strictly(helm_there: Program, kubectl: Program, render: Render) -> None:
    for values in ({}, {"watchNamespaces": NEED, "operator.replicas": 2, "gateway.service.type": "LoadBalancer"}):
        text = yaml.safe_dump_all(render(values).objects)

        applied = kubectl(
            "apply", "--server-side", "--dry-run=server", "--validate=strict", "-f", "-", stdin=text
        ).splitlines()

        assert len(applied) == len(render(values).objects)


def test_every_pod_passes_the_restricted_standard(helm_there: Program, kubectl: Program, render: Render) -> None:
    for name, template in render({}).pods().items():
        metadata = {"name": name, "namespace": NAMESPACE, "labels": template["metadata"]["labels"]}
        spec = {key: value for key, value in template["spec"].items() if key != "serviceAccountName"}
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}

        done = kubectl.run("create", "--dry-run=server", "-f", "-", stdin=json.dumps(pod))

        assert done.returncode == 0, done.stderr


def test_pools_survive_uninstall_and_a_new_release_takes_them_over(installed: Program, kubectl: Program) -> None:
    pool = {
        "apiVersion": "tidepool.dev/v1alpha1",
        "kind": "ModelPool",
        "metadata": {"name": "kept", "namespace": "team-a"},
        "spec": {"model": {"uri": "hf://acme/small"}},
    }
    served(kubectl)
    kubectl("apply", "-f", "-", stdin=json.dumps(pool))

    installed("uninstall", "demo")

    assert len(_crds(kubectl)) == len(RESOURCES)
    assert kubectl("get", "mp", "-n", "team-a", "-o", "name").strip() == "modelpool.tidepool.dev/kept"
    rest = kubectl("get", "deploy,svc,sa,role,rolebinding,pdb,netpol", "-n", NAMESPACE, "-o", "name")
    assert "demo" not in rest
    installed("install", "demo", str(CHART))
    assert kubectl("get", "mp", "-n", "team-a", "-o", "name").strip() == "modelpool.tidepool.dev/kept"


def test_upgrade_brings_the_new_fields_of_a_crd(installed: Program, kubectl: Program, tmp_path: Path) -> None:
    newer = Path(shutil.copytree(CHART, tmp_path / "tidepool"))
    crd_file = newer / "files" / "crds" / "tidepool.dev_modelpools.yaml"
    crd: Object = yaml.safe_load(crd_file.read_text())
    spec = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
    spec["properties"]["brandNew"] = {"type": "string", "maxLength": 10}
    crd_file.write_text(yaml.safe_dump(crd))

    installed("upgrade", "demo", str(newer))

    path = "{.spec.versions[0].schema.openAPIV3Schema.properties.spec.properties.brandNew.type}"
    assert kubectl("get", "crd", "modelpools.tidepool.dev", "-o", f"jsonpath={path}") == "string"


def test_upgrade_of_every_value_keeps_selectors(installed: Program) -> None:
    # A selector that changed would be refused here: it is immutable.
    values = {"operator.replicas": 2, "gateway.replicas": 3, "router.image.tag": "other", "podSecurityContext": {}}

    installed("upgrade", "demo", str(CHART), *sets(values))


def test_the_operators_account_may_do_its_work_and_no_more(installed: Program, kubectl: Program) -> None:
    for question in (
        ("watch", "modelpools.tidepool.dev", "-A"),
        ("watch", "pods", "-A"),
        ("patch", "modelpools.tidepool.dev", "--subresource=status", "-n", "team-a"),
        ("patch", "modelpools.tidepool.dev", "--subresource=scale", "-n", "team-a"),
        ("patch", "deployments.apps", "-n", "team-a"),
        ("delete", "endpointslices.discovery.k8s.io", "-n", "team-a"),
        ("create", "events.events.k8s.io", "-n", "team-a"),
        ("patch", "deployments.apps", "--subresource=scale", "-n", "team-a"),
        ("patch", "leases.coordination.k8s.io/tidepool-operator", "-n", NAMESPACE),
        ("patch", "configmaps/tidepool-fleet", "-n", NAMESPACE),
        (
            "get",
            "pods",
            "--subresource=log",
            "-n",
            "team-a",
        ),  # operator.readLogs: the cause stands in an engine's log
    ):
        _may(kubectl, *question)
    for question in (
        ("get", "secrets", "-n", "team-a"),
        ("list", "secrets", "-A"),
        ("create", "pods", "-n", "team-a"),
        ("delete", "pods", "-n", "team-a"),
        ("create", "pods", "--subresource=exec", "-n", "team-a"),
        ("create", "clusterrolebindings", "-n", "team-a"),
        ("create", "modelpools.tidepool.dev", "-n", "team-a"),
        ("delete", "modelpools.tidepool.dev", "-n", "team-a"),
        ("patch", "leases.coordination.k8s.io", "-n", "team-a"),
        ("delete", "services", "-n", "team-a"),
        ("patch", "leases.coordination.k8s.io/other", "-n", NAMESPACE),
        ("patch", "modelpools.tidepool.dev", "-n", "team-a"),
    ):
        _may_not(kubectl, *question)


def test_who_wishes_it_keeps_logs_from_the_operator(installed: Program, kubectl: Program) -> None:
    installed("upgrade", "demo", str(CHART), *sets({"operator.readLogs": False}))

    _may_not(kubectl, "get", "pods", "--subresource=log", "-n", "team-a")


def test_with_a_list_the_account_reaches_no_other_namespace(helm_there: Program, kubectl: Program) -> None:
    helm_there("upgrade", "--install", "demo", str(CHART), *sets({"watchNamespaces": ["team-a"]}))
    try:
        _may(kubectl, "patch", "deployments.apps", "-n", "team-a")
        _may(kubectl, "list", "pods", "-n", NAMESPACE)
        _may_not(kubectl, "list", "pods", "-n", "team-b")
        _may_not(kubectl, "list", "modelpools.tidepool.dev", "-A")
    finally:
        helm_there("uninstall", "demo")


def test_users_with_the_built_in_roles_see_and_edit_pools(installed: Program, kubectl: Program) -> None:
    roles = json.loads(kubectl("get", "clusterrole", "-l", "app.kubernetes.io/instance=demo", "-o", "json"))[
        "items"
    ]
    rules = {role["metadata"]["name"]: role["rules"] for role in roles}

    edit = rules[f"{NAMESPACE}-demo-tidepool-edit"]
    assert {"create", "delete", "patch"} <= set(edit[0]["verbs"])
    assert set(rules[f"{NAMESPACE}-demo-tidepool-view"][0]["verbs"]) == {"get", "list", "watch"}


# What helm says


def _notes(helm: Program, values: dict[str, Any]) -> str:
    return helm("install", "demo", str(CHART), "--dry-run=client", *sets(values)).split("NOTES:")[1]


def test_notes_tell_the_next_steps_with_the_real_names(helm_there: Program) -> None:
    notes = _notes(helm_there, {"prometheus.url": "http://p:9090"})

    assert "service/demo-tidepool-gateway 8080:80" in notes
    assert "deployment/demo-tidepool-operator" in notes
    assert "WARNING" not in notes


def test_notes_warn_of_what_will_not_work(helm_there: Program) -> None:
    assert "prometheus.url is not set" in _notes(helm_there, {})
    assert "There is no gateway" in _notes(helm_there, {"gateway.enabled": False})


def test_the_model_pool_of_the_notes_is_one_the_api_server_takes(installed: Program, kubectl: Program) -> None:
    served(kubectl)
    pool = installed("get", "notes", "demo").split("<<EOF\n")[1].split("EOF")[0]

    kubectl(
        "apply", "--dry-run=server", "--validate=strict", "-n", "team-a", "-f", "-", stdin=textwrap.dedent(pool)
    )
