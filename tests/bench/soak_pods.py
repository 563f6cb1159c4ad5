"""The pods of a soak: a gateway, sidecars before the load's engines, how one goes and another one comes."""

import json
import signal
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from . import machine
from .processes import fetch, free_port, process, wait_for
from .programs import BenchError, router

ENGINES = 5
LIVE = 3
MODEL = "sim"
_READY_SECONDS = 30.0
_DRAIN_SECONDS = 60.0


class Pod:
    """A sidecar in front of one engine. Traffic, metrics and control have ports in a row."""

    def __init__(self, engine_port: int, folder: Path) -> None:
        self.engine_port = engine_port
        self.port = free_port(3)
        command = [str(router()), "sidecar", "--engine", f"http://127.0.0.1:{engine_port}", "--host", "127.0.0.1"]
        command += ["--port", str(self.port), "--log-level", "warning"]
        self._log = folder / f"sidecar-{self.port}.log"
        self._out = self._log.open("wb")
        self.process = subprocess.Popen(command, stdout=self._out, stderr=self._out)
        self.peak_bytes = 0

    @property
    def url(self) -> str:
        """Where it takes traffic."""
        return f"http://127.0.0.1:{self.port}"

    def wait_ready(self) -> None:
        """Raises BenchError when it does not get there."""
        wait_for(f"http://127.0.0.1:{self.port + 2}/engine/ready", None, _READY_SECONDS, self._log)

    def drain(self) -> dict[str, Any]:
        """As kubelet ends a pod: the drain is held until the ledger is empty, then the process is asked to go.

        What the ledger said in between.
        """
        status, _ = fetch(f"http://127.0.0.1:{self.port + 2}/drain", None, _DRAIN_SECONDS)
        if status != 200:
            raise BenchError(f"the drain of {self.url} answered {status}")
        ledger = self.ledger()
        self.end(signal.SIGTERM)
        return ledger

    def end(self, number: signal.Signals) -> None:
        """By a signal; raises BenchError when it does not go."""
        self.process.send_signal(number)
        try:
            self.process.wait(_DRAIN_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise BenchError(f"{self.url} did not end") from None
        finally:
            self._out.close()

    def ledger(self) -> dict[str, Any]:
        """Sums that must be zero when nobody asks, and the difference of what was opened and closed."""
        status, body = fetch(f"{self.url}/tidepool/load", None)
        if status != 200:
            raise BenchError(f"{self.url} answered its load report with {status}")
        report = json.loads(body)
        kept = {name: report[name] for name in _LEDGER_SUMS}
        return kept | {"open": report["opened_total"] - report["closed_total"], "opened": report["opened_total"]}


_LEDGER_SUMS = ("running", "waiting", "queued_tokens", "held_tokens", "expected_tokens")


class Pods:
    """LIVE pods at a time; the first one stays, the others are replaced in turn."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self._folder = folder
        self._stack = stack
        first = free_port(ENGINES)
        self.engine_ports = [first + number for number in range(ENGINES)]
        self.gateway_port = free_port(3)
        self._fleet = folder / "fleet.json"
        self._live: list[Pod] = []
        self._gateway: subprocess.Popen[bytes] | None = None
        self.moves: list[dict[str, Any]] = []
        self._spare: list[int] = []

    def start(self) -> None:
        """All of it; returns when the gateway answers for the model."""
        self._stack.callback(self._stop)
        self._live = [Pod(port, self._folder) for port in self.engine_ports[:LIVE]]
        self._spare = self.engine_ports[LIVE:]
        for pod in self._live:
            pod.wait_ready()
        self._write_fleet()
        command = [str(router()), "gateway", "--fleet", str(self._fleet), "--host", "127.0.0.1"]
        command += ["--port", str(self.gateway_port), "--log-level", "error"]
        log = self._folder / "gateway.log"
        self._gateway = self._stack.enter_context(process(command, None, log))
        wait_for(f"http://127.0.0.1:{self.gateway_port + 2}/readyz", None, _READY_SECONDS, log)
        self._await_pods(LIVE)

    def move(self) -> int | None:
        """A pod comes, then another one goes; the port of its engine when it was killed.

        In turn: it drains and then leaves the fleet; it leaves the fleet and then drains; it is killed.
        """
        number = len(self.moves)
        fresh = Pod(self._spare.pop(0), self._folder)
        fresh.wait_ready()
        going = self._live.pop(1)
        self._live.append(fresh)
        self._spare.append(going.engine_port)
        ledger: dict[str, Any] = {}
        how = ("drains, then leaves", "leaves, then drains", "is killed")[number % 3]
        if number % 3 == 0:
            self._write_fleet(going)
            ledger = going.drain()
            self._write_fleet()
        elif number % 3 == 1:
            self._write_fleet()
            ledger = going.drain()
        else:
            self._write_fleet(going)
            going.end(signal.SIGKILL)
            self._write_fleet()
        self.moves.append({"how": how, "ledger": ledger})
        return going.engine_port if number % 3 == 2 else None

    def memory(self) -> dict[str, float]:
        """Resident bytes of the gateway and of the sidecar that stays."""
        assert self._gateway is not None
        gateway, sidecar = self._gateway.pid, self._live[0].process.pid
        return {"gateway": machine.resident_bytes(gateway), "sidecar": machine.resident_bytes(sidecar)}

    def cpu_seconds(self) -> dict[str, float]:
        """Of the gateway and of the sidecar that stays."""
        assert self._gateway is not None
        gateway, sidecar = self._gateway.pid, self._live[0].process.pid
        return {"gateway": machine.cpu_seconds(gateway), "sidecar": machine.cpu_seconds(sidecar)}

    def ledgers(self, seconds: float) -> dict[str, dict[str, Any]]:
        """Ledgers of all that live, as soon as they are empty, or as they are when that takes too long."""
        deadline = time.monotonic() + seconds
        while True:
            found = {f"sidecar {number}": pod.ledger() for number, pod in enumerate(self._live)}
            found["gateway"] = self._demand()
            empty = not any(value for ledger in found.values() for key, value in ledger.items() if key != "opened")
            if empty or time.monotonic() > deadline:
                return found
            time.sleep(0.2)

    def _demand(self) -> dict[str, Any]:
        status, body = fetch(f"http://127.0.0.1:{self.gateway_port + 2}/tidepool/load", None)
        if status != 200:
            raise BenchError(f"the gateway answered its load report with {status}")
        (pool,) = json.loads(body)["pools"].values()
        return {name: pool[name] for name in ("in_flight", "held", "held_bytes")} | {
            "opened": pool["arrived_total"]
        }

    def _write_fleet(self, *more: Pod) -> None:
        endpoints = [pod.url for pod in (*self._live, *more)]
        pool = {"name": "default/soak", "models": [MODEL], "endpoints": endpoints}
        fresh = self._fleet.with_suffix(".new")
        fresh.write_text(json.dumps({"pools": [pool]}))
        fresh.rename(self._fleet)

    def _await_pods(self, count: int) -> None:
        deadline = time.monotonic() + _READY_SECONDS
        wanted = f'state="ready"}} {count}'
        while wanted not in fetch(f"http://127.0.0.1:{self.gateway_port + 1}/metrics", None)[1].decode():
            if time.monotonic() > deadline:
                raise BenchError(f"the gateway did not hear of {count} ready pods")
            time.sleep(0.1)

    def _stop(self) -> None:
        for pod in self._live:
            try:
                pod.end(signal.SIGKILL)
            except BenchError as error:
                print(f"soak: {error}", file=sys.stderr)
