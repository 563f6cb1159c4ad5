"""The /metrics page of the engine double: vLLM's families, labels and types, for those that a reader may want."""

from bisect import bisect_left
from collections.abc import Iterator, Sequence

from fakes.core import EngineCore
from fakes.settings import EngineSettings

_GAP_HEAD = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0)
_GAP_BUCKETS = (*_GAP_HEAD, 20.0, 40.0, 80.0)
_TTFT_HEAD = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0)
_TTFT_BUCKETS = (*_TTFT_HEAD, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0)
_LATENCY_HEAD = (0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0)
_LATENCY_BUCKETS = (*_LATENCY_HEAD, 240.0, 480.0, 960.0, 1920.0, 7680.0)
_TOKEN_BUCKETS = (1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0, 2000.0)
_STEP_BUCKETS = (1.0, *(8.0 * 2**power for power in range(12)))
_HISTOGRAMS = {
    "iteration_tokens_total": _STEP_BUCKETS,
    "request_prompt_tokens": _TOKEN_BUCKETS,
    "request_generation_tokens": _TOKEN_BUCKETS,
    "time_to_first_token_seconds": _TTFT_BUCKETS,
    "inter_token_latency_seconds": _GAP_BUCKETS,
    "request_time_per_output_token_seconds": _GAP_BUCKETS,
    "e2e_request_latency_seconds": _LATENCY_BUCKETS,
    "request_queue_time_seconds": _LATENCY_BUCKETS,
    "request_inference_time_seconds": _LATENCY_BUCKETS,
    "request_prefill_time_seconds": _LATENCY_BUCKETS,
    "request_decode_time_seconds": _LATENCY_BUCKETS,
}
_REASONS = ("stop", "length", "abort", "error", "repetition")


def render(core: EngineCore, start_time: float) -> str:
    """The page in Prometheus text format; `start_time` in Unix seconds."""
    return "".join(f"{line}\n" for line in _lines(core, start_time))


def _lines(core: EngineCore, start_time: float) -> Iterator[str]:
    settings = core.settings
    labels = f'engine="0",model_name="{settings.model}"'
    yield from _sample("process_start_time_seconds", "gauge", "", start_time)
    for name, kind, value in _values(core):
        yield from _sample(f"vllm:{name}", kind, labels, value)
    yield from _labelled(core, settings)
    for name, buckets in _HISTOGRAMS.items():
        yield from _histogram(f"vllm:{name}", labels, buckets, core.counts.observed.get(name, ()))
    yield from _sample("vllm:cache_config_info", "gauge", _cache_labels(settings), 1.0)


def _values(core: EngineCore) -> Iterator[tuple[str, str, float]]:
    scheduler, counts = core.scheduler, core.counts
    yield "num_requests_running", "gauge", len(scheduler.running)
    yield "num_requests_waiting", "gauge", len(scheduler.waiting)
    yield "kv_cache_usage_perc", "gauge", scheduler.kv.usage
    yield "prefix_cache_queries_total", "counter", scheduler.prefix_queries
    yield "prefix_cache_hits_total", "counter", scheduler.prefix_hits
    yield "num_preemptions_total", "counter", scheduler.preemptions
    yield "prompt_tokens_total", "counter", counts.prompt_tokens
    yield "prompt_tokens_cached_total", "counter", scheduler.prefix_hits
    yield "generation_tokens_total", "counter", counts.generation_tokens


def _labelled(core: EngineCore, settings: EngineSettings) -> Iterator[str]:
    name, model = "vllm:request_success_total", f'model_name="{settings.model}"'
    yield f"# TYPE {name} counter"
    for reason in _REASONS:
        count = float(core.counts.finished[reason])
        yield f'{name}{{engine="0",finished_reason="{reason}",{model}}} {count}'
    name = "vllm:num_requests_waiting_by_reason"
    yield f"# TYPE {name} gauge"
    yield f'{name}{{engine="0",{model},reason="capacity"}} {float(len(core.scheduler.waiting))}'
    yield f'{name}{{engine="0",{model},reason="deferred"}} 0.0'
    name = "vllm:engine_sleep_state"
    yield f"# TYPE {name} gauge"
    for state, value in (("awake", 1.0), ("weights_offloaded", 0.0), ("discard_all", 0.0)):
        yield f'{name}{{engine="0",{model},sleep_state="{state}"}} {value}'


def _sample(name: str, kind: str, labels: str, value: float) -> Iterator[str]:
    yield f"# HELP {name} As vLLM's."
    yield f"# TYPE {name} {kind}"
    yield f"{name}{{{labels}}} {float(value)}" if labels else f"{name} {float(value)}"


def _histogram(name: str, labels: str, buckets: Sequence[float], samples: Sequence[float]) -> Iterator[str]:
    yield f"# HELP {name} As vLLM's."
    yield f"# TYPE {name} histogram"
    ordered = [0] * (len(buckets) + 1)
    for value in samples:
        ordered[bisect_left(buckets, value)] += 1
    engine, model = labels.split(",", 1)
    total = 0
    for bound, count in zip((*map(str, buckets), "+Inf"), ordered, strict=True):
        total += count
        yield f'{name}_bucket{{{engine},le="{bound}",{model}}} {float(total)}'
    yield f"{name}_count{{{labels}}} {float(len(samples))}"
    yield f"{name}_sum{{{labels}}} {float(sum(samples))}"


_CACHE_CONFIG = {
    "_block_size_resolved": "True",
    "cache_dtype": "auto",
    "cache_hit_alignment_tokens": "None",
    "enable_mamba_shared_prefix_checkpoint": "False",
    "enable_prefix_caching": "True",
    "engine": "0",
    "gpu_memory_utilization": "0.92",
    "hash_block_size": "None",
    "is_attention_free": "False",
    "kv_cache_dtype_skip_layers": "[]",
    "kv_cache_layout": "None",
    "kv_cache_memory_bytes": "1073741824",
    "kv_offloading_backend": "native",
    "kv_offloading_size": "None",
    "kv_sharing_fast_prefill": "False",
    "mamba_block_size": "None",
    "mamba_cache_dtype": "auto",
    "mamba_cache_mode": "none",
    "mamba_page_size_padded": "None",
    "mamba_ssm_cache_dtype": "float32",
    "num_cpu_blocks": "None",
    "prefix_cache_retention_interval": "0",
    "prefix_caching_hash_algo": "sha256",
    "prefix_match_unit": "None",
    "replayssm_buffer_len": "16",
    "skip_page_size_padded": "None",
    "sliding_window": "None",
    "swa_bounded_replay": "True",
    "use_kda_recoverssm": "False",
    "use_replayssm": "False",
    "user_specified_block_size": "False",
}


def _cache_labels(settings: EngineSettings) -> str:
    size, blocks = settings.block_size, settings.num_gpu_blocks
    own = {"block_size": size, "effective_attention_block_size": size, "kv_cache_size_tokens": size * blocks}
    own |= {"num_gpu_blocks": blocks, "num_gpu_blocks_override": blocks}
    lengths = {"kv_cache_max_concurrency": size * blocks / settings.max_model_len}
    values = {**_CACHE_CONFIG, **own, **lengths}
    return ",".join(f'{name}="{values[name]}"' for name in sorted(values))
