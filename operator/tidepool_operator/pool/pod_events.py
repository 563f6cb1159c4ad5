"""What events about a pod say: the kubelet's and the controllers' own words, from Kubernetes 1.30 on."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from tidepool_api.contract import ROUTER_CONTAINER
from tidepool_operator.pool.model import Happening
from tidepool_operator.pool.reasons import Reason


@dataclass(frozen=True, slots=True)
class _Sign:
    """One row: an event's reason, what its message holds, what that means, and where Kubernetes says it."""

    reason: Reason
    event: str
    message: str
    place: str


SECRET: Final = re.compile(
    r'secret "[^"]+" not found|couldn\'t find key \S+ in Secret |references non-existent secret key'
)
CONFIG: Final = re.compile(
    r'configmap "[^"]+" not found|couldn\'t find key \S+ in ConfigMap |references non-existent config key'
)
# While the kubelet prepares the pod.
_PREPARING: Final = (
    _Sign(Reason.SECRET_MISSING, "FailedMount", SECRET.pattern, "pkg/volume/secret"),
    _Sign(Reason.CONFIG_MISSING, "FailedMount", CONFIG.pattern, "pkg/volume/configmap"),
    _Sign(Reason.VOLUME_NOT_MOUNTED, "FailedMount", "", "pkg/kubelet/volumemanager"),
    _Sign(Reason.VOLUME_NOT_MOUNTED, "FailedAttachVolume", "", "pkg/controller/volume/attachdetach"),
    _Sign(Reason.VOLUME_NOT_MOUNTED, "FailedMapVolume", "", "pkg/volume/util/operationexecutor"),
    _Sign(Reason.SANDBOX_FAILED, "FailedCreatePodSandBox", "", "pkg/kubelet/kuberuntime"),
)
_PROBE_ENDS: Final = re.compile(r"^Container (\S+) failed (startup|liveness) probe, will be restarted")
# containerd and CRI-O, each with the registry's words behind, which follow a colon: a name of an image does not.
_NOT_FOUND: Final = re.compile(r": not found\b|manifest unknown|name unknown", re.I)
_DENIED: Final = re.compile(
    r"(^|[:=] )(unauthorized\b|denied: )|pull access denied|(?<!proxy )authentication required|"
    r"authorization failed|\b40[13] (Unauthorized|Forbidden)|no basic auth credentials",
    re.I,
)


def preparing(events: Sequence[Happening]) -> tuple[Reason, str] | None:
    """What keeps a pod from being prepared; the newest event counts."""
    for event in reversed(events):
        for sign in _PREPARING:
            if sign.event == event.reason and re.search(sign.message, event.message):
                return sign.reason, event.message
        if event.reason == "Unhealthy" and event.place.endswith(f"{{{ROUTER_CONTAINER}}}"):
            return Reason.ROUTER_NOT_READY, event.message
    return None


def ended_by_probe(events: Sequence[Happening], container: str) -> str | None:
    """The kubelet's words where it ends a container because a probe of it fails."""
    for event in reversed(events):
        found = _PROBE_ENDS.match(event.message) if event.reason == "Killing" else None
        if found and found[1] == container:
            return event.message
    return None


def node_lost(events: Sequence[Happening]) -> bool:
    """Whether the node's controller says that the pod's node does not answer (pkg/controller/nodelifecycle)."""
    return any(event.reason == "NodeNotReady" for event in events)


def image_reason(message: str, events: Sequence[Happening]) -> tuple[Reason, str]:
    """Why an image cannot be had, by the container's state or, where that only says "Back-off", by an event."""
    pulls = [event.message for event in events if event.reason == "Failed" and "pull image" in event.message]
    for text in (message, *reversed(pulls)):
        # A registry that wants to know who asks says of an image that is not there that access is denied.
        if _DENIED.search(text):
            return Reason.IMAGE_PULL_DENIED, text
        if _NOT_FOUND.search(text):
            return Reason.IMAGE_NOT_FOUND, text
    return Reason.IMAGE_PULL_FAILED, message or (pulls[-1] if pulls else "")
