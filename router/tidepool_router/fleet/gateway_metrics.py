"""What a gateway counts, by pool ("namespace/name")."""

from collections.abc import Callable, Iterator

from tidepool_api import contract
from tidepool_router.errors import FAILURE_KINDS
from tidepool_router.fleet.shared_metrics import Ended, EndedFamilies, LedgerGauges
from tidepool_router.ledger import Outcome
from tidepool_router.metrics import LATENCY_BUCKETS, Children, Family, Histogram, Registry, Value


class PoolMetrics:
    """The series of one pool, found once: whoever keeps this looks up no labels on the path of a request.

    `ended`, `first_token`, `prefills` and `prefill_seconds` are by outcome; `picks`, `retries`, `refused` and
    `ejections` are by reason.
    """

    __slots__ = (
        "_families",
        "ejections",
        "ended",
        "first_token",
        "picks",
        "prefill_seconds",
        "prefills",
        "refused",
        "retries",
    )

    def __init__(self, pool: str, families: "GatewayMetrics") -> None:
        self._families = families
        self.ended: Children[Outcome, Ended] = Children(
            lambda outcome: Ended(self._families.ended, outcome.value, pool)
        )
        self.first_token: Children[Outcome, Histogram] = Children(
            lambda outcome: self._families.first_token.labels(pool, outcome.value)
        )
        self.picks = self._by_reason(pool, lambda: self._families.picks)
        self.retries = self._by_reason(pool, lambda: self._families.retries)
        self.refused = self._by_reason(pool, lambda: self._families.refused)
        self.ejections = self._by_reason(pool, lambda: self._families.ejections)
        # There before the first: a rate does not see what a series is born with, and failures come all at once.
        for kind in FAILURE_KINDS:
            self.retries[kind].value = self.ejections[kind].value = 0.0
        self.prefills = self._by_reason(pool, lambda: self._families.prefills)
        self.prefill_seconds: Children[Outcome, Histogram] = Children(
            lambda outcome: self._families.prefill_seconds.labels(pool, outcome.value)
        )

    def forget(self) -> None:
        """The pool is gone: what its last requests still count goes to a page that nobody asks for."""
        self._families = GatewayMetrics()

    @staticmethod
    def _by_reason(pool: str, family: Callable[[], Family[Value]]) -> Children[str, Value]:
        return Children(lambda reason: family().labels(pool, reason))


class GatewayMetrics:
    """The gateway's families, and a bundle of series for each pool."""

    def __init__(self) -> None:
        self.registry = registry = Registry()
        self.ended = EndedFamilies(registry, contract.METRIC_GATEWAY_REQUESTS, "pool")
        self.first_token = registry.histogram(
            contract.METRIC_TTFT,
            "Seconds from a request to its first token.",
            LATENCY_BUCKETS,
            "pool",
            "outcome",
        )
        self.picks = registry.counter(
            contract.METRIC_GATEWAY_PICKS, "Pods picked, by the reason of the pick.", "pool", "reason"
        )
        self.retries = registry.counter(
            contract.METRIC_GATEWAY_RETRIES, "Requests sent to another pod, by the failure.", "pool", "reason"
        )
        self.refused = registry.counter(
            contract.METRIC_GATEWAY_REFUSED,
            "Requests turned away, by the bound that they met.",
            "pool",
            "reason",
        )
        self.ejections = registry.counter(
            contract.METRIC_GATEWAY_EJECTIONS, "Pods left out for a while, by the failure.", "pool", "reason"
        )
        self.routed = registry.counter(
            contract.METRIC_GATEWAY_ROUTED,
            "Requests of pools with traffic, by the pool that got them and why.",
            "pool",
            "to",
            "reason",
        )
        self.mirrored = registry.counter(
            contract.METRIC_GATEWAY_MIRRORED, "Copies of requests, by how they ended.", "pool", "outcome"
        )
        self.classified = registry.counter(
            contract.METRIC_GATEWAY_CLASSIFIED,
            "Questions to classifiers, by what came of them.",
            "pool",
            "outcome",
        )
        self.prefills = registry.counter(
            contract.METRIC_GATEWAY_PREFILLS,
            "Requests of pools that compute prompts apart, by what came of the first step.",
            "pool",
            "outcome",
        )
        self.prefill_seconds = registry.histogram(
            contract.METRIC_GATEWAY_PREFILL_TIME,
            "Seconds that first steps took.",
            LATENCY_BUCKETS,
            "pool",
            "outcome",
        )
        self.held = registry.gauge(
            contract.METRIC_GATEWAY_HELD, "Requests held until a pod can take them.", "pool"
        )
        self.endpoints = registry.gauge(
            contract.METRIC_GATEWAY_ENDPOINTS, "Endpoints, by what the gateway knows of them.", "pool", "state"
        )
        self.ledger = LedgerGauges(registry, "pool")
        self.unrouted: Children[int, Value] = Children(
            lambda code: self.ended.requests.labels("", str(code), Outcome.REFUSED.value)
        )
        self._pools: dict[str, PoolMetrics] = {}

    def pool(self, name: str) -> PoolMetrics:
        """The bundle of a pool, until it is forgotten."""
        bundle = self._pools.get(name)
        if bundle is None:
            bundle = self._pools[name] = PoolMetrics(name, self)
        return bundle

    def forget(self, pool: str) -> None:
        """The pool is gone; its series go with it, so that their number stays bounded by the fleet."""
        bundle = self._pools.pop(pool, None)
        if bundle is not None:
            bundle.forget()
        for family in self._of_pools():
            family.drop(pool)

    def forget_traffic(self, pool: str) -> None:
        """The pool's traffic is another one now."""
        for family in (self.routed, self.mirrored, self.classified):
            family.drop(pool)

    def _of_pools(self) -> Iterator[Family[Value] | Family[Histogram]]:
        ended = self.ended
        yield from (ended.requests, ended.per_token, ended.queue, ended.duration, self.first_token)
        yield from (self.picks, self.retries, self.refused, self.ejections, self.held, self.endpoints)
        yield from (self.routed, self.mirrored, self.classified, self.prefills, self.prefill_seconds)
        yield from (self.ledger.requests, self.ledger.tokens)
