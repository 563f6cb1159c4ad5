"""Readings in few words, and a pool of engines whose figures follow from the demand on it."""

import math
from dataclasses import dataclass, field, replace
from typing import Any

from tidepool_operator.scaling.decide import decide
from tidepool_operator.scaling.model import (
    Decision,
    Demand,
    Known,
    Memory,
    Missing,
    PodReading,
    PodState,
    PoolReading,
    Sample,
    ScalingSpec,
    Stale,
)

NOBODY = Demand(held=Known(0), refused=Known(0), in_flight=Known(0), gateways=1)
GONE = Missing("target is down")
UNTOLD = Missing("not read yet")
OLD = Stale(0.0, 240.0, "Prometheus does not answer")


def sample(value: float | Sample) -> Sample:
    return Known(float(value)) if isinstance(value, int | float) else value


def pod(
    name: str = "pod-0",
    *,
    kv: float | Sample = 0.0,
    waiting: float | Sample = 0.0,
    running: float | Sample = 0.0,
    requests: float | Sample = 0.0,
    ended: float | Sample = GONE,
    state: PodState = PodState.READY,
) -> PodReading:
    return PodReading(
        name,
        state,
        kv_usage=sample(kv),
        waiting=sample(waiting),
        running=sample(running),
        requests_rate=sample(requests),
        requests_ended=sample(ended),
        prompt_tokens_rate=Known(0.0),
        output_tokens_rate=Known(0.0),
    )


def blind(name: str = "pod-0", state: PodState = PodState.STARTING) -> PodReading:
    """A pod without figures."""
    return PodReading(name, state)


def asked(
    held: float | Sample = 0,
    refused: float | Sample = 0,
    in_flight: float | Sample = 0,
    coming: float | Sample = UNTOLD,
) -> Demand:
    return Demand(sample(held), sample(refused), sample(in_flight), gateways=1, coming=sample(coming))


def pool(*pods: PodReading, demand: Demand = NOBODY, **rest: Any) -> PoolReading:
    return PoolReading("default/llama", pods, demand, **rest)


def settled(current: int, now: float, **rest: Any) -> Memory:
    """Memory of an operator that has looked for an hour and decided nothing new."""
    then = now - 3600.0
    return Memory(since=then, replicas=current, decided=current, ready_pods=current, ready_pods_since=then, **rest)


@dataclass
class Pool:
    """Engines that run `slots` requests each and hold `kv_each` of their cache a request; time goes in ticks.

    Requests in excess of all slots wait. A replica that is asked for is ready `startup_seconds` later.
    """

    spec: ScalingSpec
    demand: float
    replicas: int = 1
    slots: int = 8
    kv_each: float = 0.05
    startup_seconds: float = 60.0
    now: float = 1_000_000.0
    memory: Memory = field(default_factory=Memory)
    decisions: list[Decision] = field(default_factory=list)
    _born: list[float] = field(default_factory=list)

    def reading(self) -> PoolReading:
        ready = [self.now - born >= self.startup_seconds for born in self._born]
        served = sum(ready)
        share = self.demand / served if served else 0.0
        runs = min(share, self.slots)
        serving = pod(kv=min(runs * self.kv_each, 1.0), running=runs, waiting=share - runs, requests=share / 10)
        pods = [
            replace(serving, name=f"pod-{index}") if up else blind(f"pod-{index}")
            for index, up in enumerate(ready)
        ]
        held = math.ceil(self.demand) if not served else 0
        return pool(*pods, demand=asked(held=held, in_flight=math.ceil(self.demand)))

    def tick(self, seconds: float = 5.0) -> Decision:
        self.now += seconds
        while len(self._born) < self.replicas:
            self._born.append(self.now if self.decisions else self.now - self.startup_seconds)
        del self._born[self.replicas :]
        decision, self.memory = decide(self.now, self.reading(), self.spec, self.replicas, self.memory)
        self.decisions.append(decision)
        self.replicas = decision.replicas
        return decision

    def run(self, seconds: float) -> list[int]:
        return [self.tick().replicas for _ in range(int(seconds // 5))]
