"""A pool's own Service while no pod serves: the gateways hold its requests until the first pod is ready."""

from tidepool_api import contract
from tidepool_api.modelpool import ModelPool
from tidepool_operator.pool.model import Object
from tidepool_operator.pool.render import owned


def slice_name(pool: str) -> str:
    """Name of the EndpointSlice."""
    return f"{pool}-gateway"


def gateway_slice(pool: ModelPool, gateways: tuple[str, ...]) -> Object:
    """An EndpointSlice that leads the pool's Service to the gateways' traffic ports."""
    name = pool.metadata.name
    family = "IPv6" if any(":" in address for address in gateways) else "IPv4"
    item = owned(
        pool,
        "discovery.k8s.io/v1",
        "EndpointSlice",
        slice_name(name),
        labels={
            "kubernetes.io/service-name": name,
            "endpointslice.kubernetes.io/managed-by": contract.FIELD_MANAGER,
        },
    )
    ready = {"ready": True, "serving": True, "terminating": False}
    return item | {
        "addressType": family,
        "endpoints": [{"addresses": [address], "conditions": ready} for address in sorted(gateways)],
        "ports": [{"name": "http", "port": contract.TRAFFIC_PORT, "protocol": "TCP"}],
    }


def wanted(pool: ModelPool, ready: int) -> bool:
    """Whether the slice should be there: the pool may go to zero, and nothing serves."""
    scaling = pool.spec.scaling
    return ready == 0 and scaling is not None and scaling.reaches_zero
