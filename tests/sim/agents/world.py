"""Workflows on two or three engines, by the event. Runs are the router's own, and so is what decides for them.

A pool has one engine and a gate before it that lets in as many requests as the engine runs at once; the policy
says to which pool a call goes, and who goes first at a gate.
"""

import heapq
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from sim.agents.shapes import DEADLINES, Instance, Stage, plans
from sim.engine import NEVER, Engine, EngineConfig
from sim.engine import Sequence as Served
from sim.steptime import StepTime
from tidepool_router.workflow.core.learning import Learning
from tidepool_router.workflow.core.profiles import Profiles
from tidepool_router.workflow.core.run import Entry, Run
from tidepool_router.workflow.core.states import (
    Call,
    Compose,
    Effect,
    Ending,
    Expand,
    Finish,
    Keep,
    Key,
    Output,
    Phase,
)


@dataclass(frozen=True, slots=True)
class PoolSpec:
    """A pool of one engine. `quality`: the share of its answers that are good."""

    name: str
    quality: float
    step_time: StepTime
    slots: int = 16
    kv_tokens: int = 120_000


@dataclass(slots=True, eq=False)
class Ask:
    """One call to a model, from when it is made."""

    instance: Instance
    run: Run
    call: Call
    stage: Stage
    waited_seconds: float
    asked_at: float
    pool: str = ""
    sent_at: float = 0.0


@dataclass
class Pool:
    """A pool as policies see it, and what waits before it, in the policy's own order."""

    spec: PoolSpec
    engine: Engine
    waiting: Any = None
    in_flight: int = 0
    done_tokens: float = 0.0
    busy_seconds: float = 0.0
    sent: dict[int, Ask] = field(default_factory=dict)

    @property
    def room(self) -> int:
        return self.spec.slots - self.in_flight


@dataclass(frozen=True, slots=True)
class Done:
    """One run that has ended."""

    shape: str
    seconds: float
    late: bool
    quality: float  # sum over its stages
    stages: int
    output_tokens: int


class Policy:
    """Where a call goes, and in which order gates let in. `queue` makes what waits at one."""

    name = ""

    def pool(self, ask: Ask, pools: Mapping[str, Pool], profiles: Profiles, now: float) -> str:
        """The pool that is asked."""
        raise NotImplementedError

    def queue(self) -> Any:
        """Something with `push(ask, pool, profiles, now)`, `pop(now)` and a length."""
        raise NotImplementedError


class World:
    """One simulation."""

    def __init__(self, specs: Sequence[PoolSpec], policy: Policy) -> None:
        self.now = 0.0
        self.policy = policy
        self.profiles = Profiles()
        self.done: list[Done] = []
        self.pools = {
            spec.name: Pool(spec, Engine(EngineConfig(spec.step_time, spec.kv_tokens, max_num_seqs=spec.slots)))
            for spec in specs
        }
        for pool in self.pools.values():
            pool.waiting = policy.queue()
        self._plans = plans(tuple((spec.name, spec.quality) for spec in specs))
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = count()

    def simulate(self, arrivals: Sequence[tuple[float, Instance]]) -> list[Done]:
        """All runs, to their ends."""
        for at, instance in arrivals:
            self._at(at, lambda instance=instance: _Running(self, instance).begin())  # type: ignore[misc]
        while True:
            wake = min(pool.engine.wake_at for pool in self.pools.values())
            event = self._events[0][0] if self._events else NEVER
            if wake == NEVER and event == NEVER:
                return self.done
            self.now = min(wake, event)
            if event <= wake:
                heapq.heappop(self._events)[2]()
            else:
                for pool in self.pools.values():
                    if pool.engine.wake_at <= self.now:
                        self._step(pool)

    def ask(self, ask: Ask) -> None:
        """A call is made."""
        ask.pool = self.policy.pool(ask, self.pools, self.profiles, self.now)
        pool = self.pools[ask.pool]
        pool.waiting.push(ask, pool, self.profiles, self.now)
        self._let_in(pool)

    def _at(self, at: float, act: Callable[[], None]) -> None:
        heapq.heappush(self._events, (at, next(self._numbers), act))

    def later(self, seconds: float, act: Callable[[], None]) -> None:
        """In so many seconds."""
        self._at(self.now + seconds, act)

    def _let_in(self, pool: Pool) -> None:
        engine = pool.engine
        while pool.room > 0 and len(pool.waiting):
            ask = pool.waiting.pop(self.now)
            pool.in_flight += 1
            ask.sent_at = self.now
            stage = ask.stage
            engine.submit(Served(ask, stage.prompt_tokens, stage.output_tokens, list(stage.names)), self.now)
        if engine.idle:
            engine.begin(self.now)

    def _step(self, pool: Pool) -> None:
        _, finished = pool.engine.complete()
        pool.in_flight -= len(finished)
        for served in finished:
            ask = served.request
            assert isinstance(ask, Ask)
            pool.done_tokens += ask.stage.prompt_tokens - served.cached_tokens + ask.stage.output_tokens
            self._answered(ask)
        self._let_in(pool)

    def _answered(self, ask: Ask) -> None:
        stage, frame = ask.stage, ask.run.frame(ask.call.key.within)
        assert frame is not None
        self.profiles.called(
            frame.plan.name,
            ask.call.key.step,
            ask.pool,
            prompt_tokens=stage.prompt_tokens,
            output_tokens=stage.output_tokens,
            seconds=self.now - ask.asked_at,
            succeeded=True,
            now=self.now,
        )
        ask.run.owner.answered(ask)  # type: ignore[attr-defined]


class _Running:
    """A run in the world: the rim that its core asks."""

    def __init__(self, world: World, instance: Instance) -> None:
        self.world = world
        self.instance = instance
        self.began_at = world.now
        self.due_at = world.now + DEADLINES[instance.shape]
        # Late runs are counted, not ended: every policy does the same work.
        self.run = Run(world._plans[instance.shape], deadline=self.due_at + 1e9, given={})
        self.run.owner = self  # type: ignore[attr-defined]
        self.run.deadline = self.due_at
        self.learning = Learning(self.run, world.profiles)
        self.quality = 0.0
        self.stages = self.output_tokens = 0

    def begin(self) -> None:
        self._take(self.run.begin(self.world.now))

    def answered(self, ask: Ask) -> None:
        stage, pool = ask.stage, self.world.pools[ask.pool].spec
        self.stages += 1
        self.quality += pool.quality
        self.output_tokens += stage.output_tokens
        tokens = stage.prompt_tokens + stage.output_tokens
        self._take(self.run.used(tokens, self.world.now, ask.call.key.within))
        data: Any = None
        if ask.call.turn:
            data = {"step": "tool" if ask.call.turn <= self.instance.turns else None}
        self._end(ask.call.key, Ending(Phase.SUCCEEDED, "", Output("x", data, tokens)))

    def _end(self, key: Key, ending: Ending) -> None:
        self.learning.ended(key, ending, self.world.now)
        self._take(self.run.ended(key, ending, self.world.now))

    def _take(self, effects: Sequence[Effect]) -> None:
        for effect in effects:
            match effect:
                case Call():
                    self._call(effect)
                case Expand(step, within):
                    self._take(self.run.expanded(step, list(range(self.instance.items)), self.world.now, within))
                case Compose(within):
                    self._take(self.run.composed("x", self.world.now, within))
                case Keep(key, ending):
                    self._end(key, ending)
                case Finish():
                    self._finish()

    def _call(self, call: Call) -> None:
        world = self.world
        self.learning.began(call.key, world.now)
        step = self.run.step(call.key)
        assert step is not None
        if step.kind == "http":
            seconds = self.instance.tool_seconds(call.key)
            world.later(seconds, lambda: self._end(call.key, Ending(Phase.SUCCEEDED, "", Output("x"))))
        elif step.kind == "choose" and not call.turn:
            self._take(self.run.entered(call.key, call.attempt, Entry(), world.now))
        else:
            stage = self.instance.stage(call.key, call.turn)
            world.ask(Ask(self.instance, self.run, call, stage, world.now - self.began_at, world.now))

    def _finish(self) -> None:
        world = self.world
        self.learning.finished(world.now)
        seconds = world.now - self.began_at
        world.done.append(
            Done(
                self.instance.shape,
                seconds,
                world.now > self.due_at,
                self.quality,
                self.stages,
                self.output_tokens,
            )
        )
