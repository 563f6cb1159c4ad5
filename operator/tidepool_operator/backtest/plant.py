"""A pool of engines as a flow: how many requests run and wait, how long steps take, what replicas cost.

Engines are those of scaling/capacity.py. Within a tick demand is even, requests in progress follow Little's law,
and lengths of answers are taken as memoryless. The load is spread evenly over the ready replicas.
"""

import math
from dataclasses import dataclass, field
from typing import Final

from tidepool_operator.scaling.capacity import PRIOR

# Chunks of prompts leave decodes at least a fifth of an engine's time.
PREFILL_SHARE: Final = 0.8
_ROUNDS: Final = 6


@dataclass(frozen=True, slots=True)
class Engine:
    """Seconds of a step, of a prompt token, of an output token; tokens of the KV cache; most requests at once.

    `batched_tokens` is the most tokens of a step (vLLM's max-num-batched-tokens), which only peers look at.
    """

    figures: tuple[float, float, float] = PRIOR
    kv_tokens: float = 400_000.0
    max_running: float = 256.0
    batched_tokens: float = 8192.0


@dataclass(frozen=True, slots=True)
class Arrivals:
    """What comes in a tick: requests, and all tokens of their prompts (without cached ones) and outputs."""

    requests: float
    prompt_tokens: float
    output_tokens: float


@dataclass(frozen=True, slots=True)
class Seen:
    """Figures of a tick: per ready replica where not said otherwise, as an engine's metrics would have them.

    `wait_seconds` is the part of the time to the first token before the prompt is computed, None with no replica.
    """

    ready: int
    starting: int
    running: float = 0.0
    waiting: float = 0.0  # all replicas together
    kv_usage: float = 0.0
    prompt_rate: float = 0.0
    output_rate: float = 0.0
    requests_rate: float = 0.0
    wait_seconds: float | None = None
    step_seconds: float = 0.0


@dataclass(slots=True)
class Plant:
    """The pool at a moment; `startup_seconds` pass between asking for a replica and its being ready."""

    engine: Engine
    startup_seconds: float
    now: float
    ready: int = 1
    gpu_seconds: float = 0.0
    changes: int = 0
    _starting: list[float] = field(default_factory=list)
    _draining: list[float] = field(default_factory=list)
    _present: float = 0.0  # requests in the pool
    _prefill: float = 0.0  # prompt tokens to be computed
    _output: float = 100.0  # mean tokens of an answer
    _prompt: float = 500.0
    _step: float = PRIOR[0]

    @property
    def replicas(self) -> int:
        """Ready ones and those that start."""
        return self.ready + len(self._starting)

    def scale(self, target: int) -> None:
        """Ask for replicas, or let some go: those that start first, and ready ones drain."""
        self.changes += target != self.replicas
        while self.replicas < target:
            self._starting.append(self.now + self.startup_seconds)
        while self.replicas > target and self._starting:
            self._starting.pop()
        while self.replicas > target:
            self.ready -= 1
            self._draining.append(self.now + self._output * self._step)

    def advance(self, arrivals: Arrivals, seconds: float) -> Seen:
        """Play a tick."""
        self.now += seconds
        self.ready += sum(at <= self.now for at in self._starting)
        self._starting = [at for at in self._starting if at > self.now]
        self._draining = [at for at in self._draining if at > self.now]
        self.gpu_seconds += seconds * (self.replicas + len(self._draining))
        self._learn(arrivals)
        self._prefill += arrivals.prompt_tokens
        if self.ready == 0:
            self._present += arrivals.requests
            return Seen(0, len(self._starting), waiting=self._present)
        return self._served(arrivals, seconds)

    def _learn(self, arrivals: Arrivals) -> None:
        """Mean lengths of those that are there."""
        if arrivals.requests > 0:
            share = arrivals.requests / (arrivals.requests + self._present)
            self._output += share * (arrivals.output_tokens / arrivals.requests - self._output)
            self._prompt += share * (arrivals.prompt_tokens / arrivals.requests - self._prompt)
            self._output, self._prompt = max(self._output, 1.0), max(self._prompt, 1.0)

    def _served(self, arrivals: Arrivals, seconds: float) -> Seen:
        base, per_prompt, per_output = self.engine.figures
        count, rate = self.ready, arrivals.requests / seconds
        computed = min(self._prefill / seconds, PREFILL_SHARE * count / per_prompt)
        slots = count * min(self.engine.max_running, self.engine.kv_tokens / (self._prompt + self._output / 2))
        left = 1.0 - per_prompt * computed / count
        step, running, end = self._step, self._present, self._present
        for _ in range(_ROUNDS):
            life = self._output * step
            fade = math.exp(-seconds / life)
            running = rate * life + (self._present - rate * life) * (1 - fade) * life / seconds
            end = rate * life + (self._present - rate * life) * fade
            if max(running, end) > slots:
                running = slots
                end = max(0.0, self._present + arrivals.requests - slots / life * seconds)
            step = (step + (base + per_output * running / count) / left) / 2
        behind = max(0.0, self._prefill - computed * seconds)
        # Those who come find what was behind before and after them.
        wait = (behind + self._prefill - arrivals.prompt_tokens) / 2 * per_prompt / (PREFILL_SHARE * count)
        waiting = max(0.0, end - slots)
        wait += waiting / (running / (self._output * step)) if waiting else 0.0
        self._prefill, self._present, self._step = behind, end, step
        kv = running * (self._prompt + self._output / 2) / count / self.engine.kv_tokens
        return Seen(
            ready=count,
            starting=len(self._starting),
            running=running / count,
            waiting=waiting,
            kv_usage=min(kv, 1.0),
            prompt_rate=computed / count,
            output_rate=running / step / count,
            requests_rate=running / (self._output * step) / count,
            wait_seconds=max(0.0, wait) + step,
            step_seconds=step,
        )
