"""The commands by the real kubectl against a real API server, as a person types them; there are no nodes."""

import json
import os
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from chart.programs import ROOT, Program, served
from cluster import tools
from cluster.apiserver import ControlPlane
from tidepool_cli.__main__ import main

pytestmark = pytest.mark.apiserver

SECRET = "Zq8vXw2LmPn4RtY6"
STATUS = {
    "observedGeneration": 1,
    "replicas": 1,
    "readyReplicas": 0,
    "desiredReplicas": 3,
    "conditions": [
        {"type": "Ready", "status": "False", "reason": "InsufficientAccelerators", "message": "Add nodes.",
         "lastTransitionTime": "2026-01-01T00:00:00Z"},
    ],
}  # fmt: skip
POD = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "chat-a", "namespace": "team", "labels": {"tidepool.dev/pool": "chat"}},
    "spec": {
        "automountServiceAccountToken": False,
        "containers": [{"name": "engine", "image": "none", "env": [{"name": "HF_TOKEN", "value": SECRET}]}],
    },
}


def resource(kind: str, name: str, **spec: Any) -> dict[str, Any]:
    metadata = {"name": name, "namespace": "team"}
    return {"apiVersion": "tidepool.dev/v1alpha1", "kind": kind, "metadata": metadata, "spec": spec}


@pytest.fixture(scope="module")
def plane() -> Iterator[ControlPlane]:
    with ControlPlane() as made:
        yield made


@pytest.fixture(autouse=True)
def shell(plane: ControlPlane, monkeypatch: pytest.MonkeyPatch) -> None:
    """kubectl and its plugins on the PATH, and the cluster as the one that is chosen."""
    programs = f"{tools.tool_path('kubectl').parent}:{Path(sys.executable).parent}"
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    monkeypatch.setenv("KUBECONFIG", str(plane.kubeconfig))


@pytest.fixture(scope="module")
def kubectl(plane: ControlPlane) -> Program:
    """With the resources and a pool that has no room."""
    made = Program(tools.tool_path("kubectl"), (f"--kubeconfig={plane.kubeconfig}",))
    made("apply", "--server-side", "-f", str(ROOT / "crds" / "manifests"))
    served(made)
    made("create", "namespace", "team")
    step = {"name": "ask", "llm": {"pools": [{"name": "chat"}], "messages": [{"role": "user", "content": "hi"}]}}
    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default", "namespace": "team"}}
    objects = [
        account,  # which a controller would make
        resource("ModelPool", "chat", model={"uri": "hf://acme/chat"}),
        resource("AgentWorkflow", "digest", steps=[step]),
        POD,
    ]
    made(
        "apply",
        "--server-side",
        "-f",
        "-",
        stdin=json.dumps({"apiVersion": "v1", "kind": "List", "items": objects}),
    )
    told = json.dumps({"status": STATUS})
    made("patch", "mp", "chat", "-n", "team", "--subresource=status", "--type=merge", "-p", told)
    return made


def test_a_cluster_without_the_resources_says_what_to_install(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["top"]) == 2
    assert "install the chart first" in capsys.readouterr().err


def test_all_pools_and_one_are_told(kubectl: Program, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["top", "-A"]) == 0
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("team")]
    assert line.split()[1:4] == ["chat", "0/1", "3"]

    assert main(["explain", "chat", "-n", "team"]) == 0
    told = capsys.readouterr().out
    assert "not Ready" in told
    assert "Add nodes." in told
    assert "chat-a" in told

    assert main(["explain", "caht", "-n", "team"]) == 2
    assert '"caht" not found' in capsys.readouterr().err
    assert main(["top", "--context", "elsewhere"]) == 2
    assert "get-contexts" in capsys.readouterr().err


def test_kubectl_finds_it_as_a_plugin_and_completes_it(kubectl: Program) -> None:
    def said(*words: str) -> str:
        done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert json.loads(said("kubectl", "tidepool", "top", "-n", "team", "-o", "json"))[0]["wanted"] == 3
    assert said("kubectl", "__complete", "tidepool", "exp").splitlines()[0] == "explain"


def test_a_bundle_of_a_real_pool_has_no_secret(
    kubectl: Program, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "chat.tar.gz"
    assert main(["diagnose", "chat", "-n", "team", "--file", str(file), "-o", "json"]) == 0
    told = json.loads(capsys.readouterr().out)

    with tarfile.open(file) as archive:
        content = {one.name.partition("/")[2]: archive.extractfile(one) for one in archive if one.isfile()}
        read = {name: one.read().decode() for name, one in content.items() if one is not None}
    assert {"pool.json", "pods.json", "events.json", "explain.txt"} <= set(read)
    assert "HF_TOKEN" in read["pods.json"]
    assert SECRET not in "".join(read.values())
    assert told["missing"] == []


def test_a_run_is_made_in_the_cluster(kubectl: Program, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "digest", "-n", "team", "--input", '{"text": "tides"}', "--no-wait"]) == 0
    name = capsys.readouterr().out.strip()
    made = json.loads(kubectl("get", "awr", name, "-n", "team", "-o", "json"))

    assert made["spec"] | {"workflow": "digest", "input": {"text": "tides"}} == made["spec"]
