"""A hundred pods: what one pick takes among them, and what the roles cost while nobody asks for anything."""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any

from . import machine
from .candidates import MODEL
from .pick import PODS
from .processes import fetch, free_port, process, wait_for
from .programs import BenchError, Programs
from .rounds import Setting

REPORT_PORTS = PODS
_SPAN_SECONDS = 4.0


def measure(programs: Programs, setting: Setting, rounds: int) -> dict[str, Any]:
    """Microseconds of a pick, and shares of a core while idle, a figure a round."""
    seconds = _SPAN_SECONDS if rounds > 1 else 1.0
    picks = [_picks(programs, setting.proxy_core) for _ in range(rounds)]
    results: dict[str, Any] = {
        "pods": PODS,
        "pick_us": {policy: [one[policy] for one in picks] for policy in picks[0]},
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


def _picks(programs: Programs, core: int) -> dict[str, dict[str, float]]:
    """By policy, as pick.py prints them; in a process of its own, with the same code that the product's has."""
    home = programs.router.parent
    path = {"PYTHONPATH": str(home)} if (home / "tidepool_router").exists() else {}
    command = ["taskset", "-c", str(core), sys.executable, "-P", str(Path(__file__).with_name("pick.py"))]
    done = subprocess.run(command, env=os.environ | path, capture_output=True, text=True, timeout=120, check=False)
    if done.returncode:
        raise BenchError(f"picks could not be timed: {done.stderr.strip()[-2000:]}")
    figures: dict[str, dict[str, float]] = json.loads(done.stdout)
    return figures


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
