"""The recording rules against Prometheus' own tools: valid, and with the right values for the right pods."""

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from fakes.engine import EngineDouble
from fakes.prometheus import newer, older
from tidepool_api import contract, rules

A = 'namespace="n",pool="p",pod="a"'
B = 'namespace="n",pool="p",pod="b"'
C = 'namespace="n",pool="p",pod="c"'
ENGINE = 'engine="0",model_name="m"'

# Fifteen seconds a step. Pod a: vLLM of today behind a sidecar. Pod b: an old vLLM without one, scraped by two
# jobs. Pod c: the sidecar, and an engine that speaks of per cent. The last are no pods of a pool: none may show.
SERIES = {
    f"vllm:kv_cache_usage_perc{{{A}}}": "0.5x12",
    f"tidepool_kv_usage_ratio{{{A}}}": "0.75x12",
    f'vllm:num_requests_waiting{{{A},job="x",{ENGINE}}}': "3x12",
    f'tidepool_requests_waiting{{{A},job="x"}}': "4x12",
    f'vllm:num_requests_running{{{A},job="x",{ENGINE}}}': "6x12",
    f'tidepool_requests_running{{{A},job="x"}}': "9x12",
    f'vllm:prompt_tokens_total{{{A},job="x",{ENGINE}}}': "0+1500x12",
    f'tidepool_prompt_tokens_total{{{A},job="x"}}': "0+3000x12",
    f'vllm:prompt_tokens_cached_total{{{A},job="x",{ENGINE}}}': "0+300x12",
    f'vllm:generation_tokens_total{{{A},job="x",{ENGINE}}}': "0+600x12",
    f'vllm:request_success_total{{{A},job="x",finished_reason="stop",{ENGINE}}}': "0+15x12",
    f'vllm:request_success_total{{{A},job="x",finished_reason="length",{ENGINE}}}': "0+15x12",
    f'tidepool_requests_total{{{A},job="x",code="200",outcome="ok"}}': "0+15x12",
    f'tidepool_time_to_first_token_seconds_bucket{{{A},job="x",le="1"}}': "0+0x12",
    f'tidepool_time_to_first_token_seconds_bucket{{{A},job="x",le="2"}}': "0+15x12",
    f'tidepool_time_to_first_token_seconds_bucket{{{A},job="x",le="+Inf"}}': "0+15x12",
    **{f'vllm:gpu_cache_usage_perc{{{B},job="{job}"}}': "0.25x12" for job in "xy"},
    **{f'vllm:num_requests_waiting{{{B},job="{job}"}}': "2x12" for job in "xy"},
    **{f'vllm:num_requests_running{{{B},job="{job}"}}': "5x12" for job in "xy"},
    **{f'vllm:prompt_tokens_total{{{B},job="{job}"}}': "0+750x12" for job in "xy"},
    **{f'vllm:gpu_prefix_cache_hits_total{{{B},job="{job}"}}': "0+150x12" for job in "xy"},
    # Its process restarts in between: the counter falls and rises again.
    **{f'vllm:generation_tokens_total{{{B},job="{job}"}}': "0+150x9 150 300 450" for job in "xy"},
    **{f'vllm:request_success_total{{{B},job="{job}",finished_reason="stop"}}': "0+15x12" for job in "xy"},
    f'vllm:time_per_output_token_seconds_bucket{{{B},job="x",le="0.125"}}': "0+15x12",
    f'vllm:time_per_output_token_seconds_bucket{{{B},job="x",le="+Inf"}}': "0+15x12",
    f"tidepool_kv_usage_ratio{{{C}}}": "1.5x12",
    f"vllm:kv_cache_usage_perc{{{C}}}": "40x12",  # no ratio
    f"tidepool_requests_waiting{{{C}}}": "1x12",
    f"tidepool_requests_running{{{C}}}": "2x12",
    f"tidepool_prompt_tokens_total{{{C}}}": "0+15x12",
    f"tidepool_cached_prompt_tokens_total{{{C}}}": "0+15x12",
    f"tidepool_output_tokens_total{{{C}}}": "0+15x12",
    f'tidepool_requests_total{{{C},code="200",outcome="ok"}}': "0+15x12",
    'vllm:num_requests_waiting{namespace="n",pod="other"}': "50x12",
    'vllm:kv_cache_usage_perc{namespace="n",pod="other"}': "1x12",
    'vllm:num_requests_running{namespace="n",pod="other"}': "50x12",
    'tidepool_time_to_first_token_seconds_bucket{namespace="n",pod="gateway",pool="n/p",le="8"}': "0+15x12",
    'tidepool_time_to_first_token_seconds_bucket{namespace="n",pod="gateway",pool="n/p",le="+Inf"}': "0+15x12",
}

BY_POD: dict[str, dict[str, float]] = {
    rules.POD_KV_USAGE: {A: 0.75, B: 0.25, C: 1.5},
    rules.POD_WAITING: {A: 4, B: 2, C: 1},
    rules.POD_RUNNING: {A: 6, B: 5, C: 2},
    rules.POD_PROMPT_TOKENS: {A: 100, B: 50, C: 1},
    rules.POD_CACHED_TOKENS: {A: 20, B: 10, C: 1},
    rules.POD_OUTPUT_TOKENS: {A: 40, B: 10, C: 1},
    rules.POD_REQUESTS: {A: 2, B: 1, C: 1},
    rules.POD_REQUESTS_ENDED: {A: 360, B: 180, C: 180},
    rules.POD_SCRAPED_AT: {A: 180, B: 180, C: 180},
}
POOL = 'namespace="n",pool="p"'
BY_POOL: dict[str, float] = {
    rules.POOL_TTFT_P50: 1.5,
    rules.POOL_TTFT_P90: 1.9,
    rules.POOL_TPOT_P50: 0.0625,
    rules.POOL_TPOT_P90: 0.1125,
    rules.POOL_KV_USAGE: 2.5 / 3,
    rules.POOL_WAITING: 7,
    rules.POOL_RUNNING: 13,
    rules.POOL_PROMPT_TOKENS: 151,
    rules.POOL_CACHED_TOKENS: 31,
    rules.POOL_OUTPUT_TOKENS: 41 + 10,
    rules.POOL_REQUESTS: 4,
    rules.POOL_PODS: 3,
}
EXPECTED = {**BY_POD, **{record: {POOL: value} for record, value in BY_POOL.items()}}


def test_every_rule_has_an_expected_value() -> None:
    assert sorted(EXPECTED) == sorted(rule.record for rule in rules.rules())


def test_rules_file_and_prometheus_rule_hold_the_same_rules() -> None:
    assert rules.prometheus_rule_spec() == rules.rules_file()


async def test_every_rule_finds_a_name_on_an_engines_page() -> None:
    """The double's page is held against the real engine's by tests/parity."""
    async with EngineDouble() as engine, httpx.AsyncClient(trust_env=False) as client:
        page = (await client.get(f"{engine.url}/metrics")).text
    names = set(re.findall(r"^(vllm:\w+)", page, re.MULTILINE))

    for rule in rules.rules():
        assert names.intersection(re.findall(r"vllm:\w+", rule.expression)), rule.record


def test_every_rule_finds_a_name_on_the_routers_page() -> None:
    published = {value for name, value in vars(contract).items() if name.startswith("METRIC_")}

    for rule in rules.rules():
        asked = {name.removesuffix("_bucket") for name in re.findall(r"tidepool_\w+", rule.expression)}
        assert asked, rule.record
        assert asked <= published, rule.record


@pytest.fixture(params=[newer, older], ids=["newer", "older"])
def promtool(request: pytest.FixtureRequest) -> str:
    return str(request.param("promtool"))


@pytest.mark.prometheus
@pytest.mark.parametrize("window", ["1m", "2m", "5m"])
def test_promtool_accepts_the_rules(promtool: str, tmp_path: Path, window: str) -> None:
    file = tmp_path / "rules.yml"
    file.write_text(yaml.safe_dump(rules.rules_file(window)))

    checked = _promtool(promtool, "check", "rules", str(file))

    assert f"{len(rules.rules())} rules found" in checked


@pytest.mark.prometheus
def test_records_and_raw_expressions_have_the_expected_values(promtool: str, tmp_path: Path) -> None:
    """Also: a pod scraped twice counts once, a counter that restarts goes on, strangers do not count."""
    _test_rules(promtool, tmp_path, SERIES, EXPECTED)


@pytest.mark.prometheus
def test_a_pod_without_requests_has_rates_of_zero_and_nothing_else(promtool: str, tmp_path: Path) -> None:
    series = {
        f"vllm:prompt_tokens_total{{{A}}}": "13x12",
        f'vllm:request_success_total{{{A},finished_reason="stop"}}': "1x12",
    }
    expected = {
        rules.POD_PROMPT_TOKENS: {A: 0.0},
        rules.POD_REQUESTS: {A: 0.0},
        rules.POD_REQUESTS_ENDED: {A: 1.0},
        rules.POD_KV_USAGE: {},
        rules.POD_SCRAPED_AT: {},
    }

    _test_rules(promtool, tmp_path, series, expected)


@pytest.mark.prometheus
def test_a_pod_whose_scrapes_fail_has_no_values(promtool: str, tmp_path: Path) -> None:
    """Absent, not zero: Prometheus marks the series of a failed scrape as stale."""
    series = {name: values.split("x")[0] + "x10 stale" for name, values in SERIES.items() if C in name}

    _test_rules(promtool, tmp_path, series, {rules.POD_KV_USAGE: {}, rules.POD_WAITING: {}, rules.POD_RUNNING: {}})


def _test_rules(
    promtool: str, tmp_path: Path, series: dict[str, str], expected: dict[str, dict[str, float]]
) -> None:
    raw = {rule.record: rule.expression for rule in rules.rules()}
    tests = [
        {
            # Releases differ in the last bits of a rate.
            "expr": f"round({expression}, 0.0001)",
            "eval_time": "3m",
            "exp_samples": [
                {"labels": f"{{{labels}}}", "value": round(value, 4)} for labels, value in values.items()
            ],
        }
        for record, values in expected.items()
        for expression in (record, raw[record])
    ]
    suite: dict[str, Any] = {
        "rule_files": ["rules.yml"],
        "evaluation_interval": "15s",
        "tests": [
            {
                "interval": "15s",
                "input_series": [{"series": name, "values": values} for name, values in series.items()],
                "promql_expr_test": tests,
            }
        ],
    }
    (tmp_path / "rules.yml").write_text(yaml.safe_dump(rules.rules_file()))
    file = tmp_path / "tests.json"
    file.write_text(json.dumps(suite))  # JSON is YAML

    assert "SUCCESS" in _promtool(promtool, "test", "rules", str(file))


def _promtool(program: str, *arguments: str) -> str:
    done = subprocess.run([program, *arguments], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
