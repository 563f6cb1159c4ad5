"""What a gateway that keeps usage is started with."""

import pytest

from chart.programs import CHART, Program, Render, sets
from tidepool_router.settings import parse
from tidepool_router.usage_command import STORE_FILE_VARIABLE, STORE_VARIABLE

GATEWAY = "demo-tidepool-gateway"


@pytest.mark.parametrize(
    ("workflows", "variable", "value"),
    [
        ({"persistentVolumeClaim": "runs"}, STORE_VARIABLE, "sqlite:////var/lib/tidepool/workflows.db"),
        ({"postgres": {"secretName": "runs", "key": "uri"}}, STORE_FILE_VARIABLE, "/etc/tidepool-store/url"),
    ],
)
def test_usage_is_kept_where_runs_are_and_the_command_finds_it(
    render: Render, workflows: dict[str, object], variable: str, value: str
) -> None:
    chart = render({"gateway.usage.enabled": True, "gateway.workflows": workflows, "gateway.replicas": 1})
    (container,) = chart.one("Deployment", GATEWAY)["spec"]["template"]["spec"]["containers"]

    found = parse(container["args"], {})
    assert found.keeps_usage
    assert str(found.workflows.store) == value
    assert {"name": variable, "value": value} in container["env"]


def test_usage_without_a_place_is_refused_with_the_remedy(helm: Program) -> None:
    with pytest.raises(AssertionError, match=r"gateway\.workflows\.persistentVolumeClaim"):
        helm("template", "demo", str(CHART), *sets({"gateway.usage.enabled": True}))
