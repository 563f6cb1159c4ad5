"""What is the matter with a pod: from its status, and what was asked about it, to one stable reason.

Each kind of words has a table of its own: engine_signs (what vLLM says), pod_events (the kubelet and controllers)
and placing (the scheduler). A text that stands in none of them never gets a specific reason.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from tidepool_api.contract import ENGINE_CONTAINER, LOADER_CONTAINER, ROUTER_CONTAINER
from tidepool_api.load import Health
from tidepool_operator.pool import engine_log, engine_signs, pod_events
from tidepool_operator.pool.clues import NO_CLUES
from tidepool_operator.pool.log_tail import log_tail, scrubbed
from tidepool_operator.pool.model import Clues, Object
from tidepool_operator.pool.placing import why_unplaced
from tidepool_operator.pool.pod_events import CONFIG, SECRET
from tidepool_operator.pool.pod_status import (
    IMAGE_REASONS,
    completed,
    condition,
    container,
    ended,
    has_served,
    is_waiting_for_volumes,
    running,
)
from tidepool_operator.pool.reasons import Reason

_START_REASONS: Final = frozenset({"CreateContainerError", "RunContainerError", "PreCreateHookError"})
# 128 and the signal's number: SIGKILL and SIGTERM, which is how the kubelet ends a container.
_SIGNALLED: Final = (0, 137, 143)
_GONE: Final = frozenset({"DeletionByPodGC", "DeletionByTaintManager"})


@dataclass(frozen=True, slots=True)
class Finding:
    """One pod's state: the reason, and what happened in words."""

    reason: Reason
    what: str


# The first that any pod has speaks for the pool: the cause before what follows from it.
ORDER: Final = (
    Reason.QUOTA_EXCEEDED,
    Reason.PODS_REFUSED,
    Reason.IMAGE_NOT_FOUND,
    Reason.IMAGE_PULL_DENIED,
    Reason.IMAGE_PULL_FAILED,
    Reason.SECRET_MISSING,
    Reason.CONFIG_MISSING,
    Reason.CONTAINER_CONFIG_INVALID,
    Reason.CONTAINER_START_FAILED,
    Reason.SANDBOX_FAILED,
    *dict.fromkeys(sign.reason for sign in engine_signs.SIGNS),
    Reason.PROBE_ENDS_ENGINE,
    Reason.ENGINE_CRASHED,
    Reason.LOADER_FAILED,
    Reason.ROUTER_CRASHED,
    Reason.ROUTER_NOT_READY,
    Reason.INSUFFICIENT_ACCELERATORS,
    Reason.VOLUME_PENDING,
    Reason.VOLUME_NOT_MOUNTED,
    Reason.TAINT_NOT_TOLERATED,
    Reason.NODE_SELECTOR_UNMATCHED,
    Reason.INSUFFICIENT_RESOURCES,
    Reason.UNSCHEDULABLE,
    Reason.EVICTED,
    Reason.NODE_LOST,
    Reason.POD_FAILED,
    Reason.ENGINE_HUNG,
    Reason.ENGINE_NOT_READY,
    Reason.ADAPTER_FAILED,
    Reason.STALE_CRD,
    Reason.PRELOADING,
    Reason.LOADING,
    Reason.STARTING,
    Reason.DRAINING,
)
TROUBLES: Final = frozenset(ORDER[: ORDER.index(Reason.PRELOADING)])
# Pods that have no place yet.
UNPLACED: Final = frozenset(
    {
        Reason.VOLUME_PENDING,
        Reason.TAINT_NOT_TOLERATED,
        Reason.NODE_SELECTOR_UNMATCHED,
        Reason.INSUFFICIENT_RESOURCES,
        Reason.UNSCHEDULABLE,
    }
)


def diagnose(pod: Object, accelerator: str, clues: Clues = NO_CLUES) -> Finding | None:
    """None for a pod that serves. `accelerator` is the resource that the pool asks for."""
    metadata, status = pod["metadata"], pod.get("status") or {}
    name = metadata["name"]
    if metadata.get("deletionTimestamp"):
        return Finding(Reason.DRAINING, f"Pod {name} finishes its requests and goes")
    if condition(pod, "Ready").get("status") == "True":
        return None
    if status.get("phase") == "Failed":
        return _failed(pod)
    return (
        _unplaced(pod, accelerator) or _lost(pod, clues) or _containers(pod, clues) or _preparing(pod, clues)
    ) or _coming(pod, clues)


def deployment_finding(deployment: Object) -> Finding | None:
    """Why a Deployment cannot make its pods: quota, admission, a missing account."""
    failure = condition(deployment, "ReplicaFailure")
    if failure.get("status") != "True":
        return None
    message = str(failure.get("message", ""))
    # The words of the API server's own quotas; a webhook may speak of others.
    quota = "is forbidden: exceeded quota: " in message
    return Finding(Reason.QUOTA_EXCEEDED if quota else Reason.PODS_REFUSED, f"Pods are refused: {message}")


def foremost(findings: Sequence[Finding]) -> Finding | None:
    """The one that speaks for the pool."""
    return min(findings, key=lambda finding: ORDER.index(finding.reason), default=None)


def _failed(pod: Object) -> Finding:
    status, target = pod.get("status") or {}, condition(pod, "DisruptionTarget")
    why = str(status.get("reason") or target.get("reason") or "Failed")
    what = f"Pod {pod['metadata']['name']}: {why}: {status.get('message') or target.get('message', '')}"
    if why == "Evicted":
        return Finding(Reason.EVICTED, what)
    gone = why in ("NodeLost", "NodeShutdown", "Terminated") or target.get("reason") in _GONE
    return Finding(Reason.NODE_LOST if gone else Reason.POD_FAILED, what)


def _unplaced(pod: Object, accelerator: str) -> Finding | None:
    placed = condition(pod, "PodScheduled")
    if placed.get("status") != "False":
        return None
    message, name = str(placed.get("message", "")), pod["metadata"]["name"]
    reason = why_unplaced(message, accelerator) if message else Reason.UNSCHEDULABLE
    if reason is Reason.INSUFFICIENT_ACCELERATORS:
        wanted = _requested(pod, accelerator)
        return Finding(reason, f"A pod wants {wanted} {accelerator}: {message}")
    return Finding(reason, f"Pod {name} finds no node: {message or placed.get('reason')}")


def _requested(pod: Object, accelerator: str) -> str:
    """What the engine asks for, as it stands in the pod."""
    limits = [(one.get("resources") or {}).get("limits") or {} for one in pod["spec"].get("containers", [])]
    return next((str(limit[accelerator]) for limit in limits if accelerator in limit), "more")


def _lost(pod: Object, clues: Clues) -> Finding | None:
    """A node that does not answer: its pods' readiness is taken away, their containers' status stands still."""
    engine = container(pod, ENGINE_CONTAINER)
    lost = clues.node or pod_events.node_lost(clues.events)
    if not lost or not engine.get("ready"):
        return None
    words = clues.node or f"node {pod['spec'].get('nodeName')} does not answer"
    return Finding(Reason.NODE_LOST, f"Pod {pod['metadata']['name']}: {words}")


def _containers(pod: Object, clues: Clues) -> Finding | None:
    status = pod.get("status") or {}
    # An init container that ended well is done, and so is a Job's loader; an engine never is.
    before = [entry for entry in status.get("initContainerStatuses") or [] if not completed(entry)]
    beside = status.get("containerStatuses") or []
    statuses = [*before, *(one for one in beside if one["name"] != LOADER_CONTAINER or not completed(one))]
    findings = [found for entry in statuses if (found := _container(pod["metadata"]["name"], entry, clues))]
    return foremost(findings)


def _container(pod: str, status: Object, clues: Clues) -> Finding | None:
    waiting = (status.get("state") or {}).get("waiting") or {}
    reason, message = waiting.get("reason", ""), waiting.get("message", "")
    where = f"Pod {pod}, container {status['name']}"
    if reason in IMAGE_REASONS:
        why, words = pod_events.image_reason(message, clues.events)
        image = f"image {status['image']}: " if status.get("image") else ""
        return Finding(why, f"{where}: {image}{words or reason}")
    if reason == "CreateContainerConfigError":
        return Finding(_config_reason(message), f"{where}: {message}")
    if reason in _START_REASONS:
        return Finding(Reason.CONTAINER_START_FAILED, f"{where}: {message or reason}")
    last = ended(status)
    return _crash(where, status, last, clues) if last else None


def _config_reason(message: str) -> Reason:
    if SECRET.search(message):
        return Reason.SECRET_MISSING
    return Reason.CONFIG_MISSING if CONFIG.search(message) else Reason.CONTAINER_CONFIG_INVALID


def _crash(where: str, status: Object, last: Object, clues: Clues) -> Finding:
    times = status.get("restartCount", 0)
    what = f"{where} ended with exit code {last.get('exitCode')}, restarted {times} times"
    if last.get("reason") == "OOMKilled":
        return Finding(Reason.ENGINE_OUT_OF_MEMORY, f"{what}: the kernel killed it for its memory limit")
    own = last.get("message") or ""
    if status["name"] not in (ENGINE_CONTAINER, LOADER_CONTAINER):
        tail = log_tail(own)
        router = status["name"] == ROUTER_CONTAINER
        reason = Reason.ROUTER_CRASHED if router else Reason.CONTAINER_START_FAILED
        return Finding(reason, f"{what}: {tail}" if tail else what)
    # The termination message is the last 2 KiB of the log: of a long trace it may hold no cause.
    log = clues.log or own
    said = engine_log.read_log(log)
    if said is not None:
        return Finding(said.reason, f"{what}: {scrubbed(said.words)}")
    probe = pod_events.ended_by_probe(clues.events, status["name"])
    if probe is not None and last.get("exitCode") in _SIGNALLED:
        return Finding(Reason.PROBE_ENDS_ENGINE, f"{what}: {probe}")
    tail = log_tail(log)
    reason = Reason.LOADER_FAILED if status["name"] == LOADER_CONTAINER else Reason.ENGINE_CRASHED
    return Finding(reason, f"{what}: {tail}" if tail else what)


def _preparing(pod: Object, clues: Clues) -> Finding | None:
    if not is_waiting_for_volumes(pod):
        return None
    found = pod_events.preparing(clues.events)
    if found is None:
        return None
    reason, message = found
    return Finding(reason, f"Pod {pod['metadata']['name']} cannot be prepared: {message}")


def _coming(pod: Object, clues: Clues) -> Finding:
    name, engine = pod["metadata"]["name"], container(pod, ENGINE_CONTAINER)
    if has_served(pod, engine):
        return _fallen(name, clues)
    if running(engine):
        return Finding(Reason.LOADING, f"Pod {name}: the engine loads its model")
    if running(container(pod, LOADER_CONTAINER)):
        return Finding(Reason.PRELOADING, f"Pod {name}: the model's files are loaded")
    return Finding(Reason.STARTING, f"Pod {name} starts")


def _fallen(name: str, clues: Clues) -> Finding:
    """An engine that was ready, still runs, and is not ready now."""
    said = engine_log.read_log(clues.log)
    if said is not None and said.reason in (Reason.ACCELERATOR_ERROR, Reason.ACCELERATOR_OUT_OF_MEMORY):
        return Finding(said.reason, f"Pod {name}: {scrubbed(said.words)}")
    if clues.health is Health.HUNG:
        return Finding(
            Reason.ENGINE_HUNG, f"Pod {name}: the engine has requests and shows no sign of work, see its router"
        )
    return Finding(Reason.ENGINE_NOT_READY, f"Pod {name}: the engine had started and is not ready now")
