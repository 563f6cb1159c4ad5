"""Every reason that a pool's conditions can carry, with what to do about it. Reasons are stable."""

from enum import StrEnum
from typing import Final


class Reason(StrEnum):
    """CamelCase words of conditions and events."""

    # All is well, or on its way.
    SERVING = "Serving"
    SCALED_TO_ZERO = "ScaledToZero"
    STARTING = "Starting"
    LOADING = "Loading"
    DRAINING = "Draining"
    ROLLING_OUT = "RollingOut"
    SCALING = "Scaling"
    COMPLETE = "Complete"
    LOADED = "Loaded"
    ENOUGH = "Enough"
    HEALTHY = "Healthy"
    SCALING_OFF = "ScalingOff"
    NO_DECISION = "NoDecision"
    # A person must act.
    SPEC_INVALID = "SpecInvalid"
    NAME_TAKEN = "NameTaken"
    POD_TEMPLATE_REJECTED = "PodTemplateRejected"
    QUOTA_EXCEEDED = "QuotaExceeded"
    PODS_REFUSED = "PodsRefused"
    IMAGE_PULL_FAILED = "ImagePullFailed"
    SECRET_MISSING = "SecretMissing"  # noqa: S105 - a reason, no secret
    CONFIG_MISSING = "ConfigMissing"
    CONTAINER_CONFIG_INVALID = "ContainerConfigInvalid"
    CONTAINER_START_FAILED = "ContainerStartFailed"
    ENGINE_CRASHED = "EngineCrashed"
    ENGINE_OUT_OF_MEMORY = "EngineOutOfMemory"
    ROUTER_CRASHED = "RouterCrashed"
    INSUFFICIENT_ACCELERATORS = "InsufficientAccelerators"
    UNSCHEDULABLE = "Unschedulable"
    POD_FAILED = "PodFailed"
    ENGINE_NOT_READY = "EngineNotReady"
    PROGRESS_DEADLINE_EXCEEDED = "ProgressDeadlineExceeded"


REMEDIES: Final = {
    Reason.SPEC_INVALID: "Correct the named field and apply the ModelPool again.",
    Reason.NAME_TAKEN: "Delete or rename that object, or give the ModelPool another name.",
    Reason.POD_TEMPLATE_REJECTED: "Correct spec.podTemplate (or the named field) and apply the ModelPool again.",
    Reason.QUOTA_EXCEEDED: "Raise the namespace's ResourceQuota or ask for fewer replicas.",
    Reason.PODS_REFUSED: "Change what the message names: an admission policy of the cluster refuses the pods.",
    Reason.IMAGE_PULL_FAILED: "Check the image's name and tag, and that the nodes may pull it "
    "(spec.podTemplate.spec.imagePullSecrets).",
    Reason.SECRET_MISSING: "Create the Secret with that key in the pool's namespace; the pods pick it up by "
    "themselves.",
    Reason.CONFIG_MISSING: "Create the ConfigMap with that key in the pool's namespace; the pods pick it up by "
    "themselves.",
    Reason.CONTAINER_CONFIG_INVALID: "Correct what the message names in spec.podTemplate or spec.engine.",
    Reason.CONTAINER_START_FAILED: "Check the command in spec.podTemplate and what the image holds.",
    Reason.ENGINE_CRASHED: "Read the message and the engine's log (kubectl logs -c engine --previous), then "
    "correct spec.model or spec.engine.",
    Reason.ENGINE_OUT_OF_MEMORY: "Raise the engine's memory limit in spec.podTemplate, or lower "
    "spec.engine.maxModelLen.",
    Reason.ROUTER_CRASHED: "Read the router's log (kubectl logs -c router --previous) and report it.",
    Reason.INSUFFICIENT_ACCELERATORS: "Free accelerators or add nodes, or lower spec.replicas or "
    "spec.scaling.maxReplicas.",
    Reason.UNSCHEDULABLE: "Compare spec.accelerator and spec.podTemplate with the nodes: selectors, taints, "
    "memory and volumes.",
    Reason.POD_FAILED: "Read the message; the pod is replaced by itself.",
    Reason.ENGINE_NOT_READY: "Read the engine's log (kubectl logs -c engine); the router takes the pod back when "
    "the engine answers.",
    Reason.PROGRESS_DEADLINE_EXCEEDED: "The rollout is stopped and the earlier revision serves on. Correct the "
    "spec, or change it back.",
}


def explain(reason: Reason, what: str) -> str:
    """What happened, then what to do."""
    what = what.strip().rstrip(".")
    remedy = REMEDIES.get(reason)
    return f"{what}. {remedy}" if remedy else f"{what}."
