"""Grafana dashboards from one description: which panels, of which expressions. `make manifests` writes the JSON.

Expressions rest on the metrics of engines, routers and operator, not on recorded series, so that they work without
the rules. `$namespace`, `$pool`, `$workflow` and `$__rate_interval` are Grafana's variables.
"""

from dataclasses import dataclass
from typing import Final

from tidepool_api import contract

_POD: Final = '{namespace=~"$namespace",pool=~"$pool"}'
_GATEWAY: Final = '{pool=~"$namespace/$pool"}'
_WORKFLOW: Final = '{workflow=~"$workflow"}'
_WINDOW: Final = "[$__rate_interval]"


@dataclass(frozen=True, slots=True)
class Line:
    """One series, or several told apart by labels; `rare`: there are none while all is well or a part is off."""

    expression: str
    legend: str
    rare: bool = False


@dataclass(frozen=True, slots=True)
class Panel:
    """One drawing. `unit` is Grafana's word: s, reqps, short, percentunit."""

    title: str
    unit: str
    lines: tuple[Line, ...]
    says: str = ""


@dataclass(frozen=True, slots=True)
class Dashboard:
    """One page; `rows` are titled groups of panels, two panels beside each other.

    `variables` are what its reader may choose: a label, and the metric that has its values.
    """

    name: str
    title: str
    rows: tuple[tuple[str, tuple[Panel, ...]], ...]
    variables: tuple[tuple[str, str], ...] = (
        ("namespace", contract.METRIC_ENGINE_READY),
        ("pool", contract.METRIC_ENGINE_READY),
    )


def dashboards() -> tuple[Dashboard, ...]:
    """All of them."""
    return (_fleet(), _pool(), _requests(), _workflows(), _operator())


def _rate(name: str, where: str, by: str) -> str:
    return f"sum by ({by}) (rate({name}{where}{_WINDOW}))"


def _quantiles(name: str, where: str, *quantiles: float, rare: bool = False) -> tuple[Line, ...]:
    return tuple(
        Line(_quantile(name, where, quantile, "le"), f"p{round(quantile * 100)}", rare) for quantile in quantiles
    )


def _quantile(name: str, where: str, quantile: float, by: str) -> str:
    return f"histogram_quantile({quantile}, sum by ({by}) (rate({name}_bucket{where}{_WINDOW})))"


def _fleet() -> Dashboard:
    ended = contract.METRIC_GATEWAY_REQUESTS
    by_pool = '{pool=~"$namespace/$pool",outcome="error"}'
    return Dashboard(
        "fleet",
        "Tidepool / Fleet",
        (
            (
                "Traffic",
                (
                    Panel("Requests", "reqps", (Line(_rate(ended, _GATEWAY, "pool"), "{{pool}}"),)),
                    Panel(
                        "Failed requests",
                        "reqps",
                        (Line(_rate(ended, by_pool, "pool"), "{{pool}}", rare=True),),
                        "By the fault of an engine or the gateway; clients that leave are not among them.",
                    ),
                    Panel(
                        "Output tokens a second",
                        "short",
                        (
                            Line(
                                _rate("vllm:generation_tokens_total", _POD, "namespace, pool"),
                                "{{namespace}}/{{pool}}",
                            ),
                        ),
                    ),
                    Panel(
                        "Prompt tokens a second",
                        "short",
                        (
                            Line(
                                _rate("vllm:prompt_tokens_total", _POD, "namespace, pool"),
                                "{{namespace}}/{{pool}}",
                            ),
                        ),
                    ),
                ),
            ),
            (
                "Room",
                (
                    Panel(
                        "Ready engines",
                        "short",
                        (
                            Line(
                                f"sum by (namespace, pool) ({contract.METRIC_ENGINE_READY}{_POD})",
                                "{{namespace}}/{{pool}}",
                            ),
                        ),
                    ),
                    Panel(
                        "KV cache in use",
                        "percentunit",
                        (
                            Line(
                                f"avg by (namespace, pool) (vllm:kv_cache_usage_perc{_POD})",
                                "{{namespace}}/{{pool}}",
                            ),
                        ),
                    ),
                    Panel(
                        "Requests that wait for an engine",
                        "short",
                        (
                            Line(
                                f"sum by (namespace, pool) ({contract.METRIC_WAITING}{_POD})",
                                "{{namespace}}/{{pool}}",
                            ),
                        ),
                    ),
                    Panel(
                        "Requests held at the gateways",
                        "short",
                        (Line(f"sum by (pool) ({contract.METRIC_GATEWAY_HELD}{_GATEWAY})", "{{pool}}"),),
                        "Held while no pod can take them: at zero, or when all are full.",
                    ),
                ),
            ),
        ),
    )


def _pool() -> Dashboard:
    held = f'{contract.METRIC_LEDGER_TOKENS}{{namespace=~"$namespace",pool=~"$pool"}}'
    return Dashboard(
        "pool",
        "Tidepool / Pool",
        (
            (
                "Latency",
                (
                    Panel("Time to first token", "s", _quantiles(contract.METRIC_TTFT, _POD, 0.5, 0.9, 0.99)),
                    Panel("Time per output token", "s", _quantiles(contract.METRIC_TPOT, _POD, 0.5, 0.9, 0.99)),
                ),
            ),
            (
                "Engines",
                (
                    Panel(
                        "Running", "short", (Line(f"sum by (pod) ({contract.METRIC_RUNNING}{_POD})", "{{pod}}"),)
                    ),
                    Panel(
                        "Waiting", "short", (Line(f"sum by (pod) ({contract.METRIC_WAITING}{_POD})", "{{pod}}"),)
                    ),
                    Panel(
                        "KV cache: the engine's gauge",
                        "percentunit",
                        (Line(f"max by (pod) (vllm:kv_cache_usage_perc{_POD})", "{{pod}}"),),
                    ),
                    Panel(
                        "KV cache: what live requests hold or wait for",
                        "percentunit",
                        (Line(f"max by (pod) ({contract.METRIC_KV_USAGE}{_POD})", "{{pod}}"),),
                        "Above 1 when more is asked for than fits.",
                    ),
                    Panel(
                        "Seconds until KV blocks run out",
                        "s",
                        (Line(f"min by (pod) ({contract.METRIC_KV_EXHAUSTION}{_POD})", "{{pod}}", rare=True),),
                        "Nothing is drawn while none is foreseen.",
                    ),
                    Panel("Tokens in the ledger", "short", (Line(f"sum by (kind) ({held})", "{{kind}}"),)),
                    Panel(
                        "Prompt tokens that the prefix cache saved",
                        "percentunit",
                        (
                            Line(
                                f"{_rate('vllm:prefix_cache_hits_total', _POD, 'pod')} / "
                                f"{_rate('vllm:prefix_cache_queries_total', _POD, 'pod')}",
                                "{{pod}}",
                            ),
                        ),
                    ),
                    Panel(
                        "Preemptions",
                        "short",
                        (Line(_rate("vllm:num_preemptions_total", _POD, "pod"), "{{pod}}"),),
                    ),
                ),
            ),
        ),
    )


def _requests() -> Dashboard:
    return Dashboard(
        "requests",
        "Tidepool / Life of a request",
        (
            (
                "At the gateways",
                (
                    Panel(
                        "Time held in a queue",
                        "s",
                        _quantiles(contract.METRIC_QUEUE_TIME, _GATEWAY, 0.5, 0.9, rare=True),
                        "Of requests that were held at all.",
                    ),
                    Panel(
                        "Picks by reason",
                        "reqps",
                        (Line(_rate(contract.METRIC_GATEWAY_PICKS, _GATEWAY, "reason"), "{{reason}}"),),
                    ),
                    Panel(
                        "Retries by failure",
                        "reqps",
                        (Line(_rate(contract.METRIC_GATEWAY_RETRIES, _GATEWAY, "reason"), "{{reason}}"),),
                    ),
                    Panel(
                        "Refused, by the bound",
                        "reqps",
                        (
                            Line(
                                _rate(contract.METRIC_GATEWAY_REFUSED, _GATEWAY, "reason"), "{{reason}}", rare=True
                            ),
                        ),
                    ),
                    Panel(
                        "Endpoints by state",
                        "short",
                        (Line(f"sum by (state) ({contract.METRIC_GATEWAY_ENDPOINTS}{_GATEWAY})", "{{state}}"),),
                        "As each gateway sees them: the sum counts a pod once for each gateway.",
                    ),
                    Panel(
                        "Answers by status",
                        "reqps",
                        (Line(_rate(contract.METRIC_GATEWAY_REQUESTS, _GATEWAY, "code"), "{{code}}"),),
                    ),
                ),
            ),
            (
                "In the engines",
                (
                    Panel("Queue", "s", _quantiles("vllm:request_queue_time_seconds", _POD, 0.5, 0.9)),
                    Panel("Prefill", "s", _quantiles("vllm:request_prefill_time_seconds", _POD, 0.5, 0.9)),
                    Panel("Decode", "s", _quantiles("vllm:request_decode_time_seconds", _POD, 0.5, 0.9)),
                    Panel("Whole request", "s", _quantiles(contract.METRIC_REQUEST_TIME, _POD, 0.5, 0.9)),
                    Panel("Prompt tokens", "short", _quantiles("vllm:request_prompt_tokens", _POD, 0.5, 0.9)),
                    Panel("Output tokens", "short", _quantiles("vllm:request_generation_tokens", _POD, 0.5, 0.9)),
                ),
            ),
            (
                "How well the router guesses",
                (
                    Panel(
                        "Error of prompt tokens",
                        "percentunit",
                        _quantiles(contract.METRIC_ESTIMATE_ERROR, _POD, 0.5, 0.9),
                    ),
                    Panel(
                        "Error of output tokens",
                        "percentunit",
                        _quantiles(contract.METRIC_OUTPUT_ERROR, _POD, 0.5, 0.9),
                    ),
                ),
            ),
        ),
    )


def _workflows() -> Dashboard:
    failed = '{workflow=~"$workflow",phase=~"Failed|Errored"}'
    return Dashboard(
        "workflows",
        "Tidepool / Workflows",
        (
            (
                "Runs",
                (
                    Panel(
                        "Runs that ended",
                        "reqps",
                        (Line(_rate(contract.METRIC_WORKFLOW_RUNS, _WORKFLOW, "workflow"), "{{workflow}}"),),
                    ),
                    Panel(
                        "Runs that failed",
                        "reqps",
                        (
                            Line(
                                _rate(contract.METRIC_WORKFLOW_RUNS, failed, "workflow"), "{{workflow}}", rare=True
                            ),
                        ),
                    ),
                    Panel(
                        "Time of a run",
                        "s",
                        _quantiles(contract.METRIC_WORKFLOW_RUN_TIME, _WORKFLOW, 0.5, 0.9, 0.99),
                        "From its beginning at a gateway to its end; of all workflows that are chosen.",
                    ),
                    Panel(
                        "Done without, for the budget",
                        "reqps",
                        (
                            Line(
                                _rate(contract.METRIC_WORKFLOW_SAVING, _WORKFLOW, "workflow, measure"),
                                "{{workflow}}: {{measure}}",
                                rare=True,
                            ),
                        ),
                        "Times that a run began to take a smaller model, fewer branches or no soft steps.",
                    ),
                ),
            ),
            (
                "Steps",
                (
                    Panel(
                        "Steps that ended",
                        "reqps",
                        (
                            Line(
                                _rate(contract.METRIC_WORKFLOW_STEPS, _WORKFLOW, "workflow, step"),
                                "{{workflow}}: {{step}}",
                            ),
                        ),
                        "Each item of a list is one.",
                    ),
                    Panel(
                        "Steps that failed",
                        "reqps",
                        (
                            Line(
                                _rate(contract.METRIC_WORKFLOW_STEPS, failed, "workflow, step"),
                                "{{workflow}}: {{step}}",
                                rare=True,
                            ),
                        ),
                    ),
                    Panel(
                        "Time of a step, p90",
                        "s",
                        (
                            Line(
                                _quantile(
                                    contract.METRIC_WORKFLOW_STEP_TIME, _WORKFLOW, 0.9, "le, workflow, step"
                                ),
                                "{{workflow}}: {{step}}",
                            ),
                        ),
                        "From its first try to its end, waits between tries included.",
                    ),
                    Panel(
                        "Where the time of steps goes",
                        "s",
                        (
                            Line(
                                f"{_rate(contract.METRIC_WORKFLOW_STEP_PARTS, _WORKFLOW, 'workflow, step, part')}"
                                " / on (workflow, step) group_left "
                                f"{_rate(contract.METRIC_WORKFLOW_STEPS, _WORKFLOW, 'workflow, step')}",
                                "{{workflow}}: {{step}} {{part}}",
                            ),
                        ),
                        "Of each step that ended: queue, prefill, decode, tool, pauses between tries, overhead.",
                    ),
                    Panel(
                        "Tokens a second",
                        "short",
                        (
                            Line(
                                _rate(contract.METRIC_WORKFLOW_TOKENS, _WORKFLOW, "workflow, step"),
                                "{{workflow}}: {{step}}",
                            ),
                        ),
                        "Of prompts and answers.",
                    ),
                    Panel(
                        "Prompt tokens computed ahead, a second",
                        "short",
                        (
                            Line(
                                _rate(contract.METRIC_WORKFLOW_WARMED, _WORKFLOW, "workflow"),
                                "{{workflow}}",
                                rare=True,
                            ),
                        ),
                        "So that a step finds them cached.",
                    ),
                ),
            ),
        ),
        variables=(("workflow", contract.METRIC_WORKFLOW_RUNS),),
    )


def _operator() -> Dashboard:
    return Dashboard(
        "operator",
        "Tidepool / Operator",
        (
            (
                "Work",
                (
                    Panel("Leader", "short", (Line("tidepool_operator_leader", "{{pod}}"),)),
                    Panel("Pools", "short", (Line("max(tidepool_operator_pools)", "pools"),)),
                    Panel(
                        "Reconciles a second",
                        "short",
                        (Line(f"sum(rate(tidepool_operator_reconciles_total{_WINDOW}))", "reconciles"),),
                    ),
                    Panel(
                        "Time of one reconcile",
                        "s",
                        (
                            Line(
                                f"sum(rate(tidepool_operator_reconcile_seconds_total{_WINDOW})) / "
                                f"sum(rate(tidepool_operator_reconciles_total{_WINDOW}))",
                                "mean",
                            ),
                        ),
                    ),
                    Panel(
                        "Reconciles that failed",
                        "short",
                        (
                            Line(
                                f"sum by (error) (rate(tidepool_operator_reconcile_errors_total{_WINDOW}))",
                                "{{error}}",
                                rare=True,
                            ),
                        ),
                    ),
                    Panel(
                        "Oldest work that waits",
                        "s",
                        (Line("max(tidepool_operator_queue_oldest_seconds)", "age"),),
                    ),
                    Panel("Work that waits", "short", (Line("max(tidepool_operator_queue_length)", "pools"),)),
                    Panel(
                        "Watches that have gone quiet",
                        "short",
                        (Line("max by (pod) (tidepool_operator_quiet_watches)", "{{pod}}"),),
                        "Kinds of objects of whose changes an operator is not told.",
                    ),
                    Panel(
                        "Pools that lack room or figures",
                        "short",
                        (
                            Line(
                                "max by (pool, reason) (tidepool_operator_held_back)",
                                "{{pool}}: {{reason}}",
                                rare=True,
                            ),
                            Line(
                                "max by (pool) (tidepool_operator_figures_missing)",
                                "{{pool}}: no figures",
                                rare=True,
                            ),
                        ),
                    ),
                    Panel(
                        "Demand within its forecast band",
                        "percentunit",
                        (Line("tidepool_operator_forecast_coverage_ratio", "{{pool}}", rare=True),),
                        "Of the last day; only pools that predict.",
                    ),
                ),
            ),
        ),
    )
