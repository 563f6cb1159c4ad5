"""What a sidecar counts: its ledger's moments, as Prometheus reads them."""

from tidepool_api import contract
from tidepool_router.admission import Refusal
from tidepool_router.fleet.shared_metrics import Ended, EndedFamilies, LedgerGauges
from tidepool_router.ledger import Entry, Outcome
from tidepool_router.metrics import LATENCY_BUCKETS, RATIO_BUCKETS, Children, Registry, Value
from tidepool_router.proofs import Fault, Part


class SidecarMetrics:
    """A LedgerListener: histograms and counters follow from the entries; gauges are set before each scrape."""

    def __init__(self) -> None:
        self.registry = registry = Registry()
        families = EndedFamilies(registry, contract.METRIC_REQUESTS)
        self.ended: Children[Outcome, Ended] = Children(lambda outcome: Ended(families, outcome.value))
        self.ledger = LedgerGauges(registry)
        self.running = registry.gauge(contract.METRIC_RUNNING, "Requests that the engine works on.").labels()
        self.waiting = registry.gauge(contract.METRIC_WAITING, "Requests that wait for the engine.").labels()
        self.prompt_tokens = registry.counter(
            contract.METRIC_PROMPT_TOKENS, "Prompt tokens of requests that ended."
        ).labels()
        self.cached_tokens = registry.counter(
            contract.METRIC_CACHED_TOKENS, "Prompt tokens of these that the engine had cached."
        ).labels()
        self.output_tokens = registry.counter(contract.METRIC_OUTPUT_TOKENS, "Output tokens.").labels()
        self.kv_tokens = registry.gauge(
            contract.METRIC_KV_TOKENS, "KV tokens that live requests hold or wait for: prompts and output so far."
        ).labels()
        self.kv_capacity = registry.gauge(contract.METRIC_KV_CAPACITY, "KV tokens that the engine has room for.")
        self.kv_usage = registry.gauge(
            contract.METRIC_KV_USAGE, "KV tokens held by capacity; above 1 when more is asked for than fits."
        )
        self.kv_exhaustion = registry.gauge(
            contract.METRIC_KV_EXHAUSTION,
            "Seconds until live requests will have used up the engine's KV blocks; absent: not foreseen.",
        )
        self._first_token = registry.histogram(
            contract.METRIC_TTFT, "Seconds from a request to its first token.", LATENCY_BUCKETS
        ).labels()
        self._estimate_error = registry.histogram(
            contract.METRIC_ESTIMATE_ERROR,
            "Error of estimated prompt tokens, by request.",
            RATIO_BUCKETS,
        ).labels()
        self._output_error = registry.histogram(
            contract.METRIC_OUTPUT_ERROR,
            "Error of expected output tokens, by request that ended well.",
            RATIO_BUCKETS,
        ).labels()
        self._cached_error = registry.histogram(
            contract.METRIC_CACHED_ERROR,
            "Error of predicted cached tokens, by prompt tokens, where the engine tells them.",
            RATIO_BUCKETS,
        ).labels()
        self.engine_ready = registry.gauge(contract.METRIC_ENGINE_READY, "1 when the pod takes requests.").labels()
        self.draining = registry.gauge(contract.METRIC_DRAINING, "1 from the start of a drain on.").labels()
        refused = registry.counter(
            contract.METRIC_REFUSED, "Requests turned away from the queue, by the bound that they met.", "reason"
        )
        self.refused: Children[Refusal, Value] = Children(lambda reason: refused.labels(reason.value))
        proofs = registry.counter(
            contract.METRIC_PROOFS,
            "Callers' tokens that were checked, by who it was or what is wrong.",
            "outcome",
        )
        self.proofs: Children[Part | Fault, Value] = Children(lambda outcome: proofs.labels(outcome.value))
        handed_on = registry.counter(
            contract.METRIC_HANDED_ON, "Requests that went to a peer and ended.", "outcome"
        )
        self._handed_on: Children[Outcome, Value] = Children(lambda outcome: handed_on.labels(outcome.value))
        self.held = registry.gauge(
            contract.METRIC_HELD, "Requests that wait until an engine of the pool takes them."
        ).labels()
        self.late_calls = registry.counter(
            contract.METRIC_LATE_CALLS, "Calls on requests that had ended; more than a few is a defect."
        ).labels()

    def unserved(self, code: int, outcome: Outcome) -> None:
        """A request ended that reached no engine: it was refused, or its client left while it was held."""
        self.ended[outcome].codes[code].inc()

    def handed_on(self, outcome: Outcome) -> None:
        """A request ended that a peer was asked to serve; what else there is to count of it, the peer counts."""
        self._handed_on[outcome].inc()

    def opened(self, entry: Entry, now: float) -> None:
        """Gauges come from the ledger's sums."""

    def started(self, entry: Entry, now: float) -> None:
        """First token; at once and not at the end of the request, for the autoscaler waits for it."""
        if entry.code < 400:
            self._first_token.observe(now - entry.opened_at)

    def closed(self, entry: Entry, outcome: Outcome, now: float) -> None:
        """A request ended."""
        ended = self.ended[outcome]
        ended.codes[entry.code].value += 1.0
        ended.duration.observe(now - entry.opened_at)
        self.prompt_tokens.value += entry.prompt_tokens
        if entry.cached_told:  # else it is a prediction
            self.cached_tokens.value += entry.cached_tokens
        if entry.first_token_at is not None and entry.output_tokens > 1:
            ended.per_token.observe((now - entry.first_token_at) / (entry.output_tokens - 1))
        if entry.counted_by_engine and entry.prompt_tokens > 0:
            error = abs(entry.estimate.prompt_tokens - entry.prompt_tokens) / entry.prompt_tokens
            self._estimate_error.observe(error)
            if outcome is Outcome.OK and entry.output_tokens > 0:
                error = abs(entry.estimate.output_tokens - entry.output_tokens) / entry.output_tokens
                self._output_error.observe(error)
            if entry.cached_told:
                error = (
                    abs(entry.estimate.cached_tokens + entry.moved_tokens - entry.cached_tokens)
                    / entry.prompt_tokens
                )
                self._cached_error.observe(error)
