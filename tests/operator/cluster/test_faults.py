"""The operator behind a proxy that goes wrong, before a real API server: each time the pools come right, no pod is
touched that need not be, and nothing is lost."""

import asyncio
import time
from collections.abc import AsyncIterator
from datetime import datetime
from pathlib import Path

import pytest

from faults.proxy import FaultProxy, fault_proxy
from faults.script import Fault, Lose, Refuse, Rule
from pools.live import Live, eventually
from tidepool_api.contract import POD_DELETION_COST, POOL_LABEL
from tidepool_operator.cluster.kinds import DEPLOYMENT, MODEL_POOL, POD, Kind, Object

pytestmark = pytest.mark.apiserver


@pytest.fixture
async def through(live: Live, tmp_path: Path) -> AsyncIterator[tuple[FaultProxy, str]]:
    async with fault_proxy(live.kubeconfig, tmp_path) as made:
        yield made


def of_pool(items: list[Object], pool: str) -> list[Object]:
    return [item for item in items if (item["metadata"].get("labels") or {}).get(POOL_LABEL) == pool]


async def all_of(live: Live, kind: Kind, pool: str, count: int) -> list[Object]:
    async def look() -> list[Object] | None:
        found = [
            one for one in of_pool(await live.list(kind), pool) if not one["metadata"].get("deletionTimestamp")
        ]
        return found if len(found) == count else None

    return await eventually(look, f"{count} of kind {kind} in {pool}")


@pytest.mark.parametrize("fault", [Refuse(409), Lose(), Refuse(500)], ids=["conflict", "lost-answer", "error"])
async def test_whatever_a_scale_down_meets_the_marked_pod_goes_and_no_other(
    live: Live, through: tuple[FaultProxy, str], fault: Fault
) -> None:
    proxy, kubeconfig = through
    marked: set[str] = set()

    def listen(kind: Kind, _before: Object | None, after: Object | None) -> None:
        if kind == POD and after and (after["metadata"].get("annotations") or {}).get(POD_DELETION_COST):
            marked.add(after["metadata"]["name"])

    async with live.operator(kubeconfig=kubeconfig) as operator:
        operator.store.listen(listen)
        await live.create(replicas=2)
        before = await all_of(live, POD, "llama", 2)
        for pod in before:
            await live.bring_up(pod["metadata"]["name"])
        await live.reason("Complete", "Progressing")
        proxy.add(Rule(fault, resource="pods"), Rule(fault, resource="deployments", subresource="scale"))
        await live.edit(MODEL_POOL, "llama", {"spec": {"replicas": 1}}, "scale")
        left = await all_of(live, POD, "llama", 1)
        await live.reason("Complete", "Progressing")

    assert all(rule.met.is_set() for rule in proxy.rules)
    assert {pod["metadata"]["name"] for pod in before} - {pod["metadata"]["name"] for pod in left} == marked


async def test_an_api_server_that_is_away_for_a_moment_is_awaited(
    live: Live, through: tuple[FaultProxy, str]
) -> None:
    proxy, kubeconfig = through
    async with live.operator(kubeconfig=kubeconfig) as operator:
        await live.create(replicas=1)
        [pod] = await all_of(live, POD, "llama", 1)
        await live.bring_up(pod["metadata"]["name"])
        await live.reason("Complete", "Progressing")
        await proxy.down()
        await live.edit(MODEL_POOL, "llama", {"spec": {"replicas": 2}}, "scale")
        await live.create("other")
        await asyncio.sleep(1)
        led = operator.lease.leads
        await proxy.start()
        pods = await all_of(live, POD, "llama", 2)
        await live.reason("Starting", name="other")

    assert led, "an outage shorter than the Lease costs no leadership"
    assert pod["metadata"]["uid"] in {one["metadata"]["uid"] for one in pods}


@pytest.mark.parametrize("ahead_seconds", [7200.0, -7200.0])
async def test_an_operator_whose_clock_is_wrong_takes_the_api_servers(live: Live, ahead_seconds: float) -> None:
    """By a clock two hours ahead every new pod would be later than its deadline of an hour."""
    async with live.operator(local=lambda: time.time() + ahead_seconds):
        await live.create(replicas=1)
        [pod] = await all_of(live, POD, "llama", 1)
        await live.bring_up(pod["metadata"]["name"])
        await live.reason("Complete", "Progressing")
        await live.edit(MODEL_POOL, "llama", {"spec": {"engine": {"maxModelLen": 128}}})
        await live.reason("RollingOut", "Progressing")
        await all_of(live, DEPLOYMENT, "llama", 2)
        since = (await live.condition("Progressing"))["lastTransitionTime"]

    assert abs(time.time() - datetime.fromisoformat(since).timestamp()) < 60
