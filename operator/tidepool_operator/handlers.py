"""kopf's wiring, and nothing else: what the watches tell goes into the store.

kopf is a source of events here. No finalizers, no diff handlers, no annotations: only `on.event`, which writes
nothing to objects. What follows from an event is decided by the reconcile, level by level.
"""

import asyncio
import concurrent.futures
import contextlib
import json
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import aiohttp
import kopf
import msgspec

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
from tidepool_operator.cluster.store import Store, key_of, slim
from tidepool_operator.errors import ApiError, WatchesEnded

log = logging.getLogger(__name__)

OURS: Final = f"{MANAGED_BY_LABEL}={MANAGED_BY},{POOL_LABEL}"
# Nothing of anybody else crosses the wire or takes memory.
SELECTORS: Final[Mapping[Kind, str]] = {
    DEPLOYMENT: OURS,
    POD: OURS,
    SERVICE: OURS,
    SERVICE_ACCOUNT: OURS,
    CONFIG_MAP: OURS,
    DISRUPTION_BUDGET: OURS,
    NETWORK_POLICY: OURS,
    JOB: OURS,
    # The endpoint controller copies a Service's labels to its slices; ours name us as their manager.
    ENDPOINT_SLICE: f"endpointslice.kubernetes.io/managed-by={FIELD_MANAGER}",
}


# Kind, object, and the event's type (None: it was listed); called in kopf's thread.
Tell = Callable[[Kind, Object, str | None], None]
_STOP_SECONDS: Final = 10.0
# So many ends within so long a time are no mishap.
_LIVES: Final = 5
_LIVES_SECONDS: Final = 300.0
_LIFE_PAUSE_SECONDS: Final = 1.0
_REAP_SECONDS: Final = 0.5
_GATHER_SECONDS: Final = 0.02
# Everything else has its turn between so many.
_TAKEN_AT_ONCE: Final = 200
_BACKOFFS_SECONDS: Final = (0.2, 0.5, 1, 2, *[5] * 12)
_CLOSING_SECONDS: Final = 0.25
# What is listed so long after the last of its kind that was belongs to another list.
_LISTING_SECONDS: Final = 10.0


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
    # A page lies in memory as a whole, and one of each kind at a time.
    made.watching.chunk_size = 100
    made.networking.request_timeout = 30
    # An API server or etcd that restarts is waited for; afterwards kopf begins anew, and waits then.
    made.networking.error_backoffs = _BACKOFFS_SECONDS
    # kopf has a task for each object; thousands are told of at the start, and seldom twice.
    made.queueing.idle_timeout = 0.1
    # This process is stopped by whoever runs it, not by a timer that kills it.
    made.process.ultimate_exiting_timeout = None
    made.persistence.diffbase_storage = _NoDiffs()
    for kind, selector in SELECTORS.items():
        made.watching.label_selectors[kopf_selector(kind)] = selector
    return made


def kopf_selector(kind: Kind) -> tuple[str, str, str]:
    """A kind as kopf's settings name it."""
    return (kind.group, kind.version, kind.plural)


class _NoDiffs(kopf.DiffBaseStorage):
    """No handler here asks what has changed, so nothing is copied to find out: that is a quarter of kopf's work
    for an object."""

    def build(self, *, body: kopf.Body, extra_fields: Any = None) -> Any:  # noqa: ANN401, ARG002 - kopf's types
        """Nothing."""
        return {}

    def fetch(self, *, body: kopf.Body) -> None:
        """Nothing."""

    def store(self, *, body: kopf.Body, patch: kopf.Patch, essence: Any) -> None:  # noqa: ANN401 - kopf's types
        """Nowhere."""


class Watches:
    """kopf in a thread and a loop of its own, from `start` to `close`.

    It cannot share a loop: when it ends it cancels every other task that it finds there, and it takes the signals
    for itself. What it tells crosses over to the store's loop, in order.

    One error event of one watch ends kopf as a whole. It is begun anew then, beside all that goes on: the store,
    the Lease and what the autoscaler has seen outlive it. `served` is asked before, since kopf looks once for its
    kinds and lives on blind without them; when they are gone, or when kopf ends time and again, the process ends.
    `relists` hears of a kind that is listed again, in this life or another: kopf does not tell what vanished.
    """

    def __init__(
        self,
        store: Store,
        namespaces: Sequence[str],
        kubeconfig: str | None = None,
        *,
        served: Callable[[], Awaitable[bool]],
        relists: Callable[[Kind], None] = lambda _: None,
        silence_seconds: float = 75.0,
    ) -> None:
        self._store = store
        self._namespaces = list(namespaces)
        self._kubeconfig = kubeconfig
        self._served = served
        self._relists = relists
        self._listed: dict[Kind, float] = {}
        self._silence_seconds = silence_seconds
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="kopf")
        self._told: deque[tuple[Kind, Object, str | None]] = deque()
        self._calling = False
        self._stopping = False
        self._lives: asyncio.Task[None] | None = None
        self._begun: concurrent.futures.Future[tuple[asyncio.AbstractEventLoop, asyncio.Event]]
        self._begun = concurrent.futures.Future()

    def start(self) -> asyncio.Task[None]:
        """Begin to watch. The task ends when kopf has ended for good, with what ended it."""
        logging.getLogger("kopf").setLevel(logging.WARNING)
        self._lives = asyncio.create_task(self._live(), name="watches")
        return self._lives

    async def close(self) -> None:
        """Have kopf end in good order."""
        self._stopping = True
        if self._lives is not None and not self._lives.done():
            if self._begun.done():
                loop, stop = self._begun.result()
                # It may end by itself at this very moment, and its loop with it.
                with contextlib.suppress(RuntimeError):
                    loop.call_soon_threadsafe(stop.set)
            await asyncio.wait([self._lives], timeout=_STOP_SECONDS)
            self._lives.cancel()
            await asyncio.gather(self._lives, return_exceptions=True)
        self._thread.shutdown(wait=False)

    async def _live(self) -> None:
        """One life of kopf after the other."""
        loop = asyncio.get_running_loop()
        ends: deque[float] = deque(maxlen=_LIVES)
        while not self._stopping:
            self._begun = concurrent.futures.Future()
            made = registry(self._tell(loop), self._kubeconfig)
            try:
                await loop.run_in_executor(self._thread, asyncio.run, self._serve(made))
            except WatchesEnded as error:
                if self._stopping:
                    return
                ends.append(loop.time())
                if len(ends) == _LIVES and ends[-1] - ends[0] < _LIVES_SECONDS:
                    raise
                log.warning("%s", error)
            await self._ready_again()

    async def _ready_again(self) -> None:
        """Wait until the API server answers. Raises WatchesEnded when it does not serve our kinds any more."""
        while not self._stopping:
            await asyncio.sleep(_LIFE_PAUSE_SECONDS)
            try:
                if not await self._served():
                    raise WatchesEnded("The kinds of tidepool.dev are gone; the operator starts anew.")
            except ApiError as error:
                log.warning("the watches wait for the API server: %s", error)
            else:
                return

    def _tell(self, loop: asyncio.AbstractEventLoop) -> Tell:
        def tell(kind: Kind, item: Object, event: str | None) -> None:
            # Slim before it waits for its turn over there.
            self._told.append((kind, slim(kind, item), event))
            # One call over for all that comes within a moment: a call for each of thousands costs more than all
            # else about them, for each has this interpreter's lock change hands.
            if not self._calling:
                self._calling = True
                loop.call_soon_threadsafe(loop.call_later, _GATHER_SECONDS, self._take)

        return tell

    async def _serve(self, made: kopf.OperatorRegistry) -> None:
        # A flag of kopf's own loop: a thread's would be waited for in a thread, which then cannot end with kopf.
        stop = asyncio.Event()
        self._begun.set_result((asyncio.get_running_loop(), stop))
        if self._stopping:
            return
        ending, itself = asyncio.Event(), asyncio.current_task()

        async def ends(**_: object) -> None:
            ending.set()

        kopf.on.cleanup(registry=made)(ends)
        # Begun before kopf, which takes all later tasks for its own.
        reaper = asyncio.create_task(_reap(ending, itself))
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
            raise WatchesEnded(f"The watches ended ({error}) and begin anew.") from error
        finally:
            reaper.cancel()
            # Transports of TLS close a few turns of the loop after their session, and kopf does not wait for them.
            await asyncio.sleep(_CLOSING_SECONDS)
        if not stop.is_set():
            raise WatchesEnded("The watches ended by themselves and begin anew.")

    def _take(self) -> None:
        # Before the first look: what is told from now on calls again.
        self._calling = False
        for _ in range(_TAKEN_AT_ONCE):
            if not self._told:
                return
            kind, item, event = self._told.popleft()
            if event is None:
                self._note_listed(kind)
            if event == "DELETED":
                self._store.forget(kind, key_of(item), uid=item["metadata"].get("uid", ""))
            else:
                self._store.put_slim(kind, item)
        asyncio.get_running_loop().call_soon(self._take)

    def _note_listed(self, kind: Kind) -> None:
        now = asyncio.get_running_loop().time()
        last, self._listed[kind] = self._listed.get(kind), now
        if last is not None and now - last > _LISTING_SECONDS:
            self._relists(kind)


async def _reap(ending: asyncio.Event, spared: asyncio.Task[Any] | None) -> None:
    """Cancel what is left of a kopf that ends, time and again.

    kopf cancels its watches once and waits for them without end, and a watch that is cancelled while it waits for
    the head of an answer takes that for a pause, and goes on (kopf 1.45.2, clients/api.py, stream).
    """
    await ending.wait()
    while True:
        await asyncio.sleep(_REAP_SECONDS)
        for task in asyncio.all_tasks() - {spared, asyncio.current_task()}:
            task.cancel()


def _teller(tell: Tell, kind: Kind) -> Any:  # noqa: ANN401 - kopf's own protocol of handlers
    async def take(event: kopf.RawEvent, **_: object) -> None:
        try:
            tell(kind, dict(event["object"]), event["type"])
        except RuntimeError:
            return  # the store's loop is closed: nobody wants to know any more

    return take


def _login(kubeconfig: str | None) -> Any:  # noqa: ANN401 - kopf's own protocol of handlers
    given: list[tuple[kopf.ConnectionInfo, kopf.AiohttpSession]] = []

    async def login(**_: object) -> kopf.AiohttpSession:
        """The access that cluster/client.py has, asked for anew whenever the API server refuses the last one."""
        made = await configuration(kubeconfig)
        header = await made.get_api_key_with_prefix("BearerToken", alias="authorization")
        words = (header or "").split()
        access = kopf.ConnectionInfo(
            server=made.host,
            ca_path=made.ssl_ca_cert,
            insecure=not made.verify_ssl,
            scheme=words[0] if len(words) > 1 else None,
            token=words[-1] if words else None,
            certificate_path=made.cert_file,
            private_key_path=made.key_file,
        )
        # kopf knows what was refused by what it was given: the same access is the same object.
        if not given or given[-1][0] != access:
            given[:] = [(access, kopf.AiohttpSession(server=made.host, aiohttp_session=_session(access)))]
        return given[-1][1]

    return login


def _session(access: kopf.ConnectionInfo) -> aiohttp.ClientSession:
    """As kopf makes it, but for how answers are read."""
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, ssl=access.as_ssl_context()),
        # To unpack large lists costs more than the way inside a cluster, and to pack them costs the API server.
        headers={**access.as_http_headers(), "Accept-Encoding": "identity"},
        response_class=_Answer,
    )


class _Answer(aiohttp.ClientResponse):
    """Reads JSON three times as fast: with thousands of objects that is a fifth of a start."""

    async def json(self, **_: Any) -> Any:  # noqa: ANN401 - any JSON value
        text = await self.read()
        try:
            return msgspec.json.decode(text)
        except msgspec.DecodeError as error:
            raise json.JSONDecodeError(str(error), text.decode(errors="replace"), 0) from error
