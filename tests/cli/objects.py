"""Objects as the API server gives them, and a cluster made of them."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from tidepool_cli.errors import CliError, NoSuchObject
from tidepool_cli.kubectl import Object

NOW = datetime(2026, 3, 4, 12, 0, tzinfo=UTC)


def pool(**status: Any) -> Object:
    return {
        "apiVersion": "tidepool.dev/v1alpha1",
        "kind": "ModelPool",
        "metadata": {"name": "chat", "namespace": "team", "generation": 2},
        "spec": {"model": {"uri": "hf://a/b"}, "scaling": {"minReplicas": 1, "maxReplicas": 8}},
        "status": {
            "observedGeneration": 2,
            "replicas": 3,
            "readyReplicas": 2,
            "desiredReplicas": 4,
            "figures": {"kvUtilization": "40%", "outputTokensPerSecond": "1200", "timeToFirstToken": "180ms"},
            "scaling": {
                "lastDecision": _decision(
                    "11:59:30", 4, "3 -> 4: P90 of output tokens 8,900/s at 12:04; binding: decode"
                ),
                "history": [
                    _decision("11:59:30", 4, "3 -> 4: P90 of output tokens 8,900/s at 12:04; binding: decode"),
                    _decision("11:40:00", 3, "2 -> 3: 12 requests waiting"),
                ],
                "refused": {
                    "replicas": 2,
                    "reason": "QuotaReached",
                    "message": "quota gpus of team is full; raise it",
                },
            },
            "conditions": [
                condition(
                    "Ready", "False", "ImagePullDenied", "The registry wants a login. Set imagePullSecrets."
                ),
                condition(
                    "CapacityAvailable", "False", "Unschedulable", "2 nvidia.com/gpu are missing; add a node"
                ),
                condition("Progressing", "False", "Complete", "nothing to do"),
                condition("Degraded", "False", "Healthy", "no pod is"),
            ],
        }
        | status,
    }


def condition(kind: str, status: str, reason: str, message: str) -> Object:
    return {
        "type": kind,
        "status": status,
        "reason": reason,
        "message": message,
        "lastTransitionTime": "2026-03-04T11:56:00Z",
    }


def _decision(time: str, replicas: int, message: str) -> Object:
    return {"time": f"2026-03-04T{time}Z", "replicas": replicas, "reason": "Forecast", "message": message}


def pod(name: str, **state: Any) -> Object:
    waiting = state.pop("waiting", None)
    container: Object = {"name": "engine", "restartCount": state.pop("restarts", 0)}
    container["state"] = {"waiting": {"reason": waiting}} if waiting else {"running": {}}
    return {
        "metadata": {
            "name": name,
            "creationTimestamp": "2026-03-04T11:58:00Z",
            "labels": {"tidepool.dev/pool": "chat", "tidepool.dev/revision": "25fc0"},
        },
        "spec": {"nodeName": "gpu-1", "containers": [{"name": "engine", **state}]},
        "status": {
            "phase": "Running",
            "containerStatuses": [container],
            "conditions": [{"type": "Ready", "status": "False" if waiting else "True"}],
        },
    }


EVENT: Object = {
    "metadata": {"name": "chat.1", "creationTimestamp": "2026-03-04T11:57:00Z"},
    "involvedObject": {"kind": "ModelPool", "name": "chat"},
    "type": "Warning",
    "reason": "ImagePullDenied",
    "message": "the registry wants a login",
    "lastTimestamp": "2026-03-04T11:59:00Z",
}


class Made:
    """A cluster of these objects. What is not there cannot be had."""

    def __init__(self, objects: Mapping[str, list[Object]], log: str = "") -> None:
        self.objects = dict(objects)
        self.log = log
        self.created: list[Object] = []

    def get(self, resource: str, name: str) -> Object:
        for found in self.objects.get(resource, []):
            if found["metadata"]["name"] == name:
                return found
        raise NoSuchObject(f"{resource} {name!r} not found")

    def list(
        self, resource: str, *, selector: str = "", fields: str = "", everywhere: bool = False
    ) -> list[Object]:
        if resource not in self.objects:
            raise CliError(f"{resource}: you may not; password=hunter2")
        return self.objects[resource]

    def logs(self, pod: str, container: str, lines: int, *, previous: bool = False) -> str:
        return self.log

    def execute(self, target: str, command: Sequence[str]) -> str:
        return f"{target}: {' '.join(command)}\n"

    def create(self, document: Mapping[str, Any]) -> Object:
        made = dict(document) | {"metadata": {"name": f"{document['metadata']['generateName']}x7k2p"}}
        self.created.append(made)
        return made
