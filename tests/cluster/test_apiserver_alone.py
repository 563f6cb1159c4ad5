"""The API server that other tests stand on."""

import json
import os
import signal
import subprocess
import sys
import urllib.error
from pathlib import Path

import pytest

from cluster import processes, tools
from cluster.apiserver import ControlPlane, call
from cluster.kubernetes import Kubectl

pytestmark = pytest.mark.apiserver


def test_it_reports_its_version_and_lets_nobody_in_without_a_token() -> None:
    with ControlPlane() as plane:
        kubectl = Kubectl(plane.kubeconfig)
        version = json.loads(kubectl("get", "--raw=/version"))["gitVersion"]
        authority = json.loads(plane.kubeconfig.read_text())["clusters"][0]["cluster"]["certificate-authority"]
        with pytest.raises(urllib.error.HTTPError, match="401"):
            call(f"{plane.url}/version", "another token", Path(authority))
        folder = plane.kubeconfig.parent

    go_mod = (tools.RELEASES[tools.release()] / "go.mod").read_text()
    assert version == tools.module_versions(go_mod)["k8s.io/kubernetes"]
    assert not folder.exists()
    assert processes.marked(str(folder)) == []


def test_two_stand_side_by_side() -> None:
    with ControlPlane() as one, ControlPlane() as other:
        Kubectl(one.kubeconfig)("create", "namespace", "only-here")
        assert not Kubectl(other.kubeconfig).succeeds("get", "namespace", "only-here")


def test_with_controllers_what_lost_its_owner_is_collected() -> None:
    with ControlPlane(controllers=True) as plane:
        kubectl = Kubectl(plane.kubeconfig)
        kubectl("create", "configmap", "owner")
        owner = json.loads(kubectl("get", "configmap", "owner", "--output=json"))["metadata"]["uid"]
        reference = {"apiVersion": "v1", "kind": "ConfigMap", "name": "owner", "uid": owner}
        kubectl.apply(
            [
                {
                    "apiVersion": "v1",
                    "kind": "ConfigMap",
                    "metadata": {"name": "owned", "namespace": "default", "ownerReferences": [reference]},
                }
            ]
        )
        kubectl("delete", "configmap", "owner")
        kubectl("wait", "--for=delete", "configmap/owned", "--timeout=60s", timeout_seconds=70)


def test_what_a_killed_test_run_left_is_gone_after_the_next_start() -> None:
    script = (
        "import time; from cluster.apiserver import ControlPlane\n"
        "plane = ControlPlane().start(); print(plane.kubeconfig.parent, flush=True); time.sleep(600)"
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(tools.__file__).parents[1])}
    command = [sys.executable, "-c", script]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        folder = Path(owner.stdout.readline().strip())
        owner.send_signal(signal.SIGKILL)
    assert len(processes.marked(str(folder))) == 2, "etcd and the API server outlive their killed owner"

    with ControlPlane():
        assert processes.marked(str(folder)) == []
        assert not folder.exists()
