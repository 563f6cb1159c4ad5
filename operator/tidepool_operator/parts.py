"""The operator's parts, each made from those that it needs. Nothing runs yet."""

import time
from collections.abc import Callable

from tidepool_api.trust import TrustedCallers
from tidepool_operator.arbiter import Arbiter
from tidepool_operator.autoscaler import Autoscaler, AutoscalerSettings
from tidepool_operator.changes import Changes, asks_classifier
from tidepool_operator.cluster.api import Api
from tidepool_operator.cluster.canary import Canary
from tidepool_operator.cluster.client import Client
from tidepool_operator.cluster.gateway_runs import GatewayRuns
from tidepool_operator.cluster.gateways import Control, Gateways, Publisher
from tidepool_operator.cluster.health import Figures
from tidepool_operator.cluster.kinds import AGENT_WORKFLOW, LEADER_WORKER_SET, MODEL_POOL, Object
from tidepool_operator.cluster.lease import Lease
from tidepool_operator.cluster.names import Names
from tidepool_operator.cluster.namespaces import AllowedHosts
from tidepool_operator.cluster.nodes import Nodes
from tidepool_operator.cluster.proof import OwnProof
from tidepool_operator.cluster.quotas import Quotas
from tidepool_operator.cluster.schema import Schema
from tidepool_operator.cluster.sidecars import Sidecars
from tidepool_operator.cluster.store import Store, key_of
from tidepool_operator.cluster.trust import ClusterTrust
from tidepool_operator.cluster.workqueue import WorkQueue
from tidepool_operator.console.hub import Hub
from tidepool_operator.console.looks import EVERY_SECONDS, Looks
from tidepool_operator.console.looks import Sources as Sights
from tidepool_operator.console.server import ConsoleServer
from tidepool_operator.due import Due, Item, Work
from tidepool_operator.errors import NotFound
from tidepool_operator.events import Recorder
from tidepool_operator.handlers import OURS, SELECTORS
from tidepool_operator.orphans import Orphans
from tidepool_operator.pool.model import RenderSettings, SidecarTLS
from tidepool_operator.reconcile import Reconciler, Sources
from tidepool_operator.runs import RunObjects
from tidepool_operator.settings import LEASE_NAME, Settings
from tidepool_operator.telemetry.gateways import Gateways as GatewayStreams
from tidepool_operator.telemetry.prometheus import NoPrometheus, Prometheus, PrometheusSettings
from tidepool_operator.view import View
from tidepool_operator.workers import Acts, Workers
from tidepool_operator.workflow_figures import WorkflowFigures
from tidepool_operator.workflows import Workflows


class Parts:
    """All that one operator process is made of. `open` reads and writes at any time, `api` as the leader alone."""

    def __init__(self, settings: Settings, client: Client) -> None:
        self._settings = settings
        self.store = Store()
        self.queue: WorkQueue[Item] = WorkQueue()
        self.due = Due(self.store, self.queue)
        self.figures = Figures()
        self.open = Api(client)
        self.lease = Lease(self.open, settings.namespace, LEASE_NAME, settings.identity)
        self.api = Api(client, self.lease.fence)
        self.canary = Canary(
            self.open,
            self.store,
            SELECTORS,
            settings.watch_namespaces,
            sweep_seconds=settings.sweep_seconds,
        )
        self.gateways = Gateways(self.open, settings.namespace, self.due.all)
        self.sidecars = Sidecars(proof_file=settings.proof_file)
        self._proof = OwnProof(settings.proof_file)
        self._names = Names()
        secret, name = settings.sidecar_tls_secret, settings.sidecar_tls_server_name
        self._tls = SidecarTLS(secret, name) if secret else None
        self.hosts = AllowedHosts(self.open, self._calling_namespaces, self._fleet_due)
        self._view = View(
            self.api,
            self.store,
            self.gateways.addresses,
            self.due.pool,
            self._leading,
            tls=self._tls is not None,
            hosts=self.hosts.of,
        )
        self.trust = ClusterTrust(self.open, settings, self._trust_changed) if settings.trust else None
        self.schema = Schema(self.open, self.due.all)
        self._add_scaling(client.clock.now)
        self.publisher = Publisher(
            self.api,
            settings.namespace,
            self._view.fleet,
            self.gateways.reachable,
            self.autoscaler.gateways.reports,
            Control(proof=self._proof, trust=self._callers),
            self._view.workflows,
        )
        self._add_work(client.clock.now)
        self._add_console(client.clock.now)
        self.store.listen(
            Changes(self.due, self._names, self.publisher.mark_due, self.hosts.mark_due, self.runs.deleted)
        )

    def _add_scaling(self, clock: Callable[[], float]) -> None:
        settings = self._settings
        self._prometheus = (
            Prometheus(PrometheusSettings(settings.prometheus_url)) if settings.prometheus_url else NoPrometheus()
        )
        self._nodes = Nodes(self.open, wanted=settings.reads_nodes)
        self.autoscaler = Autoscaler(
            self._view,
            self._prometheus,
            lambda on_demand: GatewayStreams(
                self.gateways.addresses, on_demand, time.monotonic, proof=self._proof.headers
            ),
            AutoscalerSettings(settings.scale_interval_seconds),
            clock,
            arbiter=Arbiter(self._nodes, Quotas(self.open, wanted=settings.reads_nodes), self._view),
        )

    def _add_work(self, clock: Callable[[], float]) -> None:
        recorder = Recorder(self.api, self._settings.identity)
        sources = Sources(self.autoscaler.board, self.sidecars, self._nodes, self.gateways.serving, self._names)
        reconciler = Reconciler(self.api, self.store, self._render, sources, recorder, clock)
        self.orphans = Orphans(self.store, recorder, self._groups)
        self.gateway_runs = GatewayRuns(self.gateways.serving, proof=self._proof.headers)
        self.runs = RunObjects(self.api, self.store, self.gateway_runs, self._settings.watch_namespaces, clock)
        self.workflow_figures = WorkflowFigures(self.api, self.store, self.gateway_runs)
        acts: Acts = {
            Work.POOL: reconciler,
            Work.WORKFLOW: Workflows(self.api, self.store, recorder),
            Work.RUN: self.runs,
        }
        self.workers = Workers(self.queue, acts, self.figures)

    def _add_console(self, clock: Callable[[], float]) -> None:
        """What the console shows, from what this process knows; nothing runs until somebody looks."""
        self.looks = Looks(
            Sights(
                store=self.store,
                figures=self._prometheus,
                scaler=self.autoscaler,
                decision=self.autoscaler.board.get,
                demand=self.autoscaler.gateways.demand,
                loads=self.sidecars.loads,
                runs=self.gateway_runs,
                leads=self._leading,
                clock=clock,
                interval_seconds=self._settings.scale_interval_seconds,
            )
        )
        self.console = ConsoleServer(Hub(self.looks, EVERY_SECONDS, clock), self._settings.console_hosts)

    # What some of them ask of others.

    def _render(self) -> RenderSettings:
        image, namespace = self._settings.router_image, self._settings.namespace
        return RenderSettings(image, namespace, self._callers(), self.schema.stale, self._tls, self.schema.groups)

    async def _groups(self) -> list[Object]:
        """LeaderWorkerSets of ours, in a cluster that may not know the kind. Raises ApiError."""
        if self.schema.groups is False:
            return []
        found: list[Object] = []
        for namespace in self._settings.watch_namespaces or (None,):
            try:
                found += await self.open.list(LEADER_WORKER_SET, namespace, labels=OURS, metadata_only=True)
            except NotFound:
                return []
        return found

    def _callers(self) -> TrustedCallers | None:
        return None if self.trust is None else self.trust.callers

    def _trust_changed(self) -> None:
        self.due.all()
        self._fleet_due()

    def _fleet_due(self) -> None:
        self.publisher.mark_due()

    def _leading(self) -> bool:
        return self.lease.leads

    def _calling_namespaces(self) -> set[str]:
        """Those with something for which gateways call others."""
        workflows = {key.namespace for key in self.store.keys(AGENT_WORKFLOW)}
        return workflows | {key_of(raw).namespace for raw in self.store.all(MODEL_POOL) if asks_classifier(raw)}
