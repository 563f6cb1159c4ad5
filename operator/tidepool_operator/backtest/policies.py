"""Who decides in a replay: this operator, a fixed size, and one that knows. The rules of others are in peers.py.

Each is called once a tick with what the pool showed and answers how many replicas there should be.
"""

import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Protocol

from tidepool_operator.backtest.plant import Seen
from tidepool_operator.scaling.ahead import started
from tidepool_operator.scaling.decide import decide
from tidepool_operator.scaling.model import (
    Decision,
    Demand,
    Forecast,
    Known,
    LivePod,
    Memory,
    Missing,
    PodReading,
    PodState,
    PoolReading,
    ScalingSpec,
)

RATE_SECONDS: Final = 60.0
_NOTHING: Final = Known(0.0)
_UNKNOWN: Final = Missing("no request in the window")
_COMING: Final = PodReading("coming", PodState.STARTING)


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
        decision, self.memory = decide(
            now, reading, self.spec, replicas, self.memory, self.forecast(now), tells=False
        )
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
        cached_tokens_rate=_NOTHING,
        output_tokens_rate=Known(seen.output_rate),
        requests_rate=Known(seen.requests_rate),
    )
    held = Known(seen.waiting if not seen.ready else 0.0)
    return PoolReading(
        "replay/pool",
        (pod,) * seen.ready + (_COMING,) * seen.starting,
        Demand(held, _NOTHING, Known(seen.running * seen.ready), gateways=1),
        _UNKNOWN if ttft_seconds is None else Known(ttft_seconds),
        Known(seen.step_seconds) if seen.step_seconds else _UNKNOWN,
    )


@dataclass(frozen=True, slots=True)
class Static:
    """Always so many."""

    replicas: int

    def __call__(self, now: float, seen: Seen, replicas: int, ttft_seconds: float | None) -> int:  # noqa: ARG002
        """The same as ever."""
        return self.replicas


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
