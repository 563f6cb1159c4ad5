"""A long load through gateway and sidecars: clients that leave, engines that reset, pods that come and go.

Clients and engines both count (tests/bench/native/go/soak), request by request; here the pods are moved about,
memory is looked at, and in the end the ledgers must be empty.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from threading import Event
from typing import Any

from . import machine, soak_report
from .processes import end_as_asked
from .programs import BenchError, go_program
from .soak_pods import Pods

RESULTS = Path("build/bench")
LEDGER_SECONDS = 10.0  # longest wait for the ledgers to be empty after the last answer


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="bench.soak", description=__doc__)
    parser.add_argument("--requests", type=int, default=1_000_000)
    parser.add_argument("--clients", type=int, default=48)
    parser.add_argument("--disconnects", type=float, default=0.05)
    parser.add_argument("--resets", type=float, default=0.01)
    parser.add_argument("--move-seconds", type=float, default=20.0, help="between two pods that go")
    parser.add_argument("--seed", type=int, default=1)
    return parser.parse_args()


def main() -> int:
    """Exit status: 0 nothing was lost, doubled or kept; 1 something was; 2 it cannot run."""
    given = _arguments()
    end_as_asked()
    try:
        results = run(
            requests=given.requests,
            clients=given.clients,
            disconnects=given.disconnects,
            resets=given.resets,
            move_seconds=given.move_seconds,
            seed=given.seed,
            loud=True,
        )
    except BenchError as error:
        print(f"soak: {error}", file=sys.stderr)
        return 2
    RESULTS.mkdir(parents=True, exist_ok=True)
    (RESULTS / "soak.json").write_text(json.dumps(results, indent=1))
    print(soak_report.markdown(results))
    faults = soak_report.faults(results)
    for fault in faults:
        print(f"soak: {fault}", file=sys.stderr)
    print(f"written: {RESULTS / 'soak.json'}")
    return 1 if faults else 0


def run(
    *,
    requests: int,
    clients: int,
    disconnects: float,
    resets: float,
    move_seconds: float,
    seed: int = 1,
    loud: bool = False,
) -> dict[str, Any]:
    """One soak. Raises BenchError when it cannot begin or comes to a standstill."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tidepool-soak-")))
        pods = Pods(folder, stack)
        command = [str(go_program("soak")), "-gateway", f"127.0.0.1:{pods.gateway_port}"]
        command += ["-engines", ",".join(map(str, pods.engine_ports)), "-requests", str(requests)]
        command += ["-clients", str(clients), "-disconnects", str(disconnects), "-resets", str(resets)]
        command += ["-seed", str(seed)]
        load = stack.enter_context(_Load(command, folder / "load.log"))
        pods.start()
        load.tell("begin")
        samples: list[dict[str, float]] = []
        final: Mapping[str, Any] | None = None
        with _moving(pods, move_seconds, load):
            while final is None:
                line = load.next()
                final = line if "outcomes" in line else None
                if final is None:
                    samples.append({"done": line["done"], **pods.memory()})
                    if loud and len(samples) % 10 == 0:
                        print(samples[-1], flush=True)
        return {
            "started": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
            "machine": machine.facts(),
            "load": {"requests": requests, "clients": clients, "disconnects": disconnects, "resets": resets},
            "counts": final,
            "moves": pods.moves,
            "ledgers": pods.ledgers(LEDGER_SECONDS),
            "memory": samples,
            "cpu_seconds": pods.cpu_seconds(),
        }


@contextmanager
def _moving(pods: Pods, every_seconds: float, load: "_Load") -> Iterator[None]:
    """Pods come and go meanwhile; raises what stopped that."""
    over = Event()

    def move() -> None:
        while not over.wait(every_seconds):
            killed = pods.move()
            if killed is not None:
                load.tell(f"killed {killed}")

    with ThreadPoolExecutor(1, "pods") as executor:
        mover = executor.submit(move)
        try:
            yield
        finally:
            over.set()
        mover.result()


class _Load:
    """The native end of the soak: lines of JSON from it, lines of text to it."""

    def __init__(self, command: Sequence[str], log: Path) -> None:
        self._log = log
        self._err = log.open("wb")
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._err, text=True
        )

    def __enter__(self) -> "_Load":
        if not self.next().get("ready"):
            raise BenchError("the load did not get ready")
        return self

    def __exit__(self, *exception: object) -> None:
        self._process.kill()
        self._process.communicate()
        self._err.close()

    def tell(self, line: str) -> None:
        """One line."""
        assert self._process.stdin is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()

    def next(self) -> dict[str, Any]:
        """The next line; one comes each second, so a standstill is the load's own patience with answers."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise BenchError(f"the load ended early: {self._log.read_text(errors='replace')[-2000:]}")
        read: dict[str, Any] = json.loads(line)
        return read


if __name__ == "__main__":
    sys.exit(main())
