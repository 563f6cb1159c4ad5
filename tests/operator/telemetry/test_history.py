"""The past as a real Prometheus has it: through renamed metrics, a restart and a gap, in few queries."""

import dataclasses
import math
import time
import urllib.request
from collections.abc import Callable, Iterator

import numpy as np
import pytest

from fakes.prometheus import Pages, Prometheus
from fakes.readings import NOBODY, pod, pool
from tidepool_api import rules
from tidepool_operator.foresight import Foresight
from tidepool_operator.scaling.capacity import PRIOR
from tidepool_operator.scaling.model import (
    Forecast,
    Known,
    LivePod,
    PodState,
    PoolReading,
    ScaledPool,
    ScalingSpec,
)
from tidepool_operator.scaling.record import BIN_SECONDS
from tidepool_operator.telemetry import prometheus as telemetry
from tidepool_operator.telemetry.history import POOLS_AT_ONCE
from tidepool_operator.telemetry.prometheus import PrometheusSettings

pytestmark = pytest.mark.prometheus

HOUR = 3600.0
SEASON = 2 * HOUR
NOW = math.floor(time.time() / BIN_SECONDS) * BIN_SECONDS + 20.0
BEGIN = NOW - 16 * HOUR
# Prometheus was away for an hour, and the engines came back as a newer release.
GAP = (NOW - 9 * HOUR, NOW - 8 * HOUR)
# Three times as slow as the prior says.
TRUTH = tuple(3 * figure for figure in PRIOR)
CACHED = 200.0
SPEC = ScalingSpec(1, 8, predicts=True, season_seconds=SEASON)
OTHERS = [f"other-{index}" for index in range(POOLS_AT_ONCE + 2)]
OLDER = {"hits": "vllm:gpu_prefix_cache_hits_total", "kv": "vllm:gpu_cache_usage_perc"}
NEWER = {"hits": "vllm:prompt_tokens_cached_total", "kv": "vllm:kv_cache_usage_perc"}


def rate(at: float) -> float:
    """A pod's prompt tokens a second; of output it makes half as many."""
    return 1000.0 + 500.0 * math.sin(2 * math.pi * at / SEASON)


def total(at: float, since: float) -> float:
    """Prompt tokens since an engine began."""
    wave = 500.0 * SEASON / (2 * math.pi)
    return 1000.0 * (at - since) + wave * (
        math.cos(2 * math.pi * since / SEASON) - math.cos(2 * math.pi * at / SEASON)
    )


def running(at: float) -> float:
    base, per_prompt, per_output = TRUTH
    output = rate(at) / 2
    return output * base / (1 - per_prompt * (rate(at) - CACHED) - per_output * output)


def lines(labels: str, begin: float, end: float, names: dict[str, str]) -> Iterator[str]:
    """One engine's figures every 30 s."""
    figures: dict[str, Callable[[float], float]] = {
        "vllm:prompt_tokens_total": lambda at: total(at, begin),
        "vllm:generation_tokens_total": lambda at: total(at, begin) / 2,
        "vllm:num_requests_running": running,
        names["hits"]: lambda at: CACHED * (at - begin),
        names["kv"]: lambda at: 0.5,
        "vllm:request_success_total": lambda at: at - begin,
    }
    for name, figure in figures.items():
        for at in np.arange(begin, end, 30.0):
            yield f"{name}{{{labels}}} {figure(at):.3f} {at:.0f}"


def samples() -> str:
    found = []
    for name in ("llama-0", "llama-1"):
        labels = f'namespace="team",pool="llama",pod="{name}"'
        found += [*lines(labels, BEGIN, GAP[0], OLDER), *lines(labels, GAP[1], NOW, NEWER)]
    for name in OTHERS:
        found += lines(f'namespace="team",pool="{name}",pod="{name}-0"', NOW - 2 * HOUR, NOW, NEWER)
    return "\n".join([*found, "# EOF", ""])


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    """Prometheus after days with the rules; from now on it scrapes nobody."""
    pages = Pages()
    made = Prometheus(tmp_path_factory.mktemp("prometheus"), pages.port, {}, rules.rules_file(), interval="1h")
    made.fill(samples())
    made.start()
    try:
        made.until("vector(1)", 1)
        made.record(BEGIN, NOW, "60s")
        made.stop()
        made.start()
        made.until("vector(1)", 1)
        yield made
    finally:
        made.stop()
        pages.close()


def scaled(name: str, pods: int = 1) -> ScaledPool:
    live = tuple(LivePod(f"{name}-{index}", PodState.READY, 60.0, GAP[1] - 60.0) for index in range(pods))
    return ScaledPool("team", name, pods, SPEC, live, "revision")


def now_read(pools: list[ScaledPool]) -> list[tuple[ScaledPool, PoolReading]]:
    busy = dataclasses.replace(
        pod(requests=1.0), output_tokens_rate=Known(rate(NOW) / 2), prompt_tokens_rate=Known(rate(NOW) - CACHED)
    )
    return [(each, dataclasses.replace(pool(busy, demand=NOBODY), key=each.key)) for each in pools]


async def test_demand_goes_on_through_renamed_metrics_and_restarts_and_a_gap_is_no_zero(
    server: Prometheus,
) -> None:
    client = telemetry.Prometheus(PrometheusSettings(server.url))

    bins, last = (await client.past(NOW, [scaled("llama", 2)]))["team/llama"]

    await client.close()
    assert last == NOW // BIN_SECONDS - 1
    middles = (last - np.arange(bins.shape[1] - 1, -1, -1) + 0.5) * BIN_SECONDS
    expected = np.array([2 * (rate(at) - CACHED) for at in middles])
    away = (middles > GAP[0] + 2 * BIN_SECONDS) & (middles < GAP[1])
    seen = (middles > BEGIN + BIN_SECONDS) & ((middles < GAP[0] - BIN_SECONDS) | (middles > GAP[1] + BIN_SECONDS))
    assert away.sum() >= 8
    assert np.isnan(bins[:, away]).all()
    assert seen.sum() > 170
    np.testing.assert_allclose(bins[0, seen], expected[seen], rtol=0.05)
    np.testing.assert_allclose(bins[1, seen], expected[seen] / 2 + CACHED, rtol=0.05)
    np.testing.assert_allclose(bins[2, seen], 2.0, rtol=0.05)


async def started_anew(server: Prometheus, pools: list[ScaledPool]) -> tuple[Foresight, Forecast]:
    """What an operator knows that has just started, after as many looks as it takes to ask for all pools."""
    client = telemetry.Prometheus(PrometheusSettings(server.url))
    foresight = Foresight(client, 5.0)
    for tick in range(4):
        await foresight.look(NOW + 5 * tick, now_read(pools), {})
    await client.close()
    forecast = foresight.get("team/llama")
    assert forecast is not None
    return foresight, forecast


async def test_an_operator_that_starts_anew_knows_what_the_one_before_knew_in_few_queries(
    server: Prometheus,
) -> None:
    pools = [*(scaled(name) for name in OTHERS), scaled("llama", 2)]
    asked = range_queries(server)

    _, before = await started_anew(server, pools)
    foresight, after = await started_anew(server, pools)

    # Of thirteen pools ten are asked for at once: twice for demand, twice for work, and that for each start.
    assert range_queries(server) - asked == 2 * 4
    assert after == before
    assert "seasonal difference" in after.heard
    for moment in after.moments:
        come = 2 * (rate(moment.at - BIN_SECONDS / 2) - CACHED)
        assert 0.9 * come < moment.prompt_tokens < 1.6 * come
    capacity = foresight.recalled("team/llama")
    assert capacity is not None
    assert capacity.settled
    _, per_prompt, per_output = TRUTH
    assert capacity.load(1000.0, 500.0) == pytest.approx(per_prompt * 1000 + per_output * 500, rel=0.15)


def range_queries(server: Prometheus) -> int:
    """As Prometheus counts them itself."""
    with urllib.request.urlopen(f"{server.url}/metrics", timeout=20) as response:
        page = response.read().decode()
    counted = [line for line in page.splitlines() if line.startswith("prometheus_http_requests_total")]
    return sum(int(float(line.split()[-1])) for line in counted if 'handler="/api/v1/query_range"' in line)
