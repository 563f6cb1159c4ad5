"""Metric families of vLLM that the product reads: one list, held against the page of a real engine."""

READ = (
    "vllm:cache_config_info",
    "vllm:e2e_request_latency_seconds",
    "vllm:generation_tokens_total",
    "vllm:inter_token_latency_seconds",
    "vllm:iteration_tokens_total",
    "vllm:kv_cache_usage_perc",
    "vllm:num_preemptions_total",
    "vllm:num_requests_running",
    "vllm:num_requests_waiting",
    "vllm:prefix_cache_hits_total",
    "vllm:prefix_cache_queries_total",
    "vllm:prompt_tokens_cached_total",
    "vllm:prompt_tokens_total",
    "vllm:request_decode_time_seconds",
    "vllm:request_generation_tokens",
    "vllm:request_prefill_time_seconds",
    "vllm:request_prompt_tokens",
    "vllm:request_queue_time_seconds",
    "vllm:request_success_total",
    "vllm:request_time_per_output_token_seconds",
    "vllm:time_to_first_token_seconds",
)
# Names of older engines, read where the new one is absent.
OLD = frozenset(
    {"vllm:gpu_cache_usage_perc", "vllm:gpu_prefix_cache_hits_total", "vllm:time_per_output_token_seconds"}
)
# Shown only by an engine that serves LoRA adapters, which the small model of the tests has none of.
WITH_ADAPTERS = frozenset({"vllm:lora_requests_info"})
# Shown only by an engine that hands KV blocks over or takes them; test_two_steps.py reads them of real ones.
WITH_BLOCKS = frozenset({"vllm:external_prefix_cache_hits_total", "vllm:nixl_xfer_time_seconds"})
