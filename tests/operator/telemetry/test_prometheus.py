"""Reading a real Prometheus: with rules and without, figures known, missing and stale told apart."""

import asyncio
import time
from collections.abc import Iterator, Mapping

import pytest

from fakes.prometheus import Pages, Prometheus
from tidepool_api import rules
from tidepool_operator.scaling.model import (
    Known,
    LivePod,
    Missing,
    PodReading,
    PodState,
    PoolReading,
    ScaledPool,
    ScalingSpec,
    Stale,
)
from tidepool_operator.telemetry import prometheus as telemetry
from tidepool_operator.telemetry.prometheus import NoPrometheus, PrometheusSettings

pytestmark = pytest.mark.prometheus

PAGE = """\
# TYPE vllm:kv_cache_usage_perc gauge
vllm:kv_cache_usage_perc{engine="0",model_name="tiny"} 0.93
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{engine="0",model_name="tiny"} 12
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="tiny"} 4
# TYPE vllm:prompt_tokens_total counter
vllm:prompt_tokens_total{engine="0",model_name="tiny"} 1300
# TYPE vllm:request_success_total counter
vllm:request_success_total{engine="0",finished_reason="length",model_name="tiny"} 100
# TYPE tidepool_requests_waiting gauge
tidepool_requests_waiting 3
# TYPE vllm:time_to_first_token_seconds histogram
vllm:time_to_first_token_seconds_bucket{engine="0",le="1",model_name="tiny"} 5
vllm:time_to_first_token_seconds_bucket{engine="0",le="+Inf",model_name="tiny"} 5
"""
TARGETS = {
    "/llama-0": {"namespace": "team", "pool": "llama", "pod": "llama-0"},
    "/llama-1": {"namespace": "team", "pool": "llama", "pod": "llama-1"},
    "/gone": {"namespace": "team", "pool": "llama", "pod": "llama-gone"},
    "/stranger": {"namespace": "other", "pool": "llama", "pod": "llama-0"},
}
LLAMA = ScaledPool(
    "team", "llama", 2, ScalingSpec(0, 8), (LivePod("llama-0", PodState.READY), LivePod("llama-1", PodState.READY))
)
EMPTY = ScaledPool("team", "empty", 0, ScalingSpec(0, 8))


@pytest.fixture(scope="module")
def pages() -> Iterator[Pages]:
    served = Pages()
    served.pages |= dict.fromkeys(TARGETS, PAGE)
    served.pages["/stranger"] = PAGE.replace(" 12\n", " 99\n")
    yield served
    served.close()


@pytest.fixture(scope="module", params=[True, False], ids=["rules", "raw"])
def live(
    request: pytest.FixtureRequest, pages: Pages, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Prometheus]:
    installed = rules.rules_file() if request.param else None
    started = Prometheus(tmp_path_factory.mktemp("prometheus"), pages.port, TARGETS, installed)
    started.start()
    try:
        # Two scrapes, so that there are rates; and the record that is evaluated last.
        started.until("rate(vllm:prompt_tokens_total[1m])", 4)
        if installed is not None:
            started.until(rules.POOL_PODS, 2)
            for record in (rules.POD_PROMPT_TOKENS, rules.POD_REQUESTS, rules.POD_REQUESTS_ENDED):
                started.until(record, 4)
        yield started
    finally:
        started.stop()


def reader(url: str, **settings: float) -> telemetry.Prometheus:
    return telemetry.Prometheus(PrometheusSettings(url, **settings))  # type: ignore[arg-type]


async def read_until(
    client: telemetry.Prometheus, *kinds: type, ahead_seconds: float = 0.0
) -> tuple[tuple[PodReading, ...], Mapping[str, PoolReading]]:
    """Read until the gauges of each pod are of its kind.

    Rules are evaluated one after another, and a scrape fails where a busy machine takes longer over a page.
    """
    async with asyncio.timeout(120):
        while True:
            found = await client.read(time.time() + ahead_seconds, [LLAMA, EMPTY])
            pods = found[LLAMA.key].pods
            if all(
                isinstance(sample, kind)
                for pod, kind in zip(pods, kinds, strict=True)
                for sample in (pod.kv_usage, pod.waiting, pod.running)
            ):
                return pods, found
            await asyncio.sleep(0.05)


async def test_figures_are_those_of_the_pools_live_pods(live: Prometheus) -> None:
    client = reader(live.url)

    _, found = await read_until(client, Known, Known)

    await client.close()
    pool = found["team/llama"]
    assert [pod.name for pod in pool.pods] == ["llama-0", "llama-1"]
    for pod in pool.pods:
        assert_known(pod, kv_usage=0.93, waiting=12.0, running=4.0, prompt_tokens_rate=0.0, requests_rate=0.0)
        assert isinstance(pod.output_tokens_rate, Missing)  # the page has no such counter
    assert pool.trouble is None
    assert found["team/empty"] == PoolReading(
        "team/empty",
        time_to_first_token_seconds=Missing("not in Prometheus"),
        time_per_output_token_seconds=Missing("not in Prometheus"),
    )


async def test_latency_without_a_request_is_missing_and_says_so(live: Prometheus) -> None:
    client = reader(live.url)

    pool = (await client.read(time.time(), [LLAMA]))[LLAMA.key]

    await client.close()
    assert pool.time_to_first_token_seconds == Missing("not a number: no request in the window")


async def test_a_pod_whose_scrapes_fail_goes_missing_and_comes_back(live: Prometheus, pages: Pages) -> None:
    client = reader(live.url)
    page = pages.pages.pop("/llama-1")

    (others, gone), _ = await read_until(client, Known, Missing)
    pages.pages["/llama-1"] = page
    (_, back), _ = await read_until(client, Known, Known)

    await client.close()
    assert isinstance(gone.running, Missing)
    assert "llama-1" in gone.running.reason
    assert_known(others, kv_usage=0.93)
    assert_known(back, kv_usage=0.93)


async def test_prometheus_killed_and_restarted(live: Prometheus) -> None:
    """Away: the last figures are stale, with the reason. Back: known again."""
    client = reader(live.url)
    (_, before), _ = await read_until(client, Known, Known)

    live.stop()
    away = (await client.read(time.time(), [LLAMA]))[LLAMA.key]
    live.start()
    (_, back), _ = await read_until(client, Known, Known)

    await client.close()
    assert_known(before, kv_usage=0.93)
    assert isinstance(away.pods[1].kv_usage, Stale)
    assert away.pods[1].kv_usage.value == 0.93
    assert away.trouble == f"Prometheus at 127.0.0.1:{live.port} cannot be reached"
    assert_known(back, kv_usage=0.93)


async def test_a_scrape_too_long_ago_is_stale(live: Prometheus) -> None:
    client = reader(live.url, stale_after_seconds=30.0)

    pods, _ = await read_until(client, Stale, Stale, ahead_seconds=60.0)

    await client.close()
    found = pods[0].kv_usage
    assert isinstance(found, Stale)
    assert found.value == 0.93
    assert found.age_seconds > 55


async def test_no_prometheus_configured_leaves_every_figure_missing() -> None:
    pool = (await NoPrometheus().read(time.time(), [LLAMA]))[LLAMA.key]

    assert isinstance(pool.pods[0].kv_usage, Missing)
    assert "TIDEPOOL_PROMETHEUS_URL" in pool.pods[0].kv_usage.reason


def assert_known(pod: PodReading, **figures: float) -> None:
    found = {name: getattr(pod, name) for name in figures}
    assert all(isinstance(sample, Known) for sample in found.values()), found
    assert {name: sample.value for name, sample in found.items()} == figures
    assert all(0 <= sample.age_seconds < 60 for sample in found.values())
