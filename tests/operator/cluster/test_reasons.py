"""Reasons that rest on what only a real API server gives: events, the published schema, what it refuses."""

from copy import deepcopy
from typing import Any

import pytest

from pools.live import CRD, Live, eventually
from tidepool_operator.cluster.kinds import CORE_EVENT, POD, Object

pytestmark = pytest.mark.apiserver


async def a_pod(live: Live) -> Object:
    async def look() -> Object | None:
        pods = await live.list(POD)
        return pods[0] if pods else None

    return await eventually(look, "a pod is made")


async def tell(live: Live, pod: Object, reason: str, message: str, place: str = "") -> None:
    """What a kubelet does: an event about the pod."""
    about = {
        "kind": "Pod",
        "namespace": live.namespace,
        "name": pod["metadata"]["name"],
        "uid": pod["metadata"]["uid"],
    }
    body = {
        "metadata": {"generateName": "said-", "namespace": live.namespace},
        "involvedObject": {**about, "fieldPath": place},
        "reason": reason,
        "message": message,
        "type": "Warning",
        "lastTimestamp": "2026-01-01T00:00:00Z",
    }
    await live.client.request("POST", CORE_EVENT.path(live.namespace), body=body)


async def say(live: Live, pod: Object, **engine: Any) -> None:
    """What a kubelet says of the engine's container."""
    status = {
        "phase": "Pending",
        "conditions": [
            {"type": "PodScheduled", "status": "True"},
            {"type": "Ready", "status": "False", "lastTransitionTime": "2026-01-01T00:00:00Z"},
        ],
        "containerStatuses": [
            {
                "name": "engine",
                "image": "x",
                "imageID": "x",
                "ready": False,
                "started": False,
                "restartCount": 0,
                **engine,
            }
        ],
    }
    await live.edit(POD, pod["metadata"]["name"], {"status": status}, "status")


async def test_a_volume_that_cannot_be_mounted_is_no_longer_just_starting(live: Live) -> None:
    async with live.operator():
        await live.create(accelerator={"count": 0}, model={"uri": "pvc://models/llama"})
        pod = await a_pod(live)
        await tell(live, pod, "FailedMount", "Unable to attach or mount volumes: unmounted volumes=[model]")
        await say(live, pod, state={"waiting": {"reason": "ContainerCreating"}})
        ready = await live.reason("VolumeNotMounted")

    assert "unmounted volumes=[model]" in ready["message"]
    assert "ReadWriteOnce" in ready["message"], "and what to do"


async def test_a_probe_that_ends_a_slow_load_is_named(live: Live) -> None:
    async with live.operator():
        await live.create(accelerator={"count": 0})
        pod = await a_pod(live)
        await tell(live, pod, "Killing", "Container engine failed startup probe, will be restarted")
        await say(
            live,
            pod,
            state={"waiting": {"reason": "CrashLoopBackOff"}},
            lastState={"terminated": {"exitCode": 137, "reason": "Error"}},
        )
        ready = await live.reason("ProbeEndsEngine")

    assert "failureThreshold" in ready["message"]


async def test_a_log_that_cannot_be_read_leaves_the_termination_message(live: Live) -> None:
    """No kubelet stands behind this API server: it refuses the log, and the reconcile goes on."""
    last = {"exitCode": 1, "message": "ValueError: Unknown quantization method: awqq. Must be one of"}
    async with live.operator():
        await live.create(accelerator={"count": 0})
        pod = await a_pod(live)
        await say(live, pod, state={"waiting": {"reason": "CrashLoopBackOff"}}, lastState={"terminated": last})
        ready = await live.reason("QuantizationUnfit")

    assert "awqq" in ready["message"]


async def test_a_crd_that_an_upgrade_left_behind_is_told_with_what_it_drops(live: Live) -> None:
    name = "modelpools.tidepool.dev"
    whole = await live.api.get(CRD, None, name)
    old = deepcopy(whole["spec"])
    (version,) = old["versions"]
    del version["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]["scheduling"]["properties"][
        "priorityClassName"
    ]
    path = CRD.path(None, name)
    patch = "application/merge-patch+json"
    await live.client.request("PATCH", path, body={"spec": old}, content_type=patch)
    try:

        async def published() -> bool | None:
            schema = await live.api.schema("tidepool.dev", "v1alpha1", "ModelPool") or {}
            spec = schema["properties"]["spec"]["properties"]
            return "priorityClassName" not in spec["scheduling"]["properties"] or None

        await eventually(published, "the old schema is published")
        async with live.operator():
            await live.create(accelerator={"count": 0}, replicas=0)
            degraded = await live.reason("StaleCrd", "Degraded")
    finally:
        await live.client.request("PATCH", path, body={"spec": whole["spec"]}, content_type=patch)

    assert "spec.scheduling.priorityClassName" in degraded["message"]
    assert "helm upgrade" in degraded["message"]


async def test_a_crd_of_this_release_is_not_complained_of(live: Live) -> None:
    async def whole() -> bool | None:
        schema = await live.api.schema("tidepool.dev", "v1alpha1", "ModelPool") or {}
        return (
            "priorityClassName" in schema["properties"]["spec"]["properties"]["scheduling"]["properties"] or None
        )

    await eventually(whole, "this release's schema is published")
    async with live.operator() as operator:
        await live.create(accelerator={"count": 0}, replicas=0)
        await operator.parts.schema.look()
        degraded = await live.reason("Healthy", "Degraded")

    assert degraded["status"] == "False"
