"""Live quality: the same trace through each router to simulated engines behind real sockets.

An engine serves 8,000 uncached prompt tokens a second, decodes in 12 ms and 0.15 ms a sequence, runs 32 sequences
and holds a million KV tokens. To fit six of them beside a router and the load on two cores, lengths are divided by
eight and times per token multiplied by eight, and all of it runs ten times faster than modelled.
"""

import argparse
import json
import lzma
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from . import machine, quality_report
from .candidates import Candidate, Place, bare, envoy_proxy, installed, sglang_router, vllm_router
from .processes import end_as_asked, fetch, free_port, process, wait_for
from .programs import BenchError, Programs, go_program, install

RESULTS = Path("build/bench")
TRACE = Path("tests/sim/data/mooncake_conversation_trace.jsonl.xz")  # the simulator's own copy
MODEL = "sim"
_PORTS = 40  # a gateway and a sidecar for each engine, three ports each
_COARSE = 8
_TRACE_SECONDS = 3200.0  # the trace has an hour; a stretch that begins later would not be full
_ENGINE = (
    *("-model", MODEL, "-max-num-seqs", "32", "-max-num-batched-tokens", "256", "-block-size", "16"),
    *("-num-gpu-blocks", "8192", "-base", "96ms", "-decode", "1200us", "-prefill", "1ms", "-scale", "0.1"),
)
_PATH = "/v1/chat/completions"

CANDIDATES = (
    Candidate("envoy-rr", "Envoy round_robin", 6, envoy_proxy("ROUND_ROBIN"), ()),
    Candidate("envoy-lr", "Envoy least_request", 6, envoy_proxy("LEAST_REQUEST"), ()),
    Candidate("vllm-p2c", "vllm-router power_of_two", 6, vllm_router("power_of_two"), ()),
    Candidate("vllm-ca", "vllm-router cache_aware", 6, vllm_router("cache_aware"), ()),
    Candidate("sglang-ca", "sglang-router cache_aware", 6, sglang_router, ()),
    Candidate("tidepool", "tidepool Predicted, sidecars", 6, installed("Predicted"), ()),
    Candidate("tidepool-bare", "tidepool Predicted, bare engines", 6, bare("Predicted"), ()),
    Candidate("tidepool-ll", "tidepool LeastLoad, sidecars", 6, installed("LeastLoad"), ()),
    Candidate("tidepool-ph", "tidepool PrefixHash, sidecars", 6, installed("PrefixHash"), ()),
    Candidate("tidepool-rr", "tidepool RoundRobin, sidecars", 6, installed("RoundRobin"), ()),
)


@dataclass(frozen=True)
class Setting:
    """The load: wall seconds, and how much faster than the trace."""

    trace: Path
    seconds: float
    warmup: float
    speedup: float


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="bench.quality", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=50.0)
    parser.add_argument("--warmup", type=float, default=12.0)
    parser.add_argument("--speedup", type=float, default=6.5, help="default: round robin's knee")
    parser.add_argument("--trace", type=Path, default=TRACE)
    parser.add_argument("--only", default="", help="candidates, comma between them")
    return parser.parse_args()


def main() -> int:
    """Exit status: 0 measured, 2 it cannot run."""
    arguments = _arguments()
    end_as_asked()
    setting = Setting(arguments.trace, arguments.seconds, arguments.warmup, arguments.speedup)
    chosen = [c for c in CANDIDATES if not arguments.only or c.name in arguments.only.split(",")]
    try:
        results = _measure_all(chosen, setting, arguments.rounds)
    except BenchError as error:
        print(f"bench: {error}", file=sys.stderr)
        return 2
    RESULTS.mkdir(parents=True, exist_ok=True)
    (RESULTS / "quality.json").write_text(json.dumps(results, indent=1))
    print(f"\n{quality_report.markdown(results)}")
    simulated = RESULTS / "sim.json"
    scores = json.loads(simulated.read_text()) if simulated.exists() else {}
    for line in (*quality_report.verdicts(results), *quality_report.orders(results, scores)):
        print(line)
    print(f"written: {RESULTS / 'quality.json'}")
    return 0


def _measure_all(chosen: Sequence[Candidate], setting: Setting, rounds: int) -> dict[str, Any]:
    if not setting.trace.exists():
        raise BenchError(
            f"{setting.trace} is missing; name one of Mooncake's form (.jsonl, .jsonl.xz) with --trace"
        )
    programs = install()
    setting = replace(setting, trace=_plain(setting.trace))
    runs = []
    for number in range(rounds):
        start = number % len(chosen)
        for candidate in (*chosen[start:], *chosen[:start]):
            # Seed and stretch of the trace belong to the round: every candidate meets the same arrivals.
            run = _measure(candidate, programs, setting, number)
            runs.append(run | {"candidate": candidate.name, "round": number + 1})
            print(f"round {number + 1} of {rounds}: {_line(runs[-1])}", flush=True)
    return {
        "started": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
        "rounds": rounds,
        "machine": machine.facts(),
        "versions": programs.versions,
        "load": {"seconds": setting.seconds, "warmup": setting.warmup, "speedup": setting.speedup},
        "labels": {candidate.name: candidate.label for candidate in chosen},
        "runs": runs,
    }


def _plain(trace: Path) -> Path:
    """The trace unpacked, in build/bench."""
    if trace.suffix != ".xz":
        return trace
    RESULTS.mkdir(parents=True, exist_ok=True)
    target = RESULTS / trace.stem
    with lzma.open(trace) as packed, target.open("wb") as plain:
        shutil.copyfileobj(packed, plain)
    return target


def _line(run: Mapping[str, Any]) -> str:
    ttft, e2e = run["ttft"], run["e2e"]
    return (
        f"{run['candidate']}: TTFT p50 {ttft.get('p50', 0):.3f} p90 {ttft.get('p90', 0):.3f} s, end to end p90 "
        f"{e2e.get('p90', 0):.2f} s, {run['right']} of {run['sent']} right, hits {run['hit_share']:.1%}, "
        f"late p99 {run['late'].get('p99', 0) * 1e3:.0f} ms"
    )


def _measure(candidate: Candidate, programs: Programs, setting: Setting, number: int) -> dict[str, Any]:
    """One replay; engines begin cold, routers know nothing."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tidepool-bench-")))
        engines = _engines(candidate.engines, folder, stack)
        port = free_port(_PORTS)
        assert candidate.commands is not None
        log = folder / "router.log"
        pids = [
            stack.enter_context(process(command, None, log)).pid
            for command in candidate.commands(programs, Place(port, engines, folder, MODEL))
        ]
        url = f"http://127.0.0.1:{port}"
        wait_for(url + _PATH, _greeting(), 60, log)
        time.sleep(1.0)  # routers learn of their engines one by one
        busy = sum(map(machine.cpu_seconds, pids))
        began = time.monotonic()
        run = _replay(url, setting, number)
        wall = time.monotonic() - began
        cores = (sum(map(machine.cpu_seconds, pids)) - busy) / wall
        return run | _engine_figures(engines) | {"router_cores": cores}


def _engines(count: int, folder: Path, stack: ExitStack) -> list[str]:
    first = free_port(count)
    ports = [first + number for number in range(count)]
    command = [str(go_program("engine")), "-ports", ",".join(map(str, ports)), *_ENGINE]
    stack.enter_context(process(command, None, folder / "engines.log"))
    urls = [f"http://127.0.0.1:{port}" for port in ports]
    for url in urls:
        wait_for(f"{url}/health", None, 10, folder / "engines.log")
    return urls


def _greeting() -> dict[str, Any]:
    return {"model": MODEL, "max_tokens": 1, "messages": [{"role": "user", "content": "hi"}]}


def _replay(url: str, setting: Setting, number: int) -> dict[str, Any]:
    options = {
        "url": url,
        "model": MODEL,
        "trace": setting.trace,
        "seed": number + 1,
        "offset": number * setting.seconds * setting.speedup % _TRACE_SECONDS,
        "coarse": _COARSE,
        "speedup": setting.speedup,
        "seconds": setting.seconds,
        "warmup": setting.warmup,
    }
    command = [str(go_program("replay")), *(f"-{name}={value}" for name, value in options.items())]
    done = subprocess.run(command, capture_output=True, text=True, timeout=setting.seconds + 120, check=False)
    if done.returncode:
        raise BenchError(f"the replay failed: {done.stderr.strip()}")
    report: dict[str, Any] = json.loads(done.stdout)
    return report


def _engine_figures(urls: Sequence[str]) -> dict[str, float]:
    sums: dict[str, float] = {}
    for url in urls:
        for line in fetch(f"{url}/metrics", None)[1].decode().splitlines():
            if not line.startswith("#"):
                name, _, value = line.rpartition(" ")
                key = name.partition("{")[0]
                sums[key] = sums.get(key, 0.0) + float(value)
    queried = sums.get("vllm:prefix_cache_queries_total", 0.0)
    return {
        "hit_share": sums.get("vllm:prefix_cache_hits_total", 0.0) / queried if queried else 0.0,
        "preemptions": sums.get("vllm:num_preemptions_total", 0.0),
    }


if __name__ == "__main__":
    sys.exit(main())
