"""What a gateway counts, by pool ("namespace/name")."""

from tidepool_api import contract
from tidepool_router.metrics import LATENCY_BUCKETS, Family, Histogram, Registry, Value


class GatewayMetrics:
    """The gateway's families; each method finds the series of a pool."""

    def __init__(self) -> None:
        self.registry = registry = Registry()
        self._requests = registry.counter(
            contract.METRIC_GATEWAY_REQUESTS, "Requests that ended.", "pool", "code", "outcome"
        )
        self._picks = registry.counter(
            contract.METRIC_GATEWAY_PICKS, "Pods picked, by the reason of the pick.", "pool", "reason"
        )
        self._retries = registry.counter(
            contract.METRIC_GATEWAY_RETRIES, "Requests sent to another pod, by the failure.", "pool", "reason"
        )
        self._refused = registry.counter(
            contract.METRIC_GATEWAY_REFUSED, "Requests turned away, by the bound that they met.", "pool", "reason"
        )
        self._ejections = registry.counter(
            contract.METRIC_GATEWAY_EJECTIONS, "Pods left out for a while, by the failure.", "pool", "reason"
        )
        self.held = registry.gauge(
            contract.METRIC_GATEWAY_HELD, "Requests held until a pod can take them.", "pool"
        )
        self.endpoints = registry.gauge(
            contract.METRIC_GATEWAY_ENDPOINTS, "Endpoints, by what the gateway knows of them.", "pool", "state"
        )
        self._queue = registry.histogram(
            contract.METRIC_QUEUE_TIME, "Seconds that requests were held.", LATENCY_BUCKETS, "pool"
        )
        self._ttft = registry.histogram(
            contract.METRIC_TTFT, "Seconds from a request to its first token.", LATENCY_BUCKETS, "pool"
        )
        self._duration = registry.histogram(
            contract.METRIC_REQUEST_TIME,
            "Seconds from a request to its end.",
            LATENCY_BUCKETS,
            "pool",
        )

    def requests(self, pool: str, code: int, outcome: str) -> Value:
        """Requests that ended; the data path counts each client request once, whatever its retries."""
        return self._requests.labels(pool, str(code), outcome)

    def picks(self, pool: str, reason: str) -> Value:
        """Reservations made."""
        return self._picks.labels(pool, reason)

    def retries(self, pool: str, reason: str) -> Value:
        """Counted by the data path."""
        return self._retries.labels(pool, reason)

    def refused(self, pool: str, reason: str) -> Value:
        """Requests turned away."""
        return self._refused.labels(pool, reason)

    def ejections(self, pool: str, reason: str) -> Value:
        """Pods ejected."""
        return self._ejections.labels(pool, reason)

    def queue_seconds(self, pool: str) -> Histogram:
        """Time held."""
        return self._queue.labels(pool)

    def first_token_seconds(self, pool: str) -> Histogram:
        """Time to first token as the gateway sees it; observed by the data path."""
        return self._ttft.labels(pool)

    def duration_seconds(self, pool: str) -> Histogram:
        """Whole time of a request; observed by the data path."""
        return self._duration.labels(pool)

    def forget(self, pool: str) -> None:
        """The pool is gone; its series go with it, so that their number stays bounded by the fleet."""
        families: list[Family[Value] | Family[Histogram]] = [
            self._requests, self._picks, self._retries, self._refused, self._ejections,
            self.held, self.endpoints, self._queue, self._ttft, self._duration,
        ]  # fmt: skip
        for family in families:
            family.drop(pool)
