"""What is the matter with a pod: from its status to one stable reason. Unknown text never gets a specific one."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from tidepool_api.contract import ENGINE_CONTAINER, ROUTER_CONTAINER
from tidepool_operator.pool.model import Object
from tidepool_operator.pool.reasons import Reason

_IMAGE_REASONS: Final = frozenset(
    {
        "ErrImagePull",
        "ImagePullBackOff",
        "InvalidImageName",
        "ErrImageNeverPull",
        "ImageInspectError",
        "RegistryUnavailable",
        "SignatureValidationFailed",
    }
)
_START_REASONS: Final = frozenset({"CreateContainerError", "RunContainerError", "PreCreateHookError"})
# kubelet's words (pkg/kubelet/kubelet_pods.go, makeEnvironmentVariables).
_SECRET: Final = re.compile(r'secret "|in Secret ')
_CONFIG: Final = re.compile(r'configmap "|in ConfigMap ')
_TAIL_CHARACTERS: Final = 600
_ERROR: Final = re.compile(r"\b\w*(Error|Exception|error:)")
# vLLM's API server ends with these when its engine core has said the cause before (vllm/v1/engine/core_client.py).
_ELSEWHERE: Final = re.compile(r"See root cause above|Failed core proc")
# An engine may print its environment when it crashes; what looks like a token goes no further.
_TOKENS: Final = re.compile(
    r"hf_[A-Za-z0-9]{8,}|(?i:bearer)\s+\S+|(?i:(?:token|api[-_]?key|password)['\"]?\s*[=:]\s*)\S+"
)


@dataclass(frozen=True, slots=True)
class Finding:
    """One pod's state: the reason, and what happened in words."""

    reason: Reason
    what: str


# The first that any pod has speaks for the pool: the cause before what follows from it.
ORDER: Final = (
    Reason.QUOTA_EXCEEDED,
    Reason.PODS_REFUSED,
    Reason.IMAGE_PULL_FAILED,
    Reason.SECRET_MISSING,
    Reason.CONFIG_MISSING,
    Reason.CONTAINER_CONFIG_INVALID,
    Reason.CONTAINER_START_FAILED,
    Reason.ENGINE_OUT_OF_MEMORY,
    Reason.ENGINE_CRASHED,
    Reason.ROUTER_CRASHED,
    Reason.INSUFFICIENT_ACCELERATORS,
    Reason.UNSCHEDULABLE,
    Reason.POD_FAILED,
    Reason.ENGINE_NOT_READY,
    Reason.LOADING,
    Reason.STARTING,
    Reason.DRAINING,
)
TROUBLES: Final = frozenset(ORDER[: ORDER.index(Reason.LOADING)])


def diagnose(pod: Object, accelerator: str) -> Finding | None:
    """None for a pod that serves. `accelerator` is the resource that the pool asks for."""
    metadata, status = pod["metadata"], pod.get("status") or {}
    name = metadata["name"]
    if metadata.get("deletionTimestamp"):
        return Finding(Reason.DRAINING, f"Pod {name} finishes its requests and goes")
    if condition(pod, "Ready").get("status") == "True":
        return None
    if status.get("phase") == "Failed":
        return Finding(
            Reason.POD_FAILED, f"Pod {name}: {status.get('reason') or 'Failed'}: {status.get('message', '')}"
        )
    return _unplaced(pod, accelerator) or _containers(pod) or _coming(pod)


def condition(item: Mapping[str, Any], kind: str) -> Mapping[str, Any]:
    """A condition of any object, empty when it has none of that type."""
    conditions = (item.get("status") or {}).get("conditions") or []
    found: Mapping[str, Any] = next((entry for entry in conditions if entry.get("type") == kind), {})
    return found


def deployment_finding(deployment: Object) -> Finding | None:
    """Why a Deployment cannot make its pods: quota, admission, a missing account."""
    failure = condition(deployment, "ReplicaFailure")
    if failure.get("status") != "True":
        return None
    message = str(failure.get("message", ""))
    quota = "exceeded quota" in message
    return Finding(Reason.QUOTA_EXCEEDED if quota else Reason.PODS_REFUSED, f"Pods are refused: {message}")


def foremost(findings: Sequence[Finding]) -> Finding | None:
    """The one that speaks for the pool."""
    return min(findings, key=lambda finding: ORDER.index(finding.reason), default=None)


def _unplaced(pod: Object, accelerator: str) -> Finding | None:
    placed = condition(pod, "PodScheduled")
    if placed.get("status") != "False":
        return None
    message = str(placed.get("message", ""))
    name = pod["metadata"]["name"]
    if placed.get("reason") == "Unschedulable" and f"Insufficient {accelerator}" in message:
        wanted = _requested(pod, accelerator)
        return Finding(Reason.INSUFFICIENT_ACCELERATORS, f"A pod wants {wanted} {accelerator}: {message}")
    return Finding(Reason.UNSCHEDULABLE, f"Pod {name} finds no node: {message or placed.get('reason')}")


def _requested(pod: Object, accelerator: str) -> str:
    """What the engine asks for, as it stands in the pod."""
    limits = [(one.get("resources") or {}).get("limits") or {} for one in pod["spec"].get("containers", [])]
    return next((str(limit[accelerator]) for limit in limits if accelerator in limit), "more")


def _containers(pod: Object) -> Finding | None:
    status = pod.get("status") or {}
    statuses = [*(status.get("initContainerStatuses") or []), *(status.get("containerStatuses") or [])]
    findings = [found for entry in statuses if (found := _container(pod["metadata"]["name"], entry))]
    return foremost(findings)


def _container(pod: str, status: Object) -> Finding | None:
    waiting = (status.get("state") or {}).get("waiting") or {}
    reason, message = waiting.get("reason", ""), waiting.get("message", "")
    where = f"Pod {pod}, container {status['name']}"
    if reason in _IMAGE_REASONS:
        return Finding(Reason.IMAGE_PULL_FAILED, f"{where}: image {status.get('image')}: {message or reason}")
    if reason == "CreateContainerConfigError":
        return Finding(_config_reason(message), f"{where}: {message}")
    if reason in _START_REASONS:
        return Finding(Reason.CONTAINER_START_FAILED, f"{where}: {message or reason}")
    ended = _ended(status)
    return _crash(where, status, ended) if ended else None


def _config_reason(message: str) -> Reason:
    if _SECRET.search(message):
        return Reason.SECRET_MISSING
    return Reason.CONFIG_MISSING if _CONFIG.search(message) else Reason.CONTAINER_CONFIG_INVALID


def _ended(status: Object) -> Object | None:
    """How the container ended; the last time, when it runs again and has not come up yet."""
    now = (status.get("state") or {}).get("terminated")
    before = (status.get("lastState") or {}).get("terminated")
    return now or (None if status.get("ready") else before)


def _crash(where: str, status: Object, ended: Object) -> Finding:
    times = status.get("restartCount", 0)
    what = f"{where} ended with exit code {ended.get('exitCode')}, restarted {times} times"
    if ended.get("reason") == "OOMKilled":
        return Finding(Reason.ENGINE_OUT_OF_MEMORY, f"{what}: the kernel killed it for its memory limit")
    tail = log_tail(ended.get("message") or "")
    reason = Reason.ENGINE_CRASHED if status["name"] == ENGINE_CONTAINER else Reason.ROUTER_CRASHED
    if status["name"] not in (ENGINE_CONTAINER, ROUTER_CONTAINER):
        reason = Reason.CONTAINER_START_FAILED
    return Finding(reason, f"{what}: {tail}" if tail else what)


def log_tail(text: str) -> str:
    """The end of a log as one line of bounded length, without what looks like a token."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    # An exception's own line says more than the frames above it.
    errors = [line for line in lines if _ERROR.search(line) and not _ELSEWHERE.search(line)]
    shown = errors[-1] if errors else " | ".join(lines[-3:])
    return _TOKENS.sub("[hidden]", shown)[-_TAIL_CHARACTERS:]


def _has_served(pod: Object, engine: Object) -> bool:
    """Whether the engine was ready in its present life: its first readiness comes a while after its start."""
    since = str(condition(pod, "Ready").get("lastTransitionTime") or "")
    begun = str(((engine.get("state") or {}).get("running") or {}).get("startedAt") or "")
    # Both are RFC 3339 in UTC with whole seconds, which sort as they follow one another.
    return since > begun


def _coming(pod: Object) -> Finding:
    name = pod["metadata"]["name"]
    statuses = (pod.get("status") or {}).get("containerStatuses") or []
    engine: Object = next((entry for entry in statuses if entry["name"] == ENGINE_CONTAINER), {})
    if engine.get("started") and _has_served(pod, engine):
        return Finding(Reason.ENGINE_NOT_READY, f"Pod {name}: the engine had started and is not ready now")
    if "running" in (engine.get("state") or {}):
        return Finding(Reason.LOADING, f"Pod {name}: the engine loads its model")
    return Finding(Reason.STARTING, f"Pod {name} starts")
