"""How many pods of a pool serve, told by each event of the API server's watch: nothing falls between two looks."""

import json
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

from scenarios.kube import Kube, Object, condition, is_ready
from tidepool_api.contract import POOL_LABEL

# Longer than any scenario; the API server ends a watch that names no time by a time of its own.
_WATCH_SECONDS = 7200


@dataclass(frozen=True, slots=True)
class Sample:
    """The pool after one event: `serving` are Ready and stay, `staying` are all that were not told to go."""

    at_seconds: float
    what: str
    serving: int
    staying: int
    unplaced: int


@dataclass(slots=True)
class Capacity:
    """Counts from events. Fed by one thread, read by others; a sample is never changed."""

    samples: list[Sample] = field(default_factory=list)
    seen: set[str] = field(default_factory=set)  # UIDs of all pods there were
    ended: str = ""  # why the watch ended, if it did before it was told to
    _pods: dict[str, Object] = field(default_factory=dict)

    def take(self, kind: str, pod: Object, now: float) -> None:
        """One event of the watch. Raises ValueError for one that is no news of a pod."""
        if kind not in ("ADDED", "MODIFIED", "DELETED"):
            raise ValueError(f"{kind}: {json.dumps(pod)[:300]}")
        name, uid = pod["metadata"]["name"], pod["metadata"]["uid"]
        self.seen.add(uid)
        if kind == "DELETED":
            self._pods.pop(uid, None)
        else:
            self._pods[uid] = pod
        staying = [one for one in self._pods.values() if not one["metadata"].get("deletionTimestamp")]
        self.samples.append(
            Sample(
                round(now, 2),
                f"{kind} {name}: {_state(pod)}",
                serving=sum(map(is_ready, staying)),
                staying=len(staying),
                unplaced=sum(condition(one, "PodScheduled").get("status") == "False" for one in staying),
            )
        )

    def pods(self) -> list[Object]:
        """The pods that there are, those on their way out too."""
        return list(self._pods.values())

    def since(self, at_seconds: float) -> list[Sample]:
        """Samples from a moment on, and what held at that moment."""
        before = [one for one in self.samples if one.at_seconds < at_seconds][-1:]
        return before + [one for one in self.samples if one.at_seconds >= at_seconds]

    def below(self, bound: int, at_seconds: float) -> list[Sample]:
        """Samples from a moment on with fewer pods that serve than that."""
        return [one for one in self.since(at_seconds) if one.serving < bound]


def _state(pod: Object) -> str:
    words = ["going"] if pod["metadata"].get("deletionTimestamp") else []
    words.append(f"ready {condition(pod, 'Ready').get('status', 'unknown')}")
    return ", ".join(words)


@contextmanager
def watched(kube: Kube, namespace: str, pool: str) -> Iterator[Capacity]:
    """Follow a pool's pods while the block runs."""
    selector = quote(f"{POOL_LABEL}={pool}")
    path = f"/api/v1/namespaces/{namespace}/pods?watch=1&timeoutSeconds={_WATCH_SECONDS}&labelSelector={selector}"
    command = kube.command("get", "--raw", path)
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as child:
        capacity, stopping = Capacity(), threading.Event()
        reader = threading.Thread(target=_read, args=(child, capacity, stopping), name="capacity", daemon=True)
        reader.start()
        try:
            yield capacity
        finally:
            stopping.set()
            child.terminate()
            reader.join(timeout=10)


def _read(child: "subprocess.Popen[str]", capacity: Capacity, stopping: threading.Event) -> None:
    assert child.stdout is not None
    assert child.stderr is not None
    try:
        for line in child.stdout:
            event: dict[str, Any] = json.loads(line)
            capacity.take(event["type"], event["object"], time.monotonic())
    except ValueError as problem:
        capacity.ended = str(problem)
    if not stopping.is_set() and not capacity.ended:
        capacity.ended = f"the watch ended: {child.stderr.read().strip()[:300]}"
