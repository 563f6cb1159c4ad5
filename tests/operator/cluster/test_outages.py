"""What lasts: the API server and etcd restart, the operator is away, killed at each write, or loses its Lease."""

import asyncio
import json
import os
import sys
import time
import urllib.request
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from cluster.apiserver import ControlPlane
from faults.proxy import FaultProxy, fault_proxy
from faults.script import WRITES, Break, Hang, Lose, Rule, Verb
from pools.live import NAMESPACE, Live, eventually, install_crds
from tidepool_api.contract import POOL_LABEL
from tidepool_operator.cluster.api import Api
from tidepool_operator.cluster.client import Client
from tidepool_operator.cluster.kinds import ENDPOINT_SLICE, LEASE, MODEL_POOL, OWNED, POD, SERVICE, Object

pytestmark = [pytest.mark.apiserver, pytest.mark.soak]

# The cluster's own controller gives its EndpointSlices the labels of the Services.
MADE = tuple(kind for kind in OWNED if kind != ENDPOINT_SLICE)
# A program that starts on a busy machine takes a while, and the one before it is killed in the middle of it.
PATIENCE_SECONDS = 240.0


@pytest.fixture(scope="module")
def own_plane() -> Iterator[ControlPlane]:
    """Its programs are ended and begun again: nobody else may live there."""
    with ControlPlane(controllers=True) as made:
        yield made


@dataclass
class Behind:
    """A namespace, and the proxy before its API server."""

    live: Live
    proxy: FaultProxy
    kubeconfig: str
    plane: ControlPlane


@pytest.fixture
async def behind(own_plane: ControlPlane, tmp_path: Path) -> AsyncIterator[Behind]:
    async with await Client.connect(str(own_plane.kubeconfig)) as client:
        await install_crds(client)
        api, name = Api(client), f"outage-{time.monotonic_ns():x}"
        await api.create(NAMESPACE, "", {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
        live = Live(client, api, str(own_plane.kubeconfig), name)
        async with fault_proxy(live.kubeconfig, tmp_path) as (proxy, kubeconfig):
            yield Behind(live, proxy, kubeconfig, own_plane)


async def pods(live: Live, count: int, pool: str = "llama") -> list[Object]:
    async def look() -> list[Object] | None:
        found = [
            pod
            for pod in await live.list(POD)
            if not pod["metadata"].get("deletionTimestamp") and pod["metadata"]["labels"][POOL_LABEL] == pool
        ]
        return found if len(found) == count else None

    return await eventually(look, f"{count} pods")


async def serve(live: Live, count: int) -> list[str]:
    """A pool with pods that serve; their uids."""
    await live.create(replicas=count)
    found = await pods(live, count)
    for pod in found:
        await live.bring_up(pod["metadata"]["name"])
    await live.reason("Complete", "Progressing")
    return [pod["metadata"]["uid"] for pod in found]


@pytest.mark.parametrize("program", ["kube-apiserver", "etcd"])
async def test_a_restart_of_the_control_plane_is_sat_out(behind: Behind, program: str) -> None:
    live, plane = behind.live, behind.plane
    async with live.operator() as operator:
        before = await serve(live, 2)
        plane.end(program)
        await asyncio.sleep(9)  # longer than the Lease lasts without a renewal
        led = operator.lease.leads
        await asyncio.to_thread(plane.begin, program)

        async def patched() -> bool:
            try:
                await live.edit(MODEL_POOL, "llama", {"spec": {"replicas": 3}}, "scale")
            except Exception:
                return False
            return True

        await eventually(patched, "the API server takes writes again")
        after = await pods(live, 3)
        await live.create("later")
        await live.reason("Starting", name="later")

        async def healthy() -> bool:
            return not operator.complaints()

        await eventually(healthy, "no watch is quiet")

    assert not led
    assert set(before) < {pod["metadata"]["uid"] for pod in after}


def compact(plane: ControlPlane) -> None:
    """Forget all history, as the API server does every five minutes."""

    def ask(path: str, body: dict[str, Any]) -> dict[str, Any]:
        request = urllib.request.Request(f"{plane.etcd_url}{path}", json.dumps(body).encode())
        with urllib.request.urlopen(request, timeout=10) as answer:
            found: dict[str, Any] = json.load(answer)
            return found

    revision = ask("/v3/kv/range", {"key": "eA=="})["header"]["revision"]
    ask("/v3/kv/compaction", {"revision": revision, "physical": True})


async def test_after_an_hour_away_what_happened_meanwhile_is_learned(behind: Behind) -> None:
    """Its watches' versions are compacted by then, and the API server has no memory of them either: 410."""
    live, proxy = behind.live, behind.proxy
    async with live.operator(kubeconfig=behind.kubeconfig, sweep_seconds=2.0) as operator:
        await serve(live, 2)
        await live.create("doomed")
        await live.reason("Starting", name="doomed")
        await proxy.down()
        [gone, kept] = await pods(live, 2)
        await live.api.delete(MODEL_POOL, live.namespace, "doomed")
        await live.api.delete(SERVICE, live.namespace, "llama")
        await live.client.request(
            "DELETE", POD.path(live.namespace, gone["metadata"]["name"]), body={"gracePeriodSeconds": 0}
        )
        await live.create("new")

        async def replaced() -> bool:
            return gone["metadata"]["uid"] not in {pod["metadata"]["uid"] for pod in await pods(live, 2)}

        await eventually(replaced, "the ReplicaSet has made another pod")
        await asyncio.to_thread(compact, behind.plane)
        behind.plane.end("kube-apiserver")
        await asyncio.to_thread(behind.plane.begin, "kube-apiserver")
        since = len(proxy.log)
        await proxy.start()
        await live.reason("Starting", name="new")
        await eventually(lambda: live.get(SERVICE, "llama"), "the Service is made again")

        async def current() -> bool:
            known = {str(kind): set(operator.store.keys(kind)) for kind in (*OWNED, POD, MODEL_POOL)}
            names = {pool.name for pool in operator.store.keys(MODEL_POOL)}
            uids = {pod["metadata"]["uid"] for pod in operator.store.all(POD)}
            return names == {"llama", "new"} and gone["metadata"]["uid"] not in uids and bool(known)

        await eventually(current, "the store holds what there is")
        touched = [one for one in proxy.writes(since) if one.resource == "pods"]

    assert touched == []
    assert kept["metadata"]["uid"] in {pod["metadata"]["uid"] for pod in await pods(live, 2)}


@pytest.mark.timeout(900)
async def test_of_two_operators_one_that_cannot_renew_its_lease_stops_before_the_other_writes(
    behind: Behind, tmp_path: Path
) -> None:
    live, proxy = behind.live, behind.proxy
    async with (
        fault_proxy(live.kubeconfig, tmp_path) as (other, kubeconfig),
        live.operator("one", kubeconfig=behind.kubeconfig) as first,
    ):
        second = asyncio.create_task(_lead(live, kubeconfig))
        await live.create("early", replicas=1)
        await live.reason("Starting", name="early")
        # Only its Lease: everything else of the API server still answers it.
        proxy.add(Rule(Hang(), WRITES | {Verb.GET}, "leases", times=10_000))
        for number in range(60):
            if second.done():
                break
            await live.create(f"busy-{number}", replicas=1)
            await asyncio.sleep(1.0)
        await second
        led = first.lease.leads
        proxy.rules.clear()
    assert not led
    last = max(one.at for one in proxy.writes() if one.status < 400)
    begun = min(one.at for one in other.writes())

    assert last < begun, "each write has one operator behind it"


async def _lead(live: Live, kubeconfig: str) -> None:
    async with live.operator("two", kubeconfig=kubeconfig) as operator:

        async def idle() -> bool:
            return operator.figures.reconciles > 0 and len(operator.queue) == 0

        await eventually(idle, "the second has looked at everything")


@asynccontextmanager
async def program(behind: Behind, log: Path) -> AsyncIterator[asyncio.subprocess.Process]:
    """The operator as it is installed; killed in the end, and its Lease with it, which nobody gives back."""
    namespace = behind.live.namespace
    with log.open("ab") as out:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "tidepool_operator", "run", "--kubeconfig", behind.kubeconfig,
            "--namespace", namespace, "--watch-namespaces", namespace, "--router-image", "tidepool-router:test",
            "--health-host", "127.0.0.1", "--health-port", "0",
            stdout=out, stderr=out, env={**os.environ, "KUBECONFIG": ""},
        )  # fmt: skip
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
        await behind.live.api.delete(LEASE, namespace, "tidepool-operator")


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("fault", [Break(), Lose()], ids=["before", "after"])
async def test_killed_at_every_write_in_turn_the_next_one_takes_up_where_it_was(
    behind: Behind, tmp_path: Path, fault: Break | Lose
) -> None:
    """At a pool's n-th write its connection breaks and the program is killed: before it is done, or after. The
    next program finds what that left, and is killed at the next pool's next write."""
    live, log = behind.live, tmp_path / "operator.log"
    number = 0
    while await _killed_at(behind, f"pool-{number:02}", number, fault, log):
        number += 1
    assert number >= len(MADE), "each kind of object is written, and a status"

    async with program(behind, log):
        for done in range(number + 1):
            await live.reason("Starting", name=f"pool-{done:02}", seconds=PATIENCE_SECONDS)
            await pods(live, 1, f"pool-{done:02}")
        made = [_pool(item) for kind in MADE for item in await live.list(kind)]

    counts = Counter(pool for pool in made if pool)
    assert len(counts) == number + 1
    assert len(set(counts.values())) == 1, f"what was interrupted is like the last, which was not: {counts}"


async def _killed_at(behind: Behind, pool: str, number: int, fault: Break | Lose, log: Path) -> bool:
    """Make a pool, and kill the operator at the write of that number about it; False: it has no more of them."""
    rule = Rule(fault, skip=number, name=f"{pool}*")
    behind.proxy.rules[:] = [rule]
    await behind.live.create(pool, replicas=1)
    async with program(behind, log):
        killed = asyncio.create_task(rule.met.wait())
        whole = asyncio.create_task(behind.live.reason("Starting", name=pool, seconds=PATIENCE_SECONDS))
        try:
            await asyncio.wait([killed, whole], return_when=asyncio.FIRST_COMPLETED)
        finally:
            killed.cancel()
            whole.cancel()
            results = await asyncio.gather(killed, whole, return_exceptions=True)
    if not rule.met.is_set() and isinstance(results[1], BaseException):
        said = await asyncio.to_thread(log.read_text)
        raise AssertionError(f"killed at write {number}: {said[-2000:]}") from results[1]
    return rule.met.is_set()


def _pool(item: Object) -> str | None:
    labels: dict[str, str] = item["metadata"].get("labels") or {}
    return labels.get(POOL_LABEL)
