"""Plays demand against a policy, tick by tick, and counts what users would have seen and what it cost."""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from tidepool_operator.backtest.plant import Arrivals, Engine, Plant, Seen
from tidepool_operator.backtest.policies import Policy
from tidepool_operator.scaling import record
from tidepool_operator.scaling.calibration import band
from tidepool_operator.scaling.experts import Grid, Series
from tidepool_operator.scaling.forecast import LEVELS, horizons, mixed
from tidepool_operator.scaling.model import Forecast, Moment

MINUTE = 60.0
HOUR = 3600.0


@dataclass(frozen=True, slots=True)
class Requests:
    """Requests that are judged one by one, in order of their ticks: tokens of their prompts and answers."""

    tick: NDArray[np.int64]
    prompt: Series
    output: Series


@dataclass(frozen=True, slots=True)
class Demand:
    """Demand by ticks. `requests` are some or all of each tick's; None: one for each, of mean lengths."""

    begin: float
    tick_seconds: float
    arrivals: Sequence[Arrivals]
    requests: Requests | None = None

    def judged(self) -> Requests:
        """The requests that are judged."""
        if self.requests is not None:
            return self.requests
        busy = [(tick, each) for tick, each in enumerate(self.arrivals) if each.requests > 0]
        return Requests(
            np.array([tick for tick, _ in busy], dtype=np.int64),
            np.array([each.prompt_tokens / each.requests for _, each in busy]),
            np.array([each.output_tokens / each.requests for _, each in busy]),
        )


class Pool(Protocol):
    """A pool of engines at a moment, as `Plant` is one."""

    now: float
    gpu_seconds: float
    changes: int

    @property
    def replicas(self) -> int:
        """Ready ones and those that start."""
        ...

    def scale(self, target: int) -> None:
        """Ask for replicas, or let some go."""
        ...

    def advance(self, arrivals: Arrivals, seconds: float) -> Seen:
        """Play a tick."""
        ...


@dataclass(frozen=True, slots=True)
class Targets:
    """Seconds to the first token and per token."""

    first_token_seconds: float
    per_token_seconds: float


@dataclass(slots=True)
class Outcome:
    """What came of a policy: requests within the targets, replica-hours, times that the count changed.

    By tick, those before `first` not counted: replicas, the share of the requests that came in it within the
    targets (1 without any), and replica-seconds paid.
    """

    requests: float = 0.0
    held: float = 0.0
    gpu_hours: float = 0.0
    changes: int = 0
    kv_peak: float = 0.0  # the fullest that the mean cache was
    first: int = 0
    replicas: list[int] = field(default_factory=list)
    level: Series = field(default_factory=lambda: np.empty(0))
    paid: list[float] = field(default_factory=list)

    @property
    def service_level(self) -> float:
        """Share of requests within both targets."""
        return self.held / self.requests if self.requests else 1.0


def replay(
    demand: Demand, engine: Engine, targets: Targets, policy: Policy, startup_seconds: float, first: int
) -> Outcome:
    """Play the whole of `demand` as a flow, from `first` ready replicas on.

    The first hour, a tenth of a shorter past, is not counted: policies learn in it.
    """
    pool = Plant(engine, startup_seconds, demand.begin, ready=first)
    return played(demand, engine, targets, policy, pool, settling(demand))


def settling(demand: Demand) -> int:
    """Ticks in which policies learn."""
    return min(round(HOUR / demand.tick_seconds), len(demand.arrivals) // 10)


def played(demand: Demand, engine: Engine, targets: Targets, policy: Policy, pool: Pool, settled: int) -> Outcome:
    """Play the whole of `demand` on a pool; the first `settled` ticks are not counted."""
    asked = demand.judged()
    prefill = engine.figures[1] * _long_prompts(asked, len(demand.arrivals))
    outcome, recent = Outcome(first=settled), deque[float](maxlen=max(1, round(MINUTE / demand.tick_seconds)))
    waits, steps = np.full(len(prefill), np.nan), np.full(len(prefill), np.nan)
    before = 0.0
    for tick, arrivals in enumerate(demand.arrivals):
        seen = pool.advance(arrivals, demand.tick_seconds)
        if seen.wait_seconds is not None and arrivals.requests > 0:
            waits[tick] = seen.wait_seconds
            recent.append(seen.wait_seconds + float(prefill[tick]))
        if seen.step_seconds:
            steps[tick] = seen.step_seconds
        outcome.kv_peak = max(outcome.kv_peak, seen.kv_usage)
        if tick == settled:
            pool.changes = 0
        outcome.replicas.append(pool.replicas)
        outcome.paid.append(pool.gpu_seconds - before)
        before = pool.gpu_seconds
        pool.scale(policy(pool.now, seen, pool.replicas, max(recent) if recent else None))
    outcome.level = _level(asked, engine, targets, waits, steps, demand.tick_seconds)
    came = np.array([each.requests for each in demand.arrivals])[settled:]
    outcome.requests, outcome.held = float(came.sum()), float((came * outcome.level[settled:]).sum())
    outcome.gpu_hours, outcome.changes = sum(outcome.paid[settled:]) / HOUR, pool.changes
    return outcome


def _long_prompts(asked: Requests, ticks: int) -> Series:
    """The 90th percentile (nearest rank) of each tick's prompts; 0 without any."""
    order = np.lexsort((asked.prompt, asked.tick))
    count = np.bincount(asked.tick, minlength=ticks)
    begin = np.concatenate([[0], np.cumsum(count)[:-1]])
    found = np.zeros(ticks)
    busy = count > 0
    found[busy] = asked.prompt[order][(begin + 9 * count // 10)[busy]]
    return found


def _level(
    asked: Requests, engine: Engine, targets: Targets, waits: Series, steps: Series, tick_seconds: float
) -> Series:
    """Share of each tick's requests within both targets.

    A request comes in the middle of its tick. Its first token takes the wait of then and its own prompt; its time
    per token is the mean over the ticks that its answer lasts, in each of which it gets a token a step.
    """
    ticks = len(steps)
    first_token = waits[asked.tick] + engine.figures[1] * asked.prompt
    # Where nothing is ready no token is made.
    made = np.concatenate([[0.0], np.cumsum(np.where(np.isfinite(steps), tick_seconds / steps, 0.0))])
    edges = np.arange(ticks + 1.0)
    begin = asked.tick + 0.5 + np.nan_to_num(first_token) / tick_seconds
    # What lasts beyond the end goes on at the pace of then.
    end = np.interp(np.interp(begin, edges, made) + asked.output, made, edges, right=np.inf)
    pace = (end - begin) * tick_seconds / np.maximum(asked.output, 1.0)
    pace = np.where(np.isfinite(end), pace, steps[np.minimum(begin, ticks - 1).astype(int)])
    held = (first_token <= targets.first_token_seconds) & (pace <= targets.per_token_seconds)
    came = np.bincount(asked.tick, minlength=ticks)
    return np.where(came > 0, np.bincount(asked.tick, held, minlength=ticks) / np.maximum(came, 1), 1.0)


def foreseen(
    bins: Series, first: int, startup_seconds: float, interval_seconds: float, season_seconds: float
) -> Callable[[float], Forecast | None]:
    """What the operator would have known at each time of demand in bins [prompt and output tokens, bin].

    `first` numbers the first bin. All bins are forecast at once; none knows what came after it.
    """
    step = record.BIN_SECONDS
    grid = Grid(step, max(1, round(season_seconds / step)))
    furthest = record.horizon_bins(startup_seconds, interval_seconds)
    uppers: dict[int, Series] = {}
    if bins.shape[1] == 0:
        return lambda _: None
    for horizon in horizons(furthest):
        point = mixed(bins, horizon, grid).point
        uppers[horizon] = np.maximum(point, band(bins, point, horizon, LEVELS).quantiles[0])

    def at(now: float) -> Forecast | None:
        column = int(now // step) - 1 - first
        if not 0 <= column < bins.shape[1]:
            return None
        end = (column + 1 + first) * step
        moments = tuple(
            Moment(end + horizon * step, float(upper[0, column]), float(upper[1, column]))
            for horizon, upper in uppers.items()
        )
        return Forecast(startup_seconds, moments, seasoned=(column + 1) * step >= season_seconds)

    return at


def binned(demand: Demand) -> tuple[Series, int]:
    """Prompt and output tokens a second in whole bins, and the number of the first."""
    step, per = record.BIN_SECONDS, round(record.BIN_SECONDS / demand.tick_seconds)
    skip = round((-demand.begin % step) / demand.tick_seconds)
    rows = np.array([[each.prompt_tokens, each.output_tokens] for each in demand.arrivals[skip:]]).T
    whole = rows[:, : rows.shape[1] // per * per].reshape(2, -1, per).sum(axis=2) / step
    return whole, round((demand.begin + skip * demand.tick_seconds) / step)


def needed(demand: Demand, engine: Engine, targets: Targets, smooth_ticks: int = 2) -> Series:
    """Replicas that each tick needs at least, by the mean over some ticks: answers last longer than one."""
    base, per_prompt, per_output = engine.figures
    limit = 1.0 - base / targets.per_token_seconds
    work = np.array([per_prompt * a.prompt_tokens + per_output * a.output_tokens for a in demand.arrivals])
    kernel = np.ones(smooth_ticks) / smooth_ticks
    even: Series = np.convolve(work, kernel)[: len(work)] / demand.tick_seconds / limit
    return even
