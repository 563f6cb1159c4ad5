"""kopf's wiring, and nothing else: what the watches tell goes into the store.

kopf is a source of events here. No finalizers, no diff handlers, no annotations: only `on.event`, which writes
nothing to objects. What follows from an event is decided by the reconcile, level by level.
"""

import asyncio
import logging
from collections.abc import Mapping, Sequence
from typing import Any, Final

import kopf

from tidepool_api.contract import FIELD_MANAGER, MANAGED_BY, MANAGED_BY_LABEL, POOL_LABEL
from tidepool_operator.cluster.kinds import (
    CONFIG_MAP,
    DEPLOYMENT,
    DISRUPTION_BUDGET,
    ENDPOINT_SLICE,
    NETWORK_POLICY,
    POD,
    SERVICE,
    SERVICE_ACCOUNT,
    WATCHED,
    Kind,
)
from tidepool_operator.cluster.store import Store, key_of

_OURS: Final = f"{MANAGED_BY_LABEL}={MANAGED_BY},{POOL_LABEL}"
# Nothing of anybody else crosses the wire or takes memory.
SELECTORS: Final[Mapping[Kind, str]] = {
    DEPLOYMENT: _OURS,
    POD: _OURS,
    SERVICE: _OURS,
    SERVICE_ACCOUNT: _OURS,
    CONFIG_MAP: _OURS,
    DISRUPTION_BUDGET: _OURS,
    NETWORK_POLICY: _OURS,
    # The endpoint controller copies a Service's labels to its slices; ours name us as their manager.
    ENDPOINT_SLICE: f"endpointslice.kubernetes.io/managed-by={FIELD_MANAGER}",
}


def registry(store: Store) -> kopf.OperatorRegistry:
    """Handlers that keep `store` at what the watches tell."""
    made = kopf.OperatorRegistry()
    kopf.on.login(registry=made)(_login)
    for kind in WATCHED:
        kopf.on.event(kind.group, kind.version, kind.plural, registry=made, id=kind.plural)(_taker(store, kind))
    return made


def settings() -> kopf.OperatorSettings:
    """Timeouts that end a silent watch, and everything off that writes."""
    made = kopf.OperatorSettings()
    made.posting.enabled = False
    made.peering.standalone = True
    # CRDs and namespaces are not watched: that would need rights on the whole cluster.
    made.scanning.disabled = True
    made.watching.server_timeout = 240
    made.watching.client_timeout = 270
    made.watching.connect_timeout = 10
    made.watching.inactivity_timeout = 75  # bookmarks come every 60 s
    made.watching.chunk_size = 500
    made.networking.request_timeout = 30
    made.networking.error_backoffs = (0.2, 0.5, 1, 2, 5)
    made.queueing.idle_timeout = 1.0
    # This process is stopped by whoever runs it, not by a timer that kills it.
    made.process.ultimate_exiting_timeout = None
    for kind, selector in SELECTORS.items():
        made.watching.label_selectors[kopf_selector(kind)] = selector
    return made


def kopf_selector(kind: Kind) -> tuple[str, str, str]:
    """A kind as kopf's settings name it."""
    return (kind.group, kind.version, kind.plural)


async def watch(store: Store, namespaces: Sequence[str], stop: asyncio.Event, ready: asyncio.Event) -> None:
    """Run kopf until `stop`; `ready` is set when it has begun. Raises what ends kopf."""
    logging.getLogger("kopf").setLevel(logging.WARNING)
    await kopf.operator(
        registry=registry(store),
        settings=settings(),
        standalone=True,
        clusterwide=not namespaces,
        namespaces=list(namespaces),
        stop_flag=stop,
        ready_flag=ready,
    )


def _taker(store: Store, kind: Kind) -> Any:  # noqa: ANN401 - kopf's own protocol of handlers
    async def take(event: kopf.RawEvent, **_: object) -> None:
        item: dict[str, Any] = dict(event["object"])
        if event["type"] == "DELETED":
            store.forget(kind, key_of(item), uid=item["metadata"].get("uid", ""))
        else:
            store.put(kind, item)

    return take


async def _login(**kwargs: Any) -> kopf.ConnectionInfo | None:  # noqa: ANN401 - kopf's own protocol
    return kopf.login_with_service_account(**kwargs) or kopf.login_with_kubeconfig(**kwargs)
