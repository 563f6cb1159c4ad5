"""The rules of other autoscalers, each written from its own source and held to worked examples of it.

They are called as policies.Policy says: once a tick, with what the pool showed.
"""

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from tidepool_operator.backtest.arima import Predictor
from tidepool_operator.backtest.plant import Engine, Seen


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


def keda(waiting: float, least: int = 1, most: int = 10_000) -> Hpa:
    """KEDA on the length of the queue: it hands an HPA the whole length and the target for one pod."""
    return Hpa(lambda seen: seen.waiting / max(seen.ready, 1), waiting, least=least, most=most)


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

    Demand is tokens in use and those of waiting prompts. One replica holds 0.8 of its cache, or less by what it
    computes: what it holds while five or more wait, else the mean of the last ten such looks, else what follows
    from the engine's flags. Up beyond 0.85 of what ready and pending ones hold, down below 0.70 of the ready ones.
    """

    engine: Engine
    mean_prompt: float
    mean_output: float = 0.0  # without one nothing follows from the flags
    least: int = 1
    most: int = 10_000
    _next: float = -math.inf
    _full: deque[float] = field(default_factory=lambda: deque(maxlen=10))

    def __call__(self, now: float, seen: Seen, replicas: int, ttft_seconds: float | None) -> int:  # noqa: ARG002
        """The analyzer's answer, in whole replicas as its optimizer rounds them."""
        if now < self._next or not seen.ready:
            return replicas
        self._next = now + 60.0
        used = seen.kv_usage * self.engine.kv_tokens
        holds = self.holds(used, seen.waiting / seen.ready)
        demand = used * seen.ready + seen.waiting * self.mean_prompt
        lacking = demand / 0.85 - holds * replicas
        spare = holds * seen.ready - demand / 0.70
        wanted = replicas
        if lacking > 0:
            wanted += math.ceil(lacking / holds)
        elif spare > 0:
            wanted -= math.floor(spare / holds)
        return min(max(wanted, self.least), self.most)

    def holds(self, used: float, waiting: float) -> float:
        """Tokens that one replica may hold, which has `used` now while `waiting` requests wait for it."""
        by_memory = 0.8 * self.engine.kv_tokens
        if waiting >= 5 and used > 0:
            self._full.append(used)
            return min(by_memory, used)
        if self._full:
            return min(by_memory, sum(self._full) / len(self._full))
        return min(by_memory, self.derived() or by_memory)

    def derived(self) -> float:
        """What follows from the flags: sequences at once, by tokens a step, each halfway through its answer."""
        if self.mean_output <= 0:
            return 0.0
        prompt, output = self.mean_prompt, self.mean_output
        steady = min(self.engine.batched_tokens * output / (prompt + output), self.engine.max_running)
        return steady * (prompt + output / 2)


@dataclass(slots=True)
class Dynamo:
    """The rules of Dynamo's SLA planner: throughput every 180 s, load every tick (components/src/dynamo/planner).

    Replicas for the requests a second, and the lengths of prompts and answers, that are expected of the next
    interval, over what one engine serves within the targets. Where load counts too (`by_load`, which it leaves
    out by default) that is a floor: one more when every engine misses the target, one fewer if latency times
    n / (n - 1) stays within 80 % of it, nothing while replicas start.
    """

    capacity: Callable[[float, float], float]  # engine-seconds a second over the limit, of prompts and outputs
    target_seconds: float
    least: int = 1
    most: int = 10_000
    by_load: bool = True
    interval_seconds: float = 180.0
    predictor: Callable[[], Predictor] = Predictor
    _next: float = -math.inf
    _floor: int = 1
    _past: list[tuple[float, float, float]] = field(default_factory=list)
    _expected: tuple[Predictor, ...] = ()

    def __call__(self, now: float, seen: Seen, replicas: int, ttft_seconds: float | None) -> int:  # noqa: ARG002
        """The planner's answer."""
        if seen.ready:
            rates = (seen.requests_rate, seen.prompt_rate, seen.output_rate)
            self._past.append((rates[0] * seen.ready, rates[1] * seen.ready, rates[2] * seen.ready))
        if now >= self._next and self._past:
            self._floor = max(self.least, self._throughput())
            self._next, self._past = now + self.interval_seconds, []
            if not self.by_load:
                return min(self._floor, self.most)
        if not self.by_load:
            return replicas
        wanted = replicas
        if not seen.starting:
            if seen.step_seconds > self.target_seconds:
                wanted = replicas + 1
            elif replicas > 1 and seen.step_seconds * replicas / (replicas - 1) < 0.8 * self.target_seconds:
                wanted = replicas - 1
        return min(max(wanted, self._floor, self.least), self.most)

    def _throughput(self) -> int:
        """Replicas for what the predictors expect, of requests a second, tokens of a prompt and of an answer."""
        self._expected = self._expected or (self.predictor(), self.predictor(), self.predictor())
        requests, prompt, output = (sum(each) / len(self._past) for each in zip(*self._past, strict=True))
        lengths = (prompt / requests, output / requests) if requests > 0 else (0.0, 0.0)
        seen = (requests, *lengths)
        requests, prompt, output = (each.expect(value) for each, value in zip(self._expected, seen, strict=True))
        return math.ceil(self.capacity(requests * prompt, requests * output) - 1e-9)
