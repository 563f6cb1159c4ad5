"""A crowd: a real API server with its controllers and scheduler, and nodes and kubelets on paper by kwok.

Runs in a network of its own, in which every address of pods is this machine's: doubles stand for all sidecars.
"""

import asyncio
import contextlib
import json
import os
import ssl
import sys
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final, NoReturn

import aiohttp
import yaml

from cluster import chromium, tools
from cluster.apiserver import ControlPlane
from cluster.ports import free_ports

from . import audit

Object = dict[str, Any]
GPU: Final = "nvidia.com/gpu"
NAMESPACES: Final = 10
_MANIFESTS: Final = Path(__file__).parents[2] / "crds" / "manifests"
_STAGES: Final = Path(__file__).with_name("paper.yaml")
_AT_ONCE: Final = 40
_PODS_A_NODE: Final = 200
# What limits clients of a cluster in use is no part of what is measured.
_FAST: Final = ("--kube-api-qps=1000", "--kube-api-burst=2000")
_MERGE: Final = "application/merge-patch+json"


class Rest:
    """The bench's own requests, told from others by their agent."""

    def __init__(self, plane: ControlPlane) -> None:
        context = ssl.create_default_context(cafile=str(plane.authority))
        headers = {"Authorization": f"Bearer {plane.token}", "User-Agent": "bench"}
        connector = aiohttp.TCPConnector(ssl=context, limit=0)
        self._session = aiohttp.ClientSession(
            plane.url, headers=headers, connector=connector, timeout=aiohttp.ClientTimeout(total=None)
        )
        self._slots = asyncio.Semaphore(_AT_ONCE)

    async def close(self) -> None:
        """Close its connections."""
        await self._session.close()

    async def get(self, path: str) -> Object:
        """One answer."""
        async with self._slots, self._session.get(path) as answer:
            answer.raise_for_status()
            found: Object = await answer.json()
            return found

    async def create(self, path: str, body: Object) -> None:
        """A new object; one that is there already is as good."""
        async with self._slots, self._session.post(path, json=body) as answer:
            if answer.status != 409:
                answer.raise_for_status()

    async def patch(self, path: str, change: Object) -> Object:
        """A merge patch; the object after it."""
        async with self._slots, self._session.patch(path, json=change, headers={"Content-Type": _MERGE}) as answer:
            answer.raise_for_status()
            found: Object = await answer.json()
            return found

    async def watch(self, path: str) -> AsyncIterator[Object]:
        """Objects as they change, from now on, for ever."""
        while True:
            async with self._session.get(path, params={"watch": "true"}) as answer:
                async for line in answer.content:
                    yield json.loads(line)["object"]


_LONGEST_LINE_BYTES = 1 << 20


class Crowd:
    """The plane, and what is in it."""

    def __init__(self, plane: ControlPlane, rest: Rest, log: Path) -> None:
        self.plane = plane
        self.rest = rest
        self._log = log

    def mark(self) -> int:
        """A place in the audit log: now, at the beginning of a line."""
        with self._log.open("rb") as file:
            begin = max(0, self._log.stat().st_size - _LONGEST_LINE_BYTES)
            file.seek(begin)
            return begin + len(audit.whole(file.read()))

    def written(self, begin: int, end: int | None = None) -> list[audit.Write]:
        """What was written between two marks."""
        with self._log.open("rb") as file:
            file.seek(begin)
            text = file.read() if end is None else file.read(end - begin)
        return list(audit.writes(audit.whole(text).decode().splitlines()))

    async def nodes(self, pods: int) -> None:
        """As many nodes as these pods need."""
        count = -(-pods // _PODS_A_NODE)
        amounts = {GPU: str(_PODS_A_NODE), "cpu": "1000", "memory": "4Ti", "pods": str(_PODS_A_NODE)}
        await gathered(
            self.rest.create(
                "/api/v1/nodes",
                {
                    "metadata": {"name": f"paper-{number}", "labels": {"type": "kwok"}},
                    "spec": {"podCIDR": f"10.97.{number}.0/24", "podCIDRs": [f"10.97.{number}.0/24"]},
                    "status": {"allocatable": amounts, "capacity": amounts},
                },
            )
            for number in range(count)
        )

    async def pools(self, count: int, pods: int, scaled: int) -> None:
        """ModelPools of one accelerator a pod; the first `scaled` are scaled by Tidepool."""
        names = [f"team-{number}" for number in range(NAMESPACES)]
        await gathered(self.rest.create("/api/v1/namespaces", {"metadata": {"name": name}}) for name in names)
        await gathered(
            self.rest.create(
                pool_path(number).rpartition("/")[0],
                {
                    "apiVersion": "tidepool.dev/v1alpha1",
                    "kind": "ModelPool",
                    "metadata": {"name": pool_name(number)},
                    "spec": {
                        "model": {"uri": "hf://acme/llama"},
                        "accelerator": {"resource": GPU, "count": 1},
                        "replicas": pods,
                        **({"scaling": {"minReplicas": pods, "maxReplicas": pods}} if number < scaled else {}),
                    },
                },
            )
            for number in range(count)
        )

    async def ready(self) -> tuple[int, int]:
        """Pools whose status says that all is done, and pods that they count as ready."""
        items = (await self.rest.get("/apis/tidepool.dev/v1alpha1/modelpools"))["items"]
        complete = [item for item in items if _complete(item)]
        return len(complete), sum(item["status"]["readyReplicas"] for item in complete)

    async def pod_addresses(self) -> dict[str, str]:
        """Pool ("team-0/pool-0") by the address of each of its pods."""
        items = (await self.rest.get("/api/v1/pods?labelSelector=tidepool.dev/pool"))["items"]
        return {
            item["status"][
                "podIP"
            ]: f"{item['metadata']['namespace']}/{item['metadata']['labels']['tidepool.dev/pool']}"
            for item in items
        }

    async def pod_versions(self) -> dict[str, str]:
        """resourceVersion of every pod by its uid: what has been touched has another one."""
        items = (await self.rest.get("/api/v1/pods"))["items"]
        return {item["metadata"]["uid"]: item["metadata"]["resourceVersion"] for item in items}


def pool_name(number: int) -> str:
    """Of the pool of that number."""
    return f"pool-{number}"


def pool_key(number: int) -> str:
    """Namespace and name of the pool of that number."""
    return f"team-{number % NAMESPACES}/{pool_name(number)}"


def pool_path(number: int) -> str:
    """Its path in the API."""
    namespace, _, name = pool_key(number).partition("/")
    return f"/apis/tidepool.dev/v1alpha1/namespaces/{namespace}/modelpools/{name}"


async def gathered(work: Iterable[Any]) -> Sequence[Any]:
    """All of it, the slots of Rest set the pace."""
    return await asyncio.gather(*work)


def fetched() -> tuple[Path, Path]:
    """kwok and the scheduler, and beside them all that a run needs: its own network leads to no place to fetch it.

    Raises ToolsError.
    """
    tools.build()
    chromium.program()
    return tools.build(["kwok"], tools.PAPER) / "kwok", tools.tool_path("kube-scheduler")


@asynccontextmanager
async def crowd(folder: Path) -> AsyncIterator[Crowd]:
    """Everything but pools, from its start to its end."""
    policy, log = folder / "policy.yaml", folder / "audit.log"
    policy.write_text(audit.POLICY)
    flags = (
        f"--audit-policy-file={policy}",
        f"--audit-log-path={log}",
        "--max-requests-inflight=2000",
        "--max-mutating-requests-inflight=1000",
    )
    kwok, scheduler = fetched()
    with ControlPlane(controllers=True, apiserver=flags, manager=_FAST) as plane:
        access = [f"--kubeconfig={plane.kubeconfig}"]
        scheduler_port, kwok_port = free_ports(2)
        plane.run(
            scheduler,
            [
                *access,
                f"--authentication-kubeconfig={plane.kubeconfig}",
                f"--authorization-kubeconfig={plane.kubeconfig}",
                "--leader-elect=false",
                "--bind-address=127.0.0.1",
                f"--secure-port={scheduler_port}",
                *_FAST,
            ],
        )
        plane.run(
            kwok,
            [
                *access,
                f"--config={_STAGES}",
                "--manage-all-nodes=true",
                "--node-lease-duration-seconds=40",
                f"--server-address=127.0.0.1:{kwok_port}",
            ],
        )
        rest = Rest(plane)
        try:
            for path in sorted(_MANIFESTS.glob("*.yaml")):
                crds = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
                await rest.create(crds, yaml.safe_load(path.read_text()))
            await _served(rest)
            yield Crowd(plane, rest, log)
        finally:
            await rest.close()


async def _served(rest: Rest) -> None:
    async with asyncio.timeout(60):
        while True:
            with contextlib.suppress(aiohttp.ClientResponseError):
                await rest.get("/apis/tidepool.dev/v1alpha1/modelpools")
                return
            await asyncio.sleep(0.2)


def _complete(item: Object) -> bool:
    status: Mapping[str, Any] = item.get("status") or {}
    reasons = {one["type"]: one["reason"] for one in status.get("conditions") or []}
    current = status.get("observedGeneration") == item["metadata"]["generation"]
    return current and reasons.get("Progressing") == "Complete"


def in_own_network(arguments: Sequence[str]) -> NoReturn:
    """Become `python -m bench.operators` in a network of its own: whoever ends this process ends that one."""
    setup = 'ip link set lo up && ip addr add 10.97.0.1/16 dev lo && exec "$@"'
    command = [sys.executable, "-m", "bench.operators", "--inside", *arguments]
    os.execvp("unshare", ["unshare", "--net", "sh", "-c", setup, "sh", *command])


def peak_bytes(pid: int) -> int:
    """Resident memory of a process at its peak."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:"))
