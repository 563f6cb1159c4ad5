"""The pool's other sidecars, as this one knows them at the moment when it needs one: DNS, then three questions.

Nothing is kept warm: a sidecar whose engine works asks nobody. While it asks, answers are shared for a moment and
what was sent since is added, so that the cost grows with time and not with requests.
"""

import asyncio
import logging
import random
from collections.abc import Callable, Collection, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from time import monotonic
from typing import Any, Final

from tidepool_api import contract
from tidepool_api.load import Health, LoadReport
from tidepool_router.errors import UpstreamError
from tidepool_router.fleet.client import get
from tidepool_router.fleet.endpoint import Endpoint, parse_source
from tidepool_router.fleet.resolve import Lookup, look_up
from tidepool_router.ledger import Estimate
from tidepool_router.tls import Trust

_log: Final = logging.getLogger("tidepool.router")
# Two at random are nearly as good as all (the power of two choices); a third, because some may be down as well.
_ASKED: Final = 3
_ANSWER_SECONDS: Final = 0.5
_SHARED_SECONDS: Final = 0.1
_RESOLVED_SECONDS: Final = 1.0
_RESOLVE_SECONDS: Final = 2.0

Spawn = Callable[[Coroutine[Any, Any, None]], "asyncio.Task[None]"]


class Peer:
    """One that could serve a request: its load report, and what was sent to it since. A picking.Candidate.

    `endpoint` None stands for the own engine.
    """

    __slots__ = ("endpoint", "load_requests", "load_tokens", "report")

    def __init__(self, endpoint: Endpoint | None, report: LoadReport) -> None:
        self.endpoint = endpoint
        self.report = report
        self.load_tokens = report.queued_tokens + report.held_tokens + report.expected_tokens
        self.load_requests = report.running + report.waiting

    @property
    def key(self) -> str:
        """The endpoint's; empty for the own engine."""
        return self.endpoint.key if self.endpoint is not None else ""

    def sent(self, estimate: Estimate) -> None:
        """One more request is on its way there."""
        self.load_tokens += estimate.prompt_tokens + estimate.output_tokens
        self.load_requests += 1


def best_peer(peers: Sequence[Peer], max_waiting: int, tried: Collection[str] = ()) -> Peer | None:
    """The least loaded that is READY, has room in its queue and is not among the tried; None if none is. Pure."""
    fit = [
        peer
        for peer in peers
        if peer.report.health is Health.READY
        and not (peer.report.waiting and peer.report.waiting >= max_waiting)
        and peer.key not in tried
    ]
    return min(fit, key=lambda peer: (peer.load_tokens, peer.load_requests), default=None)


class Peers:
    """`own` are the addresses that lead back here; whoever learns of one more adds it.

    Raises SettingsError when the URL cannot be read.
    """

    def __init__(
        self,
        url: str,
        boot: str,
        own: Collection[str],
        spawn: Spawn,
        lookup: Lookup = look_up,
        trust: Trust | None = None,
    ) -> None:
        source = parse_source(url, trust).endpoint
        self._trust = source.trust
        self.own = set(own)
        self._host, self._port = source.host, source.port
        self._boot = boot
        self._spawn = spawn
        self._lookup = lookup
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="peers")
        self._asked: asyncio.Future[Sequence[str] | None] | None = None
        self._known: frozenset[str] = frozenset()
        self._resolved_at = float("-inf")
        self._looking: asyncio.Task[None] | None = None
        self._looked_at = float("-inf")
        self._peers: list[Peer] = []

    def close(self) -> None:
        """Ask DNS nothing more."""
        self._executor.shutdown(wait=False, cancel_futures=True)

    async def addresses(self) -> frozenset[str]:
        """All sidecars of the pool, this one among them; the last answer's while DNS gives none."""
        if monotonic() - self._resolved_at >= _RESOLVED_SECONDS:
            asked = self._asked
            if asked is None or asked.done():
                loop = asyncio.get_running_loop()
                asked = self._asked = loop.run_in_executor(self._executor, self._resolve)
            done, _ = await asyncio.wait({asked}, timeout=_RESOLVE_SECONDS)
            if done:
                found = asked.result()
                self._resolved_at = monotonic()
                self._known = self._known if found is None else frozenset(found)
        return self._known

    async def look(self) -> Sequence[Peer]:
        """Peers at random that answered, with their load; everyone who looks at once shares the answers."""
        looking = self._looking
        if looking is None or (looking.done() and monotonic() - self._looked_at >= _SHARED_SECONDS):
            looking = self._looking = self._spawn(self._ask())
        await asyncio.shield(looking)
        return self._peers

    def forget(self, key: str) -> None:
        """A peer failed: nobody goes there on the word of the last look."""
        self._peers = [peer for peer in self._peers if peer.key != key]

    def _resolve(self) -> Sequence[str] | None:
        try:
            return self._lookup(self._host)
        except OSError as error:
            _log.warning("DNS does not name the peers", extra={"host": self._host, "reason": str(error)})
            return None

    async def _ask(self) -> None:
        others = sorted(await self.addresses() - self.own)
        chosen = random.sample(others, min(_ASKED, len(others)))
        found = await asyncio.gather(
            *(self._ask_one(Endpoint.at(address, self._port, self._trust)) for address in chosen)
        )
        self._peers = [peer for peer in found if peer is not None]
        self._looked_at = monotonic()

    async def _ask_one(self, endpoint: Endpoint) -> Peer | None:
        try:
            async with asyncio.timeout(_ANSWER_SECONDS):
                answer = await get(endpoint, contract.PATH_LOAD, _ANSWER_SECONDS)
            report = LoadReport.decode(answer.body)
        except (UpstreamError, TimeoutError, ValueError):
            return None  # gone, too slow, or no sidecar: whichever it is, nothing goes there now
        return None if answer.status != 200 or report.boot == self._boot else Peer(endpoint, report)
