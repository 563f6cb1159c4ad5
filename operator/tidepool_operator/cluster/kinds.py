"""The kinds of objects that the operator reads or writes, and their addresses in the API."""

from dataclasses import dataclass
from typing import Any, Final

from tidepool_api import contract

# An object as the API server speaks it. What crosses into the pure rooms is narrowed there.
Object = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind; `group` is empty for the core API."""

    group: str
    version: str
    plural: str
    kind: str

    @property
    def api_version(self) -> str:
        """As objects carry it."""
        return f"{self.group}/{self.version}" if self.group else self.version

    def path(self, namespace: str | None = None, name: str | None = None, subresource: str | None = None) -> str:
        """URL path; without a namespace the collection over all namespaces."""
        parts = ["apis", self.group, self.version] if self.group else ["api", self.version]
        if namespace:
            parts += ["namespaces", namespace]
        parts.append(self.plural)
        parts += [part for part in (name, subresource) if part]
        return "/" + "/".join(parts)

    def __str__(self) -> str:
        return self.kind


MODEL_POOL: Final = Kind(contract.GROUP, contract.VERSION, contract.MODELPOOL_PLURAL, "ModelPool")
AGENT_WORKFLOW: Final = Kind(contract.GROUP, contract.VERSION, contract.AGENTWORKFLOW_PLURAL, "AgentWorkflow")
AGENT_WORKFLOW_RUN: Final = Kind(
    contract.GROUP, contract.VERSION, contract.AGENTWORKFLOWRUN_PLURAL, "AgentWorkflowRun"
)
DEPLOYMENT: Final = Kind("apps", "v1", "deployments", "Deployment")
POD: Final = Kind("", "v1", "pods", "Pod")
SERVICE: Final = Kind("", "v1", "services", "Service")
SERVICE_ACCOUNT: Final = Kind("", "v1", "serviceaccounts", "ServiceAccount")
CONFIG_MAP: Final = Kind("", "v1", "configmaps", "ConfigMap")
DISRUPTION_BUDGET: Final = Kind("policy", "v1", "poddisruptionbudgets", "PodDisruptionBudget")
NETWORK_POLICY: Final = Kind("networking.k8s.io", "v1", "networkpolicies", "NetworkPolicy")
ENDPOINT_SLICE: Final = Kind("discovery.k8s.io", "v1", "endpointslices", "EndpointSlice")
# Of another project, and not in every cluster: asked for where a pool has some, never watched.
LEADER_WORKER_SET: Final = Kind("leaderworkerset.x-k8s.io", "v1", "leaderworkersets", "LeaderWorkerSet")
JOB: Final = Kind("batch", "v1", "jobs", "Job")
LEASE: Final = Kind("coordination.k8s.io", "v1", "leases", "Lease")
# Where the events of the kubelet and the scheduler can be selected by the object that they are about.
CORE_EVENT: Final = Kind("", "v1", "events", "Event")
NODE: Final = Kind("", "v1", "nodes", "Node")
NAMESPACE: Final = Kind("", "v1", "namespaces", "Namespace")
RESOURCE_QUOTA: Final = Kind("", "v1", "resourcequotas", "ResourceQuota")
PRIORITY_CLASS: Final = Kind("scheduling.k8s.io", "v1", "priorityclasses", "PriorityClass")
EVENT: Final = Kind("events.k8s.io", "v1", "events", "Event")

# What the operator makes for a pool.
OWNED: Final = (
    SERVICE_ACCOUNT,
    CONFIG_MAP,
    NETWORK_POLICY,
    SERVICE,
    DISRUPTION_BUDGET,
    DEPLOYMENT,
    ENDPOINT_SLICE,
    JOB,
)
WATCHED: Final = (MODEL_POOL, AGENT_WORKFLOW, AGENT_WORKFLOW_RUN, *OWNED, POD)
_BY_NAME: Final = {(kind.api_version, kind.kind): kind for kind in (*WATCHED, LEADER_WORKER_SET, LEASE, EVENT)}


def kind_of(item: Object) -> Kind:
    """The kind of a rendered object. Raises KeyError for one that the operator does not handle."""
    return _BY_NAME[item["apiVersion"], item["kind"]]
