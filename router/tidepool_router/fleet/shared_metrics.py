"""What both roles count alike: a request when it has ended, by its outcome, and the sums of a ledger."""

from collections.abc import Iterable

from tidepool_api import contract
from tidepool_router.ledger import LedgerSums
from tidepool_router.metrics import LATENCY_BUCKETS, TOKEN_BUCKETS, Children, Histogram, Registry, Value


class EndedFamilies:
    """The families, with the label `pool` where one process speaks of many."""

    def __init__(self, registry: Registry, requests: str, *pool: str) -> None:
        self.requests = registry.counter(requests, "Requests that ended.", *pool, "code", "outcome")
        self.per_token = registry.histogram(
            contract.METRIC_TPOT,
            "Seconds an output token after the first, by request.",
            TOKEN_BUCKETS,
            *pool,
            "outcome",
        )
        self.queue = registry.histogram(
            contract.METRIC_QUEUE_TIME,
            "Seconds that requests were held, of those that were.",
            LATENCY_BUCKETS,
            *pool,
            "outcome",
        )
        self.duration = registry.histogram(
            contract.METRIC_REQUEST_TIME, "Seconds from a request to its end.", LATENCY_BUCKETS, *pool, "outcome"
        )


class Ended:
    """The series of one outcome, found once; `codes` is by HTTP status."""

    __slots__ = ("codes", "duration", "per_token", "queue")

    def __init__(self, families: EndedFamilies, outcome: str, *pool: str) -> None:
        self.codes: Children[int, Value] = Children(
            lambda code: families.requests.labels(*pool, str(code), outcome)
        )
        self.per_token: Histogram = families.per_token.labels(*pool, outcome)
        self.queue: Histogram = families.queue.labels(*pool, outcome)
        self.duration: Histogram = families.duration.labels(*pool, outcome)


class LedgerGauges:
    """A ledger's sums as gauges, set before each scrape."""

    def __init__(self, registry: Registry, *pool: str) -> None:
        self.requests = registry.gauge(
            contract.METRIC_LEDGER_REQUESTS, "Open entries of the ledger, by phase.", *pool, "phase"
        )
        self.tokens = registry.gauge(
            contract.METRIC_LEDGER_TOKENS, "Tokens of the ledger's open entries, by what they are.", *pool, "kind"
        )

    def set(self, sums: LedgerSums, *pool: str) -> None:
        """The sums now, in requests and in tokens."""
        self.requests.labels(*pool, "prefill").set(sums.unstarted)
        self.requests.labels(*pool, "decode").set(sums.running - sums.unstarted)
        self.tokens.labels(*pool, "queued").set(sums.queued_tokens)
        self.tokens.labels(*pool, "held").set(sums.held_tokens)
        self.tokens.labels(*pool, "expected").set(sums.expected_tokens)


def total(ledgers: Iterable[LedgerSums]) -> LedgerSums:
    """The open entries of several ledgers together."""
    running = unstarted = queued = held = expected = 0
    for sums in ledgers:
        running += sums.running
        unstarted += sums.unstarted
        queued += sums.queued_tokens
        held += sums.held_tokens
        expected += sums.expected_tokens
    return LedgerSums(running, unstarted, queued, held, expected)
