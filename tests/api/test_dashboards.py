"""Dashboards ask for metrics that are served, in PromQL that Prometheus takes."""

import json
import re
import subprocess
from pathlib import Path

import pytest
import yaml

from fakes.prometheus import newer
from parity.names import READ
from tidepool_api import contract
from tidepool_api.dashboards import Dashboard, Line, dashboards
from tidepool_api.grafana import grafana

LINES = [
    (f"{page.name}: {panel.title}", line)
    for page in dashboards()
    for _, row in page.rows
    for panel in row
    for line in panel.lines
]
OPERATOR = Path(__file__).resolve().parents[2] / "docs" / "metrics.md"


def test_every_metric_is_one_that_is_served() -> None:
    """A metric that is renamed makes this fail: engines' names are held against a real one by tests/parity."""
    promised = {value for name, value in vars(contract).items() if name.startswith("METRIC_")}
    served = {*promised, *READ, *re.findall(r"`(tidepool_operator_\w+)`", OPERATOR.read_text())}
    for where, line in LINES:
        names = re.findall(r"(?:tidepool|vllm)[:_]\w+", line.expression)
        unknown = [name for name in names if name not in served and name.removesuffix("_bucket") not in served]
        assert names, where
        assert unknown == [], where


@pytest.mark.prometheus
def test_prometheus_can_parse_every_expression(tmp_path: Path) -> None:
    rules = [{"record": f"panel:{number}", "expr": asked(line, "1m")} for number, (_, line) in enumerate(LINES)]
    file = tmp_path / "rules.yml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": rules}]}))

    done = subprocess.run(
        [newer("promtool"), "check", "rules", str(file)], capture_output=True, text=True, timeout=60, check=False
    )

    assert done.returncode == 0, done.stderr


def asked(line: Line, interval: str) -> str:
    """The expression as Grafana would ask it, with All chosen."""
    filled = line.expression.replace("$__rate_interval", interval)
    return re.sub(r"\$\w+", ".*", filled)


@pytest.mark.parametrize("page", dashboards(), ids=lambda page: page.name)
def test_what_expressions_ask_by_can_be_chosen_on_the_page(page: Dashboard) -> None:
    asked_by = {name for _, row in page.rows for panel in row for line in panel.lines
                for name in re.findall(r"\$(\w+)", line.expression)}  # fmt: skip
    offered = [one["name"] for one in json.loads(grafana(page))["templating"]["list"]]

    assert asked_by - set(offered) <= {"__rate_interval"}
    assert offered[0] == "datasource"


@pytest.mark.parametrize("page", dashboards(), ids=lambda page: page.name)
def test_panels_are_numbered_and_do_not_lie_on_each_other(page: Dashboard) -> None:
    panels = json.loads(grafana(page))["panels"]
    cells = [
        (x, y)
        for panel in panels
        for x in range(panel["gridPos"]["x"], panel["gridPos"]["x"] + panel["gridPos"]["w"])
        for y in range(panel["gridPos"]["y"], panel["gridPos"]["y"] + panel["gridPos"]["h"])
    ]

    assert len({panel["id"] for panel in panels}) == len(panels)
    assert len(set(cells)) == len(cells)
    assert max(x for x, _ in cells) < 24
