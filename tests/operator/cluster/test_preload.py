"""Jobs that load models, on a real API server with its controllers, under the strictest Pod Security Standard."""

import pytest

from cluster import tools
from pools.live import Live, eventually, restricted
from tidepool_api import contract
from tidepool_operator.cluster.kinds import DEPLOYMENT, JOB, MODEL_POOL, POD, Object

pytestmark = pytest.mark.apiserver

STORED = {"model": {"uri": "s3://models/llama"}, "cache": {"persistentVolumeClaim": "models"}}
LINE = "tidepool_router.loading.errors.StorageAccessDeniedError: s3://models/llama: SignatureDoesNotMatch"


async def pods_of(live: Live, label: str, value: str) -> list[Object] | None:
    found = await live.api.list(POD, live.namespace, labels=f"{label}={value}")
    return found or None


async def deployments(live: Live) -> list[Object] | None:
    return await live.list(DEPLOYMENT) or None


async def test_a_model_is_loaded_by_a_job_and_then_there_are_pods(live_alone: Live) -> None:
    live = live_alone  # behind others on one API server it was seen to wait in vain, one time in two
    await restricted(live)
    async with live.operator():
        await live.create(replicas=2, **STORED)
        await live.reason("Preloading")
        (loading,) = await eventually(lambda: pods_of(live, contract.LOADS_FOR_LABEL, "llama"), "the Job's pod")
        name = loading["metadata"]["name"]
        broken = {"name": "loader", "image": "x", "imageID": "x", "ready": False, "restartCount": 3}
        state = {"waiting": {"reason": "CrashLoopBackOff"}}
        ended = {"terminated": {"exitCode": 1, "message": LINE}}
        statuses = [{**broken, "state": state, "lastState": ended}]
        await live.edit(POD, name, {"status": {"phase": "Running", "containerStatuses": statuses}}, "status")
        said = await live.reason("StorageAccessDenied")
        assert "AWS_ACCESS_KEY_ID" in said["message"], "what to do"
        stored = await live.get(MODEL_POOL, "llama") or {}
        assert stored["status"]["replicas"] == 0, "the Job's pod is none of the pool's"
        assert await deployments(live) is None

        await live.edit(POD, name, {"status": {"phase": "Succeeded"}}, "status")
        (made,) = await eventually(lambda: deployments(live), "pods of the model")
        assert made["spec"]["replicas"] == 2
        engines = await eventually(lambda: pods_of(live, contract.POOL_LABEL, "llama"), "engines")
        assert {volume["name"] for volume in engines[0]["spec"]["volumes"]} >= {"cache"}
        before = await live.versions()

        await live.api.delete(MODEL_POOL, live.namespace, "llama")

        async def gone() -> bool:
            return not await live.list(JOB) and not await live.list(DEPLOYMENT)

        await eventually(gone, "nothing is left")
        assert [name for name in before if name.startswith("Job/")], "there was one"


@pytest.mark.skipif(tools.kubernetes_version() < (1, 35), reason="images are volumes by default since 1.35")
async def test_an_image_of_files_is_a_volume_of_pods_that_the_strictest_standard_lets_in(live: Live) -> None:
    await restricted(live)
    uri = "oci://registry.local:5000/acme/llama:v1#fp8"
    async with live.operator():
        await live.create(model={"uri": uri, "authSecretRef": {"name": "registry"}})
        (engine, *_) = await eventually(lambda: pods_of(live, contract.POOL_LABEL, "llama"), "engines")

    volumes = {volume["name"]: volume for volume in engine["spec"]["volumes"]}
    assert volumes["model"]["image"]["reference"] == "registry.local:5000/acme/llama:v1"
    assert engine["spec"]["imagePullSecrets"] == [{"name": "registry"}]
