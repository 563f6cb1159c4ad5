"""Arguments that vLLM 0.32 would refuse, or take in another way than they look, are found before a pod is made."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cluster import engine_flags as generator
from pools.objects import observe, raw_pool
from tidepool_operator.pool.engine_flags import certain, faults
from tidepool_operator.pool.vllm_flags import FLAGS


def pool(*args: str, **spec: Any) -> Any:
    engine = {"args": list(args), **spec.pop("engine", {})}
    return observe(raw_pool(engine=engine, **spec)).pool


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["--max-num-sequences=4"], "--max-num-sequences is no flag of vLLM 0.32; did you mean --max-num-seqs?"),
        (["--enforce-eager", "--swap-spce", "4"], "args[1]: --swap-spce is no flag of vLLM 0.32"),
        (["--max-num=4"], "args[0]: --max-num may be --max-num-"),
        (["--max-num-seqs"], "needs a value; write --max-num-seqs=VALUE"),
        (["--enforce-eager=true"], "--enforce-eager takes no value"),
        (["--enforce-eager", "true"], "--enforce-eager takes no value"),
        (["--max-num-seqs=4", "8"], "--max-num-seqs takes one value"),
        (["8", "--max-num-seqs=4"], "args[0]: stands behind no flag"),
        (["--dtype=float99"], "--dtype takes only auto, bfloat16, float, float16, float32, half"),
        (["--max-num-seqs=4", "--enforce-eager", "--max_num_seqs", "8"], "args[2]: --max-num-seqs repeats"),
        (["--enforce-eager", "--no-enforce-eager"], "args[1]: --no-enforce-eager contradicts --enforce-eager"),
        (["--compilation-config.mode=3", "-cc.mode=0"], "args[1]: -cc repeats --compilation-config"),
        (["--max-num-batched-tokens=16", "--max-num-seqs=32"], "args[1]: --max-num-seqs is above --max-num-b"),
        (["--max-num-active-seqs=9", "--max-num-seqs=8"], "args[0]: --max-num-active-seqs is above --max"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)  # fmt: skip
def test_a_wrong_argument_is_named_with_what_to_do(args: list[str], says: str) -> None:
    (found,) = faults(pool(*args))

    assert found.startswith("spec.engine.args[")
    assert says in found


@pytest.mark.parametrize(
    "args",
    [
        ["--max-num-seqs=256", "--enforce-eager"],
        ["--max-num-seqs", "256", "--max-num-batched-tokens", "8192"],
        ["--enable-lora", "--lora-modules", "a=/x", "b=/y"],
        ["--middleware=a.b", "--middleware=c.d"],  # argparse appends these
        ["--compilation-config.mode=3", "--compilation-config.cudagraph_mode=NONE"],
        ["-O3"],
        ["--enforce-e"],  # argparse completes what is unambiguous
        ["--max_num_seqs=4"],
        ["--seed", "-1"],
        ["--hf-overrides={}", "--kv-transfer-config", '{"kv_connector": "NixlConnector"}'],
    ],
    ids=" ".join,
)
def test_what_the_engine_takes_is_left_alone(args: list[str]) -> None:
    assert faults(pool(*args)) == []


def test_a_preset_and_an_argument_may_not_say_two_things() -> None:
    (found,) = faults(pool("--performance-mode=throughput", engine={"preset": "LowLatency"}))

    assert "repeats --performance-mode of another field of the spec" in found


@pytest.mark.parametrize(
    ("engine", "says"),
    [
        ({"quantization": "awqq"}, "spec.engine.quantization: vLLM 0.32 has no awqq; did you mean awq?"),
        (
            {"speculative": {"method": "n-gram", "tokens": 3}},
            "spec.engine.speculative.method: vLLM 0.32 has no n-gram; did you mean ngram?",
        ),
    ],
)
def test_a_field_with_a_word_that_the_engine_does_not_know(engine: dict[str, Any], says: str) -> None:
    assert faults(pool(engine=engine)) == [says]


def test_chunked_prefill_off_needs_a_batch_as_long_as_the_longest_prompt() -> None:
    engine = {"chunkedPrefill": False, "maxModelLen": 8192}

    assert "only with chunked prefill" in faults(pool("--max-num-batched-tokens=2048", engine=engine))[0]
    assert faults(pool("--max-num-batched-tokens=8192", engine=engine)) == []


def test_a_threshold_of_long_prompts_is_held_against_the_field_that_bounds_them() -> None:
    def threshold(tokens: int) -> list[str]:
        return faults(pool(f"--long-prefill-token-threshold={tokens}", engine={"maxModelLen": 4096}))

    (found,) = threshold(4097)
    assert found.startswith("spec.engine.args[0]: --long-prefill-token-threshold is above --max-model-len")
    assert threshold(4096) == []


@pytest.mark.parametrize("preset", ["Balanced", "LowLatency", "HighThroughput"])
def test_every_field_expands_to_flags_that_the_engine_has(preset: str) -> None:
    spec = {
        "model": {"uri": "hf://acme/llama", "revision": "main"},
        "accelerator": {"count": 4},
        "parallelism": {"tensor": 2, "pipeline": 2},
    }
    engine = {
        "preset": preset,
        "maxModelLen": 8192,
        "gpuMemoryUtilization": "0.9",
        "quantization": "awq",
        "prefixCaching": True,
        "chunkedPrefill": True,
        "speculative": {"method": "ngram", "tokens": 3},
    }

    assert faults(pool(engine=engine, **spec)) == []


@pytest.mark.parametrize(
    ("image", "template", "expected"),
    [
        ("vllm/vllm-openai:v0.32.0", {}, True),
        ("mirror.local:5000/vllm/vllm-openai:v0.32.1@sha256:" + "0" * 64, {}, True),
        ("vllm/vllm-openai:v0.33.0", {}, False),
        ("vllm/vllm-openai:v0.320.0", {}, False),
        ("acme/our-engine:v0.32.0", {}, False),
        ("vllm/vllm-openai:v0.32.0", {"spec": {"containers": [{"name": "engine", "command": ["run"]}]}}, False),
        ("vllm/vllm-openai:v0.32.0", {"spec": {"containers": [{"name": "router", "env": []}]}}, True),
    ],
)
def test_the_table_has_the_last_word_only_with_the_engine_that_it_is_of(
    image: str, template: dict[str, Any], expected: bool
) -> None:
    assert certain(pool(engine={"image": image}, podTemplate=template)) is expected


def test_an_unknown_argument_is_a_problem_of_the_spec_or_a_doubt() -> None:
    from tidepool_operator.pool.read import doubts, read

    sure = raw_pool(engine={"args": ["--no-such-flag"]})
    unsure = raw_pool(engine={"args": ["--no-such-flag"], "image": "acme/engine:1"})

    assert [("--no-such-flag" in found) for found in read(sure)[1]] == [True]
    assert doubts(read(sure)[0]) == []
    assert read(unsure)[1] == ()
    assert [("--no-such-flag" in found) for found in doubts(read(unsure)[0])] == [True]


WORDS = st.sampled_from(
    ["--max-num-seqs", "--max-num-seqs=4", "-tp", "--no-", "--", "-", "=", "-O", "a", "-1", "."]
)


@settings(max_examples=60, deadline=None)
@given(st.lists(WORDS | st.text(min_size=1, max_size=12), max_size=6))
def test_no_argument_makes_the_review_fail(args: list[str]) -> None:
    from tidepool_operator.pool.engine_flags import _of_arguments

    assert all(found.startswith("spec.engine.args[") for found in _of_arguments(args, len(args)))


@pytest.mark.engine
def test_the_table_is_what_the_engine_itself_says() -> None:
    assert generator.table(generator.dump()) == generator.TABLE.read_text(), "run make flags"
    assert "--max-num-seqs 1" in FLAGS
