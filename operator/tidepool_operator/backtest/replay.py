"""Plays demand against a policy, tick by tick, and counts what users would have seen and what it cost."""

from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from tidepool_operator.backtest.plant import Arrivals, Engine, Plant
from tidepool_operator.backtest.policies import Policy
from tidepool_operator.scaling import record
from tidepool_operator.scaling.calibration import band
from tidepool_operator.scaling.experts import Grid, Series
from tidepool_operator.scaling.forecast import LEVELS, horizons, mixed
from tidepool_operator.scaling.model import Forecast, Moment

MINUTE = 60.0
HOUR = 3600.0


@dataclass(frozen=True, slots=True)
class Demand:
    """Demand by ticks. `prompts` are lengths of some requests of a tick, in order; None: all have the mean."""

    begin: float
    tick_seconds: float
    arrivals: Sequence[Arrivals]
    prompts: Sequence[list[float]] | None = None


@dataclass(frozen=True, slots=True)
class Targets:
    """Seconds to the first token and per token."""

    first_token_seconds: float
    per_token_seconds: float


@dataclass(slots=True)
class Outcome:
    """What came of a policy: requests within the targets, replica-hours, times that the count changed."""

    requests: float = 0.0
    held: float = 0.0
    gpu_hours: float = 0.0
    changes: int = 0
    replicas: list[int] = field(default_factory=list)
    level: list[float] = field(default_factory=list)

    @property
    def service_level(self) -> float:
        """Share of requests within both targets."""
        return self.held / self.requests if self.requests else 1.0


def replay(
    demand: Demand, engine: Engine, targets: Targets, policy: Policy, startup_seconds: float, first: int
) -> Outcome:
    """Play the whole of `demand`, from `first` ready replicas on.

    The first hour, a tenth of a shorter past, is not counted: policies learn in it.
    """
    settled = min(round(HOUR / demand.tick_seconds), len(demand.arrivals) // 10)
    plant = Plant(engine, startup_seconds, demand.begin, ready=first)
    outcome, recent = Outcome(), deque[float](maxlen=max(1, round(MINUTE / demand.tick_seconds)))
    for tick, arrivals in enumerate(demand.arrivals):
        seen = plant.advance(arrivals, demand.tick_seconds)
        held = 0.0
        if seen.wait_seconds is not None and arrivals.requests > 0:
            mean = arrivals.prompt_tokens / arrivals.requests
            prompts = (demand.prompts[tick] if demand.prompts is not None else None) or [mean]
            per_prompt = engine.figures[1]
            recent.append(seen.wait_seconds + per_prompt * prompts[9 * len(prompts) // 10])
            if seen.step_seconds <= targets.per_token_seconds:
                longest = (targets.first_token_seconds - seen.wait_seconds) / per_prompt
                held = bisect_right(prompts, longest) / len(prompts)
        if tick == settled:
            plant.gpu_seconds, plant.changes = 0.0, 0
        counted = arrivals.requests if tick >= settled else 0.0
        outcome.requests += counted
        outcome.held += held * counted
        outcome.replicas.append(plant.replicas)
        outcome.level.append(held if arrivals.requests else 1.0)
        wanted = policy(plant.now, seen, plant.replicas, max(recent) if recent else None)
        plant.scale(wanted)
    outcome.gpu_hours, outcome.changes = plant.gpu_seconds / 3600, plant.changes
    return outcome


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
        return Forecast(startup_seconds, moments)

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
