"""The pages say what the code says: reasons, metrics, and a scrape configuration that Prometheus takes."""

import re
import subprocess
from pathlib import Path

import pytest
import yaml

from chart.programs import ROOT
from cluster import tools
from tidepool_api import contract, rules
from tidepool_api.language.problems import Reason
from tidepool_operator import pages

DOCS = ROOT / "docs"
OPERATIONS, METRICS = (DOCS / "operations.md").read_text(), (DOCS / "metrics.md").read_text()


def test_every_reason_of_a_pool_stands_with_its_remedy_and_no_other() -> None:
    assert pages.written(OPERATIONS) == OPERATIONS, "run make pages"


def test_every_reason_of_a_workflow_is_named() -> None:
    assert [reason for reason in Reason if f"`{reason}`" not in OPERATIONS] == []


def test_every_metric_of_the_contract_is_explained_and_no_other() -> None:
    promised = {value for name, value in vars(contract).items() if name.startswith("METRIC_")}
    explained = set(re.findall(r"^\| `(tidepool_[a-z_]+)` \|", METRICS, re.M))

    assert promised - explained == set()
    assert {name for name in explained - promised if not name.startswith("tidepool_operator_")} == set()


def _prometheus_config() -> str:
    (scrape,) = re.findall(r"^```yaml\n(.*?)^```", METRICS, re.M | re.S)
    return str(scrape)


def test_the_scrape_configuration_gives_the_labels_that_the_rules_ask_by() -> None:
    (job,) = yaml.safe_load(_prometheus_config())["scrape_configs"]

    given = {one.get("target_label") for one in job["relabel_configs"]}
    assert {contract.LABEL_NAMESPACE, contract.LABEL_POOL, contract.LABEL_POD} <= given


@pytest.mark.prometheus
def test_prometheus_takes_configuration_rules_and_alerts(tmp_path: Path) -> None:
    (tmp_path / "prometheus.yaml").write_text(_prometheus_config())
    for name in ("rules", "alerts"):
        text = (ROOT / f"charts/tidepool/files/{name}.yaml").read_text()
        (tmp_path / f"tidepool-{name}.yaml").write_text(text)

    for kind, name in (("config", "prometheus"), ("rules", "tidepool-rules"), ("rules", "tidepool-alerts")):
        done = subprocess.run(
            [str(tools.tool_path("promtool")), "check", kind, str(tmp_path / f"{name}.yaml")],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr


def test_rates_of_the_rules_span_the_scrapes_that_the_page_recommends() -> None:
    (job,) = yaml.safe_load(_prometheus_config())["scrape_configs"]

    window_seconds = {"1m": 60}[rules.RATE_WINDOW]
    assert window_seconds >= 4 * int(job["scrape_interval"].removesuffix("s"))
