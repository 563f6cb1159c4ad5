"""What people get wrong, on the real cluster: refused at apply, or told in status with the remedy."""

import copy
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from scenarios.kube import KubectlError, Object, condition, wait_for
from scenarios.pools import ENGINE_IMAGE, cpu_pool
from scenarios.world import World

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

NAMESPACE = "broken"


def plain(name: str, **spec: object) -> Object:
    """A pool of one replica without an engine of any weight: it is made to fail before one would start."""
    pool = cpu_pool(name, NAMESPACE)
    del pool["spec"]["scaling"]
    del pool["spec"]["podTemplate"]
    pool["spec"].update(spec)
    return pool


def engine(**changes: object) -> dict[str, object]:
    """spec.engine of a small pool with changes."""
    return {**cpu_pool()["spec"]["engine"], **changes}


CRASH = {
    "spec": {
        "containers": [
            {"name": "engine", "command": ["/bin/sh", "-c", "echo 'ValueError: no such quantization' >&2; exit 3"]}
        ]
    }
}
# The kubelet keeps the last 2 KiB of a log: here the cause stands before them, as in the traces of real engines.
LONG_LOG = copy.deepcopy(CRASH)
LONG_LOG["spec"]["containers"][0]["command"][2] = (
    "echo 'ValueError: Unknown quantization method: awqq. Must be one of awq, gptq' >&2; "
    "for line in $(seq 200); do echo '  File somewhere, line 1, in a frame of a long trace' >&2; done; "
    "echo 'RuntimeError: Engine core initialization failed. See root cause above.' >&2; exit 1"
)
# name, pool, condition, reason, what the message must tell
BROKEN: list[tuple[str, Object, str, str]] = [
    (
        "no-image",
        plain("no-image", engine=engine(image="localhost/tidepool-none:1")),
        "ImagePullFailed",
        "tidepool-none",
    ),
    (
        "no-secret",
        plain(
            "no-secret", model={"uri": "hf://acme/gated", "authSecretRef": {"name": "hf-token", "key": "token"}}
        ),
        "SecretMissing",
        "hf-token",
    ),
    ("crash", plain("crash", podTemplate=CRASH), "EngineCrashed", "no such quantization"),
    ("long-log", plain("long-log", podTemplate=LONG_LOG), "QuantizationUnfit", "awqq"),
    ("no-claim", plain("no-claim", model={"uri": "pvc://nowhere/llama"}), "VolumePending", "nowhere"),
    (
        "too-many-gpus",
        plain(
            "too-many-gpus",
            accelerator={"resource": "nvidia.com/gpu", "count": 64},
            parallelism={"tensor": 64},
        ),
        "InsufficientAccelerators",
        "64",
    ),
    (
        "bad-template",
        plain(
            "bad-template",
            podTemplate={"spec": {"containers": [{"name": "engine", "imagePullPolicy": "Sometimes"}]}},
        ),
        "PodTemplateRejected",
        "imagePullPolicy",
    ),
]


@pytest.fixture(scope="module")
def namespace(world: World) -> Iterator[str]:
    world.kube.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})
    yield NAMESPACE
    world.kube.run("delete", "namespace", NAMESPACE, "--wait=false")


@pytest.fixture(scope="module")
def broken(world: World, namespace: str) -> None:
    """All of them at once: none may stand in another's way."""
    world.kube.apply(*[pool for _, pool, _, _ in BROKEN])


@pytest.mark.usefixtures("broken")
@pytest.mark.parametrize(("name", "reason", "told"), [(name, reason, told) for name, _, reason, told in BROKEN])
def test_a_pool_that_cannot_run_says_why_and_what_to_do(world: World, name: str, reason: str, told: str) -> None:
    def look() -> Any:
        ready = condition(world.kube.get("modelpool", name, NAMESPACE), "Ready")
        return ready if ready.get("reason") == reason else None

    ready = wait_for(f"{name} to be {reason}", look, timeout_seconds=180)

    assert ready["status"] == "False"
    assert told in ready["message"]


def broken_spec(path: str, value: object) -> Object:
    """A small pool with one field of the spec replaced, by dotted path."""
    pool = copy.deepcopy(plain("refused"))
    pool["spec"]["scaling"] = {"minReplicas": 0, "maxReplicas": 2}
    place = pool["spec"]
    *way, last = path.split(".")
    for key in way:
        place = place.setdefault(key, {})
    place[last] = value
    return pool


@pytest.mark.parametrize(
    ("path", "value", "field", "remedy"),
    [
        ("scaling", {"minReplicas": 3, "maxReplicas": 2}, "maxReplicas", "minReplicas"),
        ("parallelism", {"tensor": 3}, "parallelism", "count"),
        ("scaling.targets", {"kvUtilization": "lots"}, "kvUtilization", "0.8"),
        ("scaling.idleAfter", "ten minutes", "idleAfter", "1h30m"),
        ("colour", "blue", "colour", "unknown field"),
        ("parallelism", {"tensor": 3, "hosts": 2}, "parallelism.hosts", "does not divide tensor x pipeline"),
    ],
)
def test_what_can_never_work_is_refused_at_apply(
    world: World, namespace: str, path: str, value: object, field: str, remedy: str
) -> None:
    with pytest.raises(KubectlError) as refusal:
        world.kube.apply(broken_spec(path, value))

    assert field in str(refusal.value)
    assert remedy in str(refusal.value)
    assert world.kube.get("modelpool", "refused", namespace) is None


@pytest.mark.parametrize(
    ("body", "status", "told"),
    [
        (b"{", 400, "JSON"),
        (b'{"model": "nobody-serves-this", "messages": []}', 404, "nobody-serves-this"),
        (b'{"messages": []}', 400, "model"),
    ],
    ids=["malformed", "unknown model", "no model"],
)
def test_a_bad_request_gets_an_answer_of_the_apis_own_shape(
    world: World, body: bytes, status: int, told: str
) -> None:
    answer = httpx.post(
        f"{world.gateway_url}/v1/chat/completions",
        content=body,
        headers={"content-type": "application/json"},
        timeout=60,
    )

    assert answer.status_code == status
    assert told in answer.json()["error"]["message"]
    assert "Traceback" not in answer.text


def test_the_image_of_the_scenarios_is_the_one_that_the_cluster_brings(world: World) -> None:
    images = world.kube.run("get", "nodes", "-o", "jsonpath={.items[*].status.images[*].names}")

    assert ENGINE_IMAGE in images
