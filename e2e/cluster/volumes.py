"""Volumes of the nodes: the engine and its model, 6 GB that are mounted and not baked, and folders to write to."""

import os
from pathlib import Path
from typing import Any

from cluster.configs import ENGINE_ROOT
from cluster.console import step
from cluster.kubernetes import Kubectl
from cluster.paths import state_dir

CLAIM = "tidepool-engine"
# Where pods are expected to mount the claim.
MOUNT_PATH = "/opt/engine"
_SIZE = "10Gi"
# Of the engines' and loaders' pods.
_USER = 1000


def objects(
    namespace: str, claim: str = CLAIM, folder: str = str(ENGINE_ROOT), mode: str = "ReadOnlyMany"
) -> list[dict[str, Any]]:
    """A static PersistentVolume over a folder that all nodes see, bound to a claim of one namespace. Pure.

    A claim rather than a hostPath in the pod, which the restricted Pod Security
    Standard forbids.
    """
    volume = f"{claim}-{namespace}"
    return [
        {
            "apiVersion": "v1",
            "kind": "PersistentVolume",
            "metadata": {"name": volume},
            "spec": {
                "capacity": {"storage": _SIZE},
                "accessModes": [mode],
                "persistentVolumeReclaimPolicy": "Retain",
                "storageClassName": "",
                "hostPath": {"path": folder, "type": "Directory"},
                # Bound by name; without the claim's uid it binds again to a claim that was made anew.
                "claimRef": {
                    "apiVersion": "v1",
                    "kind": "PersistentVolumeClaim",
                    "name": claim,
                    "namespace": namespace,
                },
            },
        },
        {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": {"name": claim, "namespace": namespace},
            "spec": {
                "accessModes": [mode],
                "storageClassName": "",
                "volumeName": volume,
                "resources": {"requests": {"storage": _SIZE}},
            },
        },
    ]


def ensure(kubectl: Kubectl, namespace: str) -> None:
    """The engine's claim in a namespace, which is made when it is missing. Raises CommandFailed."""
    _ensure(kubectl, namespace, CLAIM, objects(namespace))


def ensure_shared(kubectl: Kubectl, namespace: str, claim: str) -> Path:
    """A claim that pods of all nodes may write to as user 1000; returns its folder on this machine, which is empty
    when it is made. Raises CommandFailed."""
    # The nodes see this machine's files, but for /run and parts of /var.
    folder = state_dir() / "volumes" / f"{namespace}-{claim}"
    folder.mkdir(parents=True, exist_ok=True)
    os.chown(folder, _USER, _USER)
    _ensure(kubectl, namespace, claim, objects(namespace, claim, str(folder), "ReadWriteMany"))
    return folder


def _ensure(kubectl: Kubectl, namespace: str, claim: str, made: list[dict[str, Any]]) -> None:
    phase = kubectl("get", "namespace", namespace, "--ignore-not-found", "--output=jsonpath={.status.phase}")
    if phase == "Terminating":
        # What is applied now would go with it.
        with step(f"wait until the old namespace {namespace} is gone"):
            wait = ("wait", "--for=delete", f"namespace/{namespace}", "--timeout=120s")
            kubectl(*wait, "--request-timeout=0", timeout_seconds=130)
    if phase != "Active":
        kubectl("create", "namespace", namespace)
    if _is_released(kubectl, f"{claim}-{namespace}"):
        # Its claim was deleted, with the namespace or alone; the record of it bars a new one.
        kubectl("delete", "persistentvolume", f"{claim}-{namespace}", "--wait=true")
    kubectl.apply(made)


def _is_released(kubectl: Kubectl, volume: str) -> bool:
    found = kubectl("get", "persistentvolume", volume, "--ignore-not-found", "-o=jsonpath={.status.phase}")
    return found in ("Released", "Failed")
