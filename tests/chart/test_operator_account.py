"""The real operator under the account that the chart gives it: it does all of its work and is refused nothing."""

import json
import re
import time
import urllib.request
from collections.abc import Iterator

import pytest

from chart.programs import CHART, NAMESPACE, Object, Program, sets
from chart.running import Cluster, running
from cluster import tools
from cluster.apiserver import ControlPlane
from tidepool_api import contract
from tidepool_api.routing import SidecarSettings
from tidepool_api.trust import TrustedCallers
from tidepool_router.proofs import Part, Proof, Verifier

pytestmark = pytest.mark.apiserver

TEAM = "team-a"
POOL: Object = {
    "apiVersion": "tidepool.dev/v1alpha1",
    "kind": "ModelPool",
    "metadata": {"name": "small", "namespace": TEAM},
    "spec": {"model": {"uri": "hf://acme/small"}, "replicas": 2},
}
# Its model comes by a Job.
STORED: Object = {
    **POOL,
    "metadata": {"name": "stored", "namespace": TEAM},
    "spec": {"model": {"uri": "s3://models/llama"}, "cache": {"persistentVolumeClaim": "models"}},
}
RUN: Object = {
    "apiVersion": "tidepool.dev/v1alpha1",
    "kind": "AgentWorkflowRun",
    "metadata": {"name": "once"},
    "spec": {"workflow": "digest", "input": {"text": "a"}},
}
SHORT = {"cancel": True, "ttlAfterFinished": "1s"}
WORKFLOW: Object = {
    "apiVersion": "tidepool.dev/v1alpha1",
    "kind": "AgentWorkflow",
    "metadata": {"name": "digest", "namespace": TEAM},
    "spec": {"steps": [{"name": "sum", "llm": {"pools": [{"name": "small"}]}}]},
}


@pytest.fixture(
    scope="module",
    params=[([], False), ([TEAM], False), ([TEAM], True)],
    ids=["everywhere", "one-namespace", "one-namespace-and-nodes"],
)
def cluster(
    request: pytest.FixtureRequest, helm: Program, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("operator")
    with ControlPlane(controllers=True) as plane:
        kubectl = Program(tools.tool_path("kubectl"), (f"--kubeconfig={plane.kubeconfig}",))
        for name in (NAMESPACE, TEAM):
            kubectl("create", "namespace", name)
        # What the operator makes must pass the strictest standard.
        kubectl("label", "namespace", TEAM, "pod-security.kubernetes.io/enforce=restricted")
        there = Program(helm.path, (*helm.flags, f"--kubeconfig={plane.kubeconfig}", f"--namespace={NAMESPACE}"))
        namespaces, nodes = request.param
        values = {"watchNamespaces": namespaces, "rbac.readNodes": nodes, "operator.replicas": 0}
        there("install", "demo", str(CHART), *sets(values))
        with running(kubectl, plane, folder, namespaces, nodes=nodes) as cluster:
            yield cluster


def test_the_operator_does_its_work_and_is_refused_nothing(cluster: Cluster) -> None:
    cluster.wait("a leader", lambda: cluster.get("lease", "-n", NAMESPACE, "tidepool-operator"))
    cluster.wait("a fleet for the gateways", lambda: cluster.get("configmap", "-n", NAMESPACE, "tidepool-fleet"))

    cluster.kubectl("apply", "-f", "-", stdin=json.dumps(POOL))
    cluster.kubectl("apply", "-f", "-", stdin=json.dumps(WORKFLOW))
    for run in (RUN, {**RUN, "metadata": {"name": "short"}, "spec": {**RUN["spec"], **SHORT}}):
        cluster.kubectl("create", "-n", TEAM, "-f", "-", stdin=json.dumps(run))

    def deployments(replicas: int) -> list[Object]:
        found = cluster.get("deployments", "-n", TEAM)["items"]
        return [item for item in found if item["spec"]["replicas"] == replicas]

    cluster.wait("a Deployment of two", lambda: deployments(2))
    kinds = "service,configmap,serviceaccount,networkpolicy,poddisruptionbudget"
    ours = "tidepool.dev/pool=small"
    wanted = {"Service", "ConfigMap", "ServiceAccount", "NetworkPolicy", "PodDisruptionBudget"}
    cluster.wait(
        "what belongs to the pool",
        lambda: {item["kind"] for item in cluster.get(kinds, "-n", TEAM, "-l", ours)["items"]} == wanted,
    )

    def trusted() -> TrustedCallers | None:
        data = cluster.get("configmap", "-n", TEAM, "small-settings")["data"]
        return SidecarSettings.model_validate_json(data[contract.SETTINGS_KEY]).trust

    def keys() -> bool:
        found = trusted()
        return found is not None and bool(found.keys)

    # The cluster's keys reach the sidecars, and by them the gateways' own tokens are believed.
    cluster.wait("the cluster's keys in the settings", keys)
    told, account = trusted(), "demo-tidepool-gateway"
    token = cluster.kubectl("create", "token", account, "-n", NAMESPACE, f"--audience={contract.PROOF_AUDIENCE}")
    assert told is not None
    proof = Verifier(told).check(token.strip().encode(), time.time())
    assert isinstance(proof, Proof)
    assert proof.part is Part.GATEWAY

    cluster.wait("conditions of the pool", lambda: "Ready" in cluster.conditions("mp", "-n", TEAM, "small"))
    workflow = cluster.wait("conditions of the workflow", lambda: cluster.conditions("aw", "-n", TEAM, "digest"))
    assert workflow["Accepted"] == "True"
    # There is no gateway here, so the one run waits and says so; the other has had its time.
    cluster.wait(
        "the run waits", lambda: "no gateway" in str(cluster.get("awr", "-n", TEAM, "once").get("status"))
    )
    cluster.wait("the other is gone", lambda: len(cluster.get("awr", "-n", TEAM)["items"]) == 1)
    cluster.wait("events", lambda: cluster.get("events.events.k8s.io", "-n", TEAM)["items"])

    # What the chart's PodMonitor selects by.
    (deployment,) = deployments(2)
    template = deployment["spec"]["template"]
    (router,) = [one for one in template["spec"]["initContainers"] if one["name"] == contract.ROUTER_CONTAINER]
    assert "metrics" in [port["name"] for port in router["ports"]]
    assert template["metadata"]["labels"][contract.POOL_LABEL] == "small"

    # A pod in trouble: its engine's log and the events about it are asked for.
    cluster.wait("two pods", lambda: len(cluster.get("pods", "-n", TEAM)["items"]) == 2)
    (name, _) = [item["metadata"]["name"] for item in cluster.get("pods", "-n", TEAM)["items"]]
    engine = {"name": "engine", "image": "x", "imageID": "x", "ready": False, "restartCount": 1}
    engine["state"] = {"waiting": {"reason": "CrashLoopBackOff"}}
    engine["lastState"] = {"terminated": {"exitCode": 1, "message": "ValueError: something new"}}
    trouble = json.dumps({"status": {"containerStatuses": [engine]}})
    cluster.kubectl("patch", "pod", name, "-n", TEAM, "--subresource=status", "--type=merge", f"--patch={trouble}")

    def told() -> bool:
        found = cluster.get("mp", "-n", TEAM, "small")["status"]["conditions"]
        return any("something new" in one["message"] for one in found)

    cluster.wait("a diagnosis", told)

    # A Job loads a model, and goes when another model is wanted.
    def jobs() -> set[str]:
        return {item["metadata"]["name"] for item in cluster.get("jobs", "-n", TEAM)["items"]}

    cluster.kubectl("apply", "-f", "-", stdin=json.dumps(STORED))
    (job,) = cluster.wait("a Job", jobs)
    other = json.dumps({"spec": {"model": {"uri": "s3://models/other"}}})
    cluster.kubectl("patch", "mp", "stored", "-n", TEAM, "--type=merge", f"--patch={other}")
    cluster.wait("another Job", lambda: jobs() - {job} and job not in jobs())
    cluster.kubectl("delete", "mp", "stored", "-n", TEAM)

    # Fewer: a pod is marked first, and the Deployment's scale is written.
    cluster.wait("two pods", lambda: len(cluster.get("pods", "-n", TEAM)["items"]) == 2)
    cluster.kubectl("scale", "mp", "small", "-n", TEAM, "--replicas=1")
    cluster.wait("a Deployment of one", lambda: deployments(1))

    # A new shape: another Deployment comes, and the earlier one is deleted.
    before = {item["metadata"]["name"] for item in deployments(1)}
    shape = json.dumps({"spec": {"engine": {"maxModelLen": 1024}}})
    cluster.kubectl("patch", "mp", "small", "-n", TEAM, "--type=merge", f"--patch={shape}")
    cluster.wait(
        "another revision",
        lambda: {item["metadata"]["name"] for item in cluster.get("deployments", "-n", TEAM)["items"]} - before,
    )

    cluster.kubectl("delete", "mp", "small", "-n", TEAM)
    cluster.wait("nothing left", lambda: not cluster.get("deployments,pods,services", "-n", TEAM)["items"])
    with urllib.request.urlopen(cluster.health_url, timeout=60) as answer:
        assert answer.status == 200
    said = [
        json.loads(line) | {"time": ""} for line in cluster.log.read_text().splitlines()
    ]  # 403 may be its milliseconds
    refusals = [line for line in said if re.search(r"orbidden|\b403\b", json.dumps(line))]
    assert refusals == []
