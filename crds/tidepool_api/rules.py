"""Recording rules over the metrics of engine pods: the one list of what scaling asks Prometheus.

The chart ships them as a PrometheusRule and as a plain rules file; where neither is installed, the operator asks
the expressions themselves. Every scrape must carry the target labels namespace, pool and pod (contract.LABEL_*).
Names of metrics differ between vLLM's releases: each expression takes the new name or the old one.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from tidepool_api import contract
from tidepool_api.contract import LABEL_NAMESPACE, LABEL_POD, LABEL_POOL, LABEL_ROLE, ROLE_PREFILL

# Four scrapes of 15 s: a rate needs two, and one may fail.
RATE_WINDOW: Final = "1m"
GROUP: Final = "tidepool"

BY_POD: Final = (LABEL_NAMESPACE, LABEL_POOL, LABEL_POD)
BY_POOL: Final = (LABEL_NAMESPACE, LABEL_POOL)

POD_KV_USAGE: Final = "tidepool:pod_kv_usage_ratio"
POD_WAITING: Final = "tidepool:pod_requests_waiting"
POD_RUNNING: Final = "tidepool:pod_requests_running"
POD_PROMPT_TOKENS: Final = "tidepool:pod_prompt_tokens_per_second"
POD_CACHED_TOKENS: Final = "tidepool:pod_cached_prompt_tokens_per_second"
POD_OUTPUT_TOKENS: Final = "tidepool:pod_output_tokens_per_second"
POD_REQUESTS: Final = "tidepool:pod_requests_per_second"
POD_REQUESTS_ENDED: Final = "tidepool:pod_requests_ended_total"
POD_SCRAPED_AT: Final = "tidepool:pod_scraped_at_seconds"
POOL_TTFT_P50: Final = "tidepool:pool_time_to_first_token_seconds_p50"
POOL_TTFT_P90: Final = "tidepool:pool_time_to_first_token_seconds_p90"
POOL_TPOT_P50: Final = "tidepool:pool_time_per_output_token_seconds_p50"
POOL_TPOT_P90: Final = "tidepool:pool_time_per_output_token_seconds_p90"
POOL_KV_USAGE: Final = "tidepool:pool_kv_usage_ratio"
POOL_WAITING: Final = "tidepool:pool_requests_waiting"
POOL_RUNNING: Final = "tidepool:pool_requests_running"
POOL_PROMPT_TOKENS: Final = "tidepool:pool_prompt_tokens_per_second"
POOL_CACHED_TOKENS: Final = "tidepool:pool_cached_prompt_tokens_per_second"
POOL_OUTPUT_TOKENS: Final = "tidepool:pool_output_tokens_per_second"
POOL_REQUESTS: Final = "tidepool:pool_requests_per_second"
POOL_PODS: Final = "tidepool:pool_pods_scraped"


@dataclass(frozen=True, slots=True)
class Rule:
    """One recorded series: `expression` is raw PromQL that rests on no other record, `labels` are its labels."""

    record: str
    expression: str
    meaning: str
    unit: str
    labels: tuple[str, ...] = BY_POD


def rules(rate_window: str = RATE_WINDOW) -> tuple[Rule, ...]:
    """All rules; `rate_window` must span at least two scrapes and should span four."""
    return (*pod_rules(rate_window), *latency_rules(rate_window), *history_rules(rate_window))


def asked_rules(rate_window: str = RATE_WINDOW) -> tuple[Rule, ...]:
    """What the autoscaler asks every interval."""
    latencies = (rule for rule in latency_rules(rate_window) if rule.record in (POOL_TTFT_P90, POOL_TPOT_P90))
    return (*pod_rules(rate_window), *latencies)


def pod_rules(rate_window: str = RATE_WINDOW) -> tuple[Rule, ...]:
    """Rules with one series for every pod."""
    return (
        Rule(
            POD_KV_USAGE,
            _kv_usage(),
            "KV cache in use: the engine's own gauge or the router's ledger, whichever is higher; above 1 when "
            "more is asked for than fits",
            "ratio",
        ),
        Rule(
            POD_WAITING,
            # The router's figure holds what waits in the engine, as the router last saw it.
            _higher_of(_gauge("vllm:num_requests_waiting"), _gauge(contract.METRIC_WAITING)),
            "Requests that wait for the engine, as it or the router counts them, whichever is higher",
            "requests",
        ),
        Rule(
            POD_RUNNING,
            _first_of(_gauge("vllm:num_requests_running"), _gauge(contract.METRIC_RUNNING)),
            "Requests that the engine works on",
            "requests",
        ),
        Rule(
            POD_PROMPT_TOKENS,
            _rate_of(rate_window, "vllm:prompt_tokens_total", contract.METRIC_PROMPT_TOKENS),
            "Prompt tokens that came in, cached ones included",
            "tokens/s",
        ),
        Rule(
            POD_CACHED_TOKENS,
            _rate_of(
                rate_window,
                "vllm:prompt_tokens_cached_total",
                "vllm:prefix_cache_hits_total",
                "vllm:gpu_prefix_cache_hits_total",
                contract.METRIC_CACHED_TOKENS,
            ),
            "Prompt tokens that the prefix cache saved",
            "tokens/s",
        ),
        Rule(
            POD_OUTPUT_TOKENS,
            _rate_of(rate_window, "vllm:generation_tokens_total", contract.METRIC_OUTPUT_TOKENS),
            "Output tokens made",
            "tokens/s",
        ),
        Rule(
            POD_REQUESTS,
            _higher_of(
                _rate("vllm:request_success_total", rate_window), _rate(contract.METRIC_REQUESTS, rate_window)
            ),
            "Requests that ended, as the engine or the router counts them, whichever is higher",
            "requests/s",
        ),
        Rule(
            POD_REQUESTS_ENDED,
            _higher_of(_gauge("vllm:request_success_total"), _gauge(contract.METRIC_REQUESTS)),
            "Requests that have ended since the pod began, as the engine or the router counts them; a count that "
            "stands still says that nobody asks, long before a rate falls to zero",
            "requests",
        ),
        Rule(
            POD_SCRAPED_AT,
            _first_of(_scraped_at("vllm:num_requests_running"), _scraped_at(contract.METRIC_RUNNING)),
            "When the figures of the pod were scraped",
            "seconds since 1970",
        ),
    )


def latency_rules(rate_window: str = RATE_WINDOW) -> tuple[Rule, ...]:
    """Median and 90th percentile over all pods of a pool; NaN while no request has one."""
    first = (contract.METRIC_TTFT, "vllm:time_to_first_token_seconds")
    each = (
        contract.METRIC_TPOT,
        "vllm:request_time_per_output_token_seconds",
        "vllm:time_per_output_token_seconds",
    )
    return (
        _latency(POOL_TTFT_P50, 0.5, first, rate_window, "Time to first token, median"),
        _latency(POOL_TTFT_P90, 0.9, first, rate_window, "Time to first token, 90th percentile"),
        _latency(POOL_TPOT_P50, 0.5, each, rate_window, "Time per output token, median"),
        _latency(POOL_TPOT_P90, 0.9, each, rate_window, "Time per output token, 90th percentile"),
    )


def history_rules(rate_window: str = RATE_WINDOW) -> tuple[Rule, ...]:
    """The pod rules added up to one series for every pool, for what looks back over days."""
    pods = {rule.record: rule for rule in pod_rules(rate_window)}
    sums = (
        (POOL_WAITING, POD_WAITING),
        (POOL_RUNNING, POD_RUNNING),
        (POOL_PROMPT_TOKENS, POD_PROMPT_TOKENS),
        (POOL_CACHED_TOKENS, POD_CACHED_TOKENS),
        (POOL_OUTPUT_TOKENS, POD_OUTPUT_TOKENS),
        (POOL_REQUESTS, POD_REQUESTS),
    )
    return (
        _over_pool("avg", POOL_KV_USAGE, pods[POD_KV_USAGE], "mean over the pods"),
        *(_over_pool("sum", record, pods[pod], "all pods together") for record, pod in sums),
        Rule(
            POOL_PODS,
            f"count by ({', '.join(BY_POOL)}) ({pods[POD_SCRAPED_AT].expression})",
            "Pods of the pool that are scraped",
            "pods",
            BY_POOL,
        ),
    )


def rules_file(rate_window: str = RATE_WINDOW) -> dict[str, Any]:
    """Body of a plain Prometheus rules file, to be written as YAML."""
    recorded = [{"record": rule.record, "expr": rule.expression} for rule in rules(rate_window)]
    return {"groups": [{"name": GROUP, "rules": recorded}]}


def prometheus_rule_spec(rate_window: str = RATE_WINDOW) -> dict[str, Any]:
    """`spec` of a PrometheusRule (monitoring.coreos.com/v1), whose groups are those of a rules file."""
    return rules_file(rate_window)


# A pod may be scraped twice, by its annotations and by a PodMonitor. Within one pod, the series of a metric are
# told apart by the labels below, and equal ones count once.
_WITHIN_POD: Final = (*BY_POD, "engine", "model_name", "code", "outcome", "finished_reason")

# A gateway's series carry "namespace/name" as their pool and are no pod's of that pool.
# What prefill pods have is not for scaling: it drives the pods that decode.
_OF_A_POOL: Final = f'{LABEL_POOL}=~"[^/]+",{LABEL_ROLE}!="{ROLE_PREFILL}"'


def _by(operator: str, labels: Sequence[str], expression: str) -> str:
    return f"{operator} by ({', '.join(labels)}) ({expression})"


def _any_of(names: Sequence[str]) -> str:
    return f'{{__name__=~"{"|".join(names)}",{_OF_A_POOL}}}'


def _one(name: str) -> str:
    return f"{name}{{{_OF_A_POOL}}}"


def _kv_usage() -> str:
    # The engine's gauges are ratios although they say "perc": one above 1 is in another unit, and passed over.
    engine = _any_of(("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"))
    return _higher_of(f"{_by('max', BY_POD, engine)} <= 1", _one(contract.METRIC_KV_USAGE))


def _gauge(name: str) -> str:
    return _by("sum", BY_POD, _by("max", _WITHIN_POD, _one(name)))


def _rate(name: str, window: str) -> str:
    return _by("sum", BY_POD, _by("max", _WITHIN_POD, f"rate({_one(name)}[{window}])"))


def _rate_of(window: str, *names: str) -> str:
    return _first_of(*(_rate(name, window) for name in names))


def _first_of(*expressions: str) -> str:
    """For every pod the first expression that has a value for it."""
    return " or ".join(expressions)


def _higher_of(one: str, other: str) -> str:
    return _by(
        "max",
        BY_POD,
        f'label_replace({one}, "by", "engine", "", "") or label_replace({other}, "by", "router", "", "")',
    )


def _scraped_at(name: str) -> str:
    return _by("max", BY_POD, f"timestamp({_one(name)})")


def _latency(record: str, quantile: float, names: Sequence[str], window: str, meaning: str) -> Rule:
    buckets = (_by("sum", (*BY_POOL, "le"), f"rate({_one(f'{name}_bucket')}[{window}])") for name in names)
    quantiles = (f"histogram_quantile({quantile}, {bucket})" for bucket in buckets)
    return Rule(record, _first_of(*quantiles), meaning, "seconds", BY_POOL)


def _over_pool(operator: str, record: str, pod: Rule, how: str) -> Rule:
    return Rule(record, _by(operator, BY_POOL, pod.expression), f"{pod.meaning}; {how}", pod.unit, BY_POOL)
