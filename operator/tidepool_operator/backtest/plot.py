"""A backtest as a picture. The only module that knows matplotlib, which is an extra (`tidepool[plot]`)."""

from datetime import UTC, datetime
from pathlib import Path

import matplotlib as mpl

mpl.use("Agg")  # before pyplot: no display is needed

import matplotlib.pyplot as plt
import numpy as np

from tidepool_operator.backtest.plant import Engine
from tidepool_operator.backtest.replay import Demand, Outcome, Targets, binned, needed
from tidepool_operator.scaling import record
from tidepool_operator.scaling.calibration import band
from tidepool_operator.scaling.experts import Grid
from tidepool_operator.scaling.forecast import LEVELS, mixed

SEASON_SECONDS = 86_400.0


def plot(
    path: Path, demand: Demand, engine: Engine, targets: Targets, startup_seconds: float, outcome: Outcome
) -> None:
    """Write a PNG: demand and the band that was foreseen of it, replicas asked for and needed, requests late."""
    figure, (above, middle, below) = plt.subplots(3, 1, figsize=(12, 8), sharex=True, height_ratios=[3, 3, 1])
    _foreseen(above, demand, startup_seconds)
    times = _times(demand.begin + demand.tick_seconds * np.arange(len(demand.arrivals)))
    middle.step(
        times, needed(demand, engine, targets), where="post", lw=0.6, color="0.6", label="needed at the least"
    )
    middle.step(times, outcome.replicas, where="post", lw=1.2, color="tab:blue", label="replicas")
    middle.set_ylabel("replicas")
    middle.legend(loc="upper right", fontsize="small")
    below.fill_between(times, 100 * (1 - outcome.level), step="post", color="tab:red", lw=0)
    below.set_ylabel("late, %")
    below.set_ylim(0, 100)
    above.set_title(
        f"{100 * outcome.service_level:.2f} % within the targets, {outcome.gpu_hours:.0f} GPU hours, "
        f"start-up {startup_seconds:.0f} s"
    )
    figure.autofmt_xdate()
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    plt.close(figure)


def _foreseen(axes: plt.Axes, demand: Demand, startup_seconds: float) -> None:
    """Output tokens, and for each bin the band that was said of it when a pod asked for then would be ready."""
    bins, first = binned(demand)
    output, step = bins[1:2], record.BIN_SECONDS
    times = _times((first + np.arange(output.shape[1])) * step)
    axes.step(times, output[0], where="post", lw=1.0, color="black", label="output tokens/s")
    horizon = record.horizon_bins(startup_seconds, demand.tick_seconds)
    if output.shape[1] > horizon:
        point = mixed(output, horizon, Grid(step, round(SEASON_SECONDS / step))).point
        upper, low, high = band(output, point, horizon, LEVELS).quantiles[:, 0, :-horizon]
        then = times[horizon:]
        axes.fill_between(
            then, low, high, step="post", alpha=0.25, lw=0, label=f"90 % band, {horizon * step:.0f} s ahead"
        )
        axes.step(then, upper, where="post", lw=0.8, color="tab:orange", label="P90 that is provided for")
    axes.set_ylim(0, 1.5 * float(np.nanmax(output)) if output.size else None)
    axes.set_ylabel("tokens/s")
    axes.legend(loc="upper right", fontsize="small")


def _times(seconds: np.ndarray) -> list[datetime]:
    return [datetime.fromtimestamp(each, UTC) for each in seconds]
