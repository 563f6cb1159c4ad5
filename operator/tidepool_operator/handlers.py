"""kopf's wiring, and nothing else: what the watches tell goes into the store.

kopf is a source of events here. No finalizers, no diff handlers, no annotations: only `on.event`, which writes
nothing to objects. What follows from an event is decided by the reconcile, level by level.
"""

import asyncio
import concurrent.futures
import contextlib
import logging
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import kopf

from tidepool_api.contract import FIELD_MANAGER, MANAGED_BY, MANAGED_BY_LABEL, POOL_LABEL
from tidepool_operator.cluster.client import configuration
from tidepool_operator.cluster.kinds import (
    CONFIG_MAP,
    DEPLOYMENT,
    DISRUPTION_BUDGET,
    ENDPOINT_SLICE,
    JOB,
    NETWORK_POLICY,
    POD,
    SERVICE,
    SERVICE_ACCOUNT,
    WATCHED,
    Kind,
    Object,
)
from tidepool_operator.cluster.store import Store, key_of
from tidepool_operator.errors import WatchesEnded

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
    JOB: _OURS,
    # The endpoint controller copies a Service's labels to its slices; ours name us as their manager.
    ENDPOINT_SLICE: f"endpointslice.kubernetes.io/managed-by={FIELD_MANAGER}",
}


# Kind, object, and whether it is gone; called in kopf's thread.
Tell = Callable[[Kind, Object, bool], None]
_STOP_SECONDS: Final = 10.0
_BACKOFFS_SECONDS: Final = (0.2, 0.5, 1, 2, *[5] * 12)
_CLOSING_SECONDS: Final = 0.25


def registry(tell: Tell, kubeconfig: str | None = None) -> kopf.OperatorRegistry:
    """Handlers that pass on what the watches tell."""
    made = kopf.OperatorRegistry()
    kopf.on.login(registry=made)(_login(kubeconfig))
    for kind in WATCHED:
        kopf.on.event(kind.group, kind.version, kind.plural, registry=made, id=kind.plural)(_teller(tell, kind))
    return made


def settings(silence_seconds: float = 75.0) -> kopf.OperatorSettings:
    """Timeouts that end a silent watch, and everything off that writes."""
    made = kopf.OperatorSettings()
    made.posting.enabled = False
    made.peering.standalone = True
    # CRDs and namespaces are not watched: that would need rights on the whole cluster.
    made.scanning.disabled = True
    made.watching.server_timeout = 240
    made.watching.client_timeout = 270
    made.watching.connect_timeout = 10
    made.watching.inactivity_timeout = silence_seconds
    made.watching.chunk_size = 500
    made.networking.request_timeout = 30
    # An API server or etcd that restarts is waited for; afterwards the process starts anew, and waits then.
    made.networking.error_backoffs = _BACKOFFS_SECONDS
    made.queueing.idle_timeout = 1.0
    # This process is stopped by whoever runs it, not by a timer that kills it.
    made.process.ultimate_exiting_timeout = None
    for kind, selector in SELECTORS.items():
        made.watching.label_selectors[kopf_selector(kind)] = selector
    return made


def kopf_selector(kind: Kind) -> tuple[str, str, str]:
    """A kind as kopf's settings name it."""
    return (kind.group, kind.version, kind.plural)


class Watches:
    """kopf in a thread and a loop of its own, from `start` to `close`.

    It cannot share a loop: when it ends it cancels every other task that it finds there, and it takes the signals
    for itself. What it tells crosses over to the store's loop, in order.
    """

    def __init__(
        self,
        store: Store,
        namespaces: Sequence[str],
        kubeconfig: str | None = None,
        *,
        silence_seconds: float = 75.0,
    ) -> None:
        self._store = store
        self._namespaces = list(namespaces)
        self._kubeconfig = kubeconfig
        self._silence_seconds = silence_seconds
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="kopf")
        self._ended: asyncio.Future[None] | None = None
        self._begun: concurrent.futures.Future[tuple[asyncio.AbstractEventLoop, asyncio.Event]]
        self._begun = concurrent.futures.Future()

    def start(self) -> asyncio.Future[None]:
        """Begin to watch. The future ends when kopf does, with what ended it."""
        logging.getLogger("kopf").setLevel(logging.WARNING)
        loop = asyncio.get_running_loop()

        def tell(kind: Kind, item: Object, gone: bool) -> None:  # noqa: FBT001 - kopf's thread has one caller
            loop.call_soon_threadsafe(self._take, kind, item, gone)

        serving = self._serve(registry(tell, self._kubeconfig))
        self._ended = loop.run_in_executor(self._thread, asyncio.run, serving)
        return self._ended

    async def close(self) -> None:
        """Have kopf end in good order."""
        if self._ended is not None and not self._ended.done():
            loop, stop = await asyncio.wrap_future(self._begun)
            # It may end by itself at this very moment, and its loop with it.
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(stop.set)
            await asyncio.wait([self._ended], timeout=_STOP_SECONDS)
        self._thread.shutdown(wait=False)

    async def _serve(self, made: kopf.OperatorRegistry) -> None:
        # A flag of kopf's own loop: a thread's would be waited for in a thread, which then cannot end with kopf.
        stop = asyncio.Event()
        self._begun.set_result((asyncio.get_running_loop(), stop))
        try:
            await kopf.operator(
                registry=made,
                settings=settings(self._silence_seconds),
                standalone=True,
                clusterwide=not self._namespaces,
                namespaces=self._namespaces,
                stop_flag=stop,
                # Else kopf asks for the user's name, which a container's user need not have.
                identity=FIELD_MANAGER,  # type: ignore[arg-type]
            )
        except Exception as error:
            raise WatchesEnded(f"The watches ended ({error}); the operator starts anew.") from error
        finally:
            # Transports of TLS close a few turns of the loop after their session, and kopf does not wait for them.
            await asyncio.sleep(_CLOSING_SECONDS)
        if not stop.is_set():
            raise WatchesEnded("The watches ended by themselves; the operator starts anew.")

    def _take(self, kind: Kind, item: Object, gone: bool) -> None:  # noqa: FBT001 - called by position, across threads
        if gone:
            self._store.forget(kind, key_of(item), uid=item["metadata"].get("uid", ""))
        else:
            self._store.put(kind, item)


def _teller(tell: Tell, kind: Kind) -> Any:  # noqa: ANN401 - kopf's own protocol of handlers
    async def take(event: kopf.RawEvent, **_: object) -> None:
        try:
            tell(kind, dict(event["object"]), event["type"] == "DELETED")
        except RuntimeError:
            return  # the store's loop is closed: nobody wants to know any more

    return take


def _login(kubeconfig: str | None) -> Any:  # noqa: ANN401 - kopf's own protocol of handlers
    async def login(**_: object) -> kopf.ConnectionInfo:
        """The access that cluster/client.py has, asked for anew whenever the API server refuses the last one."""
        made = await configuration(kubeconfig)
        header = await made.get_api_key_with_prefix("BearerToken", alias="authorization")
        words = (header or "").split()
        return kopf.ConnectionInfo(
            server=made.host,
            ca_path=made.ssl_ca_cert,
            insecure=not made.verify_ssl,
            scheme=words[0] if len(words) > 1 else None,
            token=words[-1] if words else None,
            certificate_path=made.cert_file,
            private_key_path=made.key_file,
        )

    return login
