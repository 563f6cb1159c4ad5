"""Workflows of a gateway, put together. Imported when its fleet has some, or when it keeps runs."""

from pathlib import Path

import msgspec

from tidepool_api.workflow import MODEL_PREFIX
from tidepool_router.fleet.gateway import GatewayFleet
from tidepool_router.keys import KeyRing
from tidepool_router.proxy.active import ActiveExchange, Application
from tidepool_router.proxy.handled import Handled
from tidepool_router.proxy.server import ServerConnection
from tidepool_router.proxy.services import Services
from tidepool_router.wire.messages import Request
from tidepool_router.wire.paths import path_of
from tidepool_router.workflow.breakers import Breakers
from tidepool_router.workflow.checking import Checker
from tidepool_router.workflow.core.profiles import Profiles
from tidepool_router.workflow.foretelling import Foretelling
from tidepool_router.workflow.hosts import Hosts
from tidepool_router.workflow.inprocess import InProcess
from tidepool_router.workflow.manager import LEASE_SECONDS, Workflows
from tidepool_router.workflow.mcp_tools import McpTools
from tidepool_router.workflow.models import Models
from tidepool_router.workflow.objects import RunObjects
from tidepool_router.workflow.rendering import Renderer
from tidepool_router.workflow.serving import CHAT, PREFIX, Serving
from tidepool_router.workflow.sql_journal import MEMORY, SqlJournal
from tidepool_router.workflow.steps import Performer
from tidepool_router.workflow.tools import Tools
from tidepool_router.workflow.watching import WorkflowMetrics


class WorkflowExchange(Handled):
    """A request that a workflow answers; a drain waits for it."""

    holds_drain = True


class WorkflowRooms:
    """Owner of all that workflows need. `inner` is the gateway without keys: they were looked at before."""

    def __init__(
        self,
        services: Services,
        fleet: GatewayFleet,
        inner: Application,
        store: str | Path | None,
        hosts: Hosts,
        lease_seconds: float = LEASE_SECONDS,
    ) -> None:
        self._services = services
        self._fleet = fleet
        self._client = InProcess(inner, services.limits)
        breakers = Breakers()
        self._tools = Tools(hosts, breakers)
        self._renderer = Renderer()
        self._checker = Checker()
        mcp = McpTools(hosts, breakers)
        profiles = Profiles()
        models = Models(self._client, fleet, profiles)
        performer = Performer(models, self._tools, self._renderer, mcp, profiles, self._checker)
        self.workflows = Workflows(
            performer,
            SqlJournal(store or MEMORY),
            fleet.name,
            lease_seconds,
            services.sight,
            self._announce,
            WorkflowMetrics(fleet.metrics.registry),
        )
        fleet.coming = Foretelling(self.workflows.active).coming
        self._keeps = store is not None
        self.objects = RunObjects(self.workflows, keeps=self._keeps)

    def _announce(self, pool: str, change: int) -> None:
        state = self._fleet.pools.get(pool)
        if state is not None:
            state.announce(change)

    def start(self) -> None:
        """Begin."""
        self._client.start()
        self.workflows.start()

    async def close(self) -> None:
        """End, runs first."""
        await self.workflows.close()
        await self._client.close()
        await self._tools.close()
        await self._renderer.close()
        await self._checker.close()

    def begin(self, request: Request, connection: ServerConnection, keys: KeyRing | None) -> ActiveExchange | None:
        """RunsWorkflows."""
        path = path_of(request.target)
        if path != CHAT.encode() and path != PREFIX.encode() and not path.startswith(PREFIX.encode() + b"/"):
            return None
        grant = None if keys is None else keys.grant_of(request.special)
        if path == CHAT.encode() and not _model_of(request).startswith(MODEL_PREFIX):
            return None
        serving = Serving(self.workflows, grant, keeps=self._keeps)
        return WorkflowExchange(self._services, serving, request, connection)

    def names(self) -> list[str]:
        """RunsWorkflows."""
        return [MODEL_PREFIX + known.name for known in self.workflows.known.values() if known.plan is not None]


def _model_of(request: Request) -> str:
    try:
        return str(msgspec.json.decode(request.body)["model"])
    except (msgspec.DecodeError, LookupError, TypeError):
        return ""
