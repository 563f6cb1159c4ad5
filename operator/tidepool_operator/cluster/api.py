"""What the operator asks of the API server: reads, server-side apply, patches, deletes, scale, events.

Writes go through a fence: a process that lost the Lease cannot write any more.
"""

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Final

from tidepool_api.contract import FIELD_MANAGER
from tidepool_operator.cluster.client import Client
from tidepool_operator.cluster.kinds import CORE_EVENT, EVENT, POD, Kind, Object, kind_of
from tidepool_operator.cluster.listing import Version, versions
from tidepool_operator.errors import Expired, NotFound

_APPLY: Final = "application/apply-patch+yaml"  # JSON is YAML
_MERGE: Final = "application/merge-patch+json"
_METADATA_ONLY: Final = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
_PAGE: Final = 500

Fence = Callable[[], None]


def open_fence() -> None:
    """The fence of a process that needs no Lease: tests and one-off reads."""


class Api:
    """Typed access over a Client.

    `fence` is called before each write and raises NotLeader when this process may not write.
    All methods raise ApiError.
    """

    def __init__(self, client: Client, fence: Fence = open_fence) -> None:
        self._client = client
        self._fence = fence

    async def get(self, kind: Kind, namespace: str | None, name: str) -> Object:
        """One object. Raises NotFound."""
        return await self._client.request("GET", kind.path(namespace, name))

    async def read(self, path: str) -> Object:
        """What the API server itself publishes at a path, in whatever kind of JSON."""
        return await self._client.request("GET", path, accept="*/*")

    async def list(
        self,
        kind: Kind,
        namespace: str | None = None,
        *,
        labels: str = "",
        fields: str = "",
        metadata_only: bool = False,
        cached: bool = False,
    ) -> list[Object]:
        """All objects of a kind, page by page; `cached` lets the API server answer from its watch cache."""
        # With resourceVersion=0 a limit is not honoured: one answer, from memory.
        query = {"resourceVersion": "0"} if cached else {"limit": str(_PAGE)}
        query |= {"labelSelector": labels, "fieldSelector": fields}
        accept = _METADATA_ONLY if metadata_only else "application/json"
        try:
            return [item async for page in self._paged(kind, namespace, query, accept) for item in page]
        except Expired:  # its first pages are too old by now
            return [item async for page in self._paged(kind, namespace, query, accept) for item in page]

    def pages(
        self,
        kind: Kind,
        namespace: str | None = None,
        *,
        labels: str = "",
        fields: str = "",
    ) -> AsyncIterator[Sequence[Object]]:
        """All objects of a kind, a bounded number at a time: for what is too much to hold."""
        query = {"limit": str(_PAGE), "labelSelector": labels, "fieldSelector": fields}
        return self._paged(kind, namespace, query, "application/json")

    async def versions(
        self, kind: Kind, namespace: str | None = None, *, labels: str = ""
    ) -> AsyncIterator[Sequence[Version]]:
        """Which objects of a kind there are, in which state, a bounded number at a time."""
        query = {"limit": str(_PAGE), **({"labelSelector": labels} if labels else {})}
        while True:
            text = await self._client.content(kind.path(namespace), query=query, accept=_METADATA_ONLY)
            found, proceed = versions(text)
            yield found
            if not proceed:
                return
            query["continue"] = proceed

    async def _paged(
        self, kind: Kind, namespace: str | None, query: Mapping[str, str], accept: str
    ) -> AsyncIterator[Sequence[Object]]:
        left = {key: value for key, value in query.items() if value}
        while True:
            page = await self._client.request("GET", kind.path(namespace), query=left, accept=accept)
            yield page.get("items") or []
            proceed = page.get("metadata", {}).get("continue")
            if not proceed:
                return
            left["continue"] = proceed

    async def log(
        self, namespace: str, pod: str, container: str, *, lines: int, limit: int, previous: bool
    ) -> str:
        """The last `lines` of a container's log, at most `limit` bytes; `previous`: of its life before."""
        query = {"container": container, "tailLines": str(lines), "limitBytes": str(limit)}
        if previous:
            query["previous"] = "true"
        return await self._client.text(POD.path(namespace, pod, "log"), query=query)

    async def events_of(self, namespace: str, uid: str, limit: int) -> Sequence[Object]:
        """The events of the core API about one object, at most `limit`."""
        query = {"fieldSelector": f"involvedObject.uid={uid}", "limit": str(limit)}
        page = await self._client.request("GET", CORE_EVENT.path(namespace), query=query)
        found: Sequence[Object] = page.get("items") or []
        return found

    async def schema(self, group: str, version: str, kind: str) -> Object | None:
        """A kind's schema as the API server publishes it; None for one that it does not publish (yet)."""
        page = await self._client.request("GET", f"/openapi/v3/apis/{group}/{version}")
        wanted = {"group": group, "version": version, "kind": kind}
        schemas: Mapping[str, Object] = (page.get("components") or {}).get("schemas") or {}
        found = (one for one in schemas.values() if wanted in one.get("x-kubernetes-group-version-kind", ()))
        return next(found, None)

    async def apply(self, item: Object, *, dry_run: bool = False) -> Object:
        """Server-side apply: owned fields become ours, foreign fields stay, unknown fields are refused by name."""
        if not dry_run:
            self._fence()
        metadata = item["metadata"]
        query = {"fieldManager": FIELD_MANAGER, "force": "true", "fieldValidation": "Strict"}
        if dry_run:
            query["dryRun"] = "All"
        path = kind_of(item).path(metadata.get("namespace"), metadata["name"])
        return await self._client.request("PATCH", path, query=query, body=item, content_type=_APPLY)

    async def patch(
        self, kind: Kind, namespace: str, name: str, change: Object, *, subresource: str | None = None
    ) -> Object:
        """Merge patch. With metadata.resourceVersion in `change` it raises Conflict when the object moved on."""
        self._fence()
        return await self._client.request(
            "PATCH",
            kind.path(namespace, name, subresource),
            query={"fieldManager": FIELD_MANAGER},
            body=change,
            content_type=_MERGE,
        )

    async def create(self, kind: Kind, namespace: str, item: Object) -> Object:
        """A new object. Raises Conflict when it exists."""
        self._fence()
        return await self._client.request(
            "POST", kind.path(namespace), query={"fieldManager": FIELD_MANAGER}, body=item
        )

    async def delete(self, kind: Kind, namespace: str, name: str, *, uid: str = "", version: str = "") -> bool:
        """Delete in the background; False when it was gone. With `uid` only that very object, with `version` only
        as long as it is as it was then; raises Conflict for another."""
        self._fence()
        options: Object = {"propagationPolicy": "Background"}
        seen = {"uid": uid, "resourceVersion": version}
        if preconditions := {name: value for name, value in seen.items() if value}:
            options["preconditions"] = preconditions
        try:
            await self._client.request("DELETE", kind.path(namespace, name), body=options)
        except NotFound:
            return False
        return True

    async def status(self, kind: Kind, namespace: str, name: str, status: Object) -> Object:
        """Merge `status` into an object's status; keys set to None vanish."""
        return await self.patch(kind, namespace, name, {"status": status}, subresource="status")

    async def scale(self, kind: Kind, namespace: str, name: str, replicas: int) -> int:
        """Set a replica count through the scale subresource, as an HPA does; the object's version then."""
        answer = await self.patch(kind, namespace, name, {"spec": {"replicas": replicas}}, subresource="scale")
        return int(answer["metadata"]["resourceVersion"])

    async def event(self, namespace: str, item: Object) -> None:
        """Post one events.k8s.io Event."""
        await self.create(EVENT, namespace, item)
