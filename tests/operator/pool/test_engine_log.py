"""What real engines print when they end, and what is made of it (logs/make.py says how each log came about)."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tidepool_operator.pool import engine_log
from tidepool_operator.pool.engine_log import last_words, read_log
from tidepool_operator.pool.engine_signs import FIELD, KERNEL, LOGGED, SIGNS, USAGE, Sign
from tidepool_operator.pool.log_tail import log_tail, scrubbed
from tidepool_operator.pool.reasons import REMEDIES, Reason

LOGS = Path(__file__).parent / "logs"
# Log, reason (None: no row knows it, and EngineCrashed shows the last error), what the words must hold.
EXPECTED: dict[str, tuple[Reason | None, str]] = {
    "hub-unknown-model": (Reason.MODEL_NOT_FOUND, "acme/unknown"),
    "hub-gated-no-token": (Reason.MODEL_GATED, "acme/gated"),
    "hub-gated-not-granted": (Reason.MODEL_GATED, "acme/gated"),
    "hub-bad-token": (Reason.TOKEN_REFUSED, "401 Unauthorized"),
    "hub-unknown-revision": (Reason.REVISION_NOT_FOUND, "v9"),
    "disk-full": (Reason.DISK_FULL, "No space left"),
    "path-missing": (Reason.MODEL_NOT_FOUND, "/models/nothing/here"),
    "architecture-unsupported": (Reason.MODEL_UNSUPPORTED, "NautilusForCausalLM"),
    "flag-unknown": (Reason.ENGINE_FLAG_INVALID, "--max-num-sequences"),
    "flag-choice": (Reason.ENGINE_FLAG_INVALID, "--dtype"),
    "tensor-parallel": (Reason.PARALLELISM_UNFIT, "(2) must be divisible by tensor parallel size (3)"),
    "quantization-unknown": (Reason.QUANTIZATION_UNFIT, "awqq"),
    "quantization-missing": (Reason.QUANTIZATION_UNFIT, "awq"),
    "architecture-unknown": (Reason.MODEL_UNSUPPORTED, "nautilus"),
    "weights-cut": (Reason.MODEL_FILES_INCOMPLETE, "Error while deserializing header"),
    "tokenizer-missing": (Reason.MODEL_FILES_INCOMPLETE, "tokenizer"),
    "code-of-its-own": (Reason.MODEL_CODE_NOT_TRUSTED, "contains custom code"),
    "memory-limit": (Reason.ENGINE_OUT_OF_MEMORY, "MemoryError"),
    "batched-tokens": (Reason.ENGINE_FLAG_INVALID, "max_num_batched_tokens (16)"),
    "active-seqs": (Reason.ENGINE_FLAG_INVALID, "max_num_active_seqs (64)"),
    "quantization-differs": (Reason.QUANTIZATION_UNFIT, "model config (awq)"),
    "pipeline-parallel": (Reason.PARALLELISM_UNFIT, "Pipeline parallelism"),
    "dtype-float16": (Reason.DTYPE_UNFIT, "'gemma2' does not support float16"),
    "memory-of-kv-cache": (Reason.ENGINE_OUT_OF_MEMORY, "can't allocate memory"),
    "speculative-method": (Reason.ENGINE_FLAG_INVALID, "method: Input should be 'ngram'"),
    "adapter-empty": (Reason.ADAPTER_NOT_FOUND, "sql"),
    "adapter-rank": (Reason.ADAPTER_REFUSED, "rank 64"),
    "cache-not-writable": (Reason.FILE_ACCESS_DENIED, "Read-only file system"),
    "hub-too-many-requests": (Reason.HUB_BUSY, "429 Too Many Requests"),
    "path-empty": (Reason.MODEL_FILES_INCOMPLETE, "/models/empty"),
    "flag-value": (Reason.ENGINE_FLAG_INVALID, "--max-num-seqs"),
    "length-too-long": (Reason.MODEL_LENGTH_UNFIT, "32768"),
    "kv-cache-too-small": (Reason.KV_CACHE_TOO_SMALL, "the estimated maximum model length is 2097024"),
    "kv-cache-none": (Reason.ENGINE_OUT_OF_MEMORY, "VLLM_CPU_KVCACHE_SPACE"),
    "hub-unreachable": (Reason.HUB_UNREACHABLE, "couldn't connect"),
    "weights-missing": (Reason.MODEL_FILES_INCOMPLETE, "/models/model"),
    "nixl-missing": (Reason.CONNECTOR_MISSING, "NIXL is not available"),
    "adapter-missing": (Reason.ADAPTER_NOT_FOUND, "/adapters/sql"),
}


def text_of(name: str) -> str:
    return (LOGS / f"{name}.log").read_text()


@pytest.mark.parametrize("name", EXPECTED)
def test_a_real_log_has_its_reason(name: str) -> None:
    reason, holds = EXPECTED[name]
    said = read_log(text_of(name))

    assert (said.reason if said else None) is reason
    assert holds in scrubbed(said.words if said else log_tail(text_of(name)))


def test_every_log_is_made_by_a_case_and_expected_to_say_something() -> None:
    made = set(re.findall(r'Case\(\s*"([\w-]+)"', (LOGS / "make.py").read_text()))

    assert {path.stem for path in LOGS.glob("*.log")} == set(EXPECTED) == made


def test_logs_hold_no_path_of_the_machine_that_made_them() -> None:
    texts = "".join(map(text_of, EXPECTED))

    assert [place for place in ("/root", "/home/", ".cache/tidepool", "enginelog") if place in texts] == []


@pytest.mark.parametrize("sign", SIGNS, ids=lambda sign: f"{sign.reason}-{sign.place[:40]}")
def test_every_row_has_a_remedy_and_real_logs_that_show_it(sign: Sign) -> None:
    assert sign.reason in REMEDIES
    for name in sign.logs:
        said = read_log(text_of(name))
        assert said is not None
        assert said.reason is sign.reason


# What only a GPU can show, or no log shows yet, in the words of the place (test_engine_places.py).
ON_A_GPU = [
    (line.split(" | ", 2)[2], Reason(line.split(" | ")[0]))
    for line in (LOGS / "gpu.txt").read_text().splitlines()
    if not line.startswith("#")
]


@pytest.mark.parametrize(("line", "reason"), ON_A_GPU, ids=lambda value: str(value)[:40])
def test_what_only_a_gpu_can_show(line: str, reason: Reason) -> None:
    said = read_log(f"INFO 11-30 06:00:00 [core.py:1] Starting\n{line}\nRuntimeError: See root cause above.")

    assert said is not None
    assert said.reason is reason


def errors_in(text: str) -> Iterator[tuple[str, str]]:
    """What is raised in a log, and its text."""
    for line in text.splitlines():
        if found := engine_log._error(engine_log._spoken(line)):
            yield found


# tests/router/loading/test_load.py has the loader itself say its own.
OF_ENGINES = [sign for sign in SIGNS if not sign.place.startswith("tidepool_router/")]


@pytest.mark.parametrize("sign", OF_ENGINES, ids=lambda sign: f"{sign.reason}-{sign.text[:30]}")
def test_every_row_is_shown_by_a_real_log_or_by_what_only_a_gpu_can_show(sign: Sign) -> None:
    shows = [text_of(name) for name in sign.logs or EXPECTED] + (
        [] if sign.logs else [line for line, _ in ON_A_GPU]
    )

    assert any(sign.matches(*found) for text in shows for found in errors_in(text))


SPEAKERS = ("", "(EngineCore pid=7) ERROR 11-30 06:00:00 [core.py:1] ", "(APIServer pid=7) ")
NAMES = sorted({name for sign in SIGNS for name in sign.errors} - {USAGE, LOGGED, KERNEL, FIELD})
WORDS = sorted({word for sign in SIGNS for word in re.findall(r"\w+", sign.text)})


@settings(max_examples=80, deadline=None)
@given(
    st.sampled_from(SPEAKERS),
    st.sampled_from(["", *(f"{name}: " for name in NAMES)]),
    st.lists(st.sampled_from(WORDS) | st.text(max_size=8), max_size=8).map(" ".join),
)
def test_words_that_stand_in_no_row_have_no_reason_whatever_they_remind_of(
    speaker: str, name: str, words: str
) -> None:
    assume(not any(re.match(sign.text, words) for sign in SIGNS if sign.text))
    assume(name not in ("LocalEntryNotFoundError: ", "MemoryError: "))

    assert read_log(f"{speaker}{name}x {words}") is None


@settings(max_examples=40, deadline=None)
@given(st.text())
def test_any_text_has_no_reason_and_a_bounded_end(text: str) -> None:
    assert read_log(text) is None
    assert len(log_tail(text)) <= 600


@pytest.mark.parametrize(("line", "reason"), ON_A_GPU[:3] + ON_A_GPU[8:13], ids=lambda value: str(value)[:40])
def test_a_prompt_that_quotes_an_error_is_none(line: str, reason: Reason) -> None:
    assert read_log(f"INFO 11-30 06:00:00 [logger.py:1] Received request chat-1: prompt: {line!r}") is None
    assert read_log(f"WARNING 11-30 06:00:00 [logger.py:1] {line}") is None
    assert read_log(f'    raise ValueError("{line}")') is None


@pytest.mark.parametrize("name", EXPECTED)
def test_what_is_kept_of_a_log_says_the_same_and_is_short(name: str) -> None:
    kept = last_words(text_of(name))

    assert read_log(kept) == read_log(text_of(name))
    assert log_tail(kept) == log_tail(text_of(name))
    assert len(kept) <= 16_384


def test_the_cause_speaks_and_not_what_follows_from_it() -> None:
    follows = next(line for line, reason in ON_A_GPU if reason is Reason.ACCELERATOR_OUT_OF_MEMORY)
    cause = next(line for line, reason in ON_A_GPU if reason is Reason.ACCELERATOR_OCCUPIED)
    said = read_log(f"{cause}\n{follows}")

    assert said is not None
    assert said.reason is Reason.ACCELERATOR_OCCUPIED


@pytest.mark.parametrize(
    ("text", "hidden"),
    [
        ("OSError: token hf_abcdefghijklmnop is no good", "hf_abcdefghijklmnop"),
        ("headers {'Authorization': 'Bearer eyJhbGciOi.x.y'}", "eyJhbGciOi"),
        ("HF_TOKEN=whatever-it-is", "whatever-it-is"),
        ("Proxy https://user:pass@proxy.local:8080 refused", "user:pass"),
        ("--api-key=sk-123456", "sk-123456"),
        ("1 validation error [type=value_error, input_value={'hf_token': 'mine'}, input_type=dict]", "mine"),
    ],
)
def test_secrets_of_a_log_go_no_further(text: str, hidden: str) -> None:
    assert hidden not in scrubbed(text)
