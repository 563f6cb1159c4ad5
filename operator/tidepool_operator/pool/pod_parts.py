"""Parts that every pod of Tidepool's has, whatever it is for."""

from typing import Final

from tidepool_operator.pool.model import Object

USER: Final = 1000


def pod_security() -> Object:
    """Of a pod that passes the Pod Security Standard "restricted"."""
    return {
        "runAsNonRoot": True,
        "runAsUser": USER,
        "runAsGroup": USER,
        "fsGroup": USER,
        "fsGroupChangePolicy": "OnRootMismatch",
        "seccompProfile": {"type": "RuntimeDefault"},
    }


def locked_down() -> Object:
    """Of a container that passes it."""
    return {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
