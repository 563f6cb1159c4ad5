"""LeaderWorkerSets (sigs.k8s.io/lws) as a kind that an API server serves; nobody acts on them."""

from typing import Any

from tidepool_operator.cluster.kinds import LEADER_WORKER_SET, Object

_CRD = ("apiextensions.k8s.io/v1", "CustomResourceDefinition")


def _open(**rest: Any) -> Object:
    return {"type": "object", "x-kubernetes-preserve-unknown-fields": True, **rest}


def definition() -> Object:
    """The CRD: the fields that matter here, with the defaults and bounds of sigs.k8s.io/lws v1."""
    template = {
        "type": "object",
        "required": ["workerTemplate"],
        "properties": {
            "leaderTemplate": _open(),
            "workerTemplate": _open(),
            "size": {"type": "integer", "format": "int32", "default": 1},
            "restartPolicy": {
                "type": "string",
                "default": "RecreateGroupOnPodRestart",
                "enum": ["Default", "RecreateGroupOnPodRestart", "RecreateGroupAfterStart", "None"],
            },
        },
    }
    spec = {
        "type": "object",
        "required": ["leaderWorkerTemplate"],
        "properties": {
            "replicas": {"type": "integer", "format": "int32", "default": 1},
            "leaderWorkerTemplate": template,
            "startupPolicy": {
                "type": "string",
                "default": "LeaderCreated",
                "enum": ["LeaderCreated", "LeaderReady"],
            },
        },
    }
    kind = LEADER_WORKER_SET
    scale = {"specReplicasPath": ".spec.replicas", "statusReplicasPath": ".status.replicas"}
    version = {
        "name": kind.version,
        "served": True,
        "storage": True,
        "schema": {"openAPIV3Schema": {"type": "object", "properties": {"spec": spec, "status": _open()}}},
        "subresources": {"status": {}, "scale": scale},
    }
    return {
        "apiVersion": _CRD[0],
        "kind": _CRD[1],
        "metadata": {
            "name": f"{kind.plural}.{kind.group}",
            # Names of this domain are Kubernetes' own to give (KEP-1111).
            "annotations": {"api-approved.kubernetes.io": "unapproved, for a test"},
        },
        "spec": {
            "group": kind.group,
            "scope": "Namespaced",
            "names": {"plural": kind.plural, "singular": "leaderworkerset", "kind": kind.kind},
            "versions": [version],
        },
    }
