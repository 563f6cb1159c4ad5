"""A hundred pods: what one pick takes among them, and what the roles cost while nobody asks for anything."""

import json
import random
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

from tidepool_api.load import Health, LoadReport
from tidepool_api.routing import FleetPool, Policy, Routing
from tidepool_router.facts import Api, RequestFacts
from tidepool_router.fleet.endpoint import Endpoint
from tidepool_router.fleet.gateway_metrics import GatewayMetrics
from tidepool_router.fleet.pool import PoolState
from tidepool_router.ledger import Outcome
from tidepool_router.wire.body import inspect

from . import machine
from .candidates import MODEL
from .processes import fetch, free_port, process, wait_for
from .programs import BenchError, Programs
from .rounds import Setting

PODS = 100
REPORT_PORTS = PODS
_PICKS = 4000
_CONVERSATIONS = 200
_PROMPT_WORDS = 1500
_LIVE = 400  # requests under way while picks are timed
_READY = LoadReport(boot="bench", seq=1, health=Health.READY, kv_capacity_tokens=500_000)
_SPAN_SECONDS = 4.0
_PATH = "/v1/chat/completions"


def measure(programs: Programs, setting: Setting, rounds: int) -> dict[str, Any]:
    """Microseconds of a pick, and shares of a core while idle, a figure a round."""
    seconds = _SPAN_SECONDS if rounds > 1 else 1.0
    results: dict[str, Any] = {
        "pods": PODS,
        "pick_us": {policy.value: [_pick_us(policy) for _ in range(rounds)] for policy in Policy},
        "idle_core_share": {
            "gateway": _idle(programs, setting, rounds, seconds, _gateway),
            "sidecar": _idle(programs, setting, rounds, seconds, _sidecar),
        },
    }
    for policy, figures in results["pick_us"].items():
        print(f"a pick among {PODS} pods, {policy}: {figures[0]['median']:.1f} us", flush=True)
    for role, shares in results["idle_core_share"].items():
        print(f"{role} idle: {median(shares):.2%} of a core", flush=True)
    return results


def _pick_us(policy: Policy) -> dict[str, float]:
    """Median and 99th percentile of a pick with its reservation, microseconds; the body has been read before."""
    now = [1000.0]
    config = FleetPool(name="default/bench", models=(MODEL,), routing=Routing(policy=policy))
    pool = PoolState(config, GatewayMetrics(), lambda: now[0])
    pods, _ = pool.set_pods(Endpoint.at("10.0.0.1", 8000 + number) for number in range(PODS))
    draw = random.Random(1)
    for pod in pods:
        pool.pod_heard(pod, replace(_READY, running=draw.randrange(8), held_tokens=draw.randrange(20_000)))
    requests = [_facts(number) for number in range(_CONVERSATIONS)]
    live, spent = [], []
    for _ in range(_PICKS):
        now[0] += 0.001
        facts = draw.choice(requests)
        began = time.perf_counter_ns()
        reservation = pool.pick(facts, now[0])
        spent.append(time.perf_counter_ns() - began)
        if reservation is None:
            raise BenchError(f"{policy} found no pod among {PODS} ready ones")
        live.append(reservation)
        if len(live) > _LIVE:
            live.pop(draw.randrange(len(live))).close(Outcome.OK, now[0])
    spent.sort()
    return {"median": spent[_PICKS // 2] / 1e3, "p99": spent[_PICKS * 99 // 100] / 1e3}


def _facts(number: int) -> RequestFacts:
    """One conversation's request: half of its text is shared with nine others'."""
    words = random.Random(number // 10)
    own = random.Random(number)
    shared = " ".join(str(words.randrange(10_000)) for _ in range(_PROMPT_WORDS // 2))
    text = shared + " ".join(str(own.randrange(10_000)) for _ in range(_PROMPT_WORDS // 2))
    body = {"model": MODEL, "max_tokens": 200, "messages": [{"role": "user", "content": text}]}
    return inspect(Api.CHAT, _PATH, json.dumps(body).encode())


Start = Callable[[Programs, Setting, Path, ExitStack], int]


def _idle(programs: Programs, setting: Setting, rounds: int, seconds: float, start: Start) -> list[float]:
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tidepool-bench-")))
        pid = start(programs, setting, folder, stack)
        time.sleep(1.0)
        return [_share(pid, seconds) for _ in range(rounds)]


def _share(pid: int, seconds: float) -> float:
    began, before = time.monotonic(), machine.scheduled_seconds(pid)
    time.sleep(seconds)
    return (machine.scheduled_seconds(pid) - before) / (time.monotonic() - began)


def _gateway(programs: Programs, setting: Setting, folder: Path, stack: ExitStack) -> int:
    first = free_port(REPORT_PORTS)
    source = [sys.executable, str(Path(__file__).with_name("load_streams.py")), str(first), str(REPORT_PORTS)]
    stack.enter_context(process(source, setting.load_core, folder / "streams.log"))
    urls = [f"http://127.0.0.1:{first + number}" for number in range(REPORT_PORTS)]
    wait_for(urls[-1] + "/health", None, 20, folder / "streams.log")
    fleet = folder / "fleet.json"
    fleet.write_text(json.dumps({"pools": [{"name": "default/bench", "models": [MODEL], "endpoints": urls}]}))
    port = free_port(3)
    command = [str(programs.router), "gateway", "--fleet", str(fleet), "--host", "127.0.0.1", "--port", str(port)]
    pid = stack.enter_context(process(command, setting.proxy_core, folder / "gateway.log")).pid
    wait_for(f"http://127.0.0.1:{port + 2}/readyz", None, 20, folder / "gateway.log")
    time.sleep(1.0)
    page = fetch(f"http://127.0.0.1:{port + 1}/metrics", None)[1].decode()
    if f'state="ready"}} {PODS}' not in page:
        raise BenchError(f"the gateway does not know {PODS} ready pods, so its idle figure would mean nothing")
    return pid


def _sidecar(programs: Programs, setting: Setting, folder: Path, stack: ExitStack) -> int:
    engine, port = free_port(1), free_port(3)
    stack.enter_context(process([str(programs.stub), str(engine)], setting.load_core, folder / "stub.log"))
    wait_for(f"http://127.0.0.1:{engine}/health", None, 10)
    command = [str(programs.router), "sidecar", "--engine", f"http://127.0.0.1:{engine}", "--host", "127.0.0.1"]
    pid = stack.enter_context(
        process([*command, "--port", str(port)], setting.proxy_core, folder / "sidecar.log")
    ).pid
    wait_for(f"http://127.0.0.1:{port + 2}/engine/ready", None, 20, folder / "sidecar.log")
    return pid
