"""An engine's metrics page: real ones, old ones, several engines; missing is never zero."""

import pytest

from tidepool_router.fleet.engine_page import EngineFigures, read_engine_page

# Lines of a page of vLLM 0.32.0 as they came, labels of the cache's configuration cut to a few.
REAL = b"""\
# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="tiny"} 3.0
# HELP vllm:num_requests_waiting Number of requests waiting to be processed.
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{engine="0",model_name="tiny"} 2.0
vllm:num_requests_waiting_by_reason{engine="0",model_name="tiny",reason="capacity"} 2.0
vllm:kv_cache_usage_perc{engine="0",model_name="tiny"} 0.25
vllm:prompt_tokens_total{engine="0",model_name="tiny"} 13.0
vllm:prompt_tokens_created{engine="0",model_name="tiny"} 1.7959840054622908e+09
vllm:generation_tokens_total{engine="0",model_name="tiny"} 16.0
vllm:iteration_tokens_total_sum{engine="0",model_name="tiny"} 29.0
vllm:cache_config_info{_block_size_resolved="True",block_size="128",cache_dtype="auto",engine="0",\
kv_cache_size_tokens="2097152",kv_sharing_fast_prefill="False",num_gpu_blocks="16384"} 1.0
"""


def test_a_page_of_vllm_0_32() -> None:
    assert read_engine_page(REAL) == EngineFigures(
        running=3, waiting=2, kv_usage=0.25, kv_capacity_tokens=2097152, kv_block_tokens=128, tokens_total=58.0
    )


@pytest.mark.parametrize(
    ("page", "expected", "why"),
    [
        (b"", EngineFigures(), "nothing said, nothing known"),
        (b"vllm:num_requests_running 0\n", EngineFigures(running=0), "zero is not missing"),
        (b'vllm:gpu_cache_usage_perc{model_name="m"} 0.5\n', EngineFigures(kv_usage=0.5), "the old name"),
        (
            b'vllm:gpu_cache_usage_perc{model_name="m"} 0.0\nvllm:kv_cache_usage_perc{model_name="m"} 0.5\n',
            EngineFigures(kv_usage=0.5),
            "where both names are, the new one counts",
        ),
        (
            b'vllm:num_requests_running{engine="0"} 1\nvllm:num_requests_running{engine="1"} 4\n',
            EngineFigures(running=5),
            "engines of a data-parallel pod add up",
        ),
        (
            b'vllm:kv_cache_usage_perc{engine="0"} 0.9\nvllm:kv_cache_usage_perc{engine="1"} 0.1\n'
            b'vllm:cache_config_info{block_size="16",engine="0",num_gpu_blocks="100"} 1\n'
            b'vllm:cache_config_info{block_size="16",engine="1",num_gpu_blocks="300"} 1\n',
            EngineFigures(kv_usage=0.3, kv_capacity_tokens=6400),
            "use is weighed by capacity: (0.9 * 100 + 0.1 * 300) / 400",
        ),
        (
            b'vllm:cache_config_info{block_size="16",num_gpu_blocks="None",kv_cache_size_tokens="None"} 1\n',
            EngineFigures(),
            "None is what vLLM writes before it knows",
        ),
        (b"vllm:num_requests_running NaN\n", EngineFigures(), "NaN is no figure"),
        (b"vllm:num_requests_running\nvllm:num_requests_waiting x\n\xff\xfe\n", EngineFigures(), "broken lines"),
        (
            b'vllm:num_requests_running{engine="0",model_name="a}b 7"} 2\n',
            EngineFigures(running=2),
            "a brace and a space in a label",
        ),
        (b"vllm:num_requests_running 2 1700000000000\n", EngineFigures(running=2), "a time stamp after the value"),
    ],
)
def test_pages(page: bytes, expected: EngineFigures, why: str) -> None:
    figures = read_engine_page(page)

    assert figures.kv_usage == pytest.approx(expected.kv_usage), why
    assert (figures.running, figures.waiting, figures.kv_capacity_tokens) == (
        expected.running,
        expected.waiting,
        expected.kv_capacity_tokens,
    ), why


def test_the_newest_series_of_each_engine_tells_its_adapters() -> None:
    """The gauge's value is a time; every combination of labels stays on the page."""
    page = b"""\
vllm:lora_requests_info{engine="0",max_lora="2",running_lora_adapters="",waiting_lora_adapters=""} 1.0
vllm:lora_requests_info{engine="0",max_lora="2",running_lora_adapters="sql,law",waiting_lora_adapters=""} 9.0
vllm:lora_requests_info{engine="0",max_lora="2",running_lora_adapters="old",waiting_lora_adapters=""} 5.0
vllm:lora_requests_info{engine="1",max_lora="4",running_lora_adapters="",waiting_lora_adapters="tax"} 7.0
"""
    figures = read_engine_page(page)

    assert (figures.adapters, figures.adapter_slots) == (("law", "sql", "tax"), 2)
    assert (read_engine_page(b"").adapters, read_engine_page(b"").adapter_slots) == ((), None)
