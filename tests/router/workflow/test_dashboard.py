"""The dashboard of workflows draws what a gateway tells of its runs: each of its expressions gives data."""

import re
import subprocess
from pathlib import Path

import pytest
import yaml

from fakes.prometheus import newer
from tidepool_api.dashboards import dashboards
from tidepool_api.workflow import Measure
from tidepool_router.metrics import Registry
from tidepool_router.workflow.core.spent import Part
from tidepool_router.workflow.core.states import Ending, Output, Phase, Verdict
from tidepool_router.workflow.watching import WorkflowMetrics

_SAMPLE = re.compile(r"^(\w+\{.*\}) (\S+)$", re.M)
EXPRESSIONS = [
    line.expression
    for page in dashboards()
    if page.name == "workflows"
    for _, row in page.rows
    for panel in row
    for line in panel.lines
]


def _told() -> dict[str, float]:
    """Every series, by name and labels, of a gateway with a run that came to its end and one that failed."""
    registry = Registry()
    metrics = WorkflowMetrics(registry)
    parts = dict.fromkeys(Part, 0.1)
    for verdict, phase in ((Verdict.SUCCEEDED, Phase.SUCCEEDED), (Verdict.FAILED, Phase.FAILED)):
        metrics.unit("default/research", "plan", Ending(phase, output=Output(tokens=7)), 0.2, parts)
        metrics.run("default/research", verdict, 1.0)
    metrics.warmed("default/research", 100)
    metrics.saves("default/research", Measure.SKIP_SOFT)
    return {name: float(value) for name, value in _SAMPLE.findall(registry.render().decode())}


@pytest.mark.prometheus
def test_every_panel_has_data_once_workflows_have_run(tmp_path: Path) -> None:
    series = [{"series": name, "values": f"0+{each}x12"} for name, each in _told().items()]
    asked = [re.sub(r"\$\w+", ".*", each.replace("$__rate_interval", "1m")) for each in EXPRESSIONS]
    wanted = [
        {"expr": f"count({each}) > bool 0", "eval_time": "3m", "exp_samples": [{"labels": "{}", "value": 1}]}
        for each in asked
    ]
    test = {"interval": "15s", "input_series": series, "promql_expr_test": wanted}
    file = tmp_path / "test.yml"
    file.write_text(yaml.safe_dump({"evaluation_interval": "15s", "tests": [test]}))

    done = subprocess.run(
        [newer("promtool"), "test", "rules", str(file)], capture_output=True, text=True, timeout=60, check=False
    )

    assert EXPRESSIONS
    assert done.returncode == 0, done.stdout + done.stderr
