"""Who decides in a replay: this operator, and the rules of others for comparison.

Each is called once a tick with what the pool showed and answers how many replicas there should be.
"""

import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Protocol

from tidepool_operator.backtest.plant import Engine, Seen
from tidepool_operator.scaling.ahead import started
from tidepool_operator.scaling.decide import decide
from tidepool_operator.scaling.model import (
    Decision,
    Demand,
    Forecast,
    Known,
    LivePod,
    Memory,
    PodReading,
    PodState,
    PoolReading,
    ScalingSpec,
)

RATE_SECONDS: Final = 60.0
_NOBODY: Final = Demand(Known(0.0), Known(0.0), Known(0.0), gateways=1)


class Policy(Protocol):
    """One way to decide."""

    def __call__(self, now: float, seen: Seen, replicas: int, ttft_seconds: float | None) -> int:
        """Replicas wanted at `now`; `ttft_seconds` is the 90th percentile of the last minute."""
        ...


@dataclass(slots=True)
class Ours:
    """`decide`, as the operator calls it; `forecast` tells what it would know at a time."""

    spec: ScalingSpec
    startup_seconds: float
    forecast: Callable[[float], Forecast | None]
    memory: Memory = field(default_factory=Memory)
    decisions: list[Decision] = field(default_factory=list)
    # Time, and prompt tokens, output tokens and requests of the whole pool a second: rates are over a minute.
    _rates: deque[tuple[float, ...]] = field(default_factory=deque)

    def __call__(self, now: float, seen: Seen, replicas: int, ttft_seconds: float | None) -> int:
        """The operator's answer."""
        if not self.memory.startups:
            self.memory = started(self.memory, [LivePod("first", PodState.READY, max(1.0, self.startup_seconds))])
        rates = (seen.ready * each for each in (seen.prompt_rate, seen.output_rate, seen.requests_rate))
        self._rates.append((now, *rates))
        while self._rates[0][0] <= now - RATE_SECONDS:
            self._rates.popleft()
        reading = _reading(self._over_a_minute(seen), ttft_seconds)
        decision, self.memory = decide(now, reading, self.spec, replicas, self.memory, self.forecast(now))
        if decision.replicas != replicas:
            self.decisions.append(decision)
        return decision.replicas

    def _over_a_minute(self, seen: Seen) -> Seen:
        if not seen.ready:
            return seen
        prompt, output, requests = (
            sum(each[index] for each in self._rates) / len(self._rates) / seen.ready for index in (1, 2, 3)
        )
        return replace(seen, prompt_rate=prompt, output_rate=output, requests_rate=requests)


def _reading(seen: Seen, ttft_seconds: float | None) -> PoolReading:
    waits = seen.waiting / seen.ready if seen.ready else 0.0
    pod = PodReading(
        "pod",
        PodState.READY,
        kv_usage=Known(seen.kv_usage),
        waiting=Known(waits),
        running=Known(seen.running),
        prompt_tokens_rate=Known(seen.prompt_rate),
        cached_tokens_rate=Known(0.0),
        output_tokens_rate=Known(seen.output_rate),
        requests_rate=Known(seen.requests_rate),
    )
    coming = PodReading("coming", PodState.STARTING)
    held = Known(seen.waiting if not seen.ready else 0.0)
    reading = PoolReading("replay/pool", (pod,) * seen.ready + (coming,) * seen.starting)
    if ttft_seconds is not None:
        reading = replace(reading, time_to_first_token_seconds=Known(ttft_seconds))
    if seen.step_seconds:
        reading = replace(reading, time_per_output_token_seconds=Known(seen.step_seconds))
    return replace(reading, demand=replace(_NOBODY, held=held, in_flight=Known(seen.running * seen.ready)))


@dataclass(frozen=True, slots=True)
class Static:
    """Always so many."""

    replicas: int

    def __call__(self, now: float, seen: Seen, replicas: int, ttft_seconds: float | None) -> int:  # noqa: ARG002
        """The same as ever."""
        return self.replicas


@dataclass(slots=True)
class Hpa:
    """A HorizontalPodAutoscaler with its default behaviour on a metric's mean over the pods and its target.

    https://kubernetes.io/docs/tasks/run-application/horizontal-pod-autoscale/#algorithm-details: current x metric
    / target rounded up, nothing within a tenth; up by 4 pods or 100 % in 15 s, down after 300 s.
    """

    metric: Callable[[Seen], float]
    target: float
    least: int = 1
    most: int = 10_000
    window_seconds: float = 300.0
    _wanted: deque[tuple[float, int]] = field(default_factory=deque)

    def __call__(self, now: float, seen: Seen, replicas: int, ttft_seconds: float | None) -> int:  # noqa: ARG002
        """The HPA's answer."""
        ratio = self.metric(seen) * seen.ready / max(replicas, 1) / self.target
        wanted = replicas if abs(ratio - 1.0) <= 0.1 else math.ceil(replicas * ratio - 1e-9)
        wanted = min(max(wanted, self.least), self.most)
        while self._wanted and self._wanted[0][0] <= now - self.window_seconds:
            self._wanted.popleft()
        self._wanted.append((now, wanted))
        if wanted > replicas:
            return min(wanted, max(2 * replicas, replicas + 4))
        return min(replicas, max(each for _, each in self._wanted))


@dataclass(slots=True)
class Knative:
    """Knative's autoscaler on requests in progress (pkg/autoscaler/scaling/autoscaler.go).

    Stable window of 60 s; panic, over the last tick, from twice the ready pods' capacity on, and for 60 s, in
    which the pool never shrinks.
    """

    target: float  # requests in progress that one replica is to have: 70 % of what it can
    least: int = 1
    most: int = 10_000
    _past: deque[tuple[float, float]] = field(default_factory=deque)
    _panic_until: float = -math.inf
    _panic_most: int = 0

    def __call__(self, now: float, seen: Seen, replicas: int, ttft_seconds: float | None) -> int:  # noqa: ARG002
        """Knative's answer."""
        total = seen.running * seen.ready + seen.waiting
        self._past.append((now, total))
        while self._past[0][0] <= now - 60.0:
            self._past.popleft()
        ready = max(seen.ready, 1)
        floor, ceiling = ready // 2, 1000 * ready
        stable = sum(each for _, each in self._past) / len(self._past) / self.target
        panic = min(max(math.ceil(total / self.target), floor), ceiling)
        wanted = min(max(math.ceil(stable), floor), ceiling)
        if panic / ready >= 2.0:
            self._panic_most = 0 if now > self._panic_until else self._panic_most
            self._panic_until = now + 60.0
        if now <= self._panic_until:
            self._panic_most = max(self._panic_most, panic, replicas)
            wanted = self._panic_most
        return min(max(wanted, self.least), self.most)


@dataclass(slots=True)
class WvaV2:
    """The rules of llm-d's workload variant autoscaler, version 2 (saturation_v2/analyzer.go), one variant, 60 s.

    Demand is tokens in use and those of waiting prompts; one replica holds 0.8 of its cache, or what it held when
    five or more waited, by the mean of the last ten such looks. Up beyond 0.85 of what ready and pending hold,
    down below 0.70.
    """

    engine: Engine
    mean_prompt: float
    least: int = 1
    most: int = 10_000
    _next: float = -math.inf
    _full: deque[float] = field(default_factory=lambda: deque(maxlen=10))

    def __call__(self, now: float, seen: Seen, replicas: int, ttft_seconds: float | None) -> int:  # noqa: ARG002
        """The analyzer's answer."""
        if now < self._next or not seen.ready:
            return replicas
        self._next = now + 60.0
        used = seen.kv_usage * self.engine.kv_tokens
        if seen.waiting / seen.ready >= 5:
            self._full.append(used)
        holds = 0.8 * self.engine.kv_tokens
        if self._full:
            holds = min(holds, sum(self._full) / len(self._full))
        demand = used * seen.ready + seen.waiting * self.mean_prompt
        lacking = demand / 0.85 - holds * replicas
        spare = holds * replicas - demand / 0.70
        wanted = (
            replicas + math.ceil(lacking / holds) if lacking > 0 else replicas - math.floor(max(spare, 0) / holds)
        )
        return min(max(wanted, self.least), self.most)


@dataclass(slots=True)
class Dynamo:
    """The rules of Dynamo's SLA planner: throughput every 180 s, load every tick (components/src/dynamo/planner).

    Replicas for the requests a second expected next over those that one engine serves within the targets; with its
    constant predictor, which expects the last interval again. Between, one more when every engine misses a target,
    one fewer if latency times n / (n - 1) stays within 80 % of it, not below the throughput's answer.
    """

    capacity: Callable[
        [float, float], float
    ]  # engine-seconds a second over the limit, of prompt and output tokens
    target_seconds: float
    least: int = 1
    most: int = 10_000
    _next: float = -math.inf
    _floor: int = 1
    _past: list[tuple[float, float]] = field(default_factory=list)

    def __call__(self, now: float, seen: Seen, replicas: int, ttft_seconds: float | None) -> int:  # noqa: ARG002
        """The planner's answer."""
        self._past.append((seen.prompt_rate * seen.ready, seen.output_rate * seen.ready))
        if now >= self._next:
            prompt, output = (sum(each) / len(self._past) for each in zip(*self._past, strict=True))
            self._floor = max(self.least, math.ceil(self.capacity(prompt, output)))
            self._next, self._past = now + 180.0, []
            return min(max(self._floor, self.least), self.most)
        wanted = replicas
        if seen.step_seconds > self.target_seconds and not seen.starting:
            wanted = replicas + 1
        elif replicas > 1 and seen.step_seconds * replicas / (replicas - 1) < 0.8 * self.target_seconds:
            wanted = replicas - 1
        return min(max(wanted, self._floor, self.least), self.most)


@dataclass(frozen=True, slots=True)
class Oracle:
    """Knows what comes: what the worst moment needs between now and when a replica asked for would be ready."""

    needed: Sequence[float]  # replicas, by tick
    begin: float
    tick_seconds: float
    startup_seconds: float
    least: int = 1
    most: int = 10_000

    def __call__(self, now: float, seen: Seen, replicas: int, ttft_seconds: float | None) -> int:  # noqa: ARG002
        """What will be needed."""
        first = round((now - self.begin) / self.tick_seconds)
        last = first + math.ceil(self.startup_seconds / self.tick_seconds) + 4
        # Answers that began a minute ago are still being made.
        coming = self.needed[max(0, first - 4) : last]
        return min(max(math.ceil(max(coming, default=0.0)), self.least), self.most)
