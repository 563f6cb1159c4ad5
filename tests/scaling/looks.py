"""`python -m scaling.looks`: what one look of the autoscaler at many pools costs; part of `make bench-scaling`.

The operator's own loop with its Prometheus client, before a double of Prometheus in another process: asking,
reading what is answered, keeping records, forecasts, decisions. The clock goes as fast as the looks do.
"""

import asyncio
import json
import math
import multiprocessing
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final

import numpy as np
from aiohttp import web

from bench.crowd_doubles import Prometheus as Answers
from tidepool_api.load import GatewayReport
from tidepool_operator.autoscaler import Autoscaler, AutoscalerSettings
from tidepool_operator.scaling.model import Demand, Known, LivePod, PodState, ScaledPool, ScalingSpec
from tidepool_operator.scaling.record import BIN_SECONDS, SERIES
from tidepool_operator.telemetry.history import Past
from tidepool_operator.telemetry.prometheus import Prometheus, PrometheusSettings

POOLS, PODS = 500, 10
INTERVAL_SECONDS: Final = 5.0
FIRST_LOOKS = 60  # in which the past of all pools is asked for
LOOKS = 120  # ten minutes: a forecast for each pool
DAYS = 8
MOST_SECONDS: Final = 0.3
RESULT = Path("build/bench/scaling-looks.json")


class Cluster:
    """Pools whose replicas stay what they are."""

    def __init__(self) -> None:
        self.pools = [_pool(number) for number in range(POOLS)]
        self.written = 0

    def scaled_pools(self) -> Sequence[ScaledPool]:
        return self.pools

    def gateways(self) -> Mapping[str, str]:
        return {}

    async def scale(self, namespace: str, name: str, replicas: int) -> None:
        self.written += 1

    def mark_due(self, key: str) -> None:
        pass

    def leads(self) -> bool:
        return True


class Gateways:
    """Nobody is held at any."""

    async def start(self) -> None:
        pass

    async def close(self) -> None:
        pass

    def demand(self, _: str) -> Demand:
        return Demand(Known(0), Known(0), Known(0), 1)

    def reports(self) -> Mapping[str, GatewayReport]:
        return {}


def _pool(number: int) -> ScaledPool:
    pods = tuple(LivePod(f"pool-{number}-{pod}", PodState.READY) for pod in range(PODS))
    spec = ScalingSpec(1, 50, time_to_first_token_seconds=1.0, time_per_output_token_seconds=0.05, predicts=True)
    return ScaledPool("bench", f"pool-{number}", PODS, spec, pods=pods)


class WithPast(Prometheus):
    """Eight days are known of every pool, so that forecasts cost what they do later on."""

    async def past(self, now: float, pools: Sequence[ScaledPool]) -> Past:
        bins = round(DAYS * 86_400 / BIN_SECONDS)
        day = 1.5 + np.sin(np.arange(bins) * 2 * math.pi * BIN_SECONDS / 86_400)
        series = np.outer(np.linspace(4.0, 4000.0, len(SERIES)), day)
        return {pool.key: (series, math.floor(now / BIN_SECONDS) - 1) for pool in pools}


class Timed(Autoscaler):
    """`deciding_seconds`: processor time of the last look's decisions alone."""

    deciding_seconds = 0.0

    async def _act(self, *given: Any) -> None:
        began = time.process_time()
        await super()._act(*given)
        self.deciding_seconds = time.process_time() - began


def _serve(told: Connection) -> None:
    asyncio.run(_answer(told))


async def _answer(told: Connection) -> None:
    answers = Answers()
    answers.pods = [
        ("bench", f"pool-{number}", f"pool-{number}-{pod}") for number in range(POOLS) for pod in range(PODS)
    ]
    app = web.Application()
    for method in ("GET", "POST"):
        app.router.add_route(method, "/api/v1/query", answers.query)
        app.router.add_route(method, "/api/v1/query_range", answers.query_range)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    told.send(runner.addresses[0][1])
    while True:  # how many queries so far, whenever that is asked
        await asyncio.to_thread(told.recv)
        told.send(answers.queries)


@contextmanager
def _prometheus() -> Iterator[tuple[int, Connection]]:
    """Its port, and whom to ask for the number of queries."""
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=_serve, args=(theirs,), daemon=True)
    process.start()
    try:
        yield ours.recv(), ours
    finally:
        process.terminate()
        process.join(10)


async def _looks(port: int, queries: Connection) -> dict[str, float]:
    now = time.time()
    history = WithPast(PrometheusSettings(f"http://127.0.0.1:{port}"))
    settings = AutoscalerSettings(INTERVAL_SECONDS)
    scaler = Timed(Cluster(), history, lambda _: Gateways(), settings, clock=lambda: now)
    whole, deciding, asked = [], [], 0
    for look in range(FIRST_LOOKS + LOOKS):
        if look == FIRST_LOOKS:
            queries.send(None)
            asked = queries.recv()
        now += INTERVAL_SECONDS
        began = time.process_time()
        await scaler.tick()
        if look >= FIRST_LOOKS:
            whole.append(time.process_time() - began)
            deciding.append(scaler.deciding_seconds)
    queries.send(None)
    found = {
        "pools": POOLS,
        "pods": POOLS * PODS,
        "decisions_seconds": statistics.median(deciding),
        "look_seconds": statistics.median(whole),
        "look_seconds_max": max(whole),
        "queries_a_look": (queries.recv() - asked) / LOOKS,
        "pools_with_forecast": float(len(scaler.coverage())),
    }
    await history.close()
    return found


def main() -> int:
    """Print it; 1 where decisions cost more than they may."""
    with _prometheus() as (port, queries):
        found = asyncio.run(_looks(port, queries))
    for name, value in found.items():
        print(f"{name.replace('_', ' '):24} {value:8.3f}")
    held = found["decisions_seconds"] <= MOST_SECONDS and found["queries_a_look"] <= 1
    print(f"decisions of a look at most {MOST_SECONDS} s, and one query: {'held' if held else 'MISSED'}")
    RESULT.parent.mkdir(parents=True, exist_ok=True)
    RESULT.write_text(json.dumps(found, indent=1))
    return 0 if held else 1


if __name__ == "__main__":
    raise SystemExit(main())
