"""The table of what vLLM 0.32 says when it ends, and the reason that each of it stands for.

The remedy of a reason stands in reasons.REMEDIES. A row is held against logs of real engines where a build for the
CPU can show it (tests/operator/pool/logs/make.py makes them), and names its place in the sources all the same.
"""

import re
from dataclasses import dataclass
from typing import Final

from tidepool_operator.pool.reasons import Reason


@dataclass(frozen=True, slots=True)
class Sign:
    """One row: exceptions (the last part of their names) whose text begins with a pattern.

    `place` is where vLLM 0.32 raises it, or the library below vLLM that does. `logs` names the logs of real
    engines in tests/operator/pool/logs that show it.
    """

    reason: Reason
    errors: tuple[str, ...]
    text: str
    place: str
    logs: tuple[str, ...] = ()

    def matches(self, error: str, text: str) -> bool:
        """Whether an exception's name and text are those of the sign."""
        return error in self.errors and re.match(self.text, text) is not None


# The parser of arguments raises nothing: it writes "PROGRAM: error: ..." and ends.
USAGE: Final = "usage"
# A field of a setting that pydantic refuses.
FIELD: Final = "field"
# A line of NVIDIA's kernel driver, for whoever has the kernel's log in the container's.
KERNEL: Final = "kernel"
# A line that vLLM logs at ERROR without an exception's name.
LOGGED: Final = "logged"
_STORE: Final = r"(s3|gs)://"
_VALUE: Final = ("ValueError",)
_CUDA: Final = ("RuntimeError", "AcceleratorError", "DeferredCudaCallError", LOGGED)
_OS: Final = ("OSError", "PermissionError", "RuntimeError", "FileNotFoundError", "IOError")

# The cause before what follows from it: the first row that any line shows is the reason.
SIGNS: Final = (
    Sign(
        Reason.MODEL_GATED,
        ("OSError",),
        r"You are trying to access a gated repo",
        "transformers/utils/hub.py, cached_files",
        ("hub-gated-no-token", "hub-gated-not-granted"),
    ),
    Sign(Reason.MODEL_GATED, ("GatedRepoError",), r"40[13] Client Error", "huggingface_hub/utils/_http.py"),
    Sign(
        Reason.TOKEN_REFUSED,
        ("HfHubHTTPError",),
        r"Client error '401 ",
        "huggingface_hub/utils/_http.py",
        ("hub-bad-token",),
    ),
    Sign(
        Reason.HUB_BUSY,
        ("HfHubHTTPError", "HTTPStatusError"),
        r"(Client error '429 |429 Too Many Requests)",
        "huggingface_hub/utils/_http.py",
        ("hub-too-many-requests",),
    ),
    Sign(
        Reason.REVISION_NOT_FOUND,
        ("OSError",),
        r"\S+ is not a valid git identifier \(branch name, tag name",
        "transformers/utils/hub.py, cached_files",
        ("hub-unknown-revision",),
    ),
    Sign(
        Reason.REVISION_NOT_FOUND,
        ("RevisionNotFoundError",),
        r"404 Client Error",
        "huggingface_hub/utils/_http.py",
    ),
    Sign(
        Reason.ADAPTER_NOT_FOUND,
        ("LoRAAdapterNotFoundError", "ValueError"),
        r"Loading lora \S+ failed: No adapter found",
        "vllm/exceptions.py, LoRAAdapterNotFoundError",
        ("adapter-missing", "adapter-empty"),
    ),
    Sign(
        Reason.ADAPTER_REFUSED,
        _VALUE,
        r"LoRA rank \d+ is greater than max_lora_rank",
        "vllm/lora/peft_helper.py, validate_legal",
        ("adapter-rank",),
    ),
    Sign(
        Reason.MODEL_NOT_FOUND,
        ("OSError",),
        r"\S+ is not a local folder and is not a valid model identifier",
        "transformers/utils/hub.py, cached_files",
        ("hub-unknown-model",),
    ),
    Sign(
        Reason.MODEL_NOT_FOUND,
        ("RepositoryNotFoundError",),
        r"40[14] Client Error",
        "huggingface_hub/utils/_http.py",
    ),
    Sign(
        Reason.MODEL_NOT_FOUND,
        ("HFValidationError",),
        r"Repo id must (be in the form|use alphanumeric)",
        "huggingface_hub/utils/_validators.py",
        ("path-missing",),
    ),
    Sign(
        Reason.DISK_FULL,
        _OS,
        r"\[Errno (28|122)\]|.*\(os error (28|122)\)",
        "Python and hf_xet, while huggingface_hub writes a file",
        ("disk-full",),
    ),
    Sign(
        Reason.FILE_ACCESS_DENIED,
        _OS,
        r"\[Errno (13|30)\]|.*\(os error (13|30)\)",
        "Python, where a file is opened",
        ("cache-not-writable",),
    ),
    Sign(
        Reason.HUB_UNREACHABLE,
        ("OSError",),
        r"We couldn't connect to '\S+' to load the files",
        "transformers/utils/hub.py, cached_files",
        ("hub-unreachable",),
    ),
    Sign(Reason.HUB_UNREACHABLE, ("LocalEntryNotFoundError",), r"", "huggingface_hub/file_download.py"),
    Sign(Reason.HUB_UNREACHABLE, ("HubUnreachableError",), r"hf://", "tidepool_router/loading/hub.py"),
    Sign(Reason.STORAGE_ACCESS_DENIED, ("StorageAccessDeniedError",), _STORE, "tidepool_router/loading/stores.py"),
    Sign(Reason.MODEL_NOT_FOUND, ("StorageNotFoundError",), _STORE, "tidepool_router/loading/stores.py"),
    Sign(Reason.STORAGE_UNREACHABLE, ("StorageUnreachableError",), _STORE, "tidepool_router/loading/stores.py"),
    Sign(
        Reason.PARALLELISM_UNFIT,
        _VALUE,
        r"Total number of attention heads \(\d+\) must be divisible",
        "vllm/config/model.py, verify_with_parallel_config",
        ("tensor-parallel",),
    ),
    Sign(
        Reason.PARALLELISM_UNFIT,
        _VALUE,
        r"World size \(\d+\) is larger than the number of available GPUs",
        "vllm/config/parallel.py, __post_init__",
    ),
    Sign(
        Reason.PARALLELISM_UNFIT,
        ("NotImplementedError",),
        r"Pipeline parallelism is not supported for this model",
        "vllm/config/model.py, verify_with_parallel_config",
        ("pipeline-parallel",),
    ),
    Sign(
        Reason.MODEL_LENGTH_UNFIT,
        _VALUE,
        r"User-specified max_model_len \(\d+\) is greater than the derived",
        "vllm/config/model.py, _get_and_verify_max_len",
        ("length-too-long",),
    ),
    Sign(
        Reason.QUANTIZATION_UNFIT,
        _VALUE,
        r"Unknown quantization method: ",
        "vllm/config/model.py, _verify_quantization",
        ("quantization-unknown",),
    ),
    Sign(
        Reason.QUANTIZATION_UNFIT,
        _VALUE,
        r"Quantization method specified in the model config",
        "vllm/config/model.py, _verify_quantization",
        ("quantization-differs",),
    ),
    Sign(
        Reason.QUANTIZATION_UNFIT,
        _VALUE,
        r"Cannot find the config file for ",
        "vllm/model_executor/model_loader/weight_utils.py, get_quant_config",
        ("quantization-missing",),
    ),
    Sign(
        Reason.QUANTIZATION_UNFIT,
        _VALUE,
        r"\S+ quantization is currently not supported in ",
        "vllm/platforms/interface.py, verify_quantization",
    ),
    Sign(
        Reason.ACCELERATOR_UNSUPPORTED,
        _VALUE,
        r"The quantization method \S+ is not supported for the current GPU",
        "vllm/config/vllm.py, _get_quantization_config",
    ),
    Sign(
        Reason.ACCELERATOR_UNSUPPORTED,
        _VALUE,
        r"Bfloat16 is only supported on GPUs with compute capability",
        "vllm/platforms/cuda.py, check_if_supports_dtype",
    ),
    Sign(
        Reason.ACCELERATOR_UNSUPPORTED,
        _CUDA,
        r"CUDA error: no kernel image is available for execution",
        "torch, at the first kernel that vllm/v1/worker/gpu_worker.py starts",
    ),
    Sign(
        Reason.ACCELERATOR_UNSUPPORTED,
        _CUDA,
        r"The NVIDIA driver on your system is too old",
        "torch/cuda/__init__.py, _lazy_init, called by vllm/v1/worker/gpu_worker.py, init_device",
    ),
    Sign(
        Reason.DTYPE_UNFIT,
        _VALUE,
        r"torch\.\w+ is not supported for quantization method ",
        "vllm/config/vllm.py, _get_quantization_config",
    ),
    Sign(
        Reason.DTYPE_UNFIT,
        _VALUE,
        r"The model type '\w+' does not support float16",
        "vllm/config/model.py, _check_valid_dtype",
        ("dtype-float16",),
    ),
    Sign(
        Reason.MODEL_CODE_NOT_TRUSTED,
        _VALUE,
        r"The repository \S+ contains custom code which must be executed",
        "transformers/dynamic_module_utils.py, resolve_trust_remote_code",
        ("code-of-its-own",),
    ),
    Sign(
        Reason.MODEL_UNSUPPORTED,
        _VALUE,
        r"The checkpoint you are trying to load has model type `\S+` but Transformers does not recognize",
        "transformers/models/auto/configuration_auto.py, called by vllm/transformers_utils/config.py",
        ("architecture-unknown",),
    ),
    Sign(
        Reason.MODEL_UNSUPPORTED,
        _VALUE,
        r"Model architectures? \S.* (are not supported for now|"
        r"is not supported in-tree|was supported in vLLM until)",
        "vllm/model_executor/models/registry.py, _raise_for_unsupported",
        ("architecture-unsupported",),
    ),
    Sign(
        Reason.MODEL_FILES_INCOMPLETE,
        _VALUE,
        r"Invalid repository ID or local directory specified: ",
        "vllm/transformers_utils/config.py, get_config",
        ("path-empty",),
    ),
    Sign(
        Reason.MODEL_FILES_INCOMPLETE,
        ("RuntimeError",),
        r"Cannot find any model weights with ",
        "vllm/model_executor/model_loader/default_loader.py, _prepare_weights",
        ("weights-missing",),
    ),
    Sign(
        Reason.MODEL_FILES_INCOMPLETE,
        ("SafetensorError",),
        r"Error while deserializing header",
        "safetensors, called by vllm/model_executor/model_loader/weight_utils.py",
        ("weights-cut",),
    ),
    Sign(
        Reason.MODEL_FILES_INCOMPLETE,
        _VALUE,
        r"Couldn't instantiate the backend tokenizer from one of:",
        "transformers/tokenization_utils_tokenizers.py",
        ("tokenizer-missing",),
    ),
    Sign(
        Reason.ENGINE_FLAG_INVALID,
        (USAGE,),
        r"",
        "argparse, as vllm/utils/argparse_utils.py sets it up",
        ("flag-unknown", "flag-choice"),
    ),
    Sign(
        Reason.ENGINE_FLAG_INVALID,
        _VALUE,
        r"(max_num_batched_tokens|max_num_active_seqs|long_prefill_token_threshold) \(\d+\) "
        r"(must be greater than|is smaller than|cannot be greater than)",
        "vllm/config/scheduler.py, verify_max_model_len",
        ("batched-tokens", "active-seqs"),
    ),
    Sign(
        Reason.ENGINE_FLAG_INVALID,
        (FIELD,),
        r"(Input should be|Unexpected keyword argument)",
        "pydantic, for the settings in vllm/config",
        ("speculative-method",),
    ),
    Sign(
        Reason.CONNECTOR_MISSING,
        ("RuntimeError",),
        r"NIXL is not available",
        "vllm/distributed/kv_transfer/kv_connector/v1/nixl/base_worker.py, __init__",
        ("nixl-missing",),
    ),
    Sign(
        Reason.ACCELERATOR_MISSING,
        ("RuntimeError",),
        r"Failed to infer device type",
        "vllm/config/device.py, __post_init__",
    ),
    Sign(
        Reason.ACCELERATOR_MISSING,
        _CUDA,
        r"(No CUDA GPUs are available|Found no NVIDIA driver on your system)",
        "torch/cuda/__init__.py, _lazy_init, called by vllm/v1/worker/gpu_worker.py, init_device",
    ),
    Sign(
        Reason.ACCELERATOR_OCCUPIED,
        _VALUE,
        r"Free memory on device \S+ \(\S+ GiB\) on startup is less than",
        "vllm/v1/worker/utils.py, request_memory",
    ),
    Sign(
        Reason.KV_CACHE_TOO_SMALL,
        _VALUE,
        r"(To serve at least one request with the model's max seq len|"
        r"No available memory for the cache blocks|Cannot auto-fit max_model_len)",
        "vllm/v1/core/kv_cache_utils.py, _check_enough_kv_cache_memory",
        ("kv-cache-too-small",),
    ),
    Sign(
        Reason.ACCELERATOR_OUT_OF_MEMORY,
        ("OutOfMemoryError", "RuntimeError", LOGGED),
        r"(CUDA out of memory|HIP out of memory|CUDA error: out of memory)",
        "torch, or vllm/v1/worker/gpu_model_runner.py, _dummy_sampler_run and _dummy_pooler_run",
    ),
    Sign(
        Reason.ACCELERATOR_OUT_OF_MEMORY,
        (LOGGED,),
        r"Failed to load model - not enough GPU memory",
        "vllm/v1/worker/gpu_model_runner.py, load_model",
    ),
    Sign(
        Reason.ACCELERATOR_ERROR,
        _CUDA,
        r"CUDA error: (an illegal memory access|uncorrectable (ECC|NVLink) error|"
        r"unspecified launch failure|misaligned address|the launch timed out|GPU is lost|unknown error|"
        r"device-side assert)",
        "torch, wherever vllm/v1/worker/gpu_model_runner.py, execute_model waits for a kernel",
    ),
    Sign(
        Reason.ACCELERATOR_ERROR,
        (KERNEL,),
        r"NVRM: Xid \(PCI:",
        "NVIDIA's kernel driver; what it tells the engine comes as the row above",
    ),
    Sign(
        Reason.COLLECTIVE_FAILED,
        ("RuntimeError", "DistBackendError"),
        r"(NCCL error|.*\bNCCL error in: )",
        "vllm/distributed/device_communicators/pynccl_wrapper.py, NCCL_CHECK",
    ),
    Sign(
        Reason.ENGINE_OUT_OF_MEMORY,
        ("ValueError", "RuntimeError"),
        r"(Worker failed with error ')?Available memory on node \d+ \(\S+ GiB\) on kv cache allocation is less",
        "vllm/v1/worker/cpu_worker.py, determine_available_memory",
        ("kv-cache-none",),
    ),
    Sign(
        Reason.ENGINE_OUT_OF_MEMORY,
        ("MemoryError", "RuntimeError", "OSError"),
        r"(\[enforce fail at alloc_cpu|"
        r"\[Errno 12\]|.*DefaultCPUAllocator: can't allocate memory)",
        "torch and Python, for memory of the host",
        ("memory-of-kv-cache",),
    ),
    Sign(
        Reason.ENGINE_OUT_OF_MEMORY,
        ("MemoryError",),
        r"",
        "Python, wherever it asks for memory",
        ("memory-limit",),
    ),
)
