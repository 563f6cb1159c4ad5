"""What to look at when a scenario failed: objects, events and logs, into a folder."""

import subprocess
from pathlib import Path

from scenarios.kube import Kube, KubectlError

LOOKS = {
    "nodes.txt": ("get", "nodes", "-o", "wide"),
    "pods.txt": ("get", "pods", "-A", "-o", "wide"),
    "pods.yaml": ("get", "pods", "-A", "-o", "yaml"),
    "pools.yaml": ("get", "modelpools", "-A", "-o", "yaml"),
    "workloads.yaml": ("get", "deployments,replicasets,endpointslices,services", "-A", "-o", "yaml"),
    "events.txt": ("get", "events", "-A", "--sort-by=.lastTimestamp"),
}


def dump(kube: Kube, folder: Path, namespaces: tuple[str, ...]) -> Path:
    """Write everything that can be had; what cannot is said in its file. Returns the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, words in LOOKS.items():
        (folder / name).write_text(_look(kube, *words))
    for namespace in namespaces:
        for pod in _look(kube, "get", "pods", "-n", namespace, "-o", "name").split():
            _logs(kube, folder, namespace, pod.removeprefix("pod/"))
    return folder


def _logs(kube: Kube, folder: Path, namespace: str, pod: str) -> None:
    logs = _look(kube, "logs", "-n", namespace, pod, "--all-containers", "--prefix", "--tail=2000")
    (folder / f"{namespace}.{pod}.log").write_text(logs)
    previous = _look(kube, "logs", "-n", namespace, pod, "--all-containers", "--previous", "--tail=500")
    (folder / f"{namespace}.{pod}.previous.log").write_text(previous)


def _look(kube: Kube, *words: str) -> str:
    try:
        return kube.run(*words)
    except (KubectlError, subprocess.TimeoutExpired) as error:
        return f"(kubectl {' '.join(words)}: {error})\n"
