"""What has to be asked about a pod before it can be diagnosed, and the answers.

A pod's own status tells little of why: the cause stands in the engine's log, in the events about the pod, or in
its sidecar's load report. They are asked for only where a pod is in trouble, since each is a request of its own.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

from tidepool_api.contract import ENGINE_CONTAINER, LOADER_CONTAINER
from tidepool_operator.pool.model import Clues, Happening, Object
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


class Question(StrEnum):
    """One thing to ask about a pod."""

    LOG = "log"  # of the container's present life, or the last one when it does not run
    LOG_BEFORE = "previous log"
    EVENTS = "events"
    HEALTH = "health"
    NODE = "node"


NO_CLUES: Final = Clues()


@dataclass(frozen=True, slots=True)
class Wanted:
    """What to ask about one pod. `life` names the engine's life that a log is of: it does not change any more."""

    pod: str
    uid: str
    node: str
    life: str
    questions: frozenset[Question] = field(default_factory=frozenset)
    container: str = ENGINE_CONTAINER


def wanted(pod: Object) -> Wanted | None:
    """None for a pod that is well, goes, or says all by itself."""
    metadata = pod["metadata"]
    questions = _questions(pod)
    if not questions:
        return None
    name, engine = _main(pod)
    since = str(condition(pod, "Ready").get("lastTransitionTime") or "")
    life = f"{engine.get('restartCount', 0)}/{since}"
    node = (pod.get("spec") or {}).get("nodeName") or ""
    return Wanted(metadata["name"], metadata.get("uid", ""), node, life, frozenset(questions), name)


def _main(pod: Object) -> tuple[str, Object]:
    """The container that a pod is for, or waits for: the engine, or what loads its files."""
    engine, loader = container(pod, ENGINE_CONTAINER), container(pod, LOADER_CONTAINER)
    if loader and (not engine or (ended(loader) and not completed(loader))):
        return LOADER_CONTAINER, loader
    return ENGINE_CONTAINER, engine


def _questions(pod: Object) -> set[Question]:
    if pod["metadata"].get("deletionTimestamp") or (pod.get("status") or {}).get("phase") in (
        "Failed",
        "Succeeded",
    ):
        return set()
    if condition(pod, "Ready").get("status") == "True" or condition(pod, "PodScheduled").get("status") == "False":
        return set()
    _, engine = _main(pod)
    if ended(engine):
        # The kubelet ends a container for its probes with a signal: only an event says that it was the kubelet.
        return {Question.LOG_BEFORE if running(engine) else Question.LOG, Question.EVENTS}
    if running(engine):
        # Its kubelet's last word is that it is ready, and somebody else says that it is not.
        silent = {Question.NODE} if engine.get("ready") else set()
        return {Question.HEALTH, Question.LOG, Question.EVENTS, *silent} if has_served(pod, engine) else silent
    waits = ((engine.get("state") or {}).get("waiting") or {}).get("reason", "")
    return {Question.EVENTS} if is_waiting_for_volumes(pod) or waits in IMAGE_REASONS else set()


def happenings(events: Sequence[Mapping[str, Any]]) -> tuple[Happening, ...]:
    """Events of the core API about one pod, oldest first."""
    told = sorted(events, key=lambda event: str(event.get("lastTimestamp") or event.get("eventTime") or ""))
    return tuple(
        Happening(
            str(event.get("reason", "")),
            str(event.get("message", "")),
            str((event.get("involvedObject") or {}).get("fieldPath", "")),
        )
        for event in told
    )
