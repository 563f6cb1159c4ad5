"""The pod of an engine and its router, before podTemplate is merged in.

Whatever changes here gives every pool a new revision and restarts its engines: tests/operator/pool holds the hash.
"""

from typing import Final

from tidepool_api import contract
from tidepool_api.modelpool import ModelPool
from tidepool_operator.pool import adapters, cache, engine_args, groups, loader
from tidepool_operator.pool.cache import Way
from tidepool_operator.pool.model import Object
from tidepool_operator.pool.pod_parts import locked_down, pod_security

# The longest drain timeout is an hour; the rest is for preStop to answer and the engine to end. A constant, so
# that the drain timeout can change without a new revision.
_GRACE_SECONDS: Final = 3900
_STARTUP_PERIOD_SECONDS: Final = 2
_STARTUP_SECONDS: Final = 24 * 3600  # rollout.progressDeadline judges slow loads; a probe would only restart them
# Large bodies that must be whole before they go on, on disk and, those and all others, in memory; within the
# router's limit of memory, which holds its replays and itself as well.
_BODIES_FOLDER: Final = "/var/spool/tidepool"
_STORED_BYTES: Final = 256 << 20
_BODIES_BYTES: Final = 384 << 20
_SETTINGS_FOLDER: Final = contract.SETTINGS_FILE.rpartition("/")[0]


def settings_config_map(pool: str) -> str:
    """Name of the ConfigMap with a pool's start settings."""
    return f"{pool}-settings"


def pod_template(pool: ModelPool, router_image: str, variant: str = "", role: str = contract.ROLE_MIXED) -> Object:
    """The pod template without its revision label."""
    name = pool.metadata.name
    spec: Object = {
        "serviceAccountName": name,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        # The kernel keeps a SIGTERM without a handler from process 1, and an engine that still loads has none: it
        # would hold its accelerator for the whole grace period. With the pod's pause process as number 1 it ends.
        "shareProcessNamespace": True,
        "terminationGracePeriodSeconds": _GRACE_SECONDS,
        "securityContext": pod_security(),
        "initContainers": [_router(pool, router_image, variant, role), *_loader(pool, router_image)],
        "containers": [_engine(pool, role)],
        "volumes": _volumes(pool),
    }
    secret = pool.spec.model.auth_secret_ref
    if secret is not None and pool.spec.model.uri.startswith("oci://"):
        spec["imagePullSecrets"] = [{"name": secret.name}]
    _place(spec, pool)
    labels = {
        contract.MANAGED_BY_LABEL: contract.MANAGED_BY,
        contract.POOL_LABEL: name,
        contract.ROLE_LABEL: role,
    }
    annotations = dict(contract.SCRAPE_ANNOTATIONS)
    if pool.spec.rollout.restart:
        annotations[contract.RESTART_ANNOTATION] = pool.spec.rollout.restart
    metadata = {"labels": labels, "annotations": annotations}
    return {"metadata": metadata, "spec": spec}


def _place(spec: Object, pool: ModelPool) -> None:
    accelerator, scheduling = pool.spec.accelerator, pool.spec.scheduling
    if accelerator.node_selector:
        spec["nodeSelector"] = dict(accelerator.node_selector)
    if accelerator.tolerations:
        spec["tolerations"] = [
            toleration.model_dump(by_alias=True, exclude_none=True) for toleration in accelerator.tolerations
        ]
    if scheduling.priority_class_name:
        spec["priorityClassName"] = scheduling.priority_class_name
    if scheduling.topology_spread:
        spec["topologySpreadConstraints"] = [
            {
                "maxSkew": 1,
                "topologyKey": key,
                "whenUnsatisfiable": "ScheduleAnyway",
                "labelSelector": {"matchLabels": {contract.POOL_LABEL: pool.metadata.name}},
                "matchLabelKeys": [contract.REVISION_LABEL],
            }
            for key in ("kubernetes.io/hostname", "topology.kubernetes.io/zone")
        ]


def _get(path: str, **rest: object) -> Object:
    return {"httpGet": {"path": path, "port": contract.CONTROL_PORT}, **rest}


def _router(pool: ModelPool, image: str, variant: str, role: str) -> Object:
    name, namespace = pool.metadata.name, pool.metadata.namespace
    # What one cannot do, another of its role does.
    peers = contract.prefill_url if role == contract.ROLE_PREFILL else contract.peers_url
    return {
        "name": contract.ROUTER_CONTAINER,
        "image": image,
        "imagePullPolicy": "IfNotPresent",
        # A native sidecar: started before the engine, stopped after it.
        "restartPolicy": "Always",
        "args": [
            "sidecar",
            "--engine",
            f"http://127.0.0.1:{contract.ENGINE_PORT}",
            "--settings",
            contract.SETTINGS_FILE,
            "--wait-for-file",
            "--peers",
            peers(name, namespace),
            "--proof-file",
            contract.PROOF_FILE,
            "--bodies-folder",
            _BODIES_FOLDER,
            "--max-stored-bytes",
            str(_STORED_BYTES),
            "--max-bodies-bytes",
            str(_BODIES_BYTES),
            *(() if role == contract.ROLE_MIXED else ("--hands-over",)),
        ],
        "env": [
            _field("POD_NAME", "metadata.name"),
            _field("POD_NAMESPACE", "metadata.namespace"),
            _field("POD_IP", "status.podIP"),
            {"name": contract.STARTED_BY, "value": "operator"},
            *([{"name": "POD_VARIANT", "value": variant}] if variant else []),
        ],
        "ports": [
            {"name": "http", "containerPort": contract.TRAFFIC_PORT},
            {"name": "metrics", "containerPort": contract.METRICS_PORT},
            {"name": "control", "containerPort": contract.CONTROL_PORT},
        ],
        # Neither probe needs the engine: it does not run before the sidecar has started.
        "startupProbe": _get(contract.PATH_HEALTH, periodSeconds=1, timeoutSeconds=2, failureThreshold=120),
        "livenessProbe": _get(contract.PATH_HEALTH, periodSeconds=10, timeoutSeconds=5, failureThreshold=6),
        "resources": {"requests": {"cpu": "100m", "memory": "128Mi"}, "limits": {"memory": "1Gi"}},
        "securityContext": locked_down(),
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": [
            {"name": "settings", "mountPath": _SETTINGS_FOLDER, "readOnly": True},
            {"name": "proof", "mountPath": contract.PROOF_FOLDER, "readOnly": True},
            {"name": "bodies", "mountPath": _BODIES_FOLDER},
        ],
    }


def _loader(pool: ModelPool, image: str) -> list[Object]:
    return [loader.container(pool, cache.files(pool), image)] if cache.way(pool) is Way.POD else []


def _mounts(pool: ModelPool) -> list[Object]:
    mounts: list[Object] = [
        {"name": "tmp", "mountPath": "/tmp"},  # noqa: S108
        {"name": "shm", "mountPath": "/dev/shm"},  # noqa: S108
    ]
    if engine_args.model_volume(pool):
        mounts.append({"name": "model", "mountPath": cache.MODEL_MOUNT, "readOnly": True})
    if cache.volume(pool):
        mounts.append(cache.mount(read_only=cache.way(pool) is not Way.ENGINE))
    return [*mounts, *adapters.mounts(pool)[1]]


def _engine(pool: ModelPool, role: str) -> Object:
    spec = pool.spec
    engine: Object = {
        "name": contract.ENGINE_CONTAINER,
        "image": spec.engine.image,
        "args": list(engine_args.arguments(pool, role)),
        "env": _environment(pool, role),
        # No liveness probe: nothing outside the engine may restart a loaded model.
        "startupProbe": _get(
            contract.PATH_ENGINE_STARTED,
            periodSeconds=_STARTUP_PERIOD_SECONDS,
            timeoutSeconds=2,
            failureThreshold=_STARTUP_SECONDS // _STARTUP_PERIOD_SECONDS,
        ),
        "readinessProbe": _get(contract.PATH_ENGINE_READY, periodSeconds=2, timeoutSeconds=2, failureThreshold=2),
        # Held until the ledger is empty; needs no operator.
        "lifecycle": {"preStop": _get(contract.PATH_DRAIN)},
        "securityContext": locked_down(),
        # The end of the log becomes the termination message, which the diagnosis reads.
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": _mounts(pool),
    }
    if spec.accelerator.count:
        engine["resources"] = {"limits": {spec.accelerator.resource: str(spec.accelerator.count)}}
    if role != contract.ROLE_MIXED:
        engine["ports"] = [{"name": "nixl", "containerPort": contract.NIXL_PORT}]
    return engine


def _environment(pool: ModelPool, role: str) -> list[Object]:
    # The root file system is read-only and user 1000 may have no entry in the image's passwd file.
    fixed = {"HOME": "/tmp", "USER": "tidepool", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"}  # noqa: S108
    made: dict[str, Object] = {name: {"name": name, "value": value} for name, value in fixed.items()}
    if role != contract.ROLE_MIXED:
        made["VLLM_NIXL_SIDE_CHANNEL_HOST"] = _field("VLLM_NIXL_SIDE_CHANNEL_HOST", "status.podIP")
        first, last = contract.UCX_PORTS
        ports = {"VLLM_NIXL_SIDE_CHANNEL_PORT": str(contract.NIXL_PORT), "UCX_TCP_PORT_RANGE": f"{first}-{last}"}
        made |= {name: {"name": name, "value": value} for name, value in ports.items()}
    # The engines of a group tell each other where they are; what they find out by themselves needs a route out.
    for name in groups.addresses(pool):
        made[name] = _field(name, "status.podIP")
    secret = pool.spec.model.auth_secret_ref
    if secret is not None and cache.way(pool) is Way.ENGINE:
        reference = {"secretKeyRef": {"name": secret.name, "key": secret.key}}
        made["HF_TOKEN"] = {"name": "HF_TOKEN", "valueFrom": reference}
    variables = {"HF_HOME": cache.hub_home(pool), **adapters.variables(pool)}
    if cache.way(pool) is Way.JOB:
        # All that it needs is there: it must neither ask the hub nor wait for it.
        variables |= {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}
    made |= {name: {"name": name, "value": value} for name, value in variables.items() if value is not None}
    for variable in pool.spec.engine.env:
        made[variable.name] = variable.model_dump(by_alias=True, exclude_none=True, mode="json")
    return list(made.values())


def _volumes(pool: ModelPool) -> list[Object]:
    settings = {"name": settings_config_map(pool.metadata.name), "optional": True}
    proof = {
        "audience": contract.PROOF_AUDIENCE,
        "expirationSeconds": contract.PROOF_SECONDS,
        "path": contract.PROOF_KEY,
    }
    volumes: list[Object] = [
        {"name": "settings", "configMap": settings},
        # The router's alone, and for nothing but the other parts: the API server refuses this audience.
        {"name": "proof", "projected": {"sources": [{"serviceAccountToken": proof}]}},
        # The router keeps its own bound. This one, a quarter above it, would evict the pod.
        {"name": "bodies", "emptyDir": {"sizeLimit": str(_STORED_BYTES + _STORED_BYTES // 4)}},
        {"name": "tmp", "emptyDir": {}},
        {"name": "shm", "emptyDir": {"medium": "Memory"}},
    ]
    more = (engine_args.model_volume(pool), cache.volume(pool))
    return [*volumes, *(volume for volume in more if volume), *adapters.mounts(pool)[0]]


def _field(name: str, path: str) -> Object:
    return {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}}
