"""The real cluster: made, broken, repaired and removed without a trace.

It stands beside the one that `make demo` leaves up, under a name of its own.
"""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
NAME = "tptest"
ENVIRONMENT = {**os.environ, "TIDEPOOL_CLUSTER": NAME, "PYTHONPATH": str(REPOSITORY / "e2e")}
COMMAND = [sys.executable, "-m", "cluster"]
KEPT = "echo kept && sleep 600"

pytestmark = pytest.mark.cluster


def _cluster(*arguments: str, check: bool = True) -> str:
    done = subprocess.run(
        [*COMMAND, *arguments], env=ENVIRONMENT, capture_output=True, text=True, timeout=400, check=False
    )
    assert done.returncode == 0 or not check, f"{arguments}: {done.stderr}"
    return done.stdout


def _status() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(_cluster("status", "--json", check=False))
    return found


def _traces() -> dict[str, list[str]]:
    """Everything on this machine that a cluster could leave, seen from outside of it."""

    def lines(*command: str) -> list[str]:
        output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        return sorted(output.splitlines())

    groups = [str(path) for path in Path("/sys/fs/cgroup").glob(f"*/{NAME}*")]
    groups += [str(path) for path in Path("/sys/fs/cgroup").glob(f"{NAME}*")]
    return {
        "links": [line.split(": ")[1] for line in lines("ip", "-o", "link") if NAME in line],
        "routes": [line for line in lines("ip", "route") if NAME in line],
        "network namespaces": lines("ip", "netns", "list"),
        "mounts": [line for line in Path("/proc/mounts").read_text().splitlines() if NAME in line],
        "control groups": groups,
        "nftables": lines("nft", "list", "tables"),
        "processes": _processes(),
        "folders": [str(path) for path in _state_parent().glob(f"*{NAME}*")],
        "logs": lines(
            "find", "/var/log/pods", "/var/log/containers", "/var/lib/kubelet", "/var/lib/cni", "-maxdepth", "1"
        )
        if Path("/var/lib/kubelet").exists()
        else [],
    }


def _state_parent() -> Path:
    base = os.environ.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
    return Path(base) / "tidepool"


def _processes() -> list[str]:
    """By command line and by mark: what the cluster started carries its state folder in its environment."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                text = (entry / "environ").read_bytes() + (entry / "cmdline").read_bytes()
            except OSError:
                continue
            if f"cluster-{NAME}".encode() in text or KEPT.encode() in text:
                found.append(f"{entry.name} {text[-200:]!r}")
    return found


@pytest.fixture(scope="module")
def before() -> Iterator[dict[str, list[str]]]:
    _cluster("down")
    yield _traces()
    _cluster("down")


def _kubectl(*arguments: str, stdin: str | None = None) -> str:
    program = str(Path(_cluster("tools", "kubectl").strip()) / "kubectl")
    done = subprocess.run(
        [program, f"--kubeconfig={_status()['kubeconfig']}", *arguments],
        input=stdin,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def _deployment() -> str:
    container = {
        "name": "main",
        "image": "localhost/tidepool-engine-base:local",
        "imagePullPolicy": "IfNotPresent",
        "command": ["sh", "-c", KEPT],
        "resources": {"limits": {"nvidia.com/gpu": 3}},
    }
    labels = {"app": "kept"}
    return json.dumps(
        {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": {"name": "kept"},
            "spec": {
                "replicas": 2,
                "selector": {"matchLabels": labels},
                "template": {
                    "metadata": {"labels": labels},
                    "spec": {"containers": [container], "terminationGracePeriodSeconds": 1},
                },
            },
        }
    )


def _pods() -> dict[str, str]:
    """Pod name to node of what the deployment runs."""
    items = json.loads(_kubectl("get", "pods", "--selector=app=kept", "--output=json"))["items"]
    return {item["metadata"]["name"]: item["spec"]["nodeName"] for item in items}


def test_a_cluster_is_made_repaired_and_removed_without_a_trace(before: dict[str, list[str]]) -> None:
    _cluster("up")
    made = _status()
    assert made["healthy"], made

    _cluster("up")
    assert _status()["programs"] == made["programs"], "a second `up` restarted something"

    _kubectl("apply", "--filename=-", stdin=_deployment())
    _kubectl("rollout", "status", "deployment/kept", "--timeout=100s")
    pods = _pods()
    assert len(set(pods.values())) == 2, "three GPUs each: the two pods must have gone to two nodes"

    killed = (f"{NAME}-node-1/kubelet", f"{NAME}-plane/kube-apiserver", f"{NAME}-plane/etcd")
    for program in killed:
        os.kill(made["programs"][program], signal.SIGKILL)
    _cluster("up")
    repaired = _status()
    assert repaired["healthy"], repaired
    for program, pid in made["programs"].items():
        assert (repaired["programs"][program] != pid) == (program in killed), program
    assert _pods() == pods, "a repair must not touch what runs"

    # A whole node loses its power.
    record = json.loads((_state_parent() / f"cluster-{NAME}" / f"{NAME}-node-2" / "machine.json").read_text())
    os.kill(record["pid"], signal.SIGKILL)
    _cluster("up")
    assert _status()["healthy"], _status()
    _kubectl("rollout", "status", "deployment/kept", "--timeout=100s")

    _cluster("down")
    assert _traces() == before


def test_an_up_that_was_killed_is_finished_by_the_next_one(before: dict[str, list[str]]) -> None:
    with subprocess.Popen([*COMMAND, "up"], env=ENVIRONMENT, stderr=subprocess.PIPE, text=True) as killed:
        assert killed.stderr is not None
        for line in killed.stderr:
            if "machine made" in line:
                killed.kill()
                break
    _cluster("up")
    assert _status()["healthy"], _status()
    _cluster("down")
    assert _traces() == before
