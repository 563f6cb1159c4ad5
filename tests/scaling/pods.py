"""A pool request by request, to hold the flow of backtest/plant.py against.

Each request comes at its own moment within its tick and goes to the ready replica with the fewest requests. Each
replica computes prompts in order of arrival and gives every request that has its first token one token a step;
steps are those of scaling/capacity.py. Time goes on in steps of a quarter of a second.
"""

from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from tidepool_operator.backtest.plant import PREFILL_SHARE, Arrivals, Engine, Seen
from tidepool_operator.backtest.replay import Requests, Targets
from tidepool_operator.scaling.experts import Series

STEP_SECONDS: Final = 0.25


@dataclass
class Pods:
    """The pool at a moment, as `Plant` is one; `requests` are all requests of all ticks."""

    engine: Engine
    startup_seconds: float
    now: float
    requests: Requests
    targets: Targets
    ready: int
    gpu_seconds: float = 0.0
    changes: int = 0
    _starting: list[float] = field(default_factory=list)
    _tick: int = 0

    def __post_init__(self) -> None:
        count = len(self.requests.tick)
        chance = np.random.default_rng(0)
        self.within = chance.uniform(0.0, 1.0, count)  # of its tick
        self.within = self.within[np.lexsort((self.within, self.requests.tick))]
        self.first_token = np.full(count, np.inf)
        self.pace = np.full(count, np.inf)
        self._came = np.empty(count)
        self._next = 0
        self._names = list(range(self.ready))  # replicas that take requests
        self._made = self.ready
        self._draining: set[int] = set()
        # Of those that are there: number, replica, prompt and output tokens left, when the first token came.
        self._who: NDArray[np.int64] = np.empty(0, dtype=np.int64)
        self._where: NDArray[np.int64] = np.empty(0, dtype=np.int64)
        self._prompt, self._output, self._since = np.empty(0), np.empty(0), np.empty(0)

    @property
    def replicas(self) -> int:
        """Ready ones and those that start."""
        return self.ready + len(self._starting)

    def scale(self, target: int) -> None:
        """Ask for replicas, or let some go: those that start first, then those with the fewest requests."""
        self.changes += target != self.replicas
        while self.replicas < target:
            self._starting.append(self.now + self.startup_seconds)
        while self.replicas > target and self._starting:
            self._starting.pop()
        while self.replicas > target:
            load = np.bincount(self._where, minlength=self._made)
            least = min(self._names, key=lambda name: int(load[name]))
            self._names.remove(least)
            self._draining.add(least)
            self.ready -= 1

    def advance(self, arrivals: Arrivals, seconds: float) -> Seen:
        """Play a tick."""
        told = np.zeros(5)  # prompt tokens, output tokens, requests that ended, time running, tokens of time
        begin, waits = self.now, list[float]()
        for step in range(round(seconds / STEP_SECONDS)):
            now = begin + step * STEP_SECONDS
            self._start(now)
            self._arrive(begin, seconds, now + STEP_SECONDS)
            told += self._work(now, waits)
            self.gpu_seconds += STEP_SECONDS * (self.replicas + len(self._draining))
        self.now, self._tick = begin + seconds, self._tick + 1
        return self._seen(told, waits, seconds)

    def level(self, ticks: int) -> Series:
        """Share of each tick's requests within both targets."""
        held = (self.first_token <= self.targets.first_token_seconds) & (
            self.pace <= self.targets.per_token_seconds
        )
        came = np.bincount(self.requests.tick, minlength=ticks)
        return np.where(
            came > 0, np.bincount(self.requests.tick, held, minlength=ticks) / np.maximum(came, 1), 1.0
        )

    def _start(self, now: float) -> None:
        up = sum(at <= now for at in self._starting)
        self._starting = [at for at in self._starting if at > now]
        self._names += range(self._made, self._made + up)
        self._made += up
        self.ready += up

    def _arrive(self, begin: float, seconds: float, until: float) -> None:
        """Requests up to a moment; without a ready replica they come when there is one."""
        first, count = self._next, len(self.requests.tick)
        while self._next < count and (
            self.requests.tick[self._next] < self._tick
            or (self.requests.tick[self._next] == self._tick and begin + self.within[self._next] * seconds < until)
        ):
            number = self._next
            self._came[number] = begin + (self.requests.tick[number] - self._tick + self.within[number]) * seconds
            self._next += 1
        if not self._names:
            self._next = first
            return
        new = np.arange(first, self._next)
        load = np.bincount(self._where, minlength=self._made)
        where = []
        for _ in new:
            least = min(self._names, key=load.__getitem__)
            load[least] += 1
            where.append(least)
        self._who = np.concatenate([self._who, new])
        self._where = np.concatenate([self._where, np.array(where, dtype=np.int64)])
        self._prompt = np.concatenate([self._prompt, self.requests.prompt[new]])
        self._output = np.concatenate([self._output, self.requests.output[new]])
        self._since = np.concatenate([self._since, np.full(len(new), np.inf)])

    def _work(self, now: float, waits: list[float]) -> Series:
        """A quarter of a second on every replica."""
        if not len(self._who):
            self._draining.clear()
            return np.zeros(5)
        base, per_prompt, per_output = self.engine.figures
        decoding = self._prompt <= 0
        running = np.bincount(self._where, decoding, minlength=self._made)
        asked = np.bincount(self._where, self._prompt, minlength=self._made)
        computed = np.minimum(asked, PREFILL_SHARE * STEP_SECONDS / per_prompt)
        step = (base + per_output * running) / (1 - per_prompt * computed / STEP_SECONDS)
        # Prompts in order of arrival: what is before one on its replica is computed before it.
        order = np.argsort(self._where, kind="stable")
        total = np.cumsum(self._prompt[order])
        begins = np.searchsorted(self._where[order], np.arange(self._made))
        ahead = np.concatenate([[0.0], total])[begins]
        before = np.empty(len(order))
        before[order] = total - self._prompt[order] - ahead[self._where[order]]
        done = np.clip(computed[self._where] - before, 0.0, self._prompt)
        answered = ~decoding & (done >= self._prompt)
        self._prompt = self._prompt - done
        at = now + STEP_SECONDS * (before + done)[answered] / np.maximum(computed[self._where[answered]], 1e-9)
        who = self._who[answered]
        self.first_token[who] = at + step[self._where[answered]] - self._came[who]
        waits += (self.first_token[who] - per_prompt * self.requests.prompt[who]).tolist()
        self._since[answered] = at
        self._output[answered] -= 1.0
        tokens = np.where(decoding, STEP_SECONDS / step[self._where], 0.0)
        made = np.minimum(tokens, self._output)
        ended = decoding & (tokens >= self._output)
        end = now + STEP_SECONDS * self._output[ended] / np.maximum(tokens[ended], 1e-9)
        gone = self._who[ended]
        self.pace[gone] = (end - self._since[ended]) / np.maximum(self.requests.output[gone], 1.0)
        self._output = self._output - made
        told = np.array([computed.sum(), made.sum(), ended.sum(), decoding.sum() * STEP_SECONDS, tokens.sum()])
        left = ~ended
        self._who, self._where, self._since = self._who[left], self._where[left], self._since[left]
        self._prompt, self._output = self._prompt[left], self._output[left]
        self._draining &= set(self._where.tolist())
        return told

    def _seen(self, told: Series, waits: list[float], seconds: float) -> Seen:
        if not self.ready:
            return Seen(0, len(self._starting), waiting=float(len(self._who)))
        prompt, output, requests, running, tokens = (float(each) for each in told)
        untouched = self._prompt >= self.requests.prompt[self._who]
        held = (self.requests.prompt + self.requests.output)[self._who].sum() / self.ready / self.engine.kv_tokens
        return Seen(
            ready=self.ready,
            starting=len(self._starting),
            running=float((~untouched).sum()) / self.ready,
            # One that is next to be computed does not wait.
            waiting=float(max(0, untouched.sum() - self.ready)),
            kv_usage=min(1.0, float(held)),
            prompt_rate=prompt / seconds / self.ready,
            output_rate=output / seconds / self.ready,
            requests_rate=requests / seconds / self.ready,
            wait_seconds=float(np.percentile(waits, 90)) if waits else 0.0,
            step_seconds=running / tokens if tokens else self.engine.figures[0],
        )
