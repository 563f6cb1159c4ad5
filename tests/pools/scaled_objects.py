"""ScaledObjects (keda.sh) as a kind that an API server serves, to take or refuse ours; nobody acts on them."""

from typing import Any

from tidepool_operator.cluster.kinds import Object

GROUP, VERSION = "keda.sh", "v1alpha1"
API_VERSION = f"{GROUP}/{VERSION}"

_INTEGER: Object = {"type": "integer", "format": "int32"}
_TEXT: Object = {"type": "string"}
_FLAG: Object = {"type": "boolean"}


def _object(*required: str, **fields: Object) -> Object:
    return {"type": "object", "properties": fields, **({"required": list(required)} if required else {})}


def definition() -> Object:
    """The CRD with the fields of KEDA 2 but for `advanced`, each of its type; any other field is refused."""
    trigger = _object(
        "metadata",
        "type",
        type=_TEXT,
        name=_TEXT,
        metadata={"type": "object", "additionalProperties": _TEXT},
        metricType={**_TEXT, "enum": ["AverageValue", "Value", "Utilization"]},
        useCachedMetrics=_FLAG,
        authenticationRef=_object("name", name=_TEXT, kind=_TEXT),
    )
    spec = _object(
        "scaleTargetRef",
        "triggers",
        scaleTargetRef=_object("name", apiVersion=_TEXT, kind=_TEXT, name=_TEXT, envSourceContainerName=_TEXT),
        **dict.fromkeys(("pollingInterval", "cooldownPeriod", "initialCooldownPeriod"), _INTEGER),
        **dict.fromkeys(("idleReplicaCount", "minReplicaCount", "maxReplicaCount"), _INTEGER),
        fallback=_object(
            "failureThreshold", "replicas", failureThreshold=_INTEGER, replicas=_INTEGER, behavior=_TEXT
        ),
        triggers={"type": "array", "items": trigger},
    )
    version: dict[str, Any] = {
        "name": VERSION,
        "served": True,
        "storage": True,
        "schema": {"openAPIV3Schema": _object(spec=spec)},
    }
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"scaledobjects.{GROUP}"},
        "spec": {
            "group": GROUP,
            "scope": "Namespaced",
            "names": {"plural": "scaledobjects", "singular": "scaledobject", "kind": "ScaledObject"},
            "versions": [version],
        },
    }
