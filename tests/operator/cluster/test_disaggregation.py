"""Two roles of one pool on a real API server: made, complete, quiet, and made one again."""

import asyncio

import pytest

from pools.live import Live, eventually
from tidepool_api.contract import ROLE_LABEL
from tidepool_operator.cluster.kinds import DEPLOYMENT, DISRUPTION_BUDGET, MODEL_POOL, POD, SERVICE, Object

pytestmark = pytest.mark.apiserver


async def _pods(live: Live, *roles: str) -> list[Object]:
    async def look() -> list[Object] | None:
        found = [pod for pod in await live.list(POD) if not pod["metadata"].get("deletionTimestamp")]
        return found if sorted(pod["metadata"]["labels"][ROLE_LABEL] for pod in found) == sorted(roles) else None

    return await eventually(look, f"pods of {roles}")


async def test_a_pool_is_taken_apart_and_put_together_again(live: Live) -> None:
    async with live.operator():
        await live.create(disaggregation={"prefill": {"replicas": 2}})
        for pod in await _pods(live, "decode", "prefill", "prefill"):
            await live.bring_up(pod["metadata"]["name"])
        await live.reason("Complete", "Progressing")
        services = {item["metadata"]["name"]: item["spec"]["selector"] for item in await live.list(SERVICE)}
        budgets = [item["metadata"]["name"] for item in await live.list(DISRUPTION_BUDGET)]
        pool = await live.get(MODEL_POOL, "llama")
        before = await live.versions()
        await asyncio.sleep(1.0)  # nothing happens, which has no event
        after = await live.versions()

        await live.edit(MODEL_POOL, "llama", {"spec": {"disaggregation": None}})

        async def mixed() -> Object | None:
            found = [pod for pod in await live.list(POD) if pod["metadata"]["labels"][ROLE_LABEL] == "mixed"]
            return found[0] if found else None

        await live.bring_up((await eventually(mixed, "a pod that does both"))["metadata"]["name"])

        async def together() -> bool:
            deployments = await live.list(DEPLOYMENT)
            roles = {item["metadata"]["labels"][ROLE_LABEL] for item in deployments if item["spec"]["replicas"]}
            return roles == {"mixed"} and not any(
                item["metadata"]["labels"][ROLE_LABEL] == "prefill" for item in deployments
            )

        await eventually(together, "only pods that do both, and no Deployment of prefill pods")

    assert {name: selector.get(ROLE_LABEL) for name, selector in services.items()} == {
        "llama": "decode",
        "llama-peers": "decode",
        "llama-prefill": "prefill",
    }
    assert budgets == ["llama", "llama-prefill"]
    assert pool is not None
    assert (pool["status"]["readyReplicas"], pool["status"]["prefill"]["readyReplicas"]) == (1, 2)
    assert before == after
