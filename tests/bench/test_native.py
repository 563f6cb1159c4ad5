"""The native programs: with a load that miscounts, or an engine that forgets its rules, figures mean nothing."""

import json
import shutil
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from bench.processes import fetch, free_port, process, wait_for
from bench.programs import go_program, native

pytestmark = [
    pytest.mark.traffic,
    pytest.mark.skipif(
        shutil.which("cc") is None or shutil.which("go") is None, reason="needs a C compiler and Go"
    ),
]
_PATH = "/v1/chat/completions"


def chat(text: str, *, tokens: int = 4, **more: Any) -> dict[str, Any]:
    return {"model": "sim", "max_tokens": tokens, "messages": [{"role": "user", "content": text}], **more}


@contextmanager
def engine(folder: Path, *options: str) -> Iterator[str]:
    port = free_port(1)
    command = [str(go_program("engine")), "-ports", str(port), "-base", "1ms", "-prefill", "1us", *options]
    with process(command, None, folder / "engine.log"):
        url = f"http://127.0.0.1:{port}"
        wait_for(f"{url}/health", None, 60, folder / "engine.log")
        yield url


@contextmanager
def stub(folder: Path) -> Iterator[int]:
    port = free_port(1)
    with process([str(native("stub")), str(port)], None, folder / "stub.log"):
        wait_for(f"http://127.0.0.1:{port}/health", None, 60)
        yield port


def metric(url: str, name: str) -> float:
    lines = fetch(f"{url}/metrics", None)[1].decode().splitlines()
    return next(float(line.rpartition(" ")[2]) for line in lines if line.startswith(f"vllm:{name}{{"))


def test_a_prompt_that_was_seen_is_cached_but_for_a_token(tmp_path: Path) -> None:
    text = "abc " * 64  # four blocks of 16 tokens: one of them is computed again, for its last token
    with engine(tmp_path) as url:
        usages = [json.loads(fetch(url + _PATH, chat(text))[1])["usage"] for _ in range(2)]

        assert [usage["prompt_tokens"] for usage in usages] == [64, 64]
        assert [usage["prompt_tokens_details"]["cached_tokens"] for usage in usages] == [0, 48]
        assert metric(url, "prefix_cache_hits_total") == 48


def test_a_stream_has_its_tokens_its_usage_and_its_end(tmp_path: Path) -> None:
    with engine(tmp_path) as url:
        asked = chat("abc " * 10, tokens=7, stream=True, stream_options={"include_usage": True})
        events = fetch(url + _PATH, asked)[1].decode().split("\n\n")

    assert sum('"content":"w "' in event for event in events) == 7
    assert '"completion_tokens":7' in events[-3]
    assert events[-2:] == ["data: [DONE]", ""]


def test_without_room_for_all_the_youngest_is_computed_again_and_all_end_whole(tmp_path: Path) -> None:
    """Twelve blocks for four requests that need up to five each."""
    with engine(tmp_path, "-num-gpu-blocks", "12") as url, ThreadPoolExecutor(4) as asking:
        asked = [asking.submit(fetch, url + _PATH, chat("abc " * 30, tokens=40), 30.0) for _ in range(4)]
        answers = [json.loads(one.result()[1]) for one in asked]

        assert [answer["usage"]["completion_tokens"] for answer in answers] == [40] * 4
        assert metric(url, "num_preemptions_total") > 0
        assert metric(url, "kv_cache_usage_perc") == 0


def test_the_replay_counts_what_was_right_and_says_why_the_rest_was_not(tmp_path: Path) -> None:
    rows = [
        {"timestamp": 100 * n, "input_length": 600, "output_length": 3, "hash_ids": [0, n + 1]} for n in range(40)
    ]
    trace = tmp_path / "trace.jsonl"
    trace.write_text("".join(json.dumps(row) + "\n" for row in rows))
    with engine(tmp_path) as url:
        options = ["-trace", str(trace), "-speedup", "10", "-seconds", "2", "-warmup", "0", "-drain", "5"]
        right = subprocess.check_output([str(go_program("replay")), "-url", url, *options], timeout=60)
        command = [str(go_program("replay")), "-url", url, "-model", "other", *options]
        wrong = subprocess.check_output(command, timeout=60)
        hits = metric(url, "prefix_cache_hits_total")

    counts = json.loads(right)
    assert (counts["sent"], counts["right"], counts["wrong"]) == (40, 40, {})
    assert 0 < counts["ttft"]["p50"] <= counts["e2e"]["p50"]
    assert json.loads(wrong)["wrong"] == {"status 404": 40}
    assert hits > 30 * 512, "equal ids must be equal text"


def test_the_open_loop_keeps_its_rate_and_the_closed_one_its_connections(tmp_path: Path) -> None:
    body = tmp_path / "body.json"
    body.write_text(json.dumps(chat("hello")))
    with stub(tmp_path) as port:
        command = [str(native("drive")), str(port), _PATH, str(body)]
        open_loop, closed = (
            json.loads(subprocess.check_output([*command, *options], timeout=30).splitlines()[1])
            for options in (("0", "0.1", "1", "0", "200"), ("2", "0.1", "0.3", "0"))
        )

    assert open_loop["errors"] == closed["errors"] == 0
    assert 180 <= open_loop["requests"] <= 220
    assert closed["requests"] > 0


def test_the_stub_takes_a_body_larger_than_its_buffer(tmp_path: Path) -> None:
    with stub(tmp_path) as port:
        url = f"http://127.0.0.1:{port}{_PATH}"
        small = fetch(url, chat("hello"))
        for size in (65_000, 66_000, 4_000_000):
            assert fetch(url, chat("x" * size)) == small
