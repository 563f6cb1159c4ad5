"""A real API server under test: namespaces of their own, and operators that run in the test's loop."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import yaml

from tidepool_api.contract import FIELD_MANAGER
from tidepool_operator.app import Operator
from tidepool_operator.cluster.api import Api
from tidepool_operator.cluster.client import Client, configuration
from tidepool_operator.cluster.kinds import (
    DEPLOYMENT,
    DISRUPTION_BUDGET,
    ENDPOINT_SLICE,
    MODEL_POOL,
    OWNED,
    POD,
    Kind,
    Object,
)
from tidepool_operator.errors import Conflict, NotFound
from tidepool_operator.settings import Settings

T = TypeVar("T")

CRD = Kind("apiextensions.k8s.io", "v1", "customresourcedefinitions", "CustomResourceDefinition")
NODE = Kind("", "v1", "nodes", "Node")
NAMESPACE = Kind("", "v1", "namespaces", "Namespace")
MANIFESTS = Path(__file__).parents[2] / "crds" / "manifests"
# The cluster's own controllers write to these as well, and when they come to it: a status, a whole slice.
SHARED = (DEPLOYMENT, DISRUPTION_BUDGET, ENDPOINT_SLICE)
_SECONDS = 90.0


async def eventually(look: Callable[[], Awaitable[T | None]], what: str, seconds: float = _SECONDS) -> T:
    """The first answer that is true. Fails with `what` when there is none in time."""
    try:
        async with asyncio.timeout(seconds):
            # The API server has no event for what is looked for.
            while not (found := await look()):  # noqa: ASYNC110
                await asyncio.sleep(0.05)
            return found
    except TimeoutError:
        raise AssertionError(f"{what}: not within {seconds} s") from None


def written(item: Object) -> str:
    """What is the operator's of an object that controllers write to too; another text after each write of its."""
    metadata = item["metadata"]
    ours = [entry for entry in metadata.get("managedFields") or [] if entry["manager"] == FIELD_MANAGER]
    own = {name: metadata.get(name) for name in ("generation", "labels", "ownerReferences")}
    notes = metadata.get("annotations") or {}
    own["annotations"] = {name: text for name, text in notes.items() if "kubernetes.io/" not in name}
    return json.dumps([ours, own], sort_keys=True)


def _version(item: Object) -> str:
    return str(item["metadata"]["resourceVersion"])


def _condition(pool: Object, kind: str) -> Object:
    found = (pool.get("status") or {}).get("conditions") or []
    return next((entry for entry in found if entry["type"] == kind), {})


async def install_crds(client: Client) -> None:
    """The generated CRDs, served."""
    api = Api(client)
    for path in sorted(MANIFESTS.glob("*.yaml")):
        try:
            await api.create(CRD, "", yaml.safe_load(path.read_text()))
        except Conflict:
            continue
    await eventually(lambda: _served(api), "the CRDs are served")


async def _served(api: Api) -> bool:
    try:
        await api.list(MODEL_POOL)
    except NotFound:
        return False
    return True


@dataclass
class Live:
    """One namespace of a real API server."""

    client: Client
    api: Api
    kubeconfig: str
    namespace: str

    async def create(self, name: str = "llama", **spec: Any) -> Object:
        """Apply a ModelPool as a user does."""
        body = {
            "apiVersion": MODEL_POOL.api_version,
            "kind": "ModelPool",
            "metadata": {"name": name, "namespace": self.namespace},
            "spec": {"model": {"uri": "hf://acme/llama"}, **spec},
        }
        return await self.client.request("POST", MODEL_POOL.path(self.namespace), body=body)

    async def edit(self, kind: Kind, name: str, change: Object, subresource: str | None = None) -> Object:
        """A merge patch by somebody else than the operator."""
        return await self.client.request(
            "PATCH",
            kind.path(self.namespace, name, subresource),
            query={"fieldManager": "somebody"},
            body=change,
            content_type="application/merge-patch+json",
        )

    async def get(self, kind: Kind, name: str) -> Object | None:
        """One object, or None."""
        try:
            return await self.api.get(kind, self.namespace, name)
        except NotFound:
            return None

    async def list(self, kind: Kind) -> list[Object]:
        """All of a kind, without what the cluster itself puts into each namespace."""
        items = await self.api.list(kind, self.namespace)
        return [item for item in items if item["metadata"]["name"] not in ("default", "kube-root-ca.crt")]

    async def condition(self, kind: str = "Ready", name: str = "llama") -> Object:
        """A condition of a pool, empty as long as it has none."""
        return _condition(await self.get(MODEL_POOL, name) or {}, kind)

    async def told(self, kind: str = "Ready", name: str = "llama") -> Object:
        """A condition that speaks of the newest spec: what an operator wrote before it is out of date."""

        return await eventually(lambda: self._newest(kind, name), f"{kind} of {name} speaks of the newest spec")

    async def _newest(self, kind: str, name: str) -> Object | None:
        pool = await self.get(MODEL_POOL, name) or {"metadata": {}}
        found = _condition(pool, kind)
        return found if found.get("observedGeneration") == pool["metadata"].get("generation") else None

    async def reason(
        self, expected: str, kind: str = "Ready", name: str = "llama", *, seconds: float = _SECONDS
    ) -> Object:
        """Wait for a condition of the newest spec to have a reason; the same may have stood before."""

        found: Object = {}

        async def look() -> Object | None:
            nonlocal found
            found = await self._newest(kind, name) or {}
            return found if found.get("reason") == expected else None

        try:
            return await eventually(look, f"{kind} of {name} says {expected}", seconds)
        except AssertionError as error:
            raise AssertionError(f"{error}; it says {found or 'nothing'}") from None

    async def versions(self) -> dict[str, str]:
        """The state of everything that belongs to pools, and of the pools: another one when an operator wrote."""
        kinds = (*OWNED, POD, MODEL_POOL)
        return {
            f"{kind}/{item['metadata']['name']}": written(item) if kind in SHARED else _version(item)
            for kind in kinds
            for item in await self.list(kind)
        }

    @asynccontextmanager
    async def operator(
        self, identity: str = "one", also: tuple[str, ...] = (), **rest: Any
    ) -> AsyncIterator[Operator]:
        """An operator of this namespace (and `also` of others), leading when the block begins."""
        client_settings = {name: rest.pop(name) for name in ("timeout_seconds", "local") if name in rest}
        settings = Settings(
            namespace=self.namespace,
            identity=identity,
            router_image=rest.pop("router_image", "tidepool-router:test"),
            watch_namespaces=(self.namespace, *also),
            health_host="127.0.0.1",
            health_port=0,
            kubeconfig=rest.pop("kubeconfig", self.kubeconfig),
            **rest,
        )
        async with Client(await configuration(settings.kubeconfig), **client_settings) as client:
            made = Operator(settings, client)
            running = asyncio.create_task(made.run())

            async def leads() -> bool:
                if running.done():
                    running.result()
                return made.lease.leads

            try:
                await eventually(leads, f"operator {identity} leads")
                yield made
            finally:
                made.stop()
                await running

    async def bring_up(self, pod: str, ready: bool = True) -> None:
        """What a kubelet says of a pod that serves."""
        status = "True" if ready else "False"
        change = {
            "status": {
                "phase": "Running",
                "conditions": [{"type": "Ready", "status": status, "lastTransitionTime": "2026-01-01T00:00:00Z"}],
                "containerStatuses": [
                    {
                        "name": "engine",
                        "image": "x",
                        "imageID": "x",
                        "ready": ready,
                        "started": ready,
                        "restartCount": 0,
                        "state": {"running": {"startedAt": "2026-01-01T00:00:00Z"}},
                    }
                ],
            }
        }
        await self.edit(POD, pod, change, "status")


async def restricted(live: Live) -> None:
    """Hold the namespace to the Pod Security Standard."""
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    await live.client.request(
        "PATCH",
        NAMESPACE.path(None, live.namespace),
        body={"metadata": {"labels": labels}},
        content_type="application/merge-patch+json",
    )
