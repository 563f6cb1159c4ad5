"""Rollout after rollout under streams, for as long as it is asked for, and what was seen of it."""

import itertools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import median

from scenarios.capacity import Capacity
from scenarios.kube import Object, is_ready, rolled_out, wait_for
from scenarios.rows import Row
from scenarios.streams import Load, figures
from scenarios.world import World

STREAMS = 16
# A few more than the bound, since a client loop is between two requests now and then.
LOOPS = 20


@dataclass(slots=True)
class Rolling:
    """One pool whose spec changes again and again while clients stream."""

    world: World
    capacity: Capacity
    clients: Load
    replicas: int
    timeout_seconds: float  # of one rollout
    began: float = field(default_factory=time.monotonic)
    took_seconds: list[float] = field(default_factory=list)
    fewest_streams: int = LOOPS
    _lengths: "itertools.count[int]" = field(default_factory=lambda: itertools.count(1))

    def roll(self, seconds: float) -> None:
        """Changes of all kinds, one after another, at least one, until the time is over."""
        kinds: Sequence[Callable[[], None]] = (self._change, self._change_twice, self._change_and_back)
        for kind in itertools.cycle(kinds):
            began = time.monotonic()
            kind()
            self.took_seconds.append(time.monotonic() - began)
            name = kind.__name__.strip("_").replace("_", " ")
            self.world.evidence.say(f"{name}: rolled out in {self.took_seconds[-1]:.0f} s")
            if time.monotonic() - self.began > seconds:
                return

    def _change(self) -> None:
        self._apply(self._next_length())
        self._completed()

    def _change_twice(self) -> None:
        self._apply(self._next_length())
        self._first_of_the_new()
        self._apply(self._next_length())
        self._completed()

    def _change_and_back(self) -> None:
        before = self.world.resource()["spec"]["engine"]["maxModelLen"]
        self._apply(self._next_length())
        self._first_of_the_new()
        self._apply(before)
        self._completed()

    def _next_length(self) -> int:
        """An argument of the engine, so that each value is a revision of its own."""
        return int(self.world.pool["spec"]["engine"]["maxModelLen"]) - next(self._lengths)

    def _apply(self, length: int) -> None:
        change = {"spec": {"engine": {"maxModelLen": length}}}
        self.world.kube.patch("modelpool", self.world.name, self.world.namespace, change)

    def _first_of_the_new(self) -> None:
        known = {pod["metadata"]["uid"] for pod in self.capacity.pods()}
        wait_for(
            "a pod of the new revision to serve",
            lambda: any(pod["metadata"]["uid"] not in known and is_ready(pod) for pod in self._pods()) or None,
            timeout_seconds=self.timeout_seconds,
        )

    def _completed(self) -> None:
        wait_for(
            "the rollout to be complete",
            lambda: (self._all_serve() and rolled_out(self.world.resource(), self.replicas)) or None,
            timeout_seconds=self.timeout_seconds,
        )

    def _all_serve(self) -> bool:
        pods = self._pods()
        return len(pods) == self.replicas and all(is_ready(pod) for pod in pods)

    def _pods(self) -> list[Object]:
        """The pods as the watch told them; each look counts the streams as well."""
        assert not self.capacity.ended, self.capacity.ended
        self.fewest_streams = min(self.fewest_streams, len(self.clients.running()))
        return self.capacity.pods()

    def row(self, name: str, bound: int) -> Row:
        """What was seen, once the streams have ended."""
        samples, seen = self.capacity.since(self.began), figures(self.clients.records)
        return Row(
            name=name,
            minutes=round((time.monotonic() - self.began) / 60, 1),
            rollouts=len(self.took_seconds),
            seconds=f"{median(self.took_seconds):.0f} / {max(self.took_seconds):.0f}",
            pods=len(self.capacity.seen),
            streams=int(seen["streams"]),
            tokens=int(seen["tokens"]),
            failed=int(seen["failed"]),
            fewest_streams=self.fewest_streams,
            events=len(samples),
            lowest=min(one.serving for one in samples),
            bound=bound,
            most=max(one.staying for one in samples),
            ttft=f"{1000 * seen['ttft_p50_seconds']:.0f} / {1000 * seen['ttft_p90_seconds']:.0f}",
        )
