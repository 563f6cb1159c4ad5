"""The gateways' pods, and the fleet that they are told: in a ConfigMap, and pushed to each.

The ConfigMap also has whose pushes they are to believe, which no push can change.
"""

import asyncio
import ipaddress
import json
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

import httpx

from tidepool_api import contract
from tidepool_api.load import GatewayReport
from tidepool_api.routing import Fleet, FleetPool, FleetWorkflow
from tidepool_api.trust import TrustedCallers
from tidepool_operator.cluster.api import Api
from tidepool_operator.cluster.http import plain_client
from tidepool_operator.cluster.kinds import CONFIG_MAP, POD, Object
from tidepool_operator.cluster.proof import OwnProof
from tidepool_operator.errors import ApiError, NotFound

log = logging.getLogger(__name__)

_LOOK_SECONDS: Final = 2.0
_TIMEOUT_SECONDS: Final = 2.0
_SETTLE_SECONDS: Final = 0.2  # many pools change at once when many are applied
_LABELS: Final = f"{contract.COMPONENT_LABEL}={contract.COMPONENT_GATEWAY}"


class Gateways:
    """Who the gateways are, looked up every two seconds by label: their pods carry no pool's label, and a second
    watch of all pods would cost more than this list.

    `changed` is called when the set changes.
    """

    def __init__(self, api: Api, namespace: str, changed: Callable[[], None]) -> None:
        self._api = api
        self._namespace = namespace
        self._changed = changed
        self._pods: tuple[Object, ...] = ()

    def addresses(self) -> dict[str, str]:
        """Address of every gateway pod that is ready or on its way out, by its name."""
        return {
            pod["metadata"]["name"]: pod["status"]["podIP"]
            for pod in self._pods
            if (pod.get("status") or {}).get("podIP") and (_ready(pod) or pod["metadata"].get("deletionTimestamp"))
        }

    def reachable(self) -> dict[str, str]:
        """Address of every gateway pod that has one: a gateway without a fleet is not ready, and needs it most."""
        return {
            pod["metadata"]["name"]: pod["status"]["podIP"]
            for pod in self._pods
            if (pod.get("status") or {}).get("podIP") and not pod["metadata"].get("deletionTimestamp")
        }

    def serving(self) -> tuple[str, ...]:
        """Addresses that take new requests."""
        return tuple(
            sorted(
                pod["status"]["podIP"]
                for pod in self._pods
                if _ready(pod) and not pod["metadata"].get("deletionTimestamp")
            )
        )

    async def look(self) -> None:
        """Look once. Raises ApiError."""
        before = self.serving()
        self._pods = tuple(await self._api.list(POD, self._namespace, labels=_LABELS, cached=True))
        if self.serving() != before:
            self._changed()

    async def run(self) -> None:
        """Look until cancelled."""
        while True:
            try:
                await self.look()
            except ApiError as error:
                log.warning("the gateways' pods could not be listed: %s", error)
            await asyncio.sleep(_LOOK_SECONDS)


@dataclass(frozen=True, slots=True)
class Control:
    """Where gateways take orders, the proof that they ask for, and whose they are told to believe."""

    port: int = contract.CONTROL_PORT
    proof: OwnProof = field(default_factory=lambda: OwnProof(None))
    trust: Callable[[], TrustedCallers | None] = lambda: None


class Publisher:
    """Keeps the fleet's ConfigMap and every gateway at the fleet that `pools` says.

    `issued_at` moves only when the pools, the workflows or the number of gateways do, also across a restart of the
    operator.
    """

    def __init__(
        self,
        api: Api,
        namespace: str,
        pools: Callable[[], tuple[FleetPool, ...]],
        gateways: Callable[[], Mapping[str, str]],
        reports: Callable[[], Mapping[str, GatewayReport]],
        control: Control | None = None,
        workflows: Callable[[], tuple[FleetWorkflow, ...]] = tuple,
    ) -> None:
        self._api = api
        self._namespace = namespace
        self._pools = pools
        self._gateways = gateways
        self._reports = reports
        self._control = Control() if control is None else control
        self._workflows = workflows
        self._fleet: Fleet | None = None
        self._told: TrustedCallers | None = None
        self._due = asyncio.Event()

    def mark_due(self) -> None:
        """A pool changed, or whom to believe."""
        self._due.set()

    async def run(self) -> None:
        """Publish until cancelled."""
        async with plain_client(_TIMEOUT_SECONDS) as client:
            while True:
                try:
                    await self.publish()
                    await self._push(client)
                except ApiError as error:
                    log.warning("the fleet could not be published, trying again: %s", error)
                try:
                    async with asyncio.timeout(_LOOK_SECONDS):
                        await self._due.wait()
                    await asyncio.sleep(_SETTLE_SECONDS)
                except TimeoutError:
                    continue

    async def publish(self) -> Fleet:
        """Write the ConfigMap where the pools changed, or whom to believe. Raises ApiError."""
        self._due.clear()
        known = self._fleet if self._fleet is not None else await self._published()
        pools, workflows = self._pools(), self._workflows()
        gateways = max(1, len(self._gateways()))
        # A gateway may have a fleet of a later time: a clock was put back, or the ConfigMap is gone that told it.
        ahead = max((report.fleet_issued_at or 0.0 for report in self._reports().values()), default=0.0)
        issued = known.issued_at or 0.0 if known is not None else 0.0
        told = (pools, workflows, gateways)
        if known is not None and told == (known.pools, known.workflows, known.gateways) and ahead <= issued:
            if self._told != self._control.trust():
                await self._write(known)
            if self._fleet is None:
                # The very pools that were given: from now on a look at who they are is enough.
                self._fleet = known.model_copy(update={"pools": pools, "workflows": workflows})
            return self._fleet
        earlier = max(ahead, issued)
        fleet = Fleet(
            issued_at=max(round(time.time(), 3), round(earlier + 0.001, 3)),
            gateways=gateways,
            pools=pools,
            workflows=workflows,
        )
        await self._write(fleet)
        self._fleet = fleet
        log.info("published a fleet of %d pools", len(pools))
        return fleet

    async def _published(self) -> Fleet | None:
        try:
            item = await self._api.get(CONFIG_MAP, self._namespace, contract.FLEET_CONFIGMAP)
            data = item.get("data") or {}
            if contract.TRUST_KEY in data:
                self._told = TrustedCallers.model_validate_json(data[contract.TRUST_KEY])
            return Fleet.model_validate(json.loads(data[contract.FLEET_KEY]))
        except (NotFound, KeyError, ValueError):
            return None

    async def _write(self, fleet: Fleet) -> None:
        trust = self._control.trust()
        await self._api.apply(self._config_map(fleet, trust))
        self._told = trust

    def _config_map(self, fleet: Fleet, trust: TrustedCallers | None) -> Object:
        believed = {} if trust is None else {contract.TRUST_KEY: trust.model_dump_json(by_alias=True, indent=1)}
        return {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {
                "name": contract.FLEET_CONFIGMAP,
                "namespace": self._namespace,
                "labels": {contract.MANAGED_BY_LABEL: contract.MANAGED_BY},
            },
            "data": {contract.FLEET_KEY: fleet.model_dump_json(by_alias=True, indent=1)} | believed,
        }

    async def _push(self, client: httpx.AsyncClient) -> None:
        fleet, reports = self._fleet, self._reports()
        if fleet is None or fleet.issued_at is None:
            return
        behind = [
            address
            for name, address in self._gateways().items()
            if name not in reports or (reports[name].fleet_issued_at or 0.0) < fleet.issued_at
        ]
        if not behind:
            return
        body = fleet.model_dump_json(by_alias=True).encode()
        headers = {"content-type": "application/json"} | await self._control.proof.headers()
        await asyncio.gather(*(self._put(client, address, body, headers) for address in behind))

    async def _put(self, client: httpx.AsyncClient, address: str, body: bytes, headers: Mapping[str, str]) -> None:
        host = f"[{address}]" if ipaddress.ip_address(address).version == 6 else address
        url = f"http://{host}:{self._control.port}{contract.PATH_FLEET}"
        try:
            answer = await client.put(url, content=body, headers=headers)
        except httpx.HTTPError as error:
            log.info("the fleet did not reach gateway %s: %r", address, error)
            return
        if answer.is_error:
            log.warning("gateway %s refuses the fleet: %s %s", address, answer.status_code, answer.text)


def _ready(pod: Object) -> bool:
    conditions = (pod.get("status") or {}).get("conditions") or []
    return any(entry["type"] == "Ready" and entry["status"] == "True" for entry in conditions)
