"""Names that operator, router, chart and tests share: labels, ports, paths, headers, metrics.

Everything here is a promise to other processes, also to those of the release before: add, do not rename.
"""

from typing import Final

GROUP: Final = "tidepool.dev"
VERSION: Final = "v1alpha1"
API_VERSION: Final = f"{GROUP}/{VERSION}"
MODELPOOL_PLURAL: Final = "modelpools"
AGENTWORKFLOW_PLURAL: Final = "agentworkflows"
AGENTWORKFLOWRUN_PLURAL: Final = "agentworkflowruns"

FIELD_MANAGER: Final = "tidepool-operator"
MANAGED_BY: Final = "tidepool"

# Labels of every object that belongs to a pool; the first three are the selectors of its Deployments.
MANAGED_BY_LABEL: Final = "app.kubernetes.io/managed-by"
POOL_LABEL: Final = f"{GROUP}/pool"
REVISION_LABEL: Final = f"{GROUP}/revision"
ROLE_LABEL: Final = f"{GROUP}/role"
# On pods and Deployments of a pool with scaling.variants: the name of theirs.
VARIANT_LABEL: Final = f"{GROUP}/variant"
# "gateway" or "operator"; the operator finds the gateways' pods by it.
COMPONENT_LABEL: Final = f"{GROUP}/component"

ROLE_MIXED: Final = "mixed"
ROLE_PREFILL: Final = "prefill"
ROLE_DECODE: Final = "decode"
# Pods of a replica that spans several nodes, but the first: an engine without a router.
ROLE_WORKER: Final = "worker"
COMPONENT_GATEWAY: Final = "gateway"
COMPONENT_OPERATOR: Final = "operator"

# "true" on the pods of a pool whose sidecars have TLS_PORT.
TLS_LABEL: Final = f"{GROUP}/tls"
# On the pods of a Job that loads files: the pool that it does so for. They are no pods of the pool.
LOADS_FOR_LABEL: Final = f"{GROUP}/loads-for"

# On the pods of a pool whose spec.rollout.restart is set: its value.
RESTART_ANNOTATION: Final = f"{GROUP}/restart"
# On a namespace: hosts that its workflows may call beside those of the gateways' flags, with commas between.
WORKFLOW_HOSTS_ANNOTATION: Final = f"{GROUP}/workflow-hosts"

POD_DELETION_COST: Final = "controller.kubernetes.io/pod-deletion-cost"

# Containers of an engine pod. podTemplate merges onto these names.
ENGINE_CONTAINER: Final = "engine"
ROUTER_CONTAINER: Final = "router"
# The container that downloads a model, by the router's image: of a Job, or an init container of engine pods.
LOADER_CONTAINER: Final = "loader"

ENGINE_PORT: Final = 8000  # on 127.0.0.1 only
TRAFFIC_PORT: Final = 8080
METRICS_PORT: Final = 8081
CONTROL_PORT: Final = 8082
TLS_PORT: Final = 8443  # of sidecars: what TRAFFIC_PORT serves, over TLS, where the installation wants that
# Among the engines of a pool that computes prompts apart: NIXL's side channel, then the ports of UCX over TCP.
NIXL_PORT: Final = 5600
UCX_PORTS: Final = (5601, 5699)
CONSOLE_PORT: Final = 8083  # of the operator: the page for people
SERVICE_PORT: Final = 80  # of a pool's Service and of the gateway's; both lead to TRAFFIC_PORT

# Sidecar and gateway, control port.
PATH_HEALTH: Final = "/healthz"  # the process itself answers; needs no engine
PATH_ENGINE_STARTED: Final = "/engine/started"  # the engine answers and serves the model that the spec names
PATH_ENGINE_READY: Final = "/engine/ready"  # started, admits, makes tokens
PATH_DRAIN: Final = "/drain"  # GET is held until the ledger is empty or the drain timeout is over
PATH_SETTINGS: Final = "/settings"  # PUT SidecarSettings
PATH_FLEET: Final = "/fleet"  # PUT Fleet (gateway)
# Runs of AgentWorkflowRuns (gateway): GET OpenRuns; PUT RunOrder at /UID answers RunReport; DELETE /UID cancels.
PATH_RUNS: Final = "/runs"
# Below it, for who only looks: /of/NAMESPACE/NAME answers RunList of a workflow, /told/ID RunStory of any run,
# /totals AllTotals of all workflows in one answer.
PATH_RUNS_OF: Final = f"{PATH_RUNS}/of"
PATH_RUNS_TOLD: Final = f"{PATH_RUNS}/told"
PATH_RUNS_TOTALS: Final = f"{PATH_RUNS}/totals"
PATH_READY: Final = "/readyz"  # gateway: has a fleet and is not draining
# Sidecar traffic port and gateway control port: load reports, one JSON object a line, held open.
PATH_LOAD: Final = "/tidepool/load"
PATH_LOAD_STREAM: Final = "/tidepool/load/stream"

# Files, as mounted.
# In the environment of what the operator starts: whoever reads it may be of another release than its flags.
STARTED_BY: Final = "TIDEPOOL_STARTED_BY"
SETTINGS_FILE: Final = "/etc/tidepool/settings.json"
FLEET_FILE: Final = "/etc/tidepool/fleet.json"
KEYS_FILE: Final = "/etc/tidepool-keys/keys.yaml"
KEYS_KEY: Final = "keys.yaml"
FLEET_CONFIGMAP: Final = "tidepool-fleet"
FLEET_KEY: Final = "fleet.json"
SETTINGS_KEY: Final = "settings.json"
# Beside the fleet, in the same ConfigMap: whom a gateway believes on its control port.
TRUST_KEY: Final = "trust.json"
TRUST_FILE: Final = "/etc/tidepool/trust.json"
# The pod's own proof: a projected service account token, which the kubelet renews.
PROOF_FOLDER: Final = "/var/run/secrets/tidepool.dev/proof"
PROOF_KEY: Final = "token"
PROOF_FILE: Final = f"{PROOF_FOLDER}/{PROOF_KEY}"
PROOF_AUDIENCE: Final = "tidepool"
PROOF_SECONDS: Final = 3600  # its lifetime; the kubelet renews it when four fifths are over

# A sidecar's certificate, its key and the authorities of its peers' certificates: tls.crt, tls.key, ca.crt.
TLS_FOLDER: Final = "/etc/tidepool-tls"

# Request headers.
HEADER_PRIORITY: Final = "x-tidepool-priority"
HEADER_SESSION: Final = "x-tidepool-session"
HEADER_DEADLINE: Final = "x-tidepool-deadline"  # from the request to the end of its answer: 30, 2.5s, 1500ms
HEADER_TENANT: Final = "x-tidepool-tenant"
# Of a request that is one of many: tokens that the whole still needs, and seconds since it began, as in 5300;12.5
HEADER_RUN: Final = "x-tidepool-run"
HEADER_DEBUG: Final = "x-tidepool-debug"  # "scores", where the gateway allows it
HEADER_REQUEST_ID: Final = "x-request-id"
# Marks against loops: set by a gateway on what it sends, and by a sidecar on what it hands on to a peer.
HEADER_GATEWAY: Final = "x-tidepool-gateway"
HEADER_HANDED_ON: Final = "x-tidepool-handed-on"
# Who sends it, by a service account's token: between the parts alone, and taken off by whoever gets it.
HEADER_PROOF: Final = "x-tidepool-proof"
# From a gateway to a sidecar: prompt tokens whose KV blocks another pod's engine hands over.
HEADER_TRANSFERRED: Final = "x-tidepool-transferred"
# From a gateway to a sidecar, with a large body that names its model last: JSON with `model`, and where the body
# has them `stream`, `max_tokens` and `n`.
HEADER_FACTS: Final = "x-tidepool-facts"
# Response headers.
HEADER_POOL: Final = "x-tidepool-pool"  # the pool that served a request of a pool with `traffic`
HEADER_POD: Final = "x-tidepool-pod"
HEADER_SCORES: Final = "x-tidepool-scores"
HEADER_QUEUE_MS: Final = "x-tidepool-queue-ms"
# Between sidecar and gateway; taken off before the client sees the answer.
HEADER_LOAD: Final = "x-tidepool-load"

# Metrics of the sidecar ("pod" side) and of the gateway. The scrape adds namespace, pool and pod as target
# labels, so the processes add none of these, except the gateway, which speaks of many pools.
METRIC_REQUESTS: Final = "tidepool_requests_total"  # labels: code, outcome (ok|error|cancelled|refused)
METRIC_RUNNING: Final = "tidepool_requests_running"
METRIC_WAITING: Final = "tidepool_requests_waiting"
METRIC_PROMPT_TOKENS: Final = "tidepool_prompt_tokens_total"
METRIC_CACHED_TOKENS: Final = "tidepool_cached_prompt_tokens_total"
METRIC_OUTPUT_TOKENS: Final = "tidepool_output_tokens_total"
METRIC_KV_TOKENS: Final = "tidepool_kv_tokens_held"
METRIC_KV_CAPACITY: Final = "tidepool_kv_tokens_capacity"
METRIC_KV_EXHAUSTION: Final = "tidepool_kv_exhaustion_seconds"  # absent: none foreseen
METRIC_KV_USAGE: Final = "tidepool_kv_usage_ratio"
METRIC_TTFT: Final = "tidepool_time_to_first_token_seconds"
METRIC_TPOT: Final = "tidepool_time_per_output_token_seconds"  # labels of this and the next two: outcome
METRIC_QUEUE_TIME: Final = "tidepool_queue_time_seconds"
METRIC_REQUEST_TIME: Final = "tidepool_request_duration_seconds"
METRIC_ESTIMATE_ERROR: Final = "tidepool_prompt_token_estimate_error_ratio"
METRIC_OUTPUT_ERROR: Final = "tidepool_output_token_estimate_error_ratio"
METRIC_CACHED_ERROR: Final = "tidepool_cached_token_estimate_error_ratio"
METRIC_ENGINE_READY: Final = "tidepool_engine_ready"
METRIC_DRAINING: Final = "tidepool_draining"
METRIC_LATE_CALLS: Final = "tidepool_ledger_late_calls_total"
METRIC_HANDED_ON: Final = "tidepool_requests_handed_on_total"  # labels: outcome
METRIC_REFUSED: Final = "tidepool_requests_refused_total"  # labels: reason
METRIC_HELD: Final = "tidepool_requests_held"
METRIC_PROOFS: Final = "tidepool_proofs_checked_total"  # labels: outcome (gateway|peer|operator, or why not)
METRIC_LEDGER_REQUESTS: Final = "tidepool_ledger_requests"  # labels: phase (prefill|decode)
METRIC_LEDGER_TOKENS: Final = "tidepool_ledger_tokens"  # labels: kind (queued|held|expected)
METRIC_SPANS: Final = "tidepool_spans_total"  # labels: outcome (exported|failed)
METRIC_WATCH_DROPPED: Final = "tidepool_watch_dropped_total"  # labels: of (traces|access_log)
METRIC_GATEWAY_HELD: Final = "tidepool_gateway_requests_held"  # labels: pool ("namespace/name")
METRIC_GATEWAY_REFUSED: Final = "tidepool_gateway_requests_refused_total"  # labels: pool, reason
METRIC_GATEWAY_REQUESTS: Final = "tidepool_gateway_requests_total"  # labels: pool, code, outcome
METRIC_GATEWAY_PICKS: Final = "tidepool_gateway_picks_total"  # labels: pool, reason
METRIC_GATEWAY_RETRIES: Final = "tidepool_gateway_retries_total"  # labels: pool, reason
METRIC_GATEWAY_EJECTIONS: Final = "tidepool_gateway_ejections_total"  # labels: pool, reason
METRIC_GATEWAY_ENDPOINTS: Final = "tidepool_gateway_endpoints"  # labels: pool, state
METRIC_GATEWAY_ROUTED: Final = "tidepool_gateway_routed_total"  # labels: pool, to, reason
METRIC_GATEWAY_MIRRORED: Final = "tidepool_gateway_mirrored_total"  # labels: pool, outcome
METRIC_GATEWAY_CLASSIFIED: Final = "tidepool_gateway_classified_total"  # labels: pool, outcome
METRIC_GATEWAY_PREFILLS: Final = "tidepool_gateway_prefills_total"  # labels: pool, outcome
METRIC_GATEWAY_PREFILL_TIME: Final = "tidepool_gateway_prefill_seconds"  # labels: pool, outcome
METRIC_GATEWAY_WORKERS: Final = "tidepool_gateway_workers"
METRIC_GATEWAY_WORKER_RESTARTS: Final = "tidepool_gateway_worker_restarts_total"
METRIC_WORKFLOW_RUNS: Final = "tidepool_workflow_runs_total"  # labels: workflow, phase
METRIC_WORKFLOW_RUN_TIME: Final = "tidepool_workflow_run_duration_seconds"  # labels: workflow
METRIC_WORKFLOW_STEPS: Final = "tidepool_workflow_steps_total"  # labels: workflow, step, phase
METRIC_WORKFLOW_STEP_TIME: Final = "tidepool_workflow_step_duration_seconds"  # labels: workflow, step
METRIC_WORKFLOW_STEP_PARTS: Final = "tidepool_workflow_step_seconds_total"  # labels: workflow, step, part
METRIC_WORKFLOW_TOKENS: Final = "tidepool_workflow_step_tokens_total"  # labels: workflow, step
METRIC_WORKFLOW_WARMED: Final = "tidepool_workflow_warmed_tokens_total"  # labels: workflow
METRIC_WORKFLOW_SAVING: Final = "tidepool_workflow_saving_total"  # labels: workflow, measure
METRIC_KEY_REQUESTS: Final = "tidepool_gateway_key_requests_total"  # labels: key (its id), tenant
METRIC_KEY_TOKENS: Final = "tidepool_gateway_key_tokens_total"  # labels: key, tenant
METRIC_USAGE_REQUESTS: Final = "tidepool_usage_requests_total"  # labels: key, tenant, model, workflow, outcome
METRIC_USAGE_TOKENS: Final = "tidepool_usage_tokens_total"  # labels: key, tenant, model, workflow, kind
METRIC_KEY_REFUSED: Final = "tidepool_gateway_key_refused_total"  # labels: key, reason

# Target labels that every scrape of an engine pod carries (docs/metrics.md has the relabelling).
LABEL_NAMESPACE: Final = "namespace"
LABEL_POOL: Final = "pool"
LABEL_POD: Final = "pod"
LABEL_ROLE: Final = "role"  # where prefill and decode are apart; without it prefill pods count as the others

SCRAPE_ANNOTATIONS: Final = {"prometheus.io/scrape": "true", "prometheus.io/port": str(METRICS_PORT)}


def peers_service(pool: str) -> str:
    """The headless Service of a pool; its A records are all pods of the pool, ready or not."""
    return f"{pool}-peers"


def prefill_service(pool: str) -> str:
    """The headless Service of a pool's prefill pods, ready or not, where it has some."""
    return f"{pool}-prefill"


def prefill_url(pool: str, namespace: str) -> str:
    """Endpoint source of a pool's prefill pods for a gateway."""
    return f"dns+http://{prefill_service(pool)}.{namespace}.svc:{TRAFFIC_PORT}"


def peers_url(pool: str, namespace: str) -> str:
    """Endpoint source of a pool for a gateway: each A record of the host is one sidecar."""
    return f"dns+http://{peers_service(pool)}.{namespace}.svc:{TRAFFIC_PORT}"


def tls_peers_service(pool: str) -> str:
    """The headless Service of the pods that have TLS_PORT."""
    return f"{pool}-peers-tls"


def tls_peers_url(pool: str, namespace: str) -> str:
    """As `peers_url`, of the pods that have TLS_PORT."""
    return f"dns+https://{tls_peers_service(pool)}.{namespace}.svc:{TLS_PORT}"


def tls_prefill_service(pool: str) -> str:
    """The headless Service of a pool's prefill pods that serve TLS."""
    return f"{pool}-prefill-tls"


def tls_prefill_url(pool: str, namespace: str) -> str:
    """As `prefill_url`, over TLS."""
    return f"dns+https://{tls_prefill_service(pool)}.{namespace}.svc:{TLS_PORT}"
