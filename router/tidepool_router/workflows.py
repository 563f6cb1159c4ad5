"""Brings workflows to life when a fleet has some. Until then a gateway imports none of their libraries."""

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING

from tidepool_router.control import JSON, Response, StreamResponse
from tidepool_router.fleet.gateway import GatewayFleet
from tidepool_router.proxy.gateway import Gateway
from tidepool_router.proxy.services import Services
from tidepool_router.settings import WorkflowOptions
from tidepool_router.workflow.hosts import Hosts

if TYPE_CHECKING:
    from tidepool_router.workflow.start import WorkflowRooms


class WorkflowSwitch:
    """Follows the fleet. `inner` is the gateway that the steps' requests go to; it asks for no key."""

    def __init__(
        self,
        services: Services,
        fleet: GatewayFleet,
        gateway: Gateway,
        options: WorkflowOptions,
        hosts: Hosts,
    ) -> None:
        self.inner = gateway
        self._services = services
        self._fleet = fleet
        self._gateway = gateway
        self._options = options
        self._hosts = hosts
        self._store = options.store
        self._rooms: WorkflowRooms | None = None

    def look(self) -> None:
        """The fleet has changed, or is there. Raises JournalError where the store cannot be opened."""
        if self._rooms is None and (self._fleet.workflows or self._store is not None):
            from tidepool_router.workflow.start import WorkflowRooms

            lease_seconds = self._options.lease_seconds
            self._rooms = WorkflowRooms(
                self._services, self._fleet, self.inner, self._store, self._hosts, lease_seconds
            )
            self._rooms.start()
            self._rooms.workflows.tally = self._gateway.tally
            self._gateway.workflows = self._rooms
        if self._rooms is not None:
            self._rooms.workflows.apply(self._fleet.workflows, list(self._fleet.pools))

    async def handle(
        self, method: str, path: str, headers: Mapping[str, str], body: bytes
    ) -> Response | StreamResponse:
        """Handler of PATH_RUNS and what is below it."""
        if self._rooms is None:
            told = {"code": "no_workflows", "message": "this gateway has no workflows and keeps no runs"}
            return Response(501, json.dumps({"error": told}).encode(), JSON)
        return await self._rooms.objects.handle(method, path, headers, body)

    async def close(self) -> None:
        """End all runs here."""
        rooms, self._rooms, self._store = self._rooms, None, None
        self._gateway.workflows = None
        if rooms is not None:
            await rooms.close()
