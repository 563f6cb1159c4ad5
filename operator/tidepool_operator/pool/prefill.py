"""What a pool has more where prefill and decode are apart: objects of the prefill pods, ports among engines."""

from typing import Protocol

from tidepool_api import contract
from tidepool_api.modelpool import ModelPool
from tidepool_operator.pool.model import Object
from tidepool_operator.pool.sidecar_tls import peers_spec


class MakesObject(Protocol):
    """The frame of a pool's object."""

    def __call__(self, pool: ModelPool, api_version: str, kind: str, name: str, *, spec: Object) -> Object:
        """With its owner and labels."""


def objects(pool: ModelPool, make: MakesObject, *, tls: bool) -> tuple[Object, ...]:
    """A name by which gateways find the prefill pods, and what an eviction may take of them.

    Where the spec wants none any more they stay, and select nothing, until the pool goes: the operator may delete
    neither kind.
    """
    selected = {contract.POOL_LABEL: pool.metadata.name, contract.ROLE_LABEL: contract.ROLE_PREFILL}
    budget = {
        "maxUnavailable": pool.spec.disruption.max_unavailable,
        "selector": {"matchLabels": selected},
        "unhealthyPodEvictionPolicy": "AlwaysAllow",
    }
    name = contract.prefill_service(pool.metadata.name)
    found = (
        make(pool, "v1", "Service", name, spec=headless(selected)),
        make(pool, "policy/v1", "PodDisruptionBudget", name, spec=budget),
    )
    if not tls:
        return found
    secure = contract.tls_prefill_service(pool.metadata.name)
    return (*found, make(pool, "v1", "Service", secure, spec=peers_spec(selected)))


def find_peers_by_tls(template: Object, pool: ModelPool) -> None:
    """A prefill pod's peers are prefill pods, over TLS too."""
    (router,) = [each for each in template["spec"]["initContainers"] if each["name"] == contract.ROUTER_CONTAINER]
    arguments = router["args"]
    arguments[arguments.index("--peers") + 1] = contract.tls_prefill_url(
        pool.metadata.name, pool.metadata.namespace
    )


def headless(selected: dict[str, str]) -> Object:
    """Spec of a Service whose A records are pods: gateways and peers must know one before it is Ready, and while
    it drains."""
    port = {"name": "http", "port": contract.TRAFFIC_PORT, "targetPort": contract.TRAFFIC_PORT, "protocol": "TCP"}
    return {"clusterIP": "None", "publishNotReadyAddresses": True, "selector": selected, "ports": [port]}


def selector_of_others(pool: ModelPool) -> Object:
    """Selector of all but the prefill pods: one that two budgets select could not be evicted at all."""
    found: Object = {"matchLabels": {contract.POOL_LABEL: pool.metadata.name}}
    if pool.spec.disaggregation is not None:
        apart = {"key": contract.ROLE_LABEL, "operator": "NotIn", "values": [contract.ROLE_PREFILL]}
        found["matchExpressions"] = [apart]
    return found


def ingress(pool: ModelPool, peers: Object) -> tuple[Object, ...]:
    """The one way to an engine past its sidecar: its peers' engines, for blocks and where they are."""
    if pool.spec.disaggregation is None:
        return ()
    ports = {"protocol": "TCP", "port": contract.NIXL_PORT, "endPort": contract.UCX_PORTS[1]}
    return ({"from": [peers], "ports": [ports]},)
