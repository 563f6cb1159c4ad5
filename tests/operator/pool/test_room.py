"""Which places the scheduler could use, judged from nodes and pods."""

from typing import Any

import pytest

from tidepool_operator.pool.room import Room, Survey, requested, shape_of

GPU = "nvidia.com/gpu"


def node(name: str = "n1", gpus: int = 4, **rest: Any) -> dict[str, Any]:
    ready = rest.pop("ready", "True")
    return {
        "metadata": {"name": name, "labels": rest.pop("labels", {"gpu": "h100"})},
        "spec": rest,
        "status": {
            "allocatable": {GPU: str(gpus), "cpu": "8", "memory": "64Gi", "pods": "110"},
            "conditions": [{"type": "Ready", "status": ready}],
        },
    }


def pod(uid: str, gpus: int = 1, on: str | None = "n1", **rest: Any) -> dict[str, Any]:
    status = {"phase": rest.pop("phase", "Running")}
    metadata = {"uid": uid, "labels": {"app.kubernetes.io/managed-by": "tidepool"}}
    if rest.pop("going", False):
        metadata["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    spec = {"nodeName": on, "containers": [{"resources": {"limits": {GPU: str(gpus)}}}], **rest}
    return {"metadata": metadata, "spec": spec, "status": status}


def shape(gpus: int = 1, **spec: Any) -> Any:
    return shape_of({"spec": {"containers": [{"resources": {"limits": {GPU: str(gpus)}}}], **spec}})


def room(*nodes: dict[str, Any], pods: tuple[dict[str, Any], ...] = ()) -> Room:
    survey = Survey(nodes)
    survey.add(pods)
    return survey.room()


AFFINITY = "requiredDuringSchedulingIgnoredDuringExecution"


def near(**expression: Any) -> dict[str, Any]:
    terms = [{"matchExpressions": [expression]}]
    return {"nodeAffinity": {AFFINITY: {"nodeSelectorTerms": terms}}}


TAINT = {"key": "gpu", "value": "only", "effect": "NoSchedule"}


@pytest.mark.parametrize(
    ("nodes", "pods", "spec", "expected", "why"),
    [
        ([node()], [], {}, 4, "an empty node"),
        ([node()], [pod("a"), pod("b", 2)], {}, 1, "what others asked for is not free"),
        ([node()], [pod("a", going=True)], {}, 3, "a pod that goes holds its place until it is gone"),
        ([node()], [pod("a", phase="Failed"), pod("b", phase="Succeeded")], {}, 4, "what ended holds nothing"),
        ([node()], [pod("a", on=None)], {}, 3, "who waits already comes first"),
        ([node()], [pod("a", 8, on=None)], {}, 4, "who waits for more than there is takes nothing"),
        ([node("n1", 1), node("n2", 1)], [], {"gpus": 2}, 0, "accelerators of two nodes do not add up"),
        ([node("n1", 3), node("n2", 3)], [], {"gpus": 2}, 2, "one on each node"),
        ([node(ready="Unknown")], [], {}, 0, "a lost node"),
        ([node(unschedulable=True)], [], {}, 0, "a cordoned node"),
        ([node(taints=[TAINT])], [], {}, 0, "a taint that the pods do not bear"),
        ([node(taints=[TAINT])], [], {"tolerations": [{"key": "gpu", "operator": "Exists"}]}, 4, "borne by key"),
        ([node(taints=[TAINT])], [], {"tolerations": [{"key": "gpu", "value": "only"}]}, 4, "borne by value"),
        ([node(taints=[TAINT])], [], {"tolerations": [{"key": "gpu", "value": "no"}]}, 0, "another value"),
        (
            [node(taints=[TAINT])],
            [],
            {"tolerations": [{"key": "gpu", "operator": "Exists", "effect": "NoExecute"}]},
            0,
            "another effect",
        ),
        ([node(taints=[{**TAINT, "effect": "PreferNoSchedule"}])], [], {}, 4, "a taint that only advises"),
        ([node()], [], {"nodeSelector": {"gpu": "a100"}}, 0, "another kind of node"),
        ([node()], [], {"affinity": near(key="gpu", operator="In", values=["h100"])}, 4, "affinity that is met"),
        ([node()], [], {"affinity": near(key="gpu", operator="NotIn", values=["h100"])}, 0, "affinity against"),
        ([node(labels={"mem": "80"})], [], {"affinity": near(key="mem", operator="Gt", values=["40"])}, 4, "more"),
        (
            [node()],
            [],
            {"affinity": near(key="mem", operator="Lt", values=["40"])},
            0,
            "no such label is no number",
        ),
        ([node()], [], {"affinity": {"nodeAffinity": {AFFINITY: {"nodeSelectorTerms": [{}]}}}}, 0, "empty term"),
        ([node("n1"), node("n2")], [], {"nodeName": "n2"}, 4, "a node by name"),
    ],
)
def test_places(
    nodes: list[dict[str, Any]], pods: list[dict[str, Any]], spec: dict[str, Any], expected: int, why: str
) -> None:
    assert room(*nodes, pods=tuple(pods)).places(shape(**spec)) == expected, why


def test_memory_and_cpu_bind_as_well_as_accelerators() -> None:
    wide = shape_of({"spec": {"containers": [{"resources": {"limits": {GPU: 1}, "requests": {"cpu": "3"}}}]}})

    assert room(node()).places(wide) == 2


def test_own_pods_that_wait_are_not_counted_against_the_pool() -> None:
    assert room(node(), pods=(pod("mine", on=None),)).places(shape(), mine={"mine"}) == 4


def test_whether_a_pod_that_leaves_makes_place() -> None:
    full = room(node("n1", 2), node("n2", 1, labels={"gpu": "a100"}), pods=(pod("a"), pod("b"), pod("c", on="n2")))

    assert full.makes_place(shape(), "a")
    assert not full.makes_place(shape(2), "a"), "one accelerator is not two"
    assert not full.makes_place(shape(nodeSelector={"gpu": "h100"}), "c"), "not on that kind of node"
    assert not full.makes_place(shape(), "unknown")


def test_what_a_pod_asks_for() -> None:
    spec = {
        "containers": [{"resources": {"requests": {"cpu": "1", "memory": "1Gi"}, "limits": {"memory": "2Gi"}}}],
        "initContainers": [
            {"restartPolicy": "Always", "resources": {"requests": {"cpu": "100m"}}},
            {"resources": {"requests": {"cpu": "4", "memory": "512Mi"}}},
        ],
        "overhead": {"cpu": "50m"},
    }
    found = requested(spec)

    assert float(found["cpu"]) == 4.15, "an init container beside the sidecar is the peak"
    assert found["memory"] == 1024**3, "a request goes before a limit"
    assert found["pods"] == 1
