"""What docs/operations.md says of a backup: the file that is kept brings the pools back, where nothing is left of
them and where all is there."""

import asyncio
from pathlib import Path

import pytest

from cluster import tools
from pools.live import Live, eventually
from tidepool_api.contract import FLEET_CONFIGMAP
from tidepool_operator.cluster.kinds import AGENT_WORKFLOW, DEPLOYMENT, MODEL_POOL, OWNED, POD, Object

pytestmark = [pytest.mark.apiserver, pytest.mark.soak]

PAGE = (Path(__file__).parents[3] / "docs" / "operations.md").read_text()


async def kubectl(live: Live, *words: str, stdin: str = "") -> str:
    """As a user types it."""
    command = [str(tools.tool_path("kubectl")), f"--kubeconfig={live.kubeconfig}", *words]
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe, stderr=pipe)
    said, failed = await asyncio.wait_for(process.communicate(stdin.encode()), 120)
    assert process.returncode == 0, failed.decode()
    return said.decode()


async def shape(live: Live) -> Object:
    """The pool's spec, its Deployments by name, and its pods."""
    pool = await live.get(MODEL_POOL, "llama") or {}
    deployments = {item["metadata"]["name"]: item["spec"]["replicas"] for item in await live.list(DEPLOYMENT)}
    return {"spec": pool.get("spec"), "deployments": deployments, "pods": len(await live.list(POD))}


async def test_what_was_kept_brings_pools_and_workflows_back_and_restarts_nothing(
    live: Live,
) -> None:
    assert "kubectl get mp,aw --all-namespaces -o yaml > tidepool.yaml" in PAGE
    step = {"name": "ask", "llm": {"pools": [{"name": "llama"}], "messages": [{"role": "user", "content": "hi"}]}}
    flow = {"kind": "AgentWorkflow", "apiVersion": AGENT_WORKFLOW.api_version, "spec": {"steps": [step]}}
    async with live.operator():
        await live.create(replicas=2, engine={"maxModelLen": 2048}, accelerator={"count": 0})
        await live.api.create(AGENT_WORKFLOW, live.namespace, {**flow, "metadata": {"name": "flow"}})
        await eventually(lambda: _whole(live, 2), "two pods")
        for pod in await live.list(POD):
            await live.bring_up(pod["metadata"]["name"])
        await live.reason("Complete", "Progressing")
        before = await shape(live)
        uids = {pod["metadata"]["uid"] for pod in await live.list(POD)}
        kept = await kubectl(live, "get", "mp,aw", "-n", live.namespace, "-o", "yaml")

        await kubectl(live, "apply", "-f", "-", stdin=kept)
        await live.reason("Complete", "Progressing")
        assert {pod["metadata"]["uid"] for pod in await live.list(POD)} == uids, "all is there: nothing restarts"

        await live.api.delete(MODEL_POOL, live.namespace, "llama")
        await live.api.delete(AGENT_WORKFLOW, live.namespace, "flow")
        await eventually(lambda: _empty(live), "nothing is left", 120)
        await kubectl(live, "apply", "-f", "-", stdin=kept)
        await live.reason("Starting")
        await eventually(lambda: _whole(live, 2), "two pods again")

    assert await shape(live) == before
    assert await live.get(AGENT_WORKFLOW, "flow") is not None


async def _whole(live: Live, pods: int) -> bool:
    return len(await live.list(POD)) == pods


async def _empty(live: Live) -> bool:
    items = [item for kind in (*OWNED, POD, MODEL_POOL, AGENT_WORKFLOW) for item in await live.list(kind)]
    return [item["metadata"]["name"] for item in items] == [FLEET_CONFIGMAP]
