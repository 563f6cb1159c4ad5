"""What the operator costs and how quick it is with 500 pools and 5,000 pods: `make bench-operator`."""

import argparse
import asyncio
import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import aiohttp

from cluster.ports import free_ports

from . import audit, operators_report
from .crowd import Crowd, crowd, fetched, gathered, in_own_network, peak_bytes, pool_key, pool_path
from .crowd_doubles import PROMETHEUS_PORT, Prometheus, Sidecars, doubles, places
from .looking import looked_at
from .machine import cpu_seconds, facts, resident_bytes

OUT: Final = Path("build/bench/operator.json")
_READY_SECONDS: Final = 1800.0
_APPLIED_SECONDS: Final = 120.0
_QUIET_SECONDS: Final = 3.0


@dataclass
class Applied:
    """When what was asked of a pool had arrived everywhere: in its status, and in the sidecars of all its pods."""

    of_pod: Mapping[str, str] = field(default_factory=dict)
    pushes: bool = True
    _generation: dict[str, int] = field(default_factory=dict)
    _waits: dict[str, tuple[int, set[str], asyncio.Future[float]]] = field(default_factory=dict)

    def told(self, item: Mapping[str, Any]) -> None:
        """A pool as its watch tells it."""
        key = f"{item['metadata']['namespace']}/{item['metadata']['name']}"
        self._generation[key] = (item.get("status") or {}).get("observedGeneration", 0)
        self._look(key)

    def taken(self, address: str) -> None:
        """A pod's sidecar has settings."""
        key = self.of_pod.get(address, "")
        if key in self._waits:
            self._waits[key][1].discard(address)
            self._look(key)

    def expect(self, key: str, generation: int) -> asyncio.Future[float]:
        """Done with the time (monotonic seconds) at which it has arrived. Call before it is asked for, with the
        generation that it will have."""
        pods = {address for address, pool in self.of_pod.items() if pool == key} if self.pushes else set()
        done: asyncio.Future[float] = asyncio.get_running_loop().create_future()
        self._waits[key] = (generation, pods, done)
        return done

    def generation(self, key: str) -> int:
        """The last one that was served."""
        return self._generation[key]

    def _look(self, key: str) -> None:
        generation, pods, done = self._waits.get(key, (0, set(), None))
        if done is not None and not pods and self._generation.get(key, 0) >= generation:
            del self._waits[key]
            if not done.done():
                done.set_result(time.monotonic())


@dataclass
class Running:
    """An operator's process; `port` of its health page and `console` of its page, 0 where it has none."""

    process: asyncio.subprocess.Process
    port: int
    console: int
    began: float
    log: Path

    def check(self) -> None:
        """Raises RuntimeError when it has ended: nothing more can be measured of it."""
        if self.process.returncode is not None:
            raise RuntimeError(f"the operator ended with status {self.process.returncode}; see {self.log}")

    async def figures(self) -> dict[str, float]:
        """Its own metrics."""
        url = f"http://127.0.0.1:{self.port}/metrics"
        async with aiohttp.ClientSession() as session, session.get(url) as answer:
            text = await answer.text()
        lines = [line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#")]
        return {name: float(value) for name, value in lines}


@asynccontextmanager
async def operator(candidate: str, at: Crowd, log: Path, *, console: bool = False) -> AsyncIterator[Running]:
    """One of the candidates, as a process of its own."""
    port, page = free_ports(2)
    access = f"--kubeconfig={at.plane.kubeconfig}"
    command = {
        "tidepool": [
            "tidepool_operator", "run", access, "--namespace=tidepool-system",
            "--router-image=tidepool-router:test", f"--prometheus-url=http://127.0.0.1:{PROMETHEUS_PORT}",
            "--health-host=127.0.0.1", f"--health-port={port}",
            *(["--console", f"--console-port={page}"] if console else []),
        ],
        "plain": ["bench.plain_operator", access],
    }[candidate]  # fmt: skip
    # As in the images, whose modules are compiled when they are built.
    environment = {**os.environ, "PYTHONPYCACHEPREFIX": str(OUT.parent.parent.absolute() / "pycache")}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    with log.open("ab") as out:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", *command, stdout=out, stderr=out, env=environment
        )
    try:
        ours = candidate == "tidepool"
        yield Running(process, port if ours else 0, page if ours and console else 0, time.monotonic(), log)
    finally:
        if process.returncode is None:
            process.send_signal(signal.SIGTERM)
            try:
                await asyncio.wait_for(process.wait(), 30)
            except TimeoutError:
                process.kill()
                await process.wait()


@dataclass
class Bench:
    """One run."""

    given: argparse.Namespace
    at: Crowd
    sidecars: Sidecars
    prometheus: Prometheus
    applied: Applied
    folder: Path

    async def candidate(self, name: str) -> dict[str, Any]:
        """All figures of one candidate; the first one finds no pools yet, and makes them."""
        log = OUT.parent / f"operator-{name}.log"
        agents = operators_report.AGENTS[name]
        self.applied.pushes = name == "tidepool"
        found: dict[str, Any] = {}
        async with operator(name, self.at, log) as running:
            found["begin_seconds"] = await self._begin(running)
            found["idle"] = await self._idle(running, agents)
            found["changes_seconds"] = [await self._change([number]) for number in self._chosen()]
            found["burst_seconds"] = await self._change(
                range(0, self.given.pools, max(1, self.given.pools // 100))
            )
            pid = running.process.pid
            found["memory_bytes"] = {"now": resident_bytes(pid), "peak": peak_bytes(pid)}
        versions, mark = await self.at.pod_versions(), self.at.mark()
        async with operator(name, self.at, log, console=True) as running:
            found["restart_seconds"] = await self._settled(running, agents)
            found["restart_cpu_seconds"] = cpu_seconds(running.process.pid)
            found["restart_writes"] = audit.by_kind(self.at.written(mark), agents)
            found["pods_touched"] = len(set(versions.items()) ^ set((await self.at.pod_versions()).items()))
            if running.console:
                found["console"] = await looked_at(running.process.pid, running.console, self.given.pools)
        return found

    def _chosen(self) -> list[int]:
        return [number * 37 % self.given.pools for number in range(self.given.changes)]

    async def _begin(self, running: Running) -> float:
        """From nothing to every pod ready; or from what there is to rest."""
        pools, pods = self.given.pools, self.given.pods
        fresh = (await self.at.ready())[0] < pools
        if fresh:
            await self.at.nodes(pools * pods)
            await self.at.pools(pools, pods, self.given.scaled)
            until = time.monotonic() + _READY_SECONDS
            while (ready := await self.at.ready()) != (pools, pools * pods):
                if time.monotonic() > until:
                    raise TimeoutError(f"only {ready[0]} pools and {ready[1]} pods are ready")
                print(f"  {ready[0]} of {pools} pools complete", file=sys.stderr)
                await asyncio.sleep(5)
                running.check()
        seconds = time.monotonic() - running.began
        self.applied.of_pod = await self.at.pod_addresses()
        items = (await self.at.rest.get("/api/v1/pods?labelSelector=tidepool.dev/pool"))["items"]
        scaled = {pool_key(number) for number in range(self.given.scaled)}
        self.prometheus.pods = [place for place in places(items) if f"{place[0]}/{place[1]}" in scaled]
        await self._settled(running, operators_report.AGENTS["tidepool" if running.port else "plain"])
        return seconds

    async def _settled(self, running: Running, agents: Sequence[str]) -> float:
        """Seconds from its start to its rest: every pool looked at, nothing in its queue, nothing written."""
        until = time.monotonic() + 600
        rest_since, mark, last = time.monotonic(), self.at.mark(), -1.0
        while time.monotonic() < until:
            await asyncio.sleep(0.25)
            running.check()
            busy = False
            if running.port:
                try:
                    figures = await running.figures()
                except aiohttp.ClientError:
                    busy = True
                else:
                    done = figures["tidepool_operator_reconciles_total"]
                    busy = not figures["tidepool_operator_leader"] or done < self.given.pools
                    busy = busy or figures["tidepool_operator_queue_length"] > 0 or done != last
                    last = done
            found = [one for one in self.at.written(mark) if one.by(agents) and one.resource not in _LIVE]
            if not running.port and time.monotonic() - running.began < 10:
                busy = True  # it tells nothing of itself: its first writes are waited for
            if busy or found:
                rest_since, mark = time.monotonic(), self.at.mark()
            elif time.monotonic() - rest_since > _QUIET_SECONDS:
                return rest_since - running.began
        raise TimeoutError("the operator does not come to rest")

    async def _idle(self, running: Running, agents: Sequence[str]) -> dict[str, Any]:
        """A stretch in which nobody changes anything."""
        seconds = self.given.minutes * 60.0
        mark, cpu, began = self.at.mark(), cpu_seconds(running.process.pid), time.monotonic()
        peak = 0
        while time.monotonic() - began < seconds:
            await asyncio.sleep(1)
            running.check()
            peak = max(peak, resident_bytes(running.process.pid))
        return {
            "seconds": time.monotonic() - began,
            "writes": audit.by_kind(self.at.written(mark), agents),
            "cpu_share": (cpu_seconds(running.process.pid) - cpu) / (time.monotonic() - began),
            "memory_bytes": peak,
        }

    async def _change(self, numbers: Any) -> float:
        """Seconds from asking to the last arrival."""
        chosen = list(numbers)
        self.given.serial += 1
        change = {"spec": {"routing": {"queue": {"maxWaiting": 100 + self.given.serial}}}}
        arrivals = [
            self.applied.expect(pool_key(number), self.applied.generation(pool_key(number)) + 1)
            for number in chosen
        ]
        began = time.monotonic()
        await gathered(self.at.rest.patch(pool_path(number), change) for number in chosen)
        times = await asyncio.wait_for(asyncio.gather(*arrivals), _APPLIED_SECONDS)
        return max(times) - began


_LIVE: Final = ("leases", "modelpools/status")


async def measure(given: argparse.Namespace) -> dict[str, Any]:
    """Every candidate in turn, on one crowd. What is known after each is written."""
    OUT.parent.mkdir(parents=True, exist_ok=True)
    results: dict[str, Any] = {
        "machine": facts(),
        "pools": given.pools,
        "pods": given.pools * given.pods,
        "scaled": given.scaled,
        "candidates": {},
    }
    with tempfile.TemporaryDirectory(prefix="tidepool-bench-") as temporary:
        folder, applied = Path(temporary), Applied()
        async with doubles() as (sidecars, prometheus), crowd(folder) as at:
            sidecars.taken = applied.taken
            await at.rest.create("/api/v1/namespaces", {"metadata": {"name": "tidepool-system"}})
            watching = asyncio.create_task(_watch(at, applied))
            bench = Bench(given, at, sidecars, prometheus, applied, folder)
            try:
                for name in given.only.split(","):
                    print(f"bench: {name}", file=sys.stderr)
                    results["candidates"][name] = await bench.candidate(name)
                    OUT.write_text(json.dumps(results, indent=1) + "\n")
            finally:
                watching.cancel()
                await asyncio.gather(watching, return_exceptions=True)
    return results


async def _watch(at: Crowd, applied: Applied) -> None:
    async for item in at.rest.watch("/apis/tidepool.dev/v1alpha1/modelpools"):
        applied.told(item)


async def _ended_by_signal(given: argparse.Namespace) -> dict[str, Any]:
    """A SIGTERM ends everything that was started, too."""
    measuring = asyncio.create_task(measure(given))
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, measuring.cancel)
    return await measuring


def main() -> int:
    """Exit status: 0 measured, 1 a target is missed, 2 it cannot run here."""
    parser = argparse.ArgumentParser(prog="bench.operators", description=__doc__)
    parser.add_argument("--pools", type=int, default=500)
    parser.add_argument("--pods", type=int, default=10, help="of each pool")
    parser.add_argument(
        "--scaled", type=int, default=50, help="pools that Tidepool scales, by a Prometheus that moves"
    )
    parser.add_argument("--minutes", type=float, default=2.0, help="of rest")
    parser.add_argument("--changes", type=int, default=100, help="one after the other")
    parser.add_argument("--only", default="tidepool,plain")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if os.geteuid() != 0:
        print("bench: it needs a network of its own, and so root", file=sys.stderr)
        return 2
    if not given.inside:
        fetched()
        in_own_network(sys.argv[1:])
    given.serial = 0
    results = asyncio.run(_ended_by_signal(given))
    print(operators_report.page(results))
    return 0 if all(held for *_, held in operators_report.judge(results)) else 1


if __name__ == "__main__":
    sys.exit(main())
