"""Every power of the operator's account is used: what the audit log of a day's work does not show is in no rule.

That the rules are enough is test_operator_account.py's to show, and here too: nothing is refused.
"""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from chart.days import Day, Power
from chart.programs import CHART, NAMESPACE, Object, Program, Render, served, sets
from chart.running import running
from cluster import tools
from cluster.apiserver import ControlPlane
from pools.leader_worker_sets import definition
from tidepool_api import contract

# Minutes of controllers' own paces, on an API server whose log has nobody else in it.
pytestmark = [pytest.mark.apiserver, pytest.mark.soak, pytest.mark.timeout(600)]

TEAM = "team-a"
ACCOUNT = "demo-tidepool-operator"

# Watches tell what they see when they begin; a request is told once it is answered.
POLICY = f"""\
apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- level: Metadata
  users: ["system:serviceaccount:{NAMESPACE}:{ACCOUNT}"]
- level: None
"""
# What a quiet day asks for seldom or never.
UNSEEN: dict[Power, str] = {
    ("tidepool.dev", "modelpools/finalizers", "update"): "asked by the admission of owner references",
    ("discovery.k8s.io", "endpointslices/restricted", "create"): "asked by OpenShift's admission of addresses",
    # tests/operator/cluster/test_canary.py: what a watch should have told is looked for by name.
    ("tidepool.dev", "modelpools", "get"): "after a watch that kept a deletion to itself",
    ("tidepool.dev", "agentworkflows", "get"): "the same",
    ("tidepool.dev", "agentworkflowruns", "get"): "the same",
    ("", "pods", "get"): "the same",
}


@pytest.fixture(scope="module")
def day(helm: Program, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Day]:
    folder = tmp_path_factory.mktemp("powers")
    policy, log = folder / "policy.yaml", folder / "audit.log"
    policy.write_text(POLICY)
    flags = (
        f"--audit-policy-file={policy}",
        f"--audit-log-path={log}",
        "--enable-admission-plugins=NodeRestriction,OwnerReferencesPermissionEnforcement",
    )
    with ControlPlane(controllers=True, apiserver=flags) as plane:
        kubectl = Program(tools.tool_path("kubectl"), (f"--kubeconfig={plane.kubeconfig}",))
        for name in (NAMESPACE, TEAM):
            kubectl("create", "namespace", name)
        kubectl("apply", "-f", "-", stdin=json.dumps(definition()))
        served(kubectl)
        there = Program(helm.path, (*helm.flags, f"--kubeconfig={plane.kubeconfig}", f"--namespace={NAMESPACE}"))
        there("install", "demo", str(CHART), *sets({"operator.replicas": 0}))
        with running(kubectl, plane, folder, [], nodes=True) as cluster:
            cluster.wait("a leader", lambda: cluster.get("lease", "-n", NAMESPACE, "tidepool-operator"))
            yield Day(cluster, log, TEAM)


def pool(name: str, **spec: Any) -> Object:
    return {
        "apiVersion": contract.API_VERSION,
        "kind": "ModelPool",
        "metadata": {"name": name, "namespace": TEAM},
        "spec": {"model": {"uri": f"hf://acme/{name}"}, **spec},
    }


def other(kind: str, name: str, **spec: Any) -> Object:
    metadata = {"name": name, "namespace": TEAM}
    return {"apiVersion": contract.API_VERSION, "kind": kind, "metadata": metadata, "spec": spec}


def serving(count: int) -> Object:
    ready = {"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}
    engine = {
        "name": "engine",
        "image": "x",
        "imageID": "x",
        "ready": True,
        "started": True,
        "restartCount": count,
    }
    running_since = {"state": {"running": {"startedAt": "2026-01-01T00:00:00Z"}}}
    return {"phase": "Running", "conditions": [ready], "containerStatuses": [engine | running_since]}


CRASHED = {
    "conditions": [{"type": "Ready", "status": "False", "lastTransitionTime": "2026-01-01T00:01:00Z"}],
    "containerStatuses": [
        {
            "name": "engine",
            "image": "x",
            "imageID": "x",
            "ready": False,
            "restartCount": 1,
            "state": {"waiting": {"reason": "CrashLoopBackOff"}},
            "lastState": {"terminated": {"exitCode": 1, "message": "ValueError: something new"}},
        }
    ],
}


def names(items: list[Object]) -> set[str]:
    return {item["metadata"]["name"] for item in items}


def staying(pods: list[Object]) -> list[Object]:
    return [one for one in pods if "deletionTimestamp" not in one["metadata"]]


def _revisions_come_and_go(day: Day, kind: str, name: str) -> None:
    """Two without pods are kept; the one before them is deleted."""
    (first,) = day.items(kind, name)
    for length in (1024, 2048, 4096, 8192):
        before = names(day.items(kind, name))
        day.edit(name, engine={"maxModelLen": length})
        day.has("another revision", kind, name, lambda now, before=before: names(now) - before)
    gone = names([first])
    day.has("the first is gone", kind, name, lambda now: not gone & names(now))


def _pods_come_and_go(day: Day) -> None:
    day.apply(pool("small", replicas=2))
    for one in day.has("two pods", "pods", "small", lambda found: len(found) == 2):
        day.status("pod", one["metadata"]["name"], TEAM, serving(0))
    day.cluster.wait("it serves", lambda: day.cluster.conditions("mp", "-n", TEAM, "small").get("Ready") == "True")
    # Somebody's quota and a class of priority are looked at where pools scale; rooms where they roll.
    day.edit("small", replicas=1)
    day.has("one pod stays", "pods", "small", lambda found: len(staying(found)) == 1)
    (left,) = staying(day.items("pods", "small"))
    day.status("pod", left["metadata"]["name"], TEAM, CRASHED)
    told = "something new"
    day.cluster.wait(
        "a diagnosis", lambda: told in json.dumps(day.cluster.get("mp", "-n", TEAM, "small")["status"])
    )
    day.edit("small", replicas=0)
    day.has("no pods", "deployments", "small", lambda found: [one["spec"]["replicas"] for one in found] == [0])
    _revisions_come_and_go(day, "deployments", "small")


def _groups_come_and_go(day: Day) -> None:
    day.apply(pool("wide", parallelism={"tensor": 2, "hosts": 2}, accelerator={"count": 1}))
    day.has("a group", "leaderworkersets", "wide", lambda found: [one["spec"]["replicas"] for one in found] == [1])
    day.edit("wide", replicas=0)
    day.has(
        "no group", "leaderworkersets", "wide", lambda found: [one["spec"]["replicas"] for one in found] == [0]
    )
    _revisions_come_and_go(day, "leaderworkersets", "wide")


def _gateways_come_and_go(day: Day) -> None:
    """A pool at zero leads to them; they are pods without a node here."""
    day.apply(pool("asleep", replicas=0, scaling={"minReplicas": 0, "maxReplicas": 2}))
    labels = {contract.COMPONENT_LABEL: contract.COMPONENT_GATEWAY, "app.kubernetes.io/name": "tidepool"}
    for number in (1, 2):
        # A slice takes no loopback; to a group of hosts (RFC 2365) the kernel opens no connection.
        name, address = f"gateway-{number}", f"239.255.0.{number}"
        metadata = {"name": name, "namespace": NAMESPACE, "labels": labels}
        spec = {"containers": [{"name": "gateway", "image": "x"}]}
        day.apply({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})
        ready = {"type": "Ready", "status": "True"}
        addresses = {"podIP": address, "podIPs": [{"ip": address}]}
        day.status("pod", name, NAMESPACE, {"phase": "Running", "conditions": [ready], **addresses})
        day.has("a slice", "endpointslices", "asleep", lambda found, address=address: address in json.dumps(found))
    day.edit("asleep", scaling=None, replicas=1)
    day.has("no slice", "endpointslices", "asleep", lambda found: "239.255.0." not in json.dumps(found))


def _models_come_and_go(day: Day) -> None:
    claim = {"persistentVolumeClaim": "models"}
    day.apply(pool("stored", model={"uri": "s3://models/llama"}, cache=claim))
    (job,) = day.has("a Job", "jobs", "stored", lambda found: len(found) == 1)
    day.edit("stored", model={"uri": "s3://models/other"})
    day.has("another Job", "jobs", "stored", lambda found: found and not names(found) & names([job]))


def _runs_come_and_go(day: Day) -> None:
    day.apply(other("AgentWorkflow", "digest", steps=[{"name": "sum", "llm": {"pools": [{"name": "small"}]}}]))
    short = {"workflow": "digest", "input": {"text": "a"}, "cancel": True, "ttlAfterFinished": "1s"}
    day.apply(other("AgentWorkflowRun", "short", **short))
    day.cluster.wait("the run is gone", lambda: not day.cluster.get("awr", "-n", TEAM)["items"])


def _demand_comes(day: Day) -> None:
    """Of a pool that a node has room for."""
    day.apply({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "room"}})
    amounts = {"cpu": "64", "memory": "512Gi", "pods": "110"}
    ready = {"type": "Ready", "status": "True", "reason": "Test", "message": ""}
    day.status("node", "room", "", {"capacity": amounts, "allocatable": amounts, "conditions": [ready]})
    day.apply(pool("growing", replicas=1, scaling={"minReplicas": 2, "maxReplicas": 3}, accelerator={"count": 0}))
    day.cluster.wait("it grows", lambda: day.cluster.get("mp", "-n", TEAM, "growing")["spec"]["replicas"] == 2)
    day.cluster.kubectl("delete", "mp", "growing", "-n", TEAM, "--wait=false")
    day.cluster.kubectl("delete", "node", "room")


def granted(chart: Any, *names: str) -> set[Power]:
    roles = (*chart.all("Role"), *chart.all("ClusterRole"))
    return {
        (group, resource, verb)
        for role in roles
        if role["metadata"]["name"].endswith(names)
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


def test_every_power_is_used_and_none_is_missing(day: Day, render: Render) -> None:
    for comes in (
        _demand_comes,
        _pods_come_and_go,
        _groups_come_and_go,
        _gateways_come_and_go,
        _models_come_and_go,
        _runs_come_and_go,
    ):
        comes(day)
    chart = render({})

    assert day.refused() == []
    assert granted(chart, "operator") - day.used(at_home=False) <= set(UNSEEN) <= granted(chart, "operator")
    assert granted(chart, "operator-home") - day.used(at_home=True) == set()
    assert not [power for power in day.used(at_home=False) | day.used(at_home=True) if "secrets" in power[1]]
