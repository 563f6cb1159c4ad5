"""What the chart renders for Prometheus and Grafana."""

import pytest
import yaml

from chart.programs import CHART, Render
from tidepool_api import contract

pytestmark = pytest.mark.apiserver  # helm is built first

WATCHED = {
    "watchNamespaces": ["team-a", "team-b"],
    "podMonitor": {"enabled": True, "labels": {"release": "stack"}},
}


def test_nothing_of_the_prometheus_operator_unless_asked_for(render: Render) -> None:
    assert {item["apiVersion"] for item in render({}).objects} & {"monitoring.coreos.com/v1"} == set()


def test_the_pod_monitor_gives_the_labels_that_queries_ask_by(render: Render) -> None:
    monitor = render(WATCHED).one("PodMonitor", "demo-tidepool-pools")

    (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
    targets = {one["targetLabel"]: one["sourceLabels"][0] for one in endpoint["relabelings"]}
    sanitised = contract.POOL_LABEL.replace(".", "_").replace("/", "_")
    assert targets == {
        contract.LABEL_NAMESPACE: "__meta_kubernetes_namespace",
        contract.LABEL_POOL: f"__meta_kubernetes_pod_label_{sanitised}",
        contract.LABEL_POD: "__meta_kubernetes_pod_name",
        "role": f"__meta_kubernetes_pod_label_{contract.ROLE_LABEL.replace('.', '_').replace('/', '_')}",
    }
    assert monitor["spec"]["namespaceSelector"] == {"matchNames": ["team-a", "team-b"]}
    assert monitor["metadata"]["labels"]["release"] == "stack"


def test_the_pod_monitor_looks_everywhere_where_the_operator_does(render: Render) -> None:
    monitor = render({"podMonitor.enabled": True}).one("PodMonitor", "demo-tidepool-pools")

    assert monitor["spec"]["namespaceSelector"] == {"any": True}


def test_the_recording_rules_are_those_of_the_plain_file(render: Render) -> None:
    rule = render({"prometheusRule.enabled": True}).one("PrometheusRule", "demo-tidepool")
    plain = yaml.safe_load((CHART / "files" / "rules.yaml").read_text())

    alerts = yaml.safe_load((CHART / "files" / "alerts.yaml").read_text())

    assert rule["spec"]["groups"] == plain["groups"] + alerts["groups"]
    assert [group for group in plain["groups"] if group["rules"]]


def test_runbooks_lead_to_where_the_reader_has_them(render: Render) -> None:
    page = "https://wiki.example/tidepool/alerts"
    rule = render({"prometheusRule.enabled": True, "prometheusRule.runbookUrl": page}).one(
        "PrometheusRule", "demo-tidepool"
    )

    rules = [one for group in rule["spec"]["groups"] for one in group["rules"] if "alert" in one]
    links = {one["annotations"]["runbook_url"] for one in rules}
    assert links == {f"{page}#{one['alert'].lower()}" for one in rules}


def test_dashboards_are_config_maps_that_grafanas_sidecar_finds(render: Render) -> None:
    found = render({"dashboards.enabled": True, "dashboards.annotations.grafana_folder": "Tidepool"})

    for path in sorted((CHART / "files" / "dashboards").iterdir()):
        page = found.one("ConfigMap", f"demo-tidepool-dashboard-{path.stem}")
        assert page["metadata"]["labels"]["grafana_dashboard"] == "1"
        assert page["metadata"]["annotations"] == {"grafana_folder": "Tidepool"}
        assert page["data"] == {f"tidepool-{path.name}": path.read_text().rstrip("\n")}


def test_alerts_can_be_left_out(render: Render) -> None:
    rule = render({"prometheusRule.enabled": True, "prometheusRule.alerts": False}).one(
        "PrometheusRule", "demo-tidepool"
    )

    assert [group["name"] for group in rule["spec"]["groups"]] == ["tidepool"]
