"""The engine and its model as a read-only volume: 6 GB are mounted, not baked into an image."""

from typing import Any

from cluster.configs import ENGINE_ROOT
from cluster.console import step
from cluster.kubernetes import Kubectl

CLAIM = "tidepool-engine"
# Where pods are expected to mount the claim.
MOUNT_PATH = "/opt/engine"
_SIZE = "10Gi"


def objects(namespace: str) -> list[dict[str, Any]]:
    """A static PersistentVolume over the nodes' engine folder, bound to a claim of one namespace. Pure.

    A claim rather than a hostPath in the pod, which the restricted Pod Security
    Standard forbids.
    """
    volume = f"{CLAIM}-{namespace}"
    return [
        {
            "apiVersion": "v1",
            "kind": "PersistentVolume",
            "metadata": {"name": volume},
            "spec": {
                "capacity": {"storage": _SIZE},
                "accessModes": ["ReadOnlyMany"],
                "persistentVolumeReclaimPolicy": "Retain",
                "storageClassName": "",
                "hostPath": {"path": str(ENGINE_ROOT), "type": "Directory"},
                # Bound by name; without the claim's uid it binds again to a claim that was made anew.
                "claimRef": {
                    "apiVersion": "v1",
                    "kind": "PersistentVolumeClaim",
                    "name": CLAIM,
                    "namespace": namespace,
                },
            },
        },
        {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": {"name": CLAIM, "namespace": namespace},
            "spec": {
                "accessModes": ["ReadOnlyMany"],
                "storageClassName": "",
                "volumeName": volume,
                "resources": {"requests": {"storage": _SIZE}},
            },
        },
    ]


def ensure(kubectl: Kubectl, namespace: str) -> None:
    """Apply both; the namespace is made when it is missing. Raises CommandFailed."""
    phase = kubectl("get", "namespace", namespace, "--ignore-not-found", "--output=jsonpath={.status.phase}")
    if phase == "Terminating":
        # What is applied now would go with it.
        with step(f"wait until the old namespace {namespace} is gone"):
            wait = ("wait", "--for=delete", f"namespace/{namespace}", "--timeout=120s")
            kubectl(*wait, "--request-timeout=0", timeout_seconds=130)
    if phase != "Active":
        kubectl("create", "namespace", namespace)
    if _is_released(kubectl, namespace):
        # Its claim was deleted, with the namespace or alone; the record of it bars a new one.
        kubectl("delete", "persistentvolume", f"{CLAIM}-{namespace}", "--wait=true")
    kubectl.apply(objects(namespace))


def _is_released(kubectl: Kubectl, namespace: str) -> bool:
    found = kubectl(
        "get", "persistentvolume", f"{CLAIM}-{namespace}", "--ignore-not-found", "-o=jsonpath={.status.phase}"
    )
    return found in ("Released", "Failed")
