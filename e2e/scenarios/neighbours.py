"""Pods of somebody else that hold accelerators, so that a cluster is as full as a scenario wants it."""

import json
from collections.abc import Iterator
from contextlib import contextmanager

from scenarios.kube import Kube, Object, wait_for

GPU = "nvidia.com/gpu"
PAUSE_IMAGE = "localhost/tidepool-pause:1"
_LABEL = "tidepool.dev/neighbour"
NAMESPACE = "neighbours"


def holder(node: str, accelerators: int) -> Object:
    """A pod on that node that does nothing with so many accelerators."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": f"on-{node}", "namespace": NAMESPACE, "labels": {_LABEL: "true"}},
        "spec": {
            "nodeSelector": {"kubernetes.io/hostname": node},
            "terminationGracePeriodSeconds": 1,
            "containers": [
                {"name": "holder", "image": PAUSE_IMAGE, "resources": {"limits": {GPU: str(accelerators)}}}
            ],
        },
    }


def accelerators_by_node(kube: Kube) -> dict[str, int]:
    """What each node offers."""
    nodes = json.loads(kube.run("get", "nodes", "-o", "json"))["items"]
    return {node["metadata"]["name"]: int(node["status"]["allocatable"].get(GPU, 0)) for node in nodes}


@contextmanager
def leaving_free(kube: Kube, accelerators: int) -> Iterator[None]:
    """Hold all accelerators of the cluster but so many, which are spread over the nodes, while the block runs."""
    offered = accelerators_by_node(kube)
    free, left = {}, accelerators
    for place, (node, count) in enumerate(sorted(offered.items())):
        free[node] = min(count, -(-left // (len(offered) - place)))
        left -= free[node]
    assert left == 0, f"the nodes offer {offered}, fewer than {accelerators}"
    pods = [holder(node, offered[node] - count) for node, count in free.items() if offered[node] > count]
    kube.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}, *pods)
    try:
        wait_for("neighbours to hold their accelerators", lambda: _all_run(kube, len(pods)), timeout_seconds=60)
        yield
    finally:
        kube.run("delete", "pods", "-n", NAMESPACE, "-l", _LABEL, "--timeout=60s", timeout_seconds=70)


def _all_run(kube: Kube, count: int) -> bool | None:
    pods = kube.items("pods", NAMESPACE, _LABEL)
    return (len(pods) == count and all(pod["status"]["phase"] == "Running" for pod in pods)) or None
