"""One pool on one cluster, and the questions that the scenarios ask about it."""

import contextlib
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import httpx

from scenarios.evidence import Evidence, Transition, engine_version, prometheus_sample
from scenarios.kube import Kube, Object, condition, is_ready, wait_for
from scenarios.streams import Load, Route, Stream
from tidepool_api.contract import TRAFFIC_PORT

POOL_LABEL = "tidepool.dev/pool"
SYSTEM_NAMESPACE = "tidepool-system"
RELEASE = "tidepool"


@dataclass(slots=True)
class World:
    """A cluster with the chart installed, and the ModelPool that the scenario is about."""

    kube: Kube
    pool: Object
    gateway_url: str
    prometheus_url: str
    evidence: Evidence
    service_url: str = ""  # the pool's own Service; known once it exists
    helm: str = "helm"
    own: bool = True  # the project's own cluster, whose addresses this machine reaches
    on_killed_engine: list[Stream] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Name of the pool."""
        return str(self.pool["metadata"]["name"])

    @property
    def namespace(self) -> str:
        """Namespace of the pool."""
        return str(self.pool["metadata"]["namespace"])

    @property
    def model(self) -> str:
        """What clients call the model."""
        return str(self.pool["spec"]["model"]["name"])

    def routes(self) -> list[Route]:
        """The two doors: the gateway and the pool's own Service."""
        return [Route("gateway", f"{self.gateway_url}/v1"), Route("service", f"{self.service_url}/v1")]

    def pod_routes(self) -> list[Route]:
        """The sidecars of the pods that serve, each by its own address."""
        return [
            Route(pod["metadata"]["name"], f"http://{pod['status']['podIP']}:{TRAFFIC_PORT}/v1")
            for pod in self.ready_pods()
        ]

    def demo_routes(self) -> list[Route]:
        """As `routes`; on a foreign cluster only the gateway can be reached from here."""
        return self.routes() if self.own else self.routes()[:1]

    def resource(self) -> Object:
        """The ModelPool as stored. Raises AssertionError when it is gone."""
        found = self.kube.get("modelpool", self.name, self.namespace)
        assert found is not None, f"ModelPool {self.namespace}/{self.name} does not exist"
        return found

    def pods(self) -> list[Object]:
        """The pool's pods, terminating ones included."""
        return self.kube.items("pods", self.namespace, f"{POOL_LABEL}={self.name}")

    def ready_pods(self) -> list[Object]:
        """Pods that are Ready and stay."""
        return [pod for pod in self.pods() if is_ready(pod)]

    def uids(self) -> dict[str, str]:
        """Pod names to UIDs, terminating pods left out."""
        stay = [pod for pod in self.pods() if not pod["metadata"].get("deletionTimestamp")]
        return {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in stay}

    def versions(self) -> dict[str, str]:
        """Each ready pod's engine, in its own words."""
        return {pod["metadata"]["name"]: engine_version(pod["status"]["podIP"]) for pod in self.ready_pods()}

    def decision(self) -> Mapping[str, Any]:
        """The autoscaler's last decision as status shows it."""
        scaling = (self.resource().get("status") or {}).get("scaling") or {}
        return dict(scaling.get("lastDecision") or {})

    def wait_settled(self, replicas: int, *, timeout_seconds: float) -> Object:
        """Wait until exactly that many pods exist, all Ready, and the ModelPool says Ready with that count."""

        def settled() -> Object | None:
            resource = self.resource()
            status = resource.get("status") or {}
            pods = self.pods()
            fits = (
                status.get("observedGeneration") == resource["metadata"]["generation"]
                and status.get("replicas", 0) == replicas
                and status.get("readyReplicas", 0) == replicas
                and len(pods) == replicas
                and all(is_ready(pod) for pod in pods)
                and condition(resource, "Ready").get("status") == "True"
            )
            return resource if fits else None

        return wait_for(f"{replicas} ready pods of {self.name}", settled, timeout_seconds=timeout_seconds)

    def waiting_by_pod(self) -> dict[str, Any]:
        """Prometheus' figure behind a scaling decision: requests that wait in each engine."""
        if not self.prometheus_url:
            return {}
        labels = f'namespace="{self.namespace}",pool="{self.name}"'
        # As the rule reads it: what waits in the engine or before it at the sidecar, whichever is more.
        names = "vllm:num_requests_waiting|tidepool_requests_waiting"
        waiting = f'max by (pod) ({{__name__=~"{names}",{labels}}})'
        return prometheus_sample(self.prometheus_url, waiting) | {
            "kv": prometheus_sample(self.prometheus_url, f"vllm:kv_cache_usage_perc{{{labels}}}")["result"]
        }

    def gateway_models(self) -> list[str]:
        """Model names that the gateway offers."""
        answer = httpx.get(f"{self.gateway_url}/v1/models", timeout=10)
        answer.raise_for_status()
        return [card["id"] for card in answer.json()["data"]]

    @contextlib.contextmanager
    def transition(self, name: str, load: Load | None = None, *, streams: int = 0) -> Iterator[Transition]:
        """Record a step; with a load, first wait until at least `streams` requests run."""
        if load is not None and streams:
            wait_for(
                f"{streams} running streams", lambda: len(load.running()) >= streams or None, timeout_seconds=60
            )
        began = time.monotonic()
        one = Transition(name=name, began=datetime.now(UTC).isoformat(timespec="milliseconds"))
        one.pods_before = self.uids()
        one.streams_running = len(load.running()) if load is not None else 0
        self.evidence.say(f"{name}: begins, {len(one.pods_before)} pods, {one.streams_running} streams run")
        yield one
        one.seconds = round(time.monotonic() - began, 1)
        one.pods_after = self.uids()
        one.engine_versions = self.versions() if self.own else {}
        self.evidence.add(one)
        self.evidence.say(f"{name}: done in {one.seconds} s, {len(one.pods_after)} pods")
