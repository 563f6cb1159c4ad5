"""Brings workflows to life when a fleet has some. Until then a gateway imports none of their libraries."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tidepool_router.fleet.gateway import GatewayFleet
from tidepool_router.proxy.gateway import Gateway
from tidepool_router.proxy.services import Services

if TYPE_CHECKING:
    from tidepool_router.workflow.start import WorkflowRooms


class WorkflowSwitch:
    """Follows the fleet. `inner` is the gateway that the steps' requests go to; it asks for no key."""

    def __init__(
        self, services: Services, fleet: GatewayFleet, gateway: Gateway, store: str | None, hosts: Sequence[str]
    ) -> None:
        self.inner = gateway
        self._services = services
        self._fleet = fleet
        self._gateway = gateway
        self._store = store
        self._hosts = hosts
        self._rooms: WorkflowRooms | None = None

    def look(self) -> None:
        """The fleet has changed, or is there. Raises JournalError where the store cannot be opened."""
        if self._rooms is None and (self._fleet.workflows or self._store is not None):
            from tidepool_router.workflow.start import WorkflowRooms, allowed_hosts

            hosts = allowed_hosts(self._hosts)
            self._rooms = WorkflowRooms(self._services, self._fleet, self.inner, self._store, hosts)
            self._rooms.start()
            self._gateway.workflows = self._rooms
        if self._rooms is not None:
            self._rooms.workflows.apply(self._fleet.workflows, list(self._fleet.pools))

    async def close(self) -> None:
        """End all runs here."""
        rooms, self._rooms, self._store = self._rooms, None, None
        self._gateway.workflows = None
        if rooms is not None:
            await rooms.close()
