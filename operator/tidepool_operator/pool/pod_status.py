"""Readings of a pod's status that more than one rule rests on."""

from collections.abc import Mapping
from typing import Any, Final

from tidepool_operator.pool.model import Object

# kubelet's words for an image that is not there (yet).
IMAGE_REASONS: Final = frozenset(
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
_PREPARING: Final = frozenset({"ContainerCreating", "PodInitializing"})


def condition(item: Mapping[str, Any], kind: str) -> Mapping[str, Any]:
    """A condition of any object, empty when it has none of that type."""
    conditions = (item.get("status") or {}).get("conditions") or []
    found: Mapping[str, Any] = next((entry for entry in conditions if entry.get("type") == kind), {})
    return found


def container(pod: Object, name: str) -> Object:
    """The status of a container or an init container, empty when the kubelet has told none."""
    status = pod.get("status") or {}
    statuses = [*(status.get("initContainerStatuses") or []), *(status.get("containerStatuses") or [])]
    found: Object = next((entry for entry in statuses if entry["name"] == name), {})
    return found


def running(status: Object) -> bool:
    """Whether the container runs."""
    return "running" in (status.get("state") or {})


def ended(status: Object) -> Object | None:
    """How the container ended; the last time, when it runs again and has not come up yet."""
    now: Object | None = (status.get("state") or {}).get("terminated")
    before: Object | None = (status.get("lastState") or {}).get("terminated")
    return now or (None if status.get("ready") else before)


def completed(status: Object) -> bool:
    """Whether the container did what it was for, and ended."""
    terminated = (status.get("state") or {}).get("terminated")
    return terminated is not None and terminated.get("exitCode") == 0


def has_served(pod: Object, engine: Object) -> bool:
    """Whether the engine was ready in its present life: its first readiness comes a while after its start."""
    since = str(condition(pod, "Ready").get("lastTransitionTime") or "")
    begun = str(((engine.get("state") or {}).get("running") or {}).get("startedAt") or "")
    # Both are RFC 3339 in UTC with whole seconds, which sort as they follow one another.
    return bool(engine.get("started")) and since > begun


def is_waiting_for_volumes(pod: Object) -> bool:
    """Whether the kubelet has not begun any container: it prepares volumes, sandbox and network, or the router."""
    status = pod.get("status") or {}
    statuses = [*(status.get("initContainerStatuses") or []), *(status.get("containerStatuses") or [])]
    waits = [((entry.get("state") or {}).get("waiting") or {}).get("reason", "") for entry in statuses]
    return bool(waits) and any(reason in _PREPARING for reason in waits)
