"""Fifty runs reach their second step together, at a pool of one replica whose pods take a minute to start.

The whole of it, without a cluster: the router's forecast of real runs, the operator's decisions, and engines that
run eight calls each; what differs is whether the one tells the other.
"""

from dataclasses import dataclass, field

import pytest

from fakes.readings import asked, blind, pod, pool
from tidepool_operator.scaling.decide import decide
from tidepool_operator.scaling.model import Memory, ScalingSpec
from tidepool_router.workflow.core.coming import announced, course
from tidepool_router.workflow.core.profiles import Profiles
from tidepool_router.workflow.core.run import Run
from tidepool_router.workflow.core.states import Ending, Key, Output, Phase
from workflows.graphs import planned

RUNS = 50
SLOTS = 8
STARTUP_SECONDS = 60
CALL_SECONDS = 30
TICK_SECONDS = 5  # of the operator
SCRAPE_SECONDS = 15  # what it reads of pods may be so old
UNTIL_SECONDS = 600
PLAN = planned({"name": "search"}, {"name": "write", "depends": "search", "llm": {"pools": [{"name": "p"}]}})
DONE = Ending(Phase.SUCCEEDED, output=Output("x"))


@dataclass
class World:
    """Seconds go one by one. `tool_seconds`: of the first step of all runs, which begin at 0.

    `usual_seconds`: what it took in the runs before.
    """

    tool_seconds: int
    tells: bool
    usual_seconds: int = 0
    born: list[int] = field(default_factory=lambda: [-STARTUP_SECONDS])
    runs: list[Run] = field(default_factory=lambda: [Run(PLAN, deadline=3600.0) for _ in range(RUNS)])
    began: list[dict[Key, float]] = field(default_factory=lambda: [{Key("search"): 0.0} for _ in range(RUNS)])
    waits: list[int] = field(default_factory=list)
    ready_at_arrival: int = 0
    most: int = 1
    pod_seconds: int = 0

    def ready(self, now: int) -> int:
        return sum(now - born >= STARTUP_SECONDS for born in self.born)

    def announced(self, profiles: Profiles, now: int) -> int | None:
        if not self.tells:
            return None
        some = [
            course(run, {}, profiles, began, float(now)) for run, began in zip(self.runs, self.began, strict=True)
        ]
        return announced(some, float(now)).get("p", 0)

    def go(self) -> "World":
        profiles = Profiles()
        for _ in range(100):
            profiles.worked("test", "search", tokens=0, seconds=self.usual_seconds or self.tool_seconds, now=0.0)
            profiles.worked("test", "write", tokens=100, seconds=CALL_SECONDS, now=0.0)
        for run in self.runs:
            run.begin(0.0)
        spec = ScalingSpec(1, 16)
        memory = Memory(
            since=-3600.0, replicas=1, decided=1, ready_pods=1, ready_pods_since=-3600.0,
            saturated_running=float(SLOTS), saturated_at=-60.0,
        )  # fmt: skip
        queue: list[int] = []
        running: dict[int, int] = {}  # by run: when its call ends
        seen = (0, 0)
        for now in range(UNTIL_SECONDS):
            if now == self.tool_seconds:
                self.ready_at_arrival = self.ready(now)
                queue = list(range(RUNS))
                for run, began in zip(self.runs, self.began, strict=True):
                    run.ended(Key("search"), DONE, float(now))
                    began[Key("write")] = float(now)
            for number in [number for number, ends in running.items() if ends <= now]:
                del running[number]
                self.runs[number].ended(Key("write"), DONE, float(now))
            ready = self.ready(now)
            while queue and len(running) < SLOTS * ready:
                running[queue.pop(0)] = now + CALL_SECONDS
                self.waits.append(now - self.tool_seconds)
            if now % SCRAPE_SECONDS == 0:
                seen = len(running), len(queue)
            if now % TICK_SECONDS == 0:
                coming = self.announced(profiles, now)
                each = [pod(f"p{n}", running=seen[0] / ready, waiting=seen[1] / ready) for n in range(ready)]
                starting = [blind(f"s{n}") for n in range(len(self.born) - ready)]
                demand = asked(
                    in_flight=len(running) + len(queue), **({} if coming is None else {"coming": coming})
                )
                current = len(self.born)
                decision, memory = decide(float(now), pool(*each, *starting, demand=demand), spec, current, memory)
                self.born += [now] * (decision.replicas - current)
                del self.born[decision.replicas :]
            self.most = max(self.most, len(self.born))
            self.pod_seconds += len(self.born)
        return self


def say(seconds: int, *worlds: World) -> None:
    """The figures of docs/decisions/runs-announce-calls.md."""
    for world in worlds:
        print(
            f"{seconds} s, {'told' if world.tells else 'untold'}: {world.ready_at_arrival} ready, waits mean "
            f"{sum(world.waits) / RUNS:.0f} longest {max(world.waits)} s, at most {world.most} replicas, "
            f"{world.pod_seconds} pod seconds"
        )


@pytest.mark.parametrize("tool_seconds", [60, 90, 120])
def test_the_replicas_are_there_when_the_calls_arrive(tool_seconds: int) -> None:
    untold, told = World(tool_seconds, tells=False).go(), World(tool_seconds, tells=True).go()
    say(tool_seconds, untold, told)

    assert len(untold.waits) == len(told.waits) == RUNS
    assert untold.ready_at_arrival == 1
    assert told.ready_at_arrival >= (5 if tool_seconds == 60 else 7)
    assert sum(told.waits) < 0.25 * sum(untold.waits)
    assert told.most <= 8


def test_a_tool_that_takes_four_times_as_long_holds_what_was_asked_for_as_long_as_its_calls_may_come() -> None:
    untold, told = World(240, tells=False).go(), World(240, tells=True, usual_seconds=60).go()
    say(240, untold, told)

    assert told.most <= 8
    assert told.pod_seconds < 1.6 * untold.pod_seconds
