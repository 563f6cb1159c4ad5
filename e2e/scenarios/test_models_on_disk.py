"""Models and adapters where users keep them, brought to real vLLM by a real kubelet: claims, images, nodes, S3.

`file://` is what every other scenario runs on.
"""

import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import httpx
import pytest

from cluster import engine_install
from fakes.lora import lora
from scenarios import stage
from scenarios.kube import Object, condition, wait_for
from scenarios.life import START_SECONDS
from scenarios.pools import ENGINE_FOLDER, cpu_pool
from scenarios.world import World

pytestmark = [pytest.mark.cluster, pytest.mark.soak, pytest.mark.timeout(1500)]

NAMESPACE = "disk"  # under the Pod Security Standard restricted
NODES_NAMESPACE = "disk-nodes"  # a folder of the node is forbidden by it
CLAIM = "models"
STORE_PORT = 9000
KEYS = {"AWS_ACCESS_KEY_ID": "tide", "AWS_SECRET_ACCESS_KEY": "pool-and-kelp"}
# Five engines start at once.
ALL_START_SECONDS = 3 * START_SECONDS


def store(image: str) -> list[Object]:
    """An S3 with the engine's model and an adapter, which checks signatures: a pod, its Service, and a Secret."""
    locked = {"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]}}
    container = {
        "name": "store",
        "image": image,
        "command": ["/opt/double/venv/bin/python", "-m", "fakes.storehouse", str(STORE_PORT)],
        "args": ["models/tiny=/opt/engine/model", "adapters/sql=/models/adapters/sql"],
        "env": [{"name": name, "value": value} for name, value in KEYS.items()],
        "readinessProbe": {"tcpSocket": {"port": STORE_PORT}, "periodSeconds": 1},
        "securityContext": locked,
        "volumeMounts": [
            {"name": "engine", "mountPath": ENGINE_FOLDER, "readOnly": True},
            {"name": "models", "mountPath": "/models", "readOnly": True},
        ],
    }
    claims = {"engine": "tidepool-engine", "models": CLAIM}
    pod = {
        "securityContext": {"runAsNonRoot": True, "runAsUser": 1000, "seccompProfile": {"type": "RuntimeDefault"}},
        "terminationGracePeriodSeconds": 1,
        "containers": [container],
        "volumes": [
            {"name": name, "persistentVolumeClaim": {"claimName": claim}} for name, claim in claims.items()
        ],
    }
    labels = {"app": "store"}
    service = {"selector": labels, "ports": [{"port": STORE_PORT}]}
    return [
        _object("v1", "Pod", "store", spec=pod, labels=labels),
        _object("v1", "Service", "store", spec=service),
        *(
            _object("v1", "Secret", "store", stringData=KEYS, namespace=namespace)
            for namespace in (NAMESPACE, NODES_NAMESPACE)
        ),
    ]


def _object(
    version: str, kind: str, name: str, *, namespace: str = NAMESPACE, labels: Object | None = None, **rest: object
) -> Object:
    metadata = {"name": name, "namespace": namespace, "labels": labels or {}}
    return {"apiVersion": version, "kind": kind, "metadata": metadata, **rest}


def pool(
    name: str, uri: str, *, namespace: str = NAMESPACE, model: Object | None = None, **spec: object
) -> Object:
    """Real vLLM with a model from somewhere."""
    made = cpu_pool(name, namespace, replicas=1, **spec)
    del made["spec"]["scaling"]
    made["spec"]["model"] = {"uri": uri, "name": f"{name}-llama", **(model or {})}
    if uri.startswith("s3://"):
        made["spec"]["model"]["authSecretRef"] = {"name": "store"}
        made["spec"]["engine"]["env"] += [
            {"name": "AWS_ENDPOINT_URL", "value": f"http://store.{NAMESPACE}:{STORE_PORT}"},
            {"name": "AWS_REGION", "value": "local"},
        ]
    return made


@dataclass(frozen=True, slots=True)
class Disk:
    """All pools, applied at once."""

    worlds: dict[str, World]
    claim: Path  # the claim's folder on this machine
    node: Path  # the nodes' folder

    def answer(self, name: str, model: str = "") -> httpx.Response:
        """What a model says by way of the gateway, chosen without chance: equal weights say the same."""
        world = self.worlds[name]
        body = {
            "model": model or world.model,
            "prompt": "The import statement",
            "max_tokens": 12,
            "temperature": 0,
        }
        return httpx.post(f"{world.gateway_url}/v1/completions", json=body, timeout=60)

    def text(self, name: str, model: str = "") -> str:
        """The same, of an answer that must be a good one."""
        answer = self.answer(name, model)
        assert answer.status_code == 200, answer.text
        return str(answer.json()["choices"][0]["text"])


@pytest.fixture(scope="module")
def disk(world: World) -> Iterator[Disk]:
    images = stage.cluster("images", "tidepool-engine-double", "tidepool-model").split()
    double, model_image = (next(one for one in images if name in one) for name in ("double", "model"))
    claim, node = _shared(NAMESPACE, CLAIM), _shared(NODES_NAMESPACE, "folder")
    label = "pod-security.kubernetes.io/enforce=restricted"
    world.kube.run("label", "namespace", NAMESPACE, label, "--overwrite")
    for namespace in (NAMESPACE, NODES_NAMESPACE):
        stage.cluster("engine-volume", "--namespace", namespace)
    shutil.copytree(engine_install.model_dir(), claim / "plain")
    (claim / "adapters").mkdir()
    for seed, name in enumerate(("sql", "tax"), start=1):
        lora(claim / "adapters" / name, seed=seed)
    world.kube.apply(*store(double))
    world.kube.run("wait", "pod/store", "-n", NAMESPACE, "--for=condition=Ready", "--timeout=60s")
    cache = {"persistentVolumeClaim": CLAIM, "preload": True, "retention": "Delete"}
    stored = pool("stored", "s3://models/tiny", model={"adapterSlots": 2}, cache=cache)
    stored["spec"]["replicas"] = 2
    pools = [
        stored,
        pool("claimed", f"pvc://{CLAIM}/plain", model={"adapterSlots": 2}),
        pool("imaged", f"oci://{model_image}#model"),
        pool("noded", "s3://models/tiny", namespace=NODES_NAMESPACE, cache={"hostPath": str(node)}),
    ]
    world.kube.apply(*pools)
    try:
        yield Disk({one["metadata"]["name"]: replace(world, pool=one) for one in pools}, claim, node)
    finally:
        for namespace in (NAMESPACE, NODES_NAMESPACE):
            world.kube.run("delete", "modelpools", "--all", "-n", namespace, "--timeout=60s")
            world.kube.run("delete", "namespace", namespace, "--wait=false")


def _shared(namespace: str, claim: str) -> Path:
    """A folder that pods may write to, without what an earlier run left in it."""
    folder = Path(stage.cluster("shared-volume", "--namespace", namespace, "--claim", claim).strip())
    for path in folder.iterdir():
        shutil.rmtree(path)
    return folder


@pytest.mark.parametrize(
    ("name", "replicas"),
    [("stored", 2), ("claimed", 1), ("imaged", 1), ("noded", 1)],
    ids=["s3 by a Job onto a claim", "pvc", "oci", "s3 by the pod into a folder of the node"],
)
def test_the_same_model_serves_from_wherever_it_lies(disk: Disk, name: str, replicas: int) -> None:
    disk.worlds[name].wait_settled(replicas, timeout_seconds=ALL_START_SECONDS)
    disk.worlds["claimed"].wait_settled(1, timeout_seconds=ALL_START_SECONDS)

    assert disk.text(name) == disk.text("claimed"), "other weights would say something else"


def test_a_model_is_read_from_the_store_once_for_all_replicas(world: World, disk: Disk) -> None:
    (job,) = world.kube.items("jobs", NAMESPACE)
    pods = disk.worlds["stored"].pods()
    reads = [line for line in world.kube.run("logs", "store", "-n", NAMESPACE).splitlines() if "GET" in line]

    assert condition(job, "Complete").get("status") == "True"
    assert len(pods) == 2
    assert all(pod["metadata"]["creationTimestamp"] >= job["status"]["completionTime"] for pod in pods)
    # Once for the claim, and once for the folder of the node.
    assert len([line for line in reads if line.endswith("/models/tiny/config.json")]) == 2
    assert list((disk.node / "models").iterdir()), "the node's folder is kept"


@pytest.mark.parametrize(
    ("name", "adapter", "uri"),
    [("stored", "sql", "s3://adapters/sql"), ("claimed", "tax", f"pvc://{CLAIM}/adapters/tax")],
    ids=["s3 by a Job", "pvc"],
)
def test_an_adapter_comes_and_goes_while_engines_serve(disk: Disk, name: str, adapter: str, uri: str) -> None:
    world = disk.worlds[name]
    before, replicas = world.uids(), int(world.pool["spec"]["replicas"])
    base = disk.text(name)

    _set_adapters(world, [{"name": adapter, "uri": uri}])
    wait_for(f"{adapter} in all engines", lambda: _loaded(world, adapter) == replicas or None, timeout_seconds=120)
    wait_for(f"{adapter} at the gateway", lambda: adapter in world.gateway_models() or None, timeout_seconds=30)
    assert disk.text(name, adapter) != base
    assert disk.text(name) == base

    _set_adapters(world, [])
    wait_for(f"{adapter} in no status", lambda: _loaded(world, adapter) is None or None, timeout_seconds=60)
    wait_for(
        f"{adapter} not at the gateway", lambda: adapter not in world.gateway_models() or None, timeout_seconds=30
    )
    assert disk.answer(name, adapter).status_code == 404
    assert world.uids() == before, "no pod was touched"


def test_files_that_nobody_wants_any_more_leave_the_claim(disk: Disk) -> None:
    """`retention: Delete`: the adapter's went with it, the model's are in use, and others' are not the pool's."""

    def left() -> bool | None:
        names = {path.name for path in (disk.claim / "models").iterdir() if path.is_dir()}
        return not any(name.startswith("adapters-sql") for name in names) or None

    wait_for("the adapter's folder to go", left, timeout_seconds=120)
    assert [path.name for path in (disk.claim / "models").iterdir() if path.name.startswith("models-tiny")]
    assert (disk.claim / "plain" / "config.json").exists()


def _set_adapters(world: World, adapters: list[Object]) -> None:
    # A merge patch replaces the list as a whole.
    world.kube.patch("modelpool", world.name, world.namespace, {"spec": {"model": {"adapters": adapters}}})


def _loaded(world: World, adapter: str) -> int | None:
    """Replicas that have the adapter, by status; None where status does not know it."""
    known = (world.resource().get("status") or {}).get("adapters") or []
    found = next((one for one in known if one["name"] == adapter), None)
    assert found is None or found["state"] != "Failed", json.dumps(found)
    return None if found is None else int(found["loadedReplicas"])
