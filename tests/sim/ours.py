"""The product in the simulator: its own PoolState at each gateway, its own SidecarState before each engine.

Only sockets and tasks are left out. What the proxies' exchanges do around a request (_close_books in
proxy/gateway.py and proxy/sidecar.py) is done here, and the load streams are deliveries of reports.
"""

import asyncio
from collections import deque
from collections.abc import Collection, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, Final

from tidepool_api.load import LoadReport
from tidepool_api.routing import FleetPool, Policy, Queue, Routing, SidecarSettings
from tidepool_router.errors import Refused
from tidepool_router.fleet.endpoint import Endpoint
from tidepool_router.fleet.engine_page import read_engine_page
from tidepool_router.fleet.engine_probe import Probe
from tidepool_router.fleet.engine_queue import HeldHere
from tidepool_router.fleet.feed import SPACING_SECONDS, URGENT_SPACING_SECONDS
from tidepool_router.fleet.gateway_metrics import GatewayMetrics
from tidepool_router.fleet.pool import PoolState
from tidepool_router.fleet.reservation import Reservation
from tidepool_router.fleet.sidecar import SidecarState
from tidepool_router.ledger import Entry, Outcome

from .engine import Engine
from .request import MODEL, Request
from .world import Hire, Life, Site, Staff

# A sidecar reports at most so often (fleet/feed.py), and scrapes a busy engine so often (fleet/engine_watch.py).
REPORT_SECONDS: Final = SPACING_SECONDS
SCRAPE_SECONDS: Final = 2.0
# And so often while requests wait at it (fleet/engine_queue.py).
LOOK_SECONDS: Final = 0.25
# Chunks are counted when a report is due, and no oftener than this: each one as it comes would change little.
PROGRESS_SECONDS: Final = 0.5


class Clock:
    """Simulated time, for code that asks."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        """Seconds."""
        return self.now


class Sidecars:
    """World's Doors: a SidecarState a pod, and what they report."""

    def __init__(self, engines: Sequence[Engine], clock: Clock, routing: Routing) -> None:
        self._engines = engines
        self._clock = clock
        settings = SidecarSettings(pool="sim", model=MODEL, routing=routing)
        self.states = [
            SidecarState(_endpoint(i), settings, pod=f"pod-{i}", boot="boot", now=clock)
            for i in range(len(engines))
        ]
        for state in self.states:
            state.watch.probe, state.watch.was_up = Probe(answers=True, models=(MODEL,)), True
        self.live: list[dict[int, Life]] = [{} for _ in engines]
        self._entries: dict[int, Entry] = {}
        self._held: list[list[tuple[Life, HeldHere]]] = [[] for _ in engines]
        self._were_held: dict[int, HeldHere] = {}
        self._reported_at = [float("-inf")] * len(engines)
        self._scraped_at = [float("-inf")] * len(engines)
        self._counted_at = [float("-inf")] * len(engines)
        self._dirty = [True] * len(engines)
        self.gateways: list[Gateway] = []

    def arrived(self, life: Life, now: float) -> bool:
        """The sidecar counts it, and passes it on or holds it."""
        self._clock.now = now
        state = self.states[life.pod]
        entry, held = state.open(life.request.facts, now)
        self._entries[life.request.number] = entry
        self.live[life.pod][life.request.number] = life
        self._dirty[life.pod] = True
        if held is None:
            return True
        self._held[life.pod].append((life, held))
        return False

    def first_token(self, life: Life, now: float) -> None:
        """The first chunk passes."""
        self._clock.now = now
        self._entries[life.request.number].first_token(now)
        self._dirty[life.pod] = True

    def ended(self, life: Life, now: float) -> None:
        """The answer is whole."""
        self._clock.now = now
        entry = self._entries.pop(life.request.number)
        del self.live[life.pod][life.request.number]
        self._dirty[life.pod] = True
        request, state = life.request, self.states[life.pod]
        cached = life.sequence.cached_tokens if life.sequence is not None else 0
        entry.usage(request.prompt_tokens, request.output_tokens, cached)
        state.estimator.learn(request.facts, request.prompt_tokens, request.output_tokens)
        held = self._were_held.pop(request.number, None)
        if held is not None:
            state.waiting.over(held, entry)
        entry.close(Outcome.OK, now)

    def released(self, pod: int, now: float) -> list[Life]:
        """Whose turn has come; the engine is looked at meanwhile, as the sidecar's rounds do."""
        waiting = self._held[pod]
        if not waiting:
            return []
        self._clock.now = now
        if now - self._scraped_at[pod] >= LOOK_SECONDS:
            self._look(pod, now)
        else:
            self.states[pod].waiting.release()
        go = [pair for pair in waiting if pair[1].turn.done()]
        if go:
            self._held[pod] = [pair for pair in waiting if not pair[1].turn.done()]
            self._dirty[pod] = True
        for life, held in go:
            held.turn.result()
            self._were_held[life.request.number] = held
        return [life for life, _ in go]

    def _look(self, pod: int, now: float) -> None:
        self._scraped_at[pod] = now
        state = self.states[pod]
        state.watch.figures = figures = read_engine_page(metrics_page(self._engines[pod]))
        state.waiting.looked()
        if figures.kv_capacity_tokens:
            state.cache.resize(figures.kv_capacity_tokens, figures.kv_block_tokens)

    def report(self, pod: int, now: float) -> LoadReport | None:
        """What the pod tells now; None when it told a moment ago, or has nothing new to tell."""
        spacing = URGENT_SPACING_SECONDS if self.states[pod].urgent else REPORT_SECONDS
        if now - self._reported_at[pod] < spacing:
            return None
        self._clock.now = now
        self._count(pod, now)
        if now - self._scraped_at[pod] >= SCRAPE_SECONDS:
            self._look(pod, now)
            self._dirty[pod] = True
        if not self._dirty[pod]:
            return None
        self._dirty[pod] = False
        self._reported_at[pod] = now
        return self.states[pod].tell()

    def _count(self, pod: int, now: float) -> None:
        """Chunks that passed since: at the sidecar and at the gateway."""
        if now - self._counted_at[pod] < PROGRESS_SECONDS:
            return
        self._counted_at[pod] = now
        engine, entries = self._engines[pod], self._entries
        for number, life in self.live[pod].items():
            if life.first_at is None or life.sequence is None:
                continue
            tokens = engine.produced(life.sequence, now)
            entries[number].progress(tokens, now)
            self.gateways[life.gateway].progress(number, tokens, now)
            self._dirty[pod] = True


@dataclass(slots=True)
class _Waiting:
    """A request that the gateway holds: its coroutine, and the future that it waits for."""

    request: Request
    wait: Coroutine[Any, Any, Reservation]
    future: "asyncio.Future[Reservation]"


class Gateway:
    """A SimPicker over the product's PoolState."""

    def __init__(self, site: Site, sidecars: Sidecars, clock: Clock, routing: Routing) -> None:
        self._sidecars = sidecars
        self._clock = clock
        self._delay = site.fault.delay_seconds
        endpoints = [_endpoint(pod) for pod in range(len(site.engines))]
        self._keys = [endpoint.key for endpoint in endpoints]
        self._numbers = {key: pod for pod, key in enumerate(self._keys)}
        config = FleetPool(name="sim", models=(MODEL,), endpoints=(), routing=routing)
        self.pool = PoolState(config, GatewayMetrics(), clock)
        self.pool.set_pods(endpoints)
        self._reservations: dict[int, Reservation] = {}
        self._waiting: list[_Waiting] = []
        self._refused: list[Request] = []
        self._inbox: deque[tuple[float, int, LoadReport]] = deque()
        for pod in range(len(endpoints)):
            self.hear(pod, sidecars.states[pod].report(), float("-inf"))

    def hear(self, pod: int, report: LoadReport, now: float) -> None:
        """A report sets out; it is here after the delay."""
        self._inbox.append((now + self._delay, pod, report))

    def pick(self, request: Request, now: float, exclude: Collection[int] = ()) -> int | None:
        """As proxy/gateway.py: pick, or wait for a pod."""
        self._listen(now)
        keys = tuple(self._keys[pod] for pod in exclude)
        reservation = self.pool.pick(request.facts, now, keys)
        if reservation is None:
            self._hold(request)
            return None
        return self._placed(request, reservation)

    def released(self, now: float) -> list[tuple[Request, int]]:
        """Who has a place since."""
        self._listen(now)
        self.pool.tick(now)
        placed: list[tuple[Request, int]] = []
        still: list[_Waiting] = []
        for held in self._waiting:
            if not held.future.done():
                still.append(held)
                continue
            try:
                held.wait.send(None)
            except StopIteration as end:
                placed.append((held.request, self._placed(held.request, end.value)))
            except Refused:
                self._refused.append(held.request)
        self._waiting = still
        return placed

    def refused(self, now: float) -> list[Request]:
        """Who was turned away since."""
        refused, self._refused = self._refused, []
        return refused

    def first_token(self, request: Request, pod: int, now: float) -> None:
        """The first chunk passes."""
        self._clock.now = now
        self._reservations[request.number].entry.first_token(now)

    def progress(self, number: int, tokens: int, now: float) -> None:
        """Chunks pass."""
        self._reservations[number].entry.progress(tokens, now)

    def ended(self, request: Request, pod: int, now: float, *, failed: bool, cached_tokens: int) -> None:
        """The books are closed."""
        self._clock.now = now
        reservation = self._reservations.pop(request.number)
        if failed:
            reservation.failed("reset")
            reservation.close(Outcome.ERROR, now)
            return
        reservation.entry.usage(request.prompt_tokens, request.output_tokens, cached_tokens)
        self.pool.estimator.learn(request.facts, request.prompt_tokens, request.output_tokens)
        reservation.close(Outcome.OK, now)

    def _placed(self, request: Request, reservation: Reservation) -> int:
        self._reservations[request.number] = reservation
        return self._numbers[reservation.endpoint.key]

    def _hold(self, request: Request) -> None:
        wait = self.pool.wait_for_pod(request.facts, self._clock)
        try:
            future = wait.send(None)
        except Refused:
            self._refused.append(request)
            return
        except StopIteration as end:  # a place was free at once
            end_of: Reservation = end.value
            done: asyncio.Future[Reservation] = asyncio.get_running_loop().create_future()
            done.set_result(end_of)
            self._waiting.append(_Waiting(request, _given(end_of), done))
            return
        self._waiting.append(_Waiting(request, wait, future))

    def _listen(self, now: float) -> None:
        self._clock.now = now
        sidecars = self._sidecars
        for pod in range(len(self._keys)):
            report = sidecars.report(pod, now)
            if report is not None:
                for gateway in sidecars.gateways:
                    gateway.hear(pod, report, now)
        inbox = self._inbox
        while inbox and inbox[0][0] <= now:
            _, pod, report = inbox.popleft()
            known = self.pool.pods[self._keys[pod]]
            known.reachable = known.streaming = True
            self.pool.pod_heard(known, report)


async def _given(reservation: Reservation) -> Reservation:
    return reservation


def _endpoint(pod: int) -> Endpoint:
    return Endpoint.at(f"pod-{pod}", 8080)


def metrics_page(engine: Engine) -> bytes:
    """The lines of vLLM's metrics page that the sidecar reads."""
    labels = '{engine="0",model_name="sim"}'
    size, total = engine.config.block_tokens, engine.pool.total
    lines = [
        f"vllm:num_requests_running{labels} {len(engine.running)}",
        f"vllm:num_requests_waiting{labels} {engine.waiting}",
        f"vllm:kv_cache_usage_perc{labels} {engine.kv_usage}",
        f"vllm:prompt_tokens_total{labels} {engine.counts.prompt_tokens}",
        f"vllm:generation_tokens_total{labels} {engine.counts.output_tokens}",
        f'vllm:cache_config_info{{block_size="{size}",engine="0",num_gpu_blocks="{total}"}} 1.0',
    ]
    return ("\n".join(lines) + "\n").encode()


def product(policy: Policy) -> Hire:
    """The product with a policy. Queues are wide, so that what is measured is the choice and not refusals."""
    queue = Queue(max_waiting=100_000, max_bytes="100Gi", timeout="3600s")
    routing = Routing(policy=policy, queue=queue)

    def hire(site: Site) -> Staff:
        clock = Clock()
        sidecars = Sidecars(site.engines, clock, routing)
        gateways = [Gateway(site, sidecars, clock, routing) for _ in range(site.gateways)]
        sidecars.gateways = gateways
        return Staff(gateways, sidecars)

    return hire
