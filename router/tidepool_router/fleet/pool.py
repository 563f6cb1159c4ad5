"""One pool at a gateway: its pods, the pick with its reservation, and what the operator is told of its demand."""

import asyncio
from collections.abc import Callable, Collection, Iterable
from typing import Final

import msgspec

from tidepool_api.load import LoadReport, PoolDemand
from tidepool_api.routing import FleetPool, Routing
from tidepool_api.units import duration_seconds, quantity_value
from tidepool_router.admission import Limits, Refusal
from tidepool_router.errors import FailureKind, NoPods
from tidepool_router.facts import RequestFacts
from tidepool_router.fleet.endpoint import Endpoint
from tidepool_router.fleet.fusion import Company
from tidepool_router.fleet.gateway_metrics import GatewayMetrics
from tidepool_router.fleet.holding import RETRY_AFTER_NO_POD_SECONDS, HeldRequest, Holding
from tidepool_router.fleet.pod import NO_LIMIT, Pod, PodState
from tidepool_router.fleet.reservation import Reservation
from tidepool_router.governance import Table
from tidepool_router.ledger import Entry, Estimate, PoolSpeed, PrefixIndex, TokenEstimator
from tidepool_router.ledger.chain import with_adapter
from tidepool_router.ledger.stored import read_stored
from tidepool_router.picking import NO_MATCHES, Matches, make_picker
from tidepool_router.picking.decision import Decision, decision_of
from tidepool_router.picking.predicted import hit_tokens, parts_of
from tidepool_router.picking.sessions import Sessions

_ON_THEIR_WAY: Final = frozenset((PodState.UNKNOWN, PodState.STARTING))
_NEVER: Final = float("inf")


class PoolState:
    """Everything is synchronous but `wait_for_pod`, so no other request comes between a pick and its reservation.

    `demand_changed` is called when what is held or refused changed.
    """

    def __init__(
        self,
        config: FleetPool,
        metrics: GatewayMetrics,
        now: Callable[[], float],
        demand_changed: Callable[[], None] = lambda: None,
    ) -> None:
        self.config = config
        self.now = now
        self.estimator = TokenEstimator()
        self.speed = PoolSpeed()
        self._company = Company()
        self.prefixes = PrefixIndex()
        self.pods: dict[str, Pod] = {}
        self.in_flight = 0
        self.announced = 0  # requests that runs under way will send later
        self.refused_total = 0
        self.arrived_total = 0
        self.holding = Holding(config.name, _limits(config.routing), self._place, self._count_refusal)
        self.queue = self.holding.queue
        self.metrics = metrics.pool(config.name)
        self.adapters = frozenset(config.adapters)  # further names of requests that are its own: LoRA adapters
        self.names_changed: Callable[[], None] = lambda: None  # sidecars tell of other adapters than before
        self.traffic: Table[PoolState] | None = None  # None: all requests for its names are its own
        # The pods that compute its prompts, where others decode; and of these, the pool that they do it for.
        self.prefill: PoolState | None = None
        self.decode: PoolState | None = None
        self.first_steps = 0  # of in_flight: of requests that have a place on a decode pod as well
        self._demand_changed = demand_changed
        self._picker = make_picker(config.routing.policy)
        self._sessions = Sessions()
        self.explains = False  # whether clients may ask for the scores of a pick
        self.record: Callable[[Decision], None] | None = None  # takes each pick, where somebody records them
        # The pods that can be picked, as an immutable snapshot; made anew when stale, or when an ejection ends.
        self._ready: tuple[Pod, ...] = ()
        self._stale = True
        self._stale_at = _NEVER

    @property
    def name(self) -> str:
        """`namespace/name`, or what the fleet file calls it."""
        return self.config.name

    @property
    def live(self) -> int:
        """Requests on its pods, those that compute its prompts included."""
        side = self.prefill
        return self.in_flight if side is None else self.in_flight + side.in_flight - side.first_steps

    @property
    def engine_model(self) -> str:
        """What the engines call the model; other names are its aliases."""
        return self.config.models[0]

    @property
    def routing(self) -> Routing:
        """Settings in force."""
        return self.config.routing

    def apply(self, config: FleetPool) -> None:
        """Take new settings; pods, learned figures and held requests stay."""
        if config.routing.policy is not self.config.routing.policy:
            self._picker = make_picker(config.routing.policy)
        self.config = config
        self._name_adapters()
        self.queue.limits = _limits(config.routing)

    def set_pods(self, endpoints: Iterable[Endpoint]) -> tuple[list[Pod], list[Pod]]:
        """Make these the pool's pods.

        Returns those that are new, to be listened to, and those that may be forgotten now. A pod that is gone
        from the list gets no new request and stays until its last one has ended.
        """
        wanted = {endpoint.key: endpoint for endpoint in endpoints}
        added = [
            Pod(
                endpoint,
                self.pod_changed,
                slot=self.prefixes.join(),
                speed=self.speed,
                company=self._company,
            )
            for key, endpoint in wanted.items()
            if key not in self.pods
        ]
        for pod in added:
            self.pods[pod.key] = pod
        for key, pod in self.pods.items():
            pod.leaving = key not in wanted
        gone = [pod for pod in self.pods.values() if pod.leaving and pod.ledger.running == 0]
        for pod in gone:
            del self.pods[pod.key]
            self.prefixes.leave(pod.slot)
            pod.gone()
        self._name_adapters()
        self.pod_changed()
        return added, gone

    # Requests.

    def pick(self, facts: RequestFacts, now: float, exclude: Collection[str] = ()) -> Reservation | None:
        """A place on the best pod, or None when there is nothing to send to now.

        None too while others are held, so that nobody overtakes them: wait_for_pod keeps the order. `exclude` has
        the keys of endpoints that failed this request; such a retry has waited before and goes at once.
        """
        if not exclude:
            self.arrived_total += 1
            if self.queue.held:
                return None
        return self._reserve(facts, self.estimator.estimate(facts), now, exclude)

    def scores(self, facts: RequestFacts, now: float, exclude: Collection[str] = ()) -> str:
        """What Predicted sees of each pod that can be picked now, for people: seconds of harm and their parts."""
        estimate = self.estimator.estimate(facts)
        cached = self._matches(facts, _prefix_of(facts))
        told = []
        for pod in self._candidates(facts, now, exclude):
            hit = hit_tokens(cached, pod, estimate, facts)
            parts = parts_of(pod, estimate, hit, facts.adapter)
            named = " ".join(f"{name}={value:.6f}" for name, value in parts._asdict().items())
            text = f"{pod.name} harm={sum(parts):.6f} {named} cached={hit} requests={pod.live_requests}"
            exhausted = None if pod.report is None else pod.report.kv_exhausted_seconds
            told.append(text if exhausted is None else f"{text} kv_exhausted={exhausted:.2f}")
        return "; ".join(told)

    async def wait_for_pod(
        self, facts: RequestFacts, now: Callable[[], float], *, explain: bool = False
    ) -> Reservation:
        """Hold a request until a pod takes it, by priority, then age; `explain`: and keep the scores of that pick.

        Raises QueueFull, QueueTimeout or NoPods, each with retry_after_seconds. When the waiter is cancelled its
        place is given back.
        """
        started = now()
        held = self._hold(facts, started)
        held.explain = explain
        self._demand_changed()
        self._release(started)
        try:
            reservation = await held.reservation
        except asyncio.CancelledError:
            self.holding.abandon(held, now())
            raise
        finally:
            self._demand_changed()
        reservation.queued_seconds = max(0.0, now() - started)
        return reservation

    def tick(self, now: float) -> None:
        """Let go what may go and turn away what has waited too long; called often while something is held."""
        self.holding.expire(now)
        self._release(now)

    def closed(self, pod: Pod, entry: Entry, *, succeeded: bool, now: float) -> None:
        """A reservation ended; `succeeded` is False too for what says nothing about the pod."""
        self.in_flight -= 1
        if entry.counted_by_engine:
            self._learn_cache(pod, entry)
        on_trial = pod.ejection.on_trial
        if succeeded:
            pod.ejection.succeeded(now)
        if on_trial:
            self._changed(now)
        elif self.queue.held and (not pod.full or pod.others_waiting):
            self._release(now)

    def settle(self, held: HeldRequest, entry: Entry) -> None:
        """A request that was held is over: its tenant pays for what it took, not for what it was thought to."""
        self.queue.settle(held, entry.uncached_tokens + entry.output_tokens)

    def close(self) -> None:
        """The pool is gone: whoever is held hears it."""
        self.holding.refuse_all()

    # Pods.

    def pod_heard(self, pod: Pod, report: LoadReport) -> None:
        """A load report of a pod, or a bare engine's page in the form of one."""
        now = self.now()
        before, last = pod.state(now), pod.report
        if not pod.heard(report, now):
            return
        if report.served_adapters != (() if last is None else last.served_adapters):
            self._name_adapters()
        known = last.stored_total if last is not None and last.boot == report.boot else 0
        if last is not None and last.boot != report.boot:
            self.prefixes.forget(pod.slot)
        if report.stored_total > known:
            self.prefixes.stored(pod.slot, read_stored(report.stored, report.stored_total - known))
        if pod.kv_capacity_tokens:
            self.prefixes.resize(pod.slot, pod.kv_capacity_tokens * self.estimator.bytes_per_token)
        if pod.state(now) is not before:
            self._changed(now)
        elif self.queue.held and (not pod.full or pod.others_waiting):
            self._release(now)

    def _name_adapters(self) -> None:
        told = [pod.report.served_adapters for pod in self.pods.values() if pod.report and not pod.foreign]
        names = frozenset(self.config.adapters).union(*told) - frozenset(self.config.models)
        if names != self.adapters:
            self.adapters = names
            self.names_changed()

    def pod_failed(self, pod: Pod, kind: FailureKind) -> None:
        """A request failed on a pod.

        For answers of 5xx at most half of the pods are out at once: they may be the requests' fault, and a bad
        answer is worth more than none.
        """
        now = self.now()
        ready = self._ready_pods(now)
        others = len(ready) - (pod in ready)
        if kind == "http_5xx" and 2 * others < sum(other.answers for other in self.pods.values()):
            return
        shares = sum(other.ejection.failure_share for other in ready if other is not pod)
        if pod.failed(kind, now, shares / others if others else 0.0):
            self.metrics.ejections[kind].inc()
            self._changed(now)

    def has_other(self, keys: Collection[str], now: float) -> bool:
        """Whether a pod beside those with these keys can be picked."""
        return any(pod.key not in keys for pod in self._ready_pods(now))

    def is_down(self, now: float) -> bool:
        """Nothing takes requests and nothing is about to: no pod that starts, nobody who wakes a pool at zero."""
        if self._ready_pods(now) or (self.prefill is not None and self.prefill.has_other((), now)):
            return False
        states = [state for pod in self.pods.values() if (state := pod.state(now)) is not PodState.LEAVING]
        return _ON_THEIR_WAY.isdisjoint(states) if states else not self.config.wakes

    def pod_changed(self) -> None:
        """Whether some pod can be picked may have changed."""
        self._changed(self.now())

    def demand(self, now: float, coming: int = 0) -> PoolDemand:
        """What is held and was refused, for the operator; `coming`: what runs under way will ask soon.

        What is announced wakes a pool at zero as if it were held, and keeps one that is up from falling asleep.
        """
        oldest = self.queue.oldest_offered_at()
        announced = self.announced
        asleep = announced > 0 and not self._ready_pods(now)
        return PoolDemand(
            held=self.queue.held + (announced if asleep else 0),
            held_bytes=self.queue.held_bytes,
            held_prompt_tokens=self.queue.held_prompt_tokens,
            oldest_held_seconds=round(max(0.0, now - oldest), 3) if oldest is not None else 0.0,
            in_flight=self.live or min(announced, 1),
            refused_total=self.refused_total,
            arrived_total=self.arrived_total,
            coming=coming,
        )

    def announce(self, change: int) -> None:
        """So many requests more, or less, will come later."""
        self.announced = max(0, self.announced + change)
        self._demand_changed()

    def _hold(self, facts: RequestFacts, now: float) -> HeldRequest:
        ready = bool(self._ready_pods(now))
        wakes = self.config.wakes
        if not self.pods and not wakes:
            self._count_refusal(Refusal.NO_PODS)
            message = f"The pool {self.name} has no pods and nothing starts one; give it replicas or endpoints."
            raise NoPods(message, RETRY_AFTER_NO_POD_SECONDS)
        settings = self.routing.queue
        timeout = settings.cold_start_timeout if wakes and not ready else settings.timeout
        seconds = duration_seconds(timeout)
        estimate = self.estimator.estimate(facts)
        own = _NEVER
        if facts.deadline_seconds is not None:
            own = facts.deadline_seconds - self._service_seconds(estimate)
        held = HeldRequest(facts, estimate, now, now + min(seconds, own))
        held.by_own_deadline = own <= seconds
        self.holding.hold(held, now)
        return held

    def _service_seconds(self, estimate: Estimate) -> float:
        """What an answer takes from its pod on, as the pool's answers do: a deadline is for its end."""
        beside = self.in_flight / max(1, len(self.pods))
        return self.speed.prefill.at(estimate.prompt_tokens) + estimate.output_tokens * self.speed.step.at(beside)

    def _place(self, held: HeldRequest, now: float) -> Reservation | None:
        scores = self.scores(held.facts, now) if held.explain else ""  # as the pick sees the pods
        reservation = self._reserve(held.facts, held.estimate, now)
        if reservation is not None:
            reservation.held = held
            held.scores = scores
        return reservation

    def _count_refusal(self, reason: Refusal) -> None:
        self.refused_total += 1
        self.metrics.refused[reason.value].inc()
        self._demand_changed()

    def _reserve(
        self, facts: RequestFacts, estimate: Estimate, now: float, exclude: Collection[str] = ()
    ) -> Reservation | None:
        ready = self._open_pods(facts, now, exclude)
        if not ready:
            return None
        prefix = _prefix_of(facts)
        picker = self._picker
        cached = self._matches(facts, prefix) if picker.uses_matches else NO_MATCHES
        pick = picker.pick(ready, estimate, facts, cached)
        pod = ready[pick.index]
        if self.record is not None:
            self.record(decision_of(now, self.name, ready, estimate, facts, cached, pick))
        if pick.cached_tokens:
            estimate = msgspec.structs.replace(estimate, cached_tokens=pick.cached_tokens)
        lengths = self.estimator.lengths(facts.api)
        entry, dispatch = pod.reserve(estimate, now, streams=facts.stream, lengths=lengths)
        if picker.uses_matches:
            self.prefixes.sent(pod.slot, prefix)
            if facts.session is not None:
                self._sessions.sent(facts, pod.slot, int(estimate.output_tokens * self.estimator.bytes_per_token))
        if facts.adapter is not None:
            pod.uses(facts.adapter)
        self.in_flight += 1
        if pod.ejection.on_trial:
            self._stale = True
        self.metrics.picks[pick.reason].value += 1.0
        return Reservation(self, pod, entry, dispatch, pick.reason)

    def _open_pods(self, facts: RequestFacts, now: float, exclude: Collection[str]) -> tuple[Pod, ...]:
        """Those to pick among. One that is full may still be the best choice; when all are, the order is better
        kept here, but for our turns where others wait at the pods themselves."""
        ready = self._ready_pods(now)
        if exclude or facts.adapter is not None:
            ready = self._candidates(facts, now, exclude)
        if exclude:
            return ready
        for pod in ready:
            if not pod.full:
                return ready
        most = self.routing.queue.max_waiting
        return tuple([pod for pod in ready if pod.has_turn(most)])

    def _candidates(self, facts: RequestFacts, now: float, exclude: Collection[str]) -> tuple[Pod, ...]:
        """Those that may take a request: of an adapter the pods that tell of it, where any does."""
        ready = tuple([pod for pod in self._ready_pods(now) if pod.key not in exclude])
        adapter = facts.adapter
        serving = () if adapter is None else tuple([pod for pod in ready if pod.serves(adapter)])
        return serving or ready

    def _matches(self, facts: RequestFacts, prefix: tuple[int, ...]) -> Matches:
        """What each pod has cached of the prompt."""
        cached = self.prefixes.match(prefix)
        return cached if facts.session is None else self._sessions.extend(facts, cached)

    def _learn_cache(self, pod: Pod, entry: Entry) -> None:
        """What an answer's usage says about the pod's cache."""
        if entry.cached_told:
            predicted = entry.estimate.cached_tokens + entry.moved_tokens
            self.prefixes.corrected(pod.slot, predicted, entry.cached_tokens)
        if pod.report is None or not pod.report.stored_total:  # else the sidecar tells of all outputs
            self.prefixes.filled(pod.slot, int(entry.output_tokens * self.estimator.bytes_per_token))

    def _ready_pods(self, now: float) -> tuple[Pod, ...]:
        if self._stale or now >= self._stale_at:
            self._ready = tuple(pod for pod in self.pods.values() if pod.state(now) is PodState.READY)
            returns = (pod.ejection.until for pod in self.pods.values() if pod.ejection.until > now)
            self._stale, self._stale_at = False, min(returns, default=_NEVER)
        return self._ready

    def _changed(self, now: float) -> None:
        self._stale = True
        self._release(now)

    def _release(self, now: float) -> None:
        if self.queue.held:
            ready = self._ready_pods(now)
            self.holding.release(now, len(ready), in_rounds=any(pod.limit == NO_LIMIT for pod in ready))


def _limits(routing: Routing) -> Limits:
    return Limits(routing.queue.max_waiting, int(quantity_value(routing.queue.max_bytes)))


def _prefix_of(facts: RequestFacts) -> tuple[int, ...]:
    return facts.prefix if facts.adapter is None else with_adapter(facts.prefix, facts.adapter)
