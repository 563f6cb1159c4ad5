"""Nodes that exist on paper: the API server, the controllers and a scheduler take them for real ones."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any

from pools.live import NODE, Live, eventually
from tidepool_operator.cluster.kinds import LEASE, Object

GPU = "nvidia.com/gpu"
_LEASES = "kube-node-lease"
# Well within the controllers' grace period of 20 s.
_BEAT_SECONDS = 3.0


class PaperNodes:
    """Nodes of one test, labelled `test` with its namespace; each has a kubelet's Lease renewed.

    `resource` is what they have of accelerators.
    """

    def __init__(self, live: Live, resource: str = GPU) -> None:
        self._live = live
        self._resource = resource
        self._names: list[str] = []
        self._silent: set[str] = set()

    async def add(self, gpus: int, cpu: str = "64", **spec: Any) -> str:
        """A node that is ready and open to pods; its name."""
        number = len(self._names)
        name = f"{self._live.namespace}-{number}"
        labels = {"test": self._live.namespace, "number": str(number)}
        node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels}, "spec": spec}
        await self._live.api.create(NODE, "", node)
        lease: Object = {"apiVersion": LEASE.api_version, "kind": LEASE.kind, "metadata": {"name": name}}
        await self._live.api.create(LEASE, _LEASES, lease | {"spec": _renewed(name)})
        self._names.append(name)
        amounts = {self._resource: str(gpus), "cpu": cpu, "memory": "512Gi", "pods": "110"}
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        ready = {"type": "Ready", "status": "True", "reason": "Test", "message": ""}
        ready |= {"lastHeartbeatTime": now, "lastTransitionTime": now}
        status = {"capacity": amounts, "allocatable": amounts, "conditions": [ready]}
        await self._live.client.request(
            "PATCH",
            NODE.path(None, name, "status"),
            body={"status": status},
            content_type="application/merge-patch+json",
        )

        async def open_() -> bool:
            taints = ((await self._live.api.get(NODE, None, name)).get("spec") or {}).get("taints") or []
            return not any(taint["key"] == "node.kubernetes.io/not-ready" for taint in taints)

        await eventually(open_, "the node is open to pods")
        return name

    async def beat(self) -> None:
        """Renew the Leases until cancelled."""
        while True:
            for name in set(self._names) - self._silent:
                await self._live.api.patch(LEASE, _LEASES, name, {"spec": _renewed(name)})
            await asyncio.sleep(_BEAT_SECONDS)

    def silence(self, name: str) -> None:
        """Its kubelet is heard of no more."""
        self._silent.add(name)

    async def remove(self) -> None:
        """Take the nodes away, so that no other test's pods find them."""
        for name in self._names:
            await self._live.api.delete(NODE, "", name)


@asynccontextmanager
async def paper_nodes(live: Live, resource: str = GPU) -> AsyncIterator[PaperNodes]:
    """Nodes that live as long as the block."""
    nodes = PaperNodes(live, resource)
    beating = asyncio.create_task(nodes.beat())
    try:
        yield nodes
    finally:
        beating.cancel()
        await asyncio.gather(beating, return_exceptions=True)
        await nodes.remove()


def _renewed(name: str) -> Object:
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    return {"holderIdentity": name, "leaseDurationSeconds": 40, "renewTime": now}
