"""Every reason that a pool's conditions can carry, with what to do about it. Reasons are stable."""

from enum import StrEnum
from typing import Final


class Reason(StrEnum):
    """CamelCase words of conditions and events."""

    # All is well, or on its way.
    SERVING = "Serving"
    SCALED_TO_ZERO = "ScaledToZero"
    STARTING = "Starting"
    PRELOADING = "Preloading"
    LOADING = "Loading"
    DRAINING = "Draining"
    ROLLING_OUT = "RollingOut"
    SCALING = "Scaling"
    COMPLETE = "Complete"
    LOADED = "Loaded"
    ENOUGH = "Enough"
    HEALTHY = "Healthy"
    SCALING_OFF = "ScalingOff"
    NO_DECISION = "NoDecision"
    # A person must act.
    SPEC_INVALID = "SpecInvalid"
    NAME_TAKEN = "NameTaken"
    POD_TEMPLATE_REJECTED = "PodTemplateRejected"
    LEADER_WORKER_SET_MISSING = "LeaderWorkerSetMissing"
    QUOTA_EXCEEDED = "QuotaExceeded"
    PODS_REFUSED = "PodsRefused"
    IMAGE_NOT_FOUND = "ImageNotFound"
    IMAGE_PULL_DENIED = "ImagePullDenied"
    IMAGE_PULL_FAILED = "ImagePullFailed"
    SECRET_MISSING = "SecretMissing"  # noqa: S105 - a reason, no secret
    CONFIG_MISSING = "ConfigMissing"
    CONTAINER_CONFIG_INVALID = "ContainerConfigInvalid"
    CONTAINER_START_FAILED = "ContainerStartFailed"
    SANDBOX_FAILED = "SandboxFailed"
    # The engine's log says why it ended.
    TOKEN_REFUSED = "TokenRefused"  # noqa: S105 - a reason, no token
    MODEL_GATED = "ModelGated"
    REVISION_NOT_FOUND = "RevisionNotFound"
    ADAPTER_NOT_FOUND = "AdapterNotFound"
    ADAPTER_REFUSED = "AdapterRefused"
    ADAPTER_FAILED = "AdapterFailed"
    MODEL_NOT_FOUND = "ModelNotFound"
    HUB_BUSY = "HubBusy"
    HUB_UNREACHABLE = "HubUnreachable"
    STORAGE_ACCESS_DENIED = "StorageAccessDenied"
    STORAGE_UNREACHABLE = "StorageUnreachable"
    DISK_FULL = "DiskFull"
    FILE_ACCESS_DENIED = "FileAccessDenied"
    MODEL_FILES_INCOMPLETE = "ModelFilesIncomplete"
    MODEL_UNSUPPORTED = "ModelUnsupported"
    MODEL_CODE_NOT_TRUSTED = "ModelCodeNotTrusted"
    PARALLELISM_UNFIT = "ParallelismUnfit"
    MODEL_LENGTH_UNFIT = "ModelLengthUnfit"
    QUANTIZATION_UNFIT = "QuantizationUnfit"
    ACCELERATOR_UNSUPPORTED = "AcceleratorUnsupported"
    DTYPE_UNFIT = "DtypeUnfit"
    ENGINE_FLAG_INVALID = "EngineFlagInvalid"
    CONNECTOR_MISSING = "ConnectorMissing"
    ACCELERATOR_MISSING = "AcceleratorMissing"
    ACCELERATOR_OCCUPIED = "AcceleratorOccupied"
    KV_CACHE_TOO_SMALL = "KvCacheTooSmall"
    ACCELERATOR_OUT_OF_MEMORY = "AcceleratorOutOfMemory"
    ACCELERATOR_ERROR = "AcceleratorError"
    COLLECTIVE_FAILED = "CollectiveFailed"
    ENGINE_OUT_OF_MEMORY = "EngineOutOfMemory"
    PROBE_ENDS_ENGINE = "ProbeEndsEngine"
    ENGINE_CRASHED = "EngineCrashed"
    LOADER_FAILED = "LoaderFailed"
    ROUTER_CRASHED = "RouterCrashed"
    ROUTER_NOT_READY = "RouterNotReady"
    # Where the pods are to run.
    INSUFFICIENT_ACCELERATORS = "InsufficientAccelerators"
    VOLUME_PENDING = "VolumePending"
    VOLUME_NOT_MOUNTED = "VolumeNotMounted"
    TAINT_NOT_TOLERATED = "TaintNotTolerated"
    NODE_SELECTOR_UNMATCHED = "NodeSelectorUnmatched"
    INSUFFICIENT_RESOURCES = "InsufficientResources"
    UNSCHEDULABLE = "Unschedulable"
    EVICTED = "Evicted"
    NODE_LOST = "NodeLost"
    POD_FAILED = "PodFailed"
    ENGINE_HUNG = "EngineHung"
    ENGINE_NOT_READY = "EngineNotReady"
    METRICS_MISSING = "MetricsMissing"
    STALE_CRD = "StaleCrd"
    PROGRESS_DEADLINE_EXCEEDED = "ProgressDeadlineExceeded"
    MODEL_NAME_SHARED = "ModelNameShared"


REMEDIES: Final = {
    Reason.SPEC_INVALID: "Correct the named field and apply the ModelPool again.",
    Reason.NAME_TAKEN: "Delete or rename that object, or give the ModelPool another name.",
    Reason.POD_TEMPLATE_REJECTED: "Correct spec.podTemplate (or the named field) and apply the ModelPool again.",
    Reason.LEADER_WORKER_SET_MISSING: "Install LeaderWorkerSet (https://lws.sigs.k8s.io), or fit a replica on one "
    "node: spec.parallelism.hosts 1 and a larger spec.accelerator.count.",
    Reason.QUOTA_EXCEEDED: "Raise the namespace's ResourceQuota or ask for fewer replicas.",
    Reason.PODS_REFUSED: "Change what the message names: an admission policy of the cluster refuses the pods.",
    Reason.IMAGE_NOT_FOUND: "Correct the name or the tag of spec.engine.image; the registry does not have it.",
    Reason.IMAGE_PULL_DENIED: "Name a Secret with access to the registry in "
    "spec.podTemplate.spec.imagePullSecrets, or correct the image's name: registries say the same of images that "
    "do not exist.",
    Reason.IMAGE_PULL_FAILED: "Check the image's name and tag, and that the nodes may pull it "
    "(spec.podTemplate.spec.imagePullSecrets).",
    Reason.SECRET_MISSING: "Create the Secret with that key in the pool's namespace; the pods pick it up by "
    "themselves.",
    Reason.CONFIG_MISSING: "Create the ConfigMap with that key in the pool's namespace; the pods pick it up by "
    "themselves.",
    Reason.CONTAINER_CONFIG_INVALID: "Correct what the message names in spec.podTemplate or spec.engine.",
    Reason.CONTAINER_START_FAILED: "Check the command in spec.podTemplate and what the image holds.",
    Reason.SANDBOX_FAILED: "Look at the node's network plugin and container runtime, whose words these are.",
    Reason.TOKEN_REFUSED: "Put a Hugging Face token that is valid into the Secret that spec.model.authSecretRef "
    "names; the next start of the container takes it.",
    Reason.MODEL_GATED: "Accept the model's terms on its page with an account, and name a Secret with a token of "
    "that account in spec.model.authSecretRef.",
    Reason.REVISION_NOT_FOUND: "Set spec.model.revision to a branch, tag or commit that the repository has, or "
    "leave it out.",
    Reason.ADAPTER_NOT_FOUND: "Correct the adapter's name and place, or put its files there (adapter_config.json "
    "and its weights).",
    Reason.ADAPTER_REFUSED: "Take an adapter that fits the model, or raise --max-lora-rank in spec.engine.args.",
    Reason.ADAPTER_FAILED: "Read the engine's log (kubectl logs -c engine); it is tried again by itself, at least "
    "every five minutes.",
    Reason.MODEL_NOT_FOUND: "Correct spec.model.uri. For a private model name a Secret with a token in "
    "spec.model.authSecretRef: the hub says the same of what one may not see.",
    Reason.HUB_BUSY: "Wait, or name a token in spec.model.authSecretRef: the hub limits who comes without one.",
    Reason.HUB_UNREACHABLE: "Let the pods reach the hub (egress NetworkPolicy, HTTPS_PROXY or HF_ENDPOINT in "
    "spec.engine.env), or serve the model from pvc:// or file://.",
    Reason.STORAGE_ACCESS_DENIED: "Name a Secret in spec.model.authSecretRef whose keys may list and read the "
    "bucket (s3://: AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY; gs://: a service account's key as JSON).",
    Reason.STORAGE_UNREACHABLE: "Check the store's address and region (AWS_ENDPOINT_URL, AWS_REGION or "
    "GOOGLE_BASE_URL in spec.engine.env) and that pods may reach it (egress NetworkPolicy, HTTPS_PROXY).",
    Reason.DISK_FULL: "Give the download more room: a larger claim in spec.cache, a larger disk on the nodes, a "
    "larger volume at HF_HOME (spec.podTemplate), or a model on pvc://.",
    Reason.FILE_ACCESS_DENIED: "Let user 1000 read the model and write to the named folder: file modes on the "
    "claim, or HF_HOME and other caches on a writable volume (/tmp is one).",
    Reason.MODEL_FILES_INCOMPLETE: "Put the whole model where spec.model.uri points: config.json, the weights "
    "and the tokenizer.",
    Reason.MODEL_UNSUPPORTED: "Take a model whose architecture this vLLM has, or a newer spec.engine.image.",
    Reason.MODEL_CODE_NOT_TRUSTED: "Add --trust-remote-code to spec.engine.args if you trust the model's "
    "authors: it runs their code.",
    Reason.PARALLELISM_UNFIT: "Set spec.parallelism.tensor (and accelerator.count) to a divisor of the number "
    "that the message names, or spec.parallelism.pipeline to 1 where the model has no stages.",
    Reason.MODEL_LENGTH_UNFIT: "Lower spec.engine.maxModelLen to what the message says that the model allows.",
    Reason.QUANTIZATION_UNFIT: "Correct spec.engine.quantization, or leave it out: the model's own files say how "
    "they are quantised.",
    Reason.ACCELERATOR_UNSUPPORTED: "Choose newer devices in spec.accelerator.nodeSelector, or a "
    "spec.engine.image, dtype or quantization that these devices and their driver have.",
    Reason.DTYPE_UNFIT: "Set --dtype or --kv-cache-dtype in spec.engine.args to one that the message allows.",
    Reason.ENGINE_FLAG_INVALID: "Correct the named flag in spec.engine.args or the field that it comes from.",
    Reason.CONNECTOR_MISSING: "Take a spec.engine.image that has NIXL (vLLM's own for NVIDIA GPUs has it), or "
    "leave out spec.disaggregation.",
    Reason.ACCELERATOR_MISSING: "Set spec.accelerator to the resource of the nodes' devices and check their "
    "driver and device plugin: the engine sees none.",
    Reason.ACCELERATOR_OCCUPIED: "Lower spec.engine.gpuMemoryUtilization below the share that is free, or find "
    "out who else uses the device.",
    Reason.KV_CACHE_TOO_SMALL: "Lower spec.engine.maxModelLen, or raise spec.engine.gpuMemoryUtilization or "
    "spec.parallelism.tensor.",
    Reason.ACCELERATOR_OUT_OF_MEMORY: "Lower spec.engine.maxModelLen or spec.engine.gpuMemoryUtilization, or "
    "--max-num-seqs in spec.engine.args; a model that is too large needs spec.parallelism.tensor or a quantised "
    "version.",
    Reason.ACCELERATOR_ERROR: "Look at the node's kernel log for the Xid; drain the node and reset or replace "
    "the device if it comes again.",
    Reason.COLLECTIVE_FAILED: "Check that the devices of one pod see each other (NCCL_DEBUG=INFO in "
    "spec.engine.env says more) and that /dev/shm is not limited in spec.podTemplate.",
    Reason.PROBE_ENDS_ENGINE: "Take the probe out of spec.podTemplate, or raise its failureThreshold: large "
    "models load for many minutes.",
    Reason.ENGINE_CRASHED: "Read the message and the engine's log (kubectl logs -c engine --previous), then "
    "correct spec.model or spec.engine.",
    Reason.ENGINE_OUT_OF_MEMORY: "Raise the engine's memory limit in spec.podTemplate, or lower "
    "spec.engine.maxModelLen.",
    Reason.LOADER_FAILED: "Read the loader's log (kubectl logs -c loader) and correct spec.model; it is tried "
    "again by itself.",
    Reason.ROUTER_CRASHED: "Read the router's log (kubectl logs -c router --previous) and report it.",
    Reason.ROUTER_NOT_READY: "Read the router's log (kubectl logs -c router) and check that its image runs on "
    "the node.",
    Reason.VOLUME_PENDING: "Create the PersistentVolumeClaim, or look at why it is not bound (kubectl describe "
    "pvc): storage class, zone, access mode.",
    Reason.VOLUME_NOT_MOUNTED: "Look at the volume that the message names: a claim that only one node may mount "
    "(ReadWriteOnce), a storage driver that is missing, a Secret or ConfigMap that is not there.",
    Reason.TAINT_NOT_TOLERATED: "Add the taints that the message names to spec.accelerator.tolerations.",
    Reason.NODE_SELECTOR_UNMATCHED: "Correct spec.accelerator.nodeSelector or the affinity in spec.podTemplate: "
    "no node has these labels.",
    Reason.INSUFFICIENT_RESOURCES: "Lower the requests in spec.podTemplate, or add nodes that have as much.",
    Reason.EVICTED: "Give the pod what the node ran out of (requests and limits in spec.podTemplate); it is "
    "replaced by itself.",
    Reason.NODE_LOST: "Look at the node; its pods are replaced elsewhere when Kubernetes gives it up.",
    Reason.ENGINE_HUNG: "Read the engine's log (kubectl logs -c engine); delete the pod if it does not come back.",
    Reason.METRICS_MISSING: "Check that Prometheus answers and scrapes the pods (prometheus.url of the chart); "
    "the pool keeps its size meanwhile.",
    Reason.STALE_CRD: "Apply the CRDs of this release (helm upgrade does, or kubectl apply --server-side -f "
    "crds/manifests); until then the named fields are dropped.",
    Reason.INSUFFICIENT_ACCELERATORS: "Free accelerators or add nodes, or lower spec.replicas or "
    "spec.scaling.maxReplicas.",
    Reason.UNSCHEDULABLE: "Compare spec.accelerator and spec.podTemplate with the nodes: selectors, taints, "
    "memory and volumes.",
    Reason.POD_FAILED: "Read the message; the pod is replaced by itself.",
    Reason.ENGINE_NOT_READY: "Read the engine's log (kubectl logs -c engine); the router takes the pod back when "
    "the engine answers.",
    Reason.PROGRESS_DEADLINE_EXCEEDED: "The rollout is stopped and the earlier revision serves on. Correct the "
    "spec, or change it back.",
    Reason.MODEL_NAME_SHARED: "Give one of them another spec.model.name or take out the alias; to share the "
    "requests of one name, use spec.traffic.",
}


def explain(reason: Reason, what: str) -> str:
    """What happened, then what to do."""
    what = what.strip().rstrip(".")
    remedy = REMEDIES.get(reason)
    return f"{what}. {remedy}" if remedy else f"{what}."
