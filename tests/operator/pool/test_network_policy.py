"""Who reaches which port of a pool's pods, judged as a network plugin judges a NetworkPolicy.

The rules are those of k8s.io/api/networking/v1: the sources of a rule are one or another, the selectors of one
source both, and a pod that any policy selects is closed to what no rule names.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import pytest

from pools.objects import SETTINGS, observe, raw_pool
from tidepool_api import contract
from tidepool_operator.pool.model import Object, RenderSettings, SidecarTLS
from tidepool_operator.pool.render import render

HOME, TEAM = SETTINGS.operator_namespace, "default"


@dataclass(frozen=True)
class Caller:
    """A pod: where it is, and its labels."""

    namespace: str
    labels: Mapping[str, str]


GATEWAY = Caller(HOME, {contract.COMPONENT_LABEL: contract.COMPONENT_GATEWAY})
OPERATOR = Caller(HOME, {contract.COMPONENT_LABEL: contract.COMPONENT_OPERATOR})
PEER = Caller(TEAM, {contract.POOL_LABEL: "llama"})
NEIGHBOUR = Caller(TEAM, {"app": "web"})
OTHER_POOL = Caller(TEAM, {contract.POOL_LABEL: "other"})
STRANGER = Caller("elsewhere", {"app": "web"})
# Anybody may give a pod of theirs these labels; the namespace is what they cannot choose.
FALSE_GATEWAY, FALSE_OPERATOR = replace(GATEWAY, namespace=TEAM), replace(OPERATOR, namespace=TEAM)
FALSE_PEER = replace(PEER, namespace="elsewhere")
CALLERS = {name: value for name, value in globals().items() if isinstance(value, Caller)}

ENGINE = 8000


def _selects(selector: Object | None, labels: Mapping[str, str]) -> bool:
    wanted: Mapping[str, str] = (selector or {}).get("matchLabels") or {}
    return wanted.items() <= labels.items()


def _comes_from(source: Object, caller: Caller) -> bool:
    if "namespaceSelector" in source:
        if not _selects(source["namespaceSelector"], {"kubernetes.io/metadata.name": caller.namespace}):
            return False
    elif caller.namespace != TEAM:
        return False
    return _selects(source.get("podSelector"), caller.labels)


def _opens(rule: Object, port: int) -> bool:
    ports = rule.get("ports") or []
    return not ports or any(one["port"] <= port <= one.get("endPort", one["port"]) for one in ports)


def reached(port: int, spec: Object, settings: RenderSettings = SETTINGS) -> set[str]:
    """Names of the callers that reach a port of the pods."""
    made = render(observe(raw_pool(**spec)).pool, settings)
    (policy,) = [item["spec"] for item in made.objects if item["kind"] == "NetworkPolicy"]
    assert policy["policyTypes"] == ["Ingress"]
    assert _selects(policy["podSelector"], made.template["metadata"]["labels"]), "its own pods are closed"
    rules = [rule for rule in policy["ingress"] if _opens(rule, port)]
    return {
        name
        for name, caller in CALLERS.items()
        if any("from" not in rule or any(_comes_from(source, caller) for source in rule["from"]) for rule in rules)
    }


EVERYBODY = set(CALLERS)
NAMESPACE = {name for name, caller in CALLERS.items() if caller.namespace == TEAM}
OURS = {"GATEWAY", "OPERATOR", "PEER"}
WEB: dict[str, Any] = {"access": {"from": [{"podSelector": {"matchLabels": {"app": "web"}}}]}}
AFAR: dict[str, Any] = {
    "access": {
        "from": [
            {
                "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "elsewhere"}},
                "podSelector": {"matchLabels": {"app": "web"}},
            }
        ]
    }
}
ANYWHERE: dict[str, Any] = {"access": {"from": [{"namespaceSelector": {}}]}}
APART: dict[str, Any] = {"disaggregation": {"prefill": {"replicas": 1}}}
WIDE: dict[str, Any] = {"parallelism": {"tensor": 2, "hosts": 2}, "accelerator": {"count": 1}}


@pytest.mark.parametrize(
    ("port", "spec", "expected"),
    [
        (contract.TRAFFIC_PORT, {}, NAMESPACE | OURS),
        (contract.TRAFFIC_PORT, WEB, OURS | {"NEIGHBOUR"}),
        (contract.TRAFFIC_PORT, AFAR, OURS | {"STRANGER"}),
        (contract.TRAFFIC_PORT, ANYWHERE, EVERYBODY),
        (contract.CONTROL_PORT, {}, {"GATEWAY", "OPERATOR"}),
        (contract.CONTROL_PORT, ANYWHERE, {"GATEWAY", "OPERATOR"}),
        (contract.METRICS_PORT, WEB, EVERYBODY),
        (contract.TLS_PORT, {}, set()),
        (ENGINE, {}, set()),
        (ENGINE, ANYWHERE, set()),
        (contract.NIXL_PORT, {}, set()),
        (ENGINE, APART, set()),
        (contract.NIXL_PORT, APART, {"PEER"}),
        (contract.UCX_PORTS[1], APART, {"PEER"}),
        (contract.UCX_PORTS[1] + 1, APART, set()),
        (29500, WIDE, {"PEER"}),
    ],
)
def test_a_port_is_reached_by_these_and_by_nobody_else(
    port: int, spec: dict[str, Any], expected: set[str]
) -> None:
    assert observe(raw_pool(**spec)).problems == ()
    assert reached(port, spec) == expected


def test_over_tls_gateways_and_peers_come_and_nobody_else() -> None:
    secure = replace(SETTINGS, tls=SidecarTLS("pod-tls", "tidepool-sidecar"))

    assert reached(contract.TLS_PORT, ANYWHERE, secure) == {"GATEWAY", "PEER"}
