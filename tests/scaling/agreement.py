"""`python -m scaling.agreement`: the flow beside the pool request by request, on some held-out hours."""

import math
import time
from dataclasses import replace
from typing import Final

import numpy as np

from tidepool_operator.backtest.plant import Plant
from tidepool_operator.backtest.replay import HOUR, Demand, Outcome, Requests, played

from .__main__ import policy
from .loads import TICK_SECONDS, Load, servegen
from .pods import Pods

HOURS: Final = 3
LOADS: Final = (("m-mid", 30), ("m-large", 54))  # and at which hour of the held-out part the stretch begins
POLICIES: Final = ("static peak", "Dynamo", "ours", "oracle")
STARTUP_SECONDS: Final = 300.0


def stretch(name: str, hour: float, hours: float) -> Load:
    """Some hours of the held-out part, with all of their requests; the first hour is not counted."""
    load = servegen(name, "held out", 0, sample=1_000_000)
    first, last = (round(each * HOUR / TICK_SECONDS) for each in (hour, hour + hours))
    asked = load.demand.judged()
    some = (asked.tick >= first) & (asked.tick < last)
    requests = Requests(asked.tick[some] - first, asked.prompt[some], asked.output[some])
    begin = load.demand.begin + first * TICK_SECONDS
    demand = Demand(begin, TICK_SECONDS, load.demand.arrivals[first:last], requests)
    return replace(load, demand=demand, settled=round(HOUR / TICK_SECONDS))


def both(load: Load, who: str) -> tuple[Outcome, Outcome]:
    """A policy on the flow, and on the pool request by request."""
    first = max(1, math.ceil(1.5 * float(load.needed()[:20].mean())))
    common = (load.demand, load.engine, load.targets)
    flow = Plant(load.engine, STARTUP_SECONDS, load.demand.begin, ready=first)
    smooth = played(*common, policy(who, load, STARTUP_SECONDS), flow, load.settled)
    pods = Pods(load.engine, STARTUP_SECONDS, load.demand.begin, load.demand.judged(), load.targets, first)
    single = played(*common, policy(who, load, STARTUP_SECONDS), pods, load.settled)
    single.level = pods.level(len(load.demand.arrivals))
    came = np.array([each.requests for each in load.demand.arrivals])[load.settled :]
    single.held = float((came * single.level[load.settled :]).sum())
    return smooth, single


def main() -> None:
    """Print a table."""
    print("| load | policy | flow: service level | GPU hours | one by one: service level | GPU hours |")
    print("|---|---|---|---|---|---|")
    begin = time.monotonic()
    for name, hour in LOADS:
        load = stretch(name, hour, HOURS)
        for who in POLICIES:
            smooth, single = both(load, who)
            told = " | ".join(f"{100 * o.service_level:.2f} % | {o.gpu_hours:.1f}" for o in (smooth, single))
            print(f"| {name} | {who} | {told} |", flush=True)
    print(f"\nin {time.monotonic() - begin:.0f} s")


if __name__ == "__main__":
    main()
