"""The count of places held against the real scheduler's: it is given the pods, and places as many."""

import subprocess
from collections.abc import Iterator
from typing import Any

import pytest

from cluster import tools
from cluster.apiserver import ControlPlane
from pools.live import Live, eventually
from pools.nodes import PaperNodes, paper_nodes
from tidepool_operator.cluster.kinds import POD, Kind, Object
from tidepool_operator.cluster.nodes import Nodes
from tidepool_operator.pool.diagnosis import diagnose
from tidepool_operator.pool.reasons import Reason
from tidepool_operator.pool.room import shape_of

pytestmark = pytest.mark.apiserver

TAINT = {"key": "gpu", "value": "only", "effect": "NoSchedule"}


@pytest.fixture
def scheduler(plane: ControlPlane) -> Iterator[None]:
    program = tools.build(["kube-scheduler"]) / "kube-scheduler"
    command = [
        str(program),
        f"--kubeconfig={plane.kubeconfig}",
        f"--authentication-kubeconfig={plane.kubeconfig}",
        f"--authorization-kubeconfig={plane.kubeconfig}",
        "--leader-elect=false",
        "--bind-address=127.0.0.1",
        "--secure-port=0",  # nobody asks it anything
    ]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            yield
        finally:
            process.terminate()
            process.wait(timeout=30)


def accelerator(live: Live) -> str:
    """A kind of its own: pods of other tests that wait for one must not take the places."""
    return f"test.tidepool.dev/{live.namespace}"


def pod(live: Live, name: str, gpus: int, cpu: str, **spec: Any) -> Object:
    resources = {"limits": {accelerator(live): str(gpus)}, "requests": {"cpu": cpu}}
    selector = {"nodeSelector": {"test": live.namespace}}
    containers = [{"name": "engine", "image": "x", "resources": resources}]
    metadata = {"name": name, "namespace": live.namespace}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": metadata,
        "spec": {**selector, **spec, "containers": containers},
    }


async def judged(live: Live, count: int, placed: int) -> None:
    """The scheduler has looked at each of the `new-` pods and placed so many.

    It looks again when it learns of a node: what it says first may rest on fewer than there are.
    """

    def condition(item: Object) -> str:
        found = (item.get("status") or {}).get("conditions") or []
        return next((one["status"] for one in found if one["type"] == "PodScheduled"), "")

    seen: list[str] = []

    async def look() -> bool:
        items = [item for item in await live.list(POD) if item["metadata"]["name"].startswith("new-")]
        seen[:] = [condition(item) for item in items]
        return len(seen) == count and all(seen) and seen.count("True") == placed

    try:
        await eventually(look, f"the scheduler places {placed} pods of {count}")
    except AssertionError as error:
        raise AssertionError(f"{error}; it says {seen}") from None


EXPRESSION = {"key": "number", "operator": "NotIn", "values": ["0"]}
ELSEWHERE = {
    "nodeAffinity": {
        "requiredDuringSchedulingIgnoredDuringExecution": {
            "nodeSelectorTerms": [{"matchExpressions": [EXPRESSION]}]
        }
    }
}
CASES: dict[str, tuple[int, str, Object]] = {
    "one accelerator": (1, "100m", {}),
    "two accelerators": (2, "100m", {}),
    "cpu binds": (1, "3", {}),
    "a taint is borne": (1, "100m", {"tolerations": [{"key": "gpu", "operator": "Exists"}]}),
    "not on the first node": (1, "100m", {"affinity": ELSEWHERE}),
}


@pytest.mark.usefixtures("scheduler")
@pytest.mark.parametrize("case", CASES)
async def test_the_scheduler_places_as_many_as_are_counted(live: Live, case: str) -> None:
    gpus, cpu, spec = CASES[case]
    async with paper_nodes(live, accelerator(live)) as nodes:
        first = await nodes.add(4)
        await nodes.add(3, cpu="4")
        await nodes.add(4, taints=[TAINT])
        await nodes.add(4, unschedulable=True)
        await live.api.create(POD, live.namespace, pod(live, "other", 1, "500m", nodeName=first))
        room = await Nodes(live.api).room()
        assert room is not None
        shape = pod(live, "shape", gpus, cpu, **spec)
        counted = room.places(shape_of({"spec": shape["spec"]}))
        for number in range(counted + 3):
            await live.api.create(POD, live.namespace, pod(live, f"new-{number}", gpus, cpu, **spec))

        assert counted > 0
        await judged(live, counted + 3, counted)


def on(number: str) -> Object:
    return {"nodeSelector": {"number": number}}


def bearing(**taint: str) -> Object:
    """Without a taint: all of them, that of a cordoned node too."""
    return {"tolerations": [{**taint, "operator": "Exists"}]}


def claiming(name: str) -> Object:
    return {"volumes": [{"name": "model", "persistentVolumeClaim": {"claimName": name}}]}


# Nodes by number: 0 is plain, 1 tainted, 2 cordoned.
REFUSALS: dict[str, tuple[int, str, Object, Reason]] = {
    "new-accelerators": (9, "1", {}, Reason.INSUFFICIENT_ACCELERATORS),
    "new-cpu": (1, "100", {}, Reason.INSUFFICIENT_RESOURCES),
    "new-taint": (1, "1", on("1"), Reason.TAINT_NOT_TOLERATED),
    "new-cordoned": (1, "1", on("2") | bearing(key="gpu"), Reason.UNSCHEDULABLE),
    "new-nothing": (1, "1", claiming("nobody-made-it"), Reason.VOLUME_PENDING),
    "new-unbound": (1, "1", claiming("unbound"), Reason.VOLUME_PENDING),
    "new-selector": (1, "1", on("7") | bearing(), Reason.NODE_SELECTOR_UNMATCHED),
}
CLAIM = Kind("", "v1", "persistentvolumeclaims", "PersistentVolumeClaim")


@pytest.mark.soak
@pytest.mark.usefixtures("scheduler")
async def test_the_schedulers_own_words_have_their_reasons(live: Live) -> None:
    claim = {
        "accessModes": ["ReadWriteOnce"],
        "resources": {"requests": {"storage": "1Gi"}},
        "storageClassName": "",
    }
    await live.api.create(CLAIM, live.namespace, {"metadata": {"name": "unbound"}, "spec": claim})
    async with paper_nodes(live, accelerator(live)) as nodes:
        await _three_kinds(nodes)
        for name, (gpus, cpu, spec, _) in REFUSALS.items():
            await live.api.create(POD, live.namespace, pod(live, name, gpus, cpu, **spec))
        await judged(live, len(REFUSALS), 0)
        items = {item["metadata"]["name"]: item for item in await live.list(POD)}

    found = {name: diagnose(items[name], accelerator(live)) for name in REFUSALS}
    told = {name: (one.reason, one.what) for name, one in found.items() if one is not None}
    assert {name: reason for name, (reason, _) in told.items()} == {
        name: reason for name, (*_, reason) in REFUSALS.items()
    }, told


async def _three_kinds(nodes: PaperNodes) -> None:
    await nodes.add(4)
    await nodes.add(4, taints=[TAINT])
    await nodes.add(4, unschedulable=True)
