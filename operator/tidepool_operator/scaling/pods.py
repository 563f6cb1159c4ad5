"""Pods as the API server tells of them, in the words of a decision."""

from collections.abc import Iterable, Mapping
from typing import Any

from tidepool_api.contract import ENGINE_CONTAINER
from tidepool_operator.scaling.model import LivePod, PodState


def live_pods(pods: Iterable[Mapping[str, Any]]) -> tuple[LivePod, ...]:
    """The pods that are not being deleted and have not ended, by name."""
    live = [LivePod(pod["metadata"]["name"], state_of(pod)) for pod in pods if _lives(pod)]
    return tuple(sorted(live, key=lambda pod: pod.name))


def state_of(pod: Mapping[str, Any]) -> PodState:
    """Where a live pod stands, by its conditions and by whether its engine has started."""
    conditions = _status(pod).get("conditions") or ()
    holds = {condition.get("type") for condition in conditions if condition.get("status") == "True"}
    if "Ready" in holds:
        return PodState.READY
    if _engine_started(pod):
        return PodState.UNREADY
    return PodState.STARTING if "PodScheduled" in holds else PodState.PENDING


def _status(pod: Mapping[str, Any]) -> Mapping[str, Any]:
    status: Mapping[str, Any] = pod.get("status") or {}
    return status


def _lives(pod: Mapping[str, Any]) -> bool:
    ended = _status(pod).get("phase") in ("Succeeded", "Failed")
    return not ended and "deletionTimestamp" not in pod["metadata"]


def _engine_started(pod: Mapping[str, Any]) -> bool:
    containers = _status(pod).get("containerStatuses") or ()
    return any(status.get("name") == ENGINE_CONTAINER and status.get("started") is True for status in containers)
