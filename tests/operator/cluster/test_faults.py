"""The operator behind a proxy that goes wrong, before a real API server: each time the pools come right, no pod is
touched that need not be, and nothing is lost."""

import asyncio
import json
import time
from collections.abc import AsyncIterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from faults.proxy import FaultProxy, fault_proxy
from faults.script import READS, Break, Cut, Expire, Fault, Hang, Lose, Mute, Refuse, Rule, Slow, Verb
from pools.live import Live, eventually
from tidepool_api.contract import POD_DELETION_COST, POOL_LABEL, REVISION_LABEL
from tidepool_operator.cluster.kinds import DEPLOYMENT, ENDPOINT_SLICE, MODEL_POOL, OWNED, POD, Kind, Object

pytestmark = pytest.mark.apiserver

# The cluster's own controller gives its EndpointSlices the labels of the Services.
MADE = tuple(kind for kind in OWNED if kind != ENDPOINT_SLICE)
# A pool of its own for each: names are part of the script.
FAULTS: dict[str, Fault] = {
    "pool-plain": Slow(0.0),
    "pool-conflict": Refuse(409),
    "pool-gone": Refuse(410),
    "pool-patience": Refuse(429, retry_after="1"),
    "pool-much-patience": Refuse(429, retry_after="4"),
    "pool-error": Refuse(500),
    "pool-starting": Refuse(503),
    "pool-gateway": Refuse(504),
    "pool-hang": Hang(),
    "pool-lost-answer": Lose(),
    "pool-broken": Break(),
    "pool-slow": Slow(0.7),
}
# These cost seconds each, or a pause that doubles: so many are enough.
DEAR = {"pool-conflict": 2, "pool-gone": 2, "pool-much-patience": 1, "pool-hang": 1}


def rules(pool: str, fault: Fault) -> list[Rule]:
    """A pool's fault at each kind of request that making it takes."""
    applied = frozenset({Verb.APPLY})
    found = [
        Rule(fault, applied, "deployments", f"{pool}*"),
        Rule(fault, frozenset({Verb.PATCH}), "modelpools", pool, "status"),
        Rule(fault, applied, "deployments", f"{pool}*", dry_run=True),
        Rule(fault, READS, "services", pool),
        Rule(fault, applied, "configmaps", f"{pool}*"),
        Rule(fault, applied, "services", f"{pool}*"),
    ]
    return found[: DEAR.get(pool, len(found))]


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


def asks(items: list[Object], pool: str) -> list[str]:
    """What a pool's objects ask for, without what differs from pool to pool."""
    revision = next(one["metadata"]["labels"][REVISION_LABEL] for one in items if one["kind"] == "Deployment")
    texts = []
    for item in items:
        kept = {key: value for key, value in item.items() if key not in ("metadata", "status")}
        spec = {key: value for key, value in (kept.get("spec") or {}).items() if not key.startswith("clusterIP")}
        text = json.dumps([item["metadata"]["name"], kept | {"spec": spec}], sort_keys=True)
        texts.append(text.replace(revision, "REVISION").replace(pool, "POOL"))
    return sorted(texts)


@pytest.mark.soak
async def test_whatever_a_write_meets_the_pool_is_made_whole(live: Live, through: tuple[FaultProxy, str]) -> None:
    proxy, kubeconfig = through
    for pool, fault in FAULTS.items():
        proxy.add(*rules(pool, fault))
    async with live.operator(kubeconfig=kubeconfig, timeout_seconds=4.0) as operator:
        for pool in FAULTS:
            await live.create(pool, replicas=1)
        for pool in FAULTS:
            await live.reason("Starting", name=pool)
            await all_of(live, POD, pool, 1)
        await eventually(lambda: _empty(operator), "the queue is empty")
        items = [{**item, "kind": kind.kind} for kind in MADE for item in await live.list(kind)]

    assert all(rule.met.is_set() for rule in proxy.rules), "each pool has met its faults"
    assert min(pauses(proxy, "pool-patience")) >= 1.0
    assert min(pauses(proxy, "pool-much-patience")) >= 4.0
    plain = asks(of_pool(items, "pool-plain"), "pool-plain")
    assert len(plain) == 7, "six objects of other kinds and a Deployment"
    for pool in FAULTS:
        assert asks(of_pool(items, pool), pool) == plain, pool


def pauses(proxy: FaultProxy, pool: str) -> list[float]:
    """Seconds from each refusal about a pool to the next request of the same kind."""
    log = [one for one in proxy.log if one.name.startswith(pool)]
    return [
        next(
            later.at - one.at
            for later in log[number + 1 :]
            if (later.verb, later.resource, later.name, later.subresource, later.dry_run)
            == (one.verb, one.resource, one.name, one.subresource, one.dry_run)
        )
        for number, one in enumerate(log)
        if one.fault == "Refuse"
    ]


async def _empty(operator: Any) -> bool:
    return len(operator.queue) == 0


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
        await eventually(lambda: _heard(marked), "the watch has told of the mark")

    assert all(rule.met.is_set() for rule in proxy.rules)
    assert {pod["metadata"]["name"] for pod in before} - {pod["metadata"]["name"] for pod in left} == marked


async def _heard(marked: set[str]) -> bool:
    return bool(marked)


WATCH_FAULTS: dict[str, Fault] = {
    "silent": Mute(),
    "cut": Cut(),
    "expired": Expire(),
    "refused-expired": Refuse(410),
    "error-event": Expire(code=500),
    "refused": Refuse(500),
    "busy": Refuse(429, retry_after="1"),
    "slow": Slow(0.5),
}


@pytest.mark.soak
async def test_whatever_a_watch_meets_what_happens_is_learned(live: Live, through: tuple[FaultProxy, str]) -> None:
    proxy, kubeconfig = through
    async with live.operator(kubeconfig=kubeconfig, watch_silence_seconds=1.5, sweep_seconds=1.0) as operator:
        await live.create(replicas=1)
        [pod] = await all_of(live, POD, "llama", 1)
        name, ready = pod["metadata"]["name"], False
        for what, fault in WATCH_FAULTS.items():
            rule = Rule(fault, frozenset({Verb.WATCH}), "pods")
            proxy.add(rule)
            proxy.cut()
            await asyncio.wait_for(rule.met.wait(), 20)
            ready = not ready
            await live.bring_up(name, ready)

            async def told(expected: str = "True" if ready else "False") -> bool:
                return (await live.condition()).get("status") == expected

            await eventually(told, f"it is told that the pod is {'' if ready else 'not '}ready: {what}", 30)
        # A pod that went while nobody listened, and was seen by no watch since.
        proxy.add(Rule(Mute(), frozenset({Verb.WATCH}), "pods"))
        proxy.cut()
        await live.client.request("DELETE", POD.path(live.namespace, name), body={"gracePeriodSeconds": 0})
        [other] = await all_of(live, POD, "llama", 1)
        await live.bring_up(other["metadata"]["name"])
        await live.reason("Complete", "Progressing")
        await eventually(lambda: _knows(operator, {other["metadata"]["name"]}), "the store forgets what is gone")
        touched = [one for one in proxy.writes() if one.resource == "pods"]

    assert touched == []


async def _knows(operator: Any, names: set[str]) -> bool:
    return {pod["metadata"]["name"] for pod in operator.store.all(POD)} == names


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
