"""Alerts in Prometheus' own unit tests: each fires in its case, none in a healthy fleet, all name real metrics."""

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from fakes.prometheus import newer, older
from tidepool_api import alerts, contract

OPERATOR = {
    *("leader", "reconcile_errors_total", "queue_oldest_seconds", "orphans", "forecast_coverage_ratio"),
    *("held_back", "figures_missing", "quiet_watches"),
}
POD = 'namespace="n",pool="p",pod="a"'
GATEWAY = 'namespace="t",pod="g",pool="n/p"'
TTFT, TPOT = contract.METRIC_TTFT, contract.METRIC_TPOT
REQUESTS = contract.METRIC_GATEWAY_REQUESTS
# Whatever serves, one sample a minute over 80 minutes: nothing may fire.
HEALTHY = {
    f'{REQUESTS}{{{GATEWAY},code="200",outcome="ok"}}': "0+600x80",
    f'{REQUESTS}{{{GATEWAY},code="502",outcome="error"}}': "0+1x80",
    f'{REQUESTS}{{{GATEWAY},code="499",outcome="cancelled"}}': "0+300x80",  # clients that leave are no failure
    f'{TTFT}_bucket{{{POD},le="5.0"}}': "0+590x80",
    f"{TTFT}_count{{{POD}}}": "0+600x80",
    f'{TPOT}_bucket{{{POD},le="0.1"}}': "0+590x80",
    f"{TPOT}_count{{{POD}}}": "0+600x80",
    f'{TTFT}_bucket{{{GATEWAY},le="5.0"}}': "0+590x80",
    f"{TTFT}_count{{{GATEWAY}}}": "0+600x80",
    f'{TPOT}_bucket{{{GATEWAY},le="0.1"}}': "0+590x80",
    f"{TPOT}_count{{{GATEWAY}}}": "0+600x80",
    f"{contract.METRIC_GATEWAY_HELD}{{{GATEWAY}}}": "0 20 40 20 0 0x76",
    f"{contract.METRIC_ENGINE_READY}{{{POD}}}": "0x5 1x30 0x5 1x40",  # one start, one restart
    f'{contract.METRIC_GATEWAY_ENDPOINTS}{{{GATEWAY},state="ready"}}': "3x80",
    f'{contract.METRIC_GATEWAY_ENDPOINTS}{{{GATEWAY},state="ejected"}}': "0x20 1x5 0x55",
    f"{contract.METRIC_KV_EXHAUSTION}{{{POD}}}": "600x80",
    f'{contract.METRIC_GATEWAY_REFUSED}{{{GATEWAY},reason="queue_count"}}': "5x80",
    f"{contract.METRIC_WAITING}{{{POD}}}": "0 20 40 20 0 0x76",  # a burst that is worked off
    'tidepool_operator_leader{pod="o1"}': "1x80",
    'tidepool_operator_leader{pod="o2"}': "0x80",
    'tidepool_operator_reconcile_errors_total{pod="o1",error="Conflict"}': "0+0.2x80",
    'tidepool_operator_queue_oldest_seconds{pod="o1"}': "0.5x80",
    'tidepool_operator_orphans{pod="o1"}': "0x80",
    'tidepool_operator_forecast_coverage_ratio{pod="o1",pool="n/p"}': "0.9x80",
    'tidepool_operator_held_back{pod="o1",pool="n/p",reason="InsufficientAccelerators"}': "_x60 1x5 _x15",
    'tidepool_operator_figures_missing{pod="o1",pool="n/p"}': "1x5 _x75",  # an operator that has just begun
    'tidepool_operator_quiet_watches{namespace="s",pod="o1"}': "0x80",
    f'{contract.METRIC_WORKFLOW_RUNS}{{pod="g",workflow="n/w",phase="Succeeded"}}': "0+20x80",
    f'{contract.METRIC_WORKFLOW_RUNS}{{pod="g",workflow="n/w",phase="Failed"}}': "0+1x80",
    f'{contract.METRIC_WORKFLOW_RUNS}{{pod="g",workflow="n/rare",phase="Failed"}}': "0x70 2x10",
    f'{contract.METRIC_PROOFS}{{{POD},outcome="gateway"}}': "0+60x80",
    f'{contract.METRIC_PROOFS}{{{POD},outcome="expired"}}': "3x80",
    f"{contract.METRIC_LATE_CALLS}{{{POD}}}": "2x80",
}
# What replaces which healthy series (None: it is gone), per alert.
FIRING: dict[str, dict[str, str | None]] = {
    "TidepoolErrorsFast": {f'{REQUESTS}{{{GATEWAY},code="502",outcome="error"}}': "0+400x80"},
    "TidepoolErrorsSlow": {f'{REQUESTS}{{{GATEWAY},code="502",outcome="error"}}': "0+80x80"},
    "TidepoolFirstTokenFast": {f'{TTFT}_bucket{{{POD},le="5.0"}}': "0+100x80"},
    "TidepoolFirstTokenSlow": {f'{TTFT}_bucket{{{POD},le="5.0"}}': "0+350x80"},
    "TidepoolTokensSlow": {f'{TPOT}_bucket{{{POD},le="0.1"}}': "0+350x80"},
    "TidepoolEngineDown": {f"{contract.METRIC_ENGINE_READY}{{{POD}}}": "1x60 0x20"},
    "TidepoolEngineRestarts": {f"{contract.METRIC_ENGINE_READY}{{{POD}}}": "1x70 0 1 0 1 0 1 0 1 0 1"},
    "TidepoolPodsLeftOut": {
        f'{contract.METRIC_GATEWAY_ENDPOINTS}{{{GATEWAY},state="ejected"}}': None,
        f'{contract.METRIC_GATEWAY_ENDPOINTS}{{{GATEWAY},state="hung"}}': "0x60 1x20",
    },
    "TidepoolKvNearlyFull": {f"{contract.METRIC_KV_EXHAUSTION}{{{POD}}}": "600x70 12x10"},
    "TidepoolRequestsRefused": {
        f'{contract.METRIC_GATEWAY_REFUSED}{{{GATEWAY},reason="queue_count"}}': "5x60 5+1x20"
    },
    "TidepoolQueueGrows": {f"{contract.METRIC_WAITING}{{{POD}}}": "0x50 0+5x30"},
    "TidepoolHeldBack": {
        'tidepool_operator_held_back{pod="o1",pool="n/p",reason="InsufficientAccelerators"}': "_x60 1x20"
    },
    "TidepoolFiguresMissing": {'tidepool_operator_figures_missing{pod="o1",pool="n/p"}': "_x60 1x20"},
    "TidepoolForecastOff": {'tidepool_operator_forecast_coverage_ratio{pod="o1",pool="n/p"}': "0.6x80"},
    "TidepoolNobodyLeads": {
        'tidepool_operator_leader{pod="o1"}': None,
        'tidepool_operator_leader{pod="o2"}': None,
    },
    "TidepoolReconcileFails": {
        'tidepool_operator_reconcile_errors_total{pod="o1",error="Conflict"}': None,
        'tidepool_operator_reconcile_errors_total{pod="o1",error="Forbidden"}': "0+3x80",
    },
    "TidepoolReconcileLate": {'tidepool_operator_queue_oldest_seconds{pod="o1"}': "0.5x70 300x10"},
    "TidepoolWatchStale": {'tidepool_operator_quiet_watches{namespace="s",pod="o1"}': "0x74 1x2 0x4"},
    "TidepoolOrphans": {'tidepool_operator_orphans{pod="o1"}': "2x80"},
    "TidepoolCallersUnproven": {f'{contract.METRIC_PROOFS}{{{POD},outcome="expired"}}': "0+30x80"},
    "TidepoolLedgerDefect": {f"{contract.METRIC_LATE_CALLS}{{{POD}}}": "0+1x80"},
    "TidepoolRunsFail": {
        f'{contract.METRIC_WORKFLOW_RUNS}{{pod="g",workflow="n/w",phase="Failed"}}': "0+5x80",
    },
}

# The same of requests that wait at gateways while pods are full, and of a pod that comes back on trial at times.
AT_GATEWAYS: list[tuple[str, dict[str, str | None]]] = [
    ("TidepoolFirstTokenFast", {f'{TTFT}_bucket{{{GATEWAY},le="5.0"}}': "0+100x80"}),
    ("TidepoolFirstTokenSlow", {f'{TTFT}_bucket{{{GATEWAY},le="5.0"}}': "0+350x80"}),
    ("TidepoolQueueGrows", {f"{contract.METRIC_GATEWAY_HELD}{{{GATEWAY}}}": "0x50 0+5x30"}),
    (
        "TidepoolPodsLeftOut",
        {f'{contract.METRIC_GATEWAY_ENDPOINTS}{{{GATEWAY},state="ejected"}}': f"0x59{' 1 1 0' * 7}"},
    ),
]


def test_every_alert_has_a_case() -> None:
    assert list(FIRING) == [alert.name for alert in alerts.alerts()]


def test_every_metric_of_an_alert_is_one_that_is_served() -> None:
    promised = {value for name, value in vars(contract).items() if name.startswith("METRIC_")}
    known = promised | {f"tidepool_operator_{name}" for name in OPERATOR}
    for alert in alerts.alerts():
        asked = {re.sub(r"_(bucket|count)$", "", name) for name in re.findall(r"tidepool_\w+", alert.holds)}
        assert asked, alert.name
        assert asked <= known, alert.name


@pytest.mark.prometheus
def test_the_newest_prometheus_takes_them(tmp_path: Path) -> None:
    file = tmp_path / "alerts.yml"
    file.write_text(yaml.safe_dump(alerts.alerts_file()))

    assert f"{len(alerts.alerts())} rules found" in _promtool(newer("promtool"), "check", "rules", str(file))


@pytest.mark.prometheus
def test_each_fires_in_its_case_and_none_in_a_healthy_fleet(tmp_path: Path) -> None:
    """By the older promtool: the newer one takes ten times as long over the same."""
    tests = [_case(HEALTHY, {alert.name: False for alert in alerts.alerts()})]
    for name, changed in (*FIRING.items(), *AT_GATEWAYS):
        series = {one: values for one, values in {**HEALTHY, **changed}.items() if values is not None}
        tests.append(_case(series, {name: True}))
    suite = {"rule_files": ["alerts.yml"], "evaluation_interval": "1m", "tests": tests}
    (tmp_path / "alerts.yml").write_text(yaml.safe_dump(alerts.alerts_file()))
    file = tmp_path / "tests.json"
    file.write_text(json.dumps(suite))  # JSON is YAML

    assert "SUCCESS" in _promtool(older("promtool"), "test", "rules", str(file))


def _promtool(program: str, *arguments: str) -> str:
    done = subprocess.run([program, *arguments], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def _case(series: dict[str, str], firing: dict[str, bool]) -> dict[str, Any]:
    """At the end of 80 minutes these alerts fire, or do not."""
    return {
        "interval": "1m",
        "input_series": [{"series": name, "values": values} for name, values in series.items()],
        "promql_expr_test": [
            {
                "expr": f'count(ALERTS{{alertname="{name}",alertstate="firing"}}) > 0 or vector(0)',
                "eval_time": "80m",
                "exp_samples": [{"labels": "{}", "value": 1.0 if fires else 0.0}],
            }
            for name, fires in firing.items()
        ],
    }
