"""What the chart lets the operator do, and nothing beyond."""

from typing import Any

import pytest

from chart.programs import NAMESPACE, ROOT, Object, Render

pytestmark = pytest.mark.apiserver  # helm is built first


def _rules(chart: Any, *names: str) -> list[Object]:
    roles = (*chart.all("Role"), *chart.all("ClusterRole"))
    return [rule for role in roles if role["metadata"]["name"].endswith(names) for rule in role["rules"]]


@pytest.mark.parametrize("values", [{}, {"watchNamespaces": ["team-a"]}])
def test_the_operator_has_no_power_that_it_does_not_need(render: Render, values: dict[str, Any]) -> None:
    rules = _rules(render(values), "operator", "operator-home")

    assert rules
    powers = {
        (group, resource, verb)
        for r in rules
        for group in r["apiGroups"]
        for resource in r["resources"]
        for verb in r["verbs"]
    }
    assert not [power for power in powers if "*" in power]
    assert not [power for power in powers if power[1].startswith("secrets")]
    assert not [power for power in powers if power[0] == "rbac.authorization.k8s.io"]
    assert not powers & {("", "pods", "delete"), ("", "pods", "create"), ("", "pods/exec", "create")}
    assert not [power for power in powers if power[2] in {"escalate", "bind", "impersonate", "deletecollection"}]


def test_the_page_lists_the_rules_that_the_chart_has_and_no_other(render: Render) -> None:
    page = (ROOT / "docs" / "operations.md").read_text()
    table = page.partition("## What the operator may do")[2].partition("\n## ")[0]
    rows = [row.strip("| ").split(" | ") for row in table.splitlines() if row.startswith("| ")][1:]
    told = {
        (group, resource.strip(), verb)
        for group, resources, verbs in rows
        for resource in resources.partition(", of the")[0].partition(", with")[0].split(",")
        for verb in verbs.split(", ")
    }
    rules = [rule for rule in _rules(render({}), "operator") if "resourceNames" not in rule]

    assert told == {
        (group or "core", resource, verb)
        for rule in rules
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


def test_with_a_list_of_namespaces_nothing_reaches_further(render: Render) -> None:
    chart = render({"watchNamespaces": ["team-a", "team-b"], "rbac.aggregate": False})

    assert chart.all("ClusterRole") == chart.all("ClusterRoleBinding") == []
    assert {role["metadata"]["namespace"] for role in chart.all("Role")} == {"team-a", "team-b", NAMESPACE}
    bindings = chart.all("RoleBinding")
    assert {one["subjects"][0]["namespace"] for one in bindings} == {NAMESPACE}


def test_nodes_are_read_with_a_list_of_namespaces_only_where_it_is_said(render: Render) -> None:
    values = {"watchNamespaces": ["team-a"], "rbac.readNodes": True, "rbac.aggregate": False}
    (role,) = render(values).all("ClusterRole")

    assert role["rules"] == [
        {"apiGroups": [""], "resources": ["nodes", "pods", "resourcequotas"], "verbs": ["list"]},
        {"apiGroups": ["scheduling.k8s.io"], "resources": ["priorityclasses"], "verbs": ["list"]},
    ]


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({}, "true"),
        ({"watchNamespaces": ["team-a"]}, "false"),
        ({"watchNamespaces": ["team-a"], "rbac.readNodes": True}, "true"),
    ],
)
def test_the_operator_asks_for_nodes_where_it_may_read_them(
    render: Render, values: dict[str, Any], expected: str
) -> None:
    chart = render(values)
    (deployment,) = [item for item in chart.all("Deployment") if item["metadata"]["name"].endswith("operator")]
    (container,) = deployment["spec"]["template"]["spec"]["containers"]

    assert {"name": "TIDEPOOL_READ_NODES", "value": expected} in container["env"]


def test_two_releases_do_not_share_a_cluster_role(render: Render) -> None:
    one, other = (
        {role["metadata"]["name"] for role in render({}, release=name).all("ClusterRole")} for name in "ab"
    )

    assert not one & other


# Custom resources
