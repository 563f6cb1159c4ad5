"""Alerts over the metrics of routers and operator: the one list behind the chart's rules and docs/alerts.md.

An alert is for somebody who can act now (critical) or in working hours (warning). Burn rates of error budgets are
those of the SRE workbook, chapter 5: 14.4 times the budget over an hour is 2 % of a month's, 6 times over six
hours 5 %; each also over a twelfth of the window, so that an alert ends soon after its cause.
"""

from dataclasses import dataclass
from typing import Any, Final

from tidepool_api import contract

GROUP: Final = "tidepool-alerts"
RUNBOOKS: Final = "docs/alerts.md"

# Of all requests, by how many may fail; come to their first token after so many seconds; or have slower tokens.
ERROR_BUDGET: Final = 0.01
SLOW_BUDGET: Final = 0.05
FIRST_SECONDS: Final = 5.0
EACH_SECONDS: Final = 0.1
_FAST, _SLOW = (14.4, "1h", "5m"), (6.0, "6h", "30m")
# A gateway speaks of "namespace/name"; a sidecar's scrape adds its namespace beside the name.
_OF_GATEWAYS, _OF_SIDECARS = 'pool=~".+/.+"', 'pool=~"[^/]+"'


@dataclass(frozen=True, slots=True)
class Alert:
    """One alert: `holds` is PromQL that must have held for `lasts`; `cause` and `remedy` are its runbook."""

    name: str
    holds: str
    lasts: str
    severity: str
    summary: str
    cause: str
    remedy: str

    def rule(self) -> dict[str, Any]:
        """As a Prometheus rules file has it."""
        return {
            "alert": self.name,
            "expr": self.holds,
            "for": self.lasts,
            "labels": {"severity": self.severity},
            "annotations": {"summary": self.summary, "runbook_url": f"{RUNBOOKS}#{self.name.lower()}"},
        }


def alerts() -> tuple[Alert, ...]:
    """All of them, in the order of the page."""
    return (*_service_levels(), *_engines(), *_scaling(), *_operator(), *_router(), *_workflows())


def alerts_file() -> dict[str, Any]:
    """Body of a plain Prometheus rules file, and `spec` of a PrometheusRule."""
    return {"groups": [{"name": GROUP, "rules": [alert.rule() for alert in alerts()]}]}


def _both(share: str, times: float, budget: float, *windows: str) -> str:
    """The share is above `times` the budget over each window; `{}` in it stands for the window."""
    return " and ".join(
        f"({share.format(*[window] * share.count('{}'))}) > {times * budget:g}" for window in windows
    )


def _errors(times: float, *windows: str) -> str:
    name = contract.METRIC_GATEWAY_REQUESTS
    bad = f'sum by (pool) (rate({name}{{{{outcome="error",pool!=""}}}}[{{}}]))'
    share = _both(f'{bad} / sum by (pool) (rate({name}{{{{pool!=""}}}}[{{}}]))', times, ERROR_BUDGET, *windows)
    return f'{share} and sum by (pool) (increase({name}{{outcome="error",pool!=""}}[{windows[0]}])) > 10'


def _slower(name: str, seconds: float, times: float, *windows: str) -> str:
    """Share of a pool's requests above the bound: as gateways measured them, who count their own queue, or else as
    the pool's sidecars did, which see callers of its own Service too."""
    found = (_share(name, seconds, times, pools, *windows) for pools in (_OF_GATEWAYS, _OF_SIDECARS))
    gateways, sidecars = found
    return f"max by (pool) (({gateways}) or {_named(sidecars)})"


def _share(name: str, seconds: float, times: float, pools: str, *windows: str) -> str:
    bound = f'{pools},le=~"{seconds:g}(\\\\.0)?"'  # Prometheus 3 writes 5.0 where 5 was scraped
    by = "pool" if pools == _OF_GATEWAYS else "namespace, pool"
    quick = f"sum by ({by}) (rate({name}_bucket{{{{{bound}}}}}[{{}}]))"
    every = f"sum by ({by}) (rate({name}_count{{{{{pools}}}}}[{{}}]))"
    return _both(f"1 - {quick} / {every}", times, SLOW_BUDGET, *windows)


def _named(sidecars: str) -> str:
    """Series of sidecars, with a pool named as gateways name it."""
    return f'label_join({sidecars}, "pool", "/", "namespace", "pool")'


def _service_levels() -> tuple[Alert, ...]:
    first, each = contract.METRIC_TTFT, contract.METRIC_TPOT
    reads_status = "`kubectl describe mp NAME`: Ready says what is wrong with its engines, status.scaling why it "
    return (
        Alert(
            "TidepoolErrorsFast",
            _errors(_FAST[0], *_FAST[1:]),
            "2m",
            "critical",
            "requests to {{ $labels.pool }} fail: the error budget of a month is gone in two days at this pace",
            "Engines crash, hang or answer 5xx, or the gateway finds nobody to send to; "
            "`tidepool_gateway_retries_total` and `tidepool_gateway_ejections_total` say which failure.",
            "`kubectl describe mp NAME`: the reason on Ready or Degraded and its remedy. The gateway's log names "
            "pod and request of each failure. If it began with a change, apply the one before it again.",
        ),
        Alert(
            "TidepoolErrorsSlow",
            _errors(_SLOW[0], *_SLOW[1:]),
            "15m",
            "warning",
            "requests to {{ $labels.pool }} fail more often than 99 % allows",
            "As TidepoolErrorsFast, with fewer failures over a longer time: often one pod of several.",
            "Compare `tidepool_requests_total` by pod and outcome; delete the pod that stands out, and read its "
            "engine's log before that.",
        ),
        *(
            Alert(
                f"TidepoolFirstToken{speed}",
                _slower(first, FIRST_SECONDS, times, *windows),
                lasts,
                severity,
                "{{ $labels.pool }} answers late: too many requests wait over 5 s for their first token",
                "Requests queue, prompts are longer than was planned for, or the prefix cache no longer helps.",
                f"{reads_status}does not grow (maxReplicas, missing accelerators). Compare "
                "`tidepool:pool_requests_waiting` with `tidepool:pool_cached_prompt_tokens_per_second`.",
            )
            for speed, (times, *windows), lasts, severity in (
                ("Fast", _FAST, "2m", "critical"),
                ("Slow", _SLOW, "15m", "warning"),
            )
        ),
        Alert(
            "TidepoolTokensSlow",
            _slower(each, EACH_SECONDS, *_SLOW),
            "15m",
            "warning",
            "{{ $labels.pool }} streams slowly: too many requests take over 0.1 s a token",
            "More requests decode at once than the engine has speed for, or the accelerator has slowed down.",
            f"{reads_status}does not grow. Lower `--max-num-seqs`, or set scaling.targets.timePerOutputToken.",
        ),
    )


def _engines() -> tuple[Alert, ...]:
    ready, exhausted = contract.METRIC_ENGINE_READY, contract.METRIC_KV_EXHAUSTION
    return (
        Alert(
            "TidepoolEngineDown",
            f"sum by (namespace, pool) ({ready}) < 1",
            "15m",
            "critical",
            "no engine of {{ $labels.namespace }}/{{ $labels.pool }} is ready",
            "The engines do not start, or all hang or crash. A large model may take longer than this to load.",
            "`kubectl describe mp NAME`: Ready has the reason of the worst pod and what to do about it.",
        ),
        Alert(
            "TidepoolEngineRestarts",
            f"sum by (namespace, pool) (changes({ready}[15m])) > 5",
            "0m",
            "warning",
            "engines of {{ $labels.namespace }}/{{ $labels.pool }} come and go",
            "An engine crashes in a loop, or its health probe fails now and then.",
            "`kubectl describe mp NAME`: a crash loop shows the engine's last error and which setting to lower.",
        ),
        Alert(
            "TidepoolPodsLeftOut",
            # One that fails comes back on trial now and then, for a moment.
            f'max by (pool) (max_over_time({contract.METRIC_GATEWAY_ENDPOINTS}{{state=~"ejected|hung"}}[5m])) > 0',
            "10m",
            "warning",
            "gateways send nothing to some pods of {{ $labels.pool }}: they fail or hang",
            "A pod answers 5xx, refuses connections, or runs requests without making tokens.",
            "The gateway's log names the pod. Read its engine's log, then delete it; a new one takes its place.",
        ),
        Alert(
            "TidepoolKvNearlyFull",
            f"min by (namespace, pool, pod) ({exhausted}) < 30",
            "2m",
            "warning",
            "{{ $labels.pod }} will run out of KV blocks within half a minute",
            "Live requests are about to need more KV cache than the engine has; it will preempt and recompute.",
            "More replicas (maxReplicas), a smaller `maxModelLen`, or a lower scaling.targets.kvUtilization so "
            "that the pool grows earlier.",
        ),
    )


def _scaling() -> tuple[Alert, ...]:
    refused, waiting = contract.METRIC_GATEWAY_REFUSED, contract.METRIC_WAITING
    queue = f"sum by (pool) ({contract.METRIC_GATEWAY_HELD} or {_named(f'{waiting}{{{_OF_SIDECARS}}}')})"
    return (
        Alert(
            "TidepoolRequestsRefused",
            f"sum by (pool, reason) (rate({refused}[5m])) > 0",
            "5m",
            "critical",
            "{{ $labels.pool }} refuses requests ({{ $labels.reason }})",
            "More comes than the pool serves, and its queue met the bound that the reason names.",
            "status.scaling says what holds the pool back. Raise maxReplicas, add accelerators, or let requests "
            "wait longer (routing.queue).",
        ),
        Alert(
            "TidepoolQueueGrows",
            f"{queue} > 10 and deriv({queue}[10m:30s]) > 0",
            "10m",
            "warning",
            "the queue of {{ $labels.pool }} has grown for ten minutes",
            "Scaling does not keep up: pods wait for accelerators, take long to start, or maxReplicas is reached.",
            "`kubectl get mp NAME`: REPLICAS below DESIRED means that pods do not come; the condition "
            "CapacityAvailable says what lacks.",
        ),
        Alert(
            "TidepoolHeldBack",
            "max by (pool, reason) (tidepool_operator_held_back) > 0",
            "10m",
            "warning",
            "{{ $labels.pool }} has no room for the pods that it wants ({{ $labels.reason }})",
            "Accelerators are missing, no node takes the pods, or a quota is full. What runs goes on, with the "
            "load of all.",
            "`kubectl tidepool explain NAME`, or `kubectl describe mp NAME`: CapacityAvailable and "
            "status.scaling.refused say how many of what are missing. Add nodes, raise the quota, lower the "
            "maxReplicas of a pool that can do with fewer, or give this one a higher priority class.",
        ),
        Alert(
            "TidepoolFiguresMissing",
            "max by (pool) (tidepool_operator_figures_missing) > 0",
            "10m",
            "warning",
            "{{ $labels.pool }} is not scaled: its figures are missing or old",
            "The operator cannot reach Prometheus, or the pods are not scraped, or not under the labels "
            "`namespace`, `pool` and `pod`. A Prometheus that is down altogether sends no alert: watch it from "
            "elsewhere.",
            "`kubectl describe mp NAME`: ScalingActive names the pods without figures, and says so where it is "
            "Prometheus that does not answer. Check `prometheus.url` of the chart, the PodMonitors or the scrape "
            f"configuration, and NetworkPolicies that stand before Prometheus and port {contract.METRICS_PORT} of "
            "the pods. Recording rules are not the cause: without them the operator asks what they would. "
            "The pool keeps its size meanwhile.",
        ),
        Alert(
            "TidepoolForecastOff",
            "tidepool_operator_forecast_coverage_ratio < 0.75",
            "1h",
            "warning",
            "demand on {{ $labels.pool }} is not what was forecast for it",
            "Its pattern has changed, or it has none. The reactive path still follows the load.",
            "Nothing breaks. If it stays so, set scaling.prediction.enabled to false or prediction.season to the "
            "length of its cycle.",
        ),
    )


def _operator() -> tuple[Alert, ...]:
    return (
        Alert(
            "TidepoolNobodyLeads",
            "max(tidepool_operator_leader) < 1 or absent(tidepool_operator_leader)",
            "5m",
            "critical",
            "no operator acts: pools are served, and neither healed nor scaled",
            "The operator's pods do not run, cannot reach the API server, or Prometheus does not scrape them.",
            "`kubectl get pods -l tidepool.dev/component=operator -A`, their events and the log of one of them.",
        ),
        Alert(
            "TidepoolReconcileFails",
            "sum by (error) (increase(tidepool_operator_reconcile_errors_total[10m])) > 5",
            "10m",
            "warning",
            "the operator cannot bring pools to what they should be ({{ $labels.error }})",
            "The API server refuses its writes (RBAC, quota, admission webhooks), or it has a defect.",
            "The operator's log names pool and answer. Degraded on the pool says what was refused.",
        ),
        Alert(
            "TidepoolReconcileLate",
            "max(tidepool_operator_queue_oldest_seconds) > 60",
            "5m",
            "warning",
            "changes of pools wait for more than a minute",
            "The operator is short of CPU, or the API server is slow or throttles it.",
            "Compare `tidepool_operator_reconcile_seconds_total` with `tidepool_operator_reconciles_total`; raise "
            "the operator's CPU limit if it is at it.",
        ),
        Alert(
            "TidepoolWatchStale",
            # The kubelet restarts an operator that is not well, and its gauges begin anew.
            "max by (namespace, pod) (max_over_time(tidepool_operator_quiet_watches[10m])) > 0",
            "0m",
            "warning",
            "the operator {{ $labels.pod }} was not told of changes in the cluster",
            "A watch of the API server has gone quiet: a proxy or load balancer between them drops connections "
            "that rest, or the API server is overloaded. The operator restarts by its liveness probe.",
            "`kubectl logs --previous` of that pod names the kind. If it comes again, look at what stands between "
            "operator and API server, and at its timeouts.",
        ),
        Alert(
            "TidepoolOrphans",
            "max(tidepool_operator_orphans) > 0",
            "1h",
            "warning",
            "objects of pools that are gone are left in the cluster",
            "A pool was deleted with `--cascade=orphan`; its engines still hold accelerators.",
            "An event names each. Apply a pool of that name, which takes them over, or delete them.",
        ),
    )


def _router() -> tuple[Alert, ...]:
    proofs, late = contract.METRIC_PROOFS, contract.METRIC_LATE_CALLS
    return (
        Alert(
            "TidepoolCallersUnproven",
            f'sum by (namespace, pool, outcome) (rate({proofs}{{outcome!~"gateway|peer|operator"}}[10m])) > 0',
            "10m",
            "warning",
            "sidecars of {{ $labels.namespace }}/{{ $labels.pool }} do not believe their callers "
            "({{ $labels.outcome }})",
            "Tokens expired, clocks are apart, or somebody else calls sidecars with a token of another audience.",
            "docs/trust.md lists the outcomes. Requests are served all the same, at default priority.",
        ),
        Alert(
            "TidepoolLedgerDefect",
            f"sum by (namespace, pool) (increase({late}[1h])) > 10",
            "0m",
            "warning",
            "a router of {{ $labels.namespace }}/{{ $labels.pool }} counts calls on requests that had ended",
            "A defect of the router; picks may rest on wrong sums.",
            "Restart the pod, and report it with the router's log of that hour.",
        ),
    )


def _workflows() -> tuple[Alert, ...]:
    runs = contract.METRIC_WORKFLOW_RUNS
    failed = f'sum by (workflow) (increase({runs}{{phase="Failed"}}[30m]))'
    return (
        Alert(
            "TidepoolRunsFail",
            f"{failed} > 3 and {failed} / sum by (workflow) (increase({runs}[30m])) > 0.1",
            "5m",
            "warning",
            "more than a tenth of the runs of {{ $labels.workflow }} fail",
            "A tool or a pool of it fails, its deadline or budget is too small, or models answer in another form "
            "than the next step reads.",
            "`kubectl get awr` or `GET /v1/workflows/NAME/runs` lists runs with their reasons; `tidepool trace "
            "RUN` and the console show which step failed or took the time.",
        ),
    )
