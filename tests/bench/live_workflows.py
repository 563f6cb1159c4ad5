"""Workflows live under three policies: the router's own parts before simulated engines, beside the simulator.

Runs, their calls and all luck are those of tests/sim/agents; what decides and carries them is the product: its
engine of workflows, its gateway, a sidecar before each engine. Engines are bench/native/go/engine: lengths are
divided by four and times per token multiplied by four, and all of it runs faster than modelled. The
policies that it is held against have a gate of their own before the gateway, as in the simulator.
"""

import argparse
import asyncio
import heapq
import json
import sys
import tempfile
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from contextvars import ContextVar
from dataclasses import asdict, dataclass, field, replace
from itertools import count
from pathlib import Path
from time import monotonic
from typing import Any

from scripted.routers import start_sidecar, until
from sim.agents.policies import Ours, RoundRobin, ShortestFirst
from sim.agents.report import TWO, figures
from sim.agents.shapes import BLOCK_TOKENS, DEADLINES, Instance, Stage, arrivals, plans
from sim.agents.world import Done, PoolSpec, World
from tidepool_api.routing import Fleet, FleetPool, FleetWorkflow, SidecarSettings
from tidepool_router.fleet.gateway import GatewayFleet
from tidepool_router.proxy.gateway import Gateway
from tidepool_router.proxy.limits import Limits
from tidepool_router.proxy.services import Services
from tidepool_router.workflow import steps
from tidepool_router.workflow.core.profiles import OUTPUT_TOKENS, Profiles
from tidepool_router.workflow.core.states import Output
from tidepool_router.workflow.driver import Driver
from tidepool_router.workflow.inprocess import InProcess
from tidepool_router.workflow.manager import Called, Workflows
from tidepool_router.workflow.models import Models
from tidepool_router.workflow.rendering import Renderer
from tidepool_router.workflow.sql_journal import MEMORY, SqlJournal
from tidepool_router.workflow.steps import Performer

from . import workflow_report
from .processes import free_port, process, wait_for
from .programs import go_program
from .workflow_report import told

RESULTS = Path("build/bench/workflows-live.json")
POLICIES = (RoundRobin.name, ShortestFirst.name, Ours.name)
SEED = 11
RATE = 0.75  # runs a modelled second: more than first come, first served keeps up with
_COARSE = 4
SPEED = 8.0  # faster than modelled; a busy machine wants less
_STEP_TOKENS = 2048 // _COARSE
_BYTES_OF_TOKEN = 4  # the engine's
_BLOCK_BYTES = BLOCK_TOKENS // _COARSE * _BYTES_OF_TOKEN
# Engines of the bench know no context: the same ones in the simulator.
POOLS = tuple(replace(spec, step_time=replace(spec.step_time, per_context_token_seconds=0.0)) for spec in TWO)


@dataclass(slots=True)
class Life:
    """One run: what it is, and what came of it."""

    instance: Instance
    stages: int = 0
    output_tokens: int = 0
    quality: float = 0.0


@dataclass(frozen=True, slots=True)
class Asked:
    """The call that a request of this task is for."""

    life: Life
    stage: Stage
    workflow: str
    step: str


_ASKED: ContextVar[Asked] = ContextVar("asked")


class Gate:
    """So many at once; who goes next is told by their keys."""

    def __init__(self, slots: int) -> None:
        self._free = slots
        self._numbers = count()
        self._waiting: list[tuple[float, int, asyncio.Future[None]]] = []

    @asynccontextmanager
    async def place(self, key: float) -> AsyncIterator[None]:
        """A place, when it is this one's turn."""
        if self._free:
            self._free -= 1
        else:
            turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            heapq.heappush(self._waiting, (key, next(self._numbers), turn))
            await turn
        try:
            yield
        finally:
            if self._waiting:
                heapq.heappop(self._waiting)[2].set_result(None)
            else:
                self._free += 1


class Client:
    """InProcess, with the answer's length in each request; counts what answered."""

    def __init__(self, inner: InProcess, policy: str, profiles: Profiles) -> None:
        self._inner = inner
        self._policy = policy
        self._profiles = profiles
        self._gates = {spec.name: Gate(spec.slots) for spec in POOLS}
        self._qualities = {spec.name: spec.quality for spec in POOLS}

    async def post(self, path: str, headers: Mapping[str, str], body: bytes, on_bytes: Any = None) -> Any:
        """InProcess."""
        asked = _ASKED.get()
        document = json.loads(body)
        pool = str(document["model"])
        document["max_tokens"] = max(1, asked.stage.output_tokens // _COARSE)
        content = json.dumps(document).encode()
        if self._policy == Ours.name:
            answer = await self._inner.post(path, headers, content, on_bytes)
        else:
            async with self._gates[pool].place(self._key(asked, pool)):
                answer = await self._inner.post(path, headers, content, on_bytes)
        if answer[0] == 200:
            asked.life.stages += 1
            asked.life.output_tokens += asked.stage.output_tokens
            asked.life.quality += self._qualities[pool]
        return answer

    def _key(self, asked: Asked, pool: str) -> float:
        if self._policy == RoundRobin.name:
            return 0.0
        output = self._profiles.call(asked.workflow, asked.step, pool).output.or_else(OUTPUT_TOKENS / _COARSE)
        return asked.stage.prompt_tokens / _COARSE + output


class InTurn(Models):
    """Models take turns."""

    def __init__(self, *more: Any) -> None:
        super().__init__(*more)
        self._turn = 0

    def _ranked(self, step: str, llm: Any, messages: Any, asking: Any) -> Sequence[Any]:
        self._turn += 1
        return [llm.pools[self._turn % len(llm.pools)]]


@dataclass(frozen=True, slots=True)
class Live(Performer):
    """Asks models what the instance of the run says, and calls no tool but waits as long."""

    lives: dict[str, Life] = field(default_factory=dict)
    speed: float = SPEED

    async def _llm(self, step: Any, llm: Any, call: Any, values: Any, about: Any, live: Any) -> steps.Done:
        life = self.lives[about.run]
        done = await self._asked(life, step, llm, call, about, live)
        data = list(range(life.instance.items)) if step.name == "plan" else None
        return replace(done, output=Output("x", data, done.output.tokens))

    async def _pick(self, step: Any, choose: Any, call: Any, values: Any, about: Any) -> steps.Done:
        life = self.lives[about.run]
        llm = steps.Llm.model_construct(pools=choose.pools, messages=(), response_format=None)
        done = await self._asked(life, step, llm, call, about, None)
        pick = {"step": "tool"} if call.turn <= life.instance.turns else {"step": None, "text": "x"}
        return replace(done, output=Output("x", pick, done.output.tokens))

    async def _http(self, http: Any, call: Any, values: Any, about: Any) -> steps.Done:
        await asyncio.sleep(self.lives[about.run].instance.tool_seconds(call.key) / self.speed)
        return steps.Done(Output("x"))

    async def warm(self, step: Any, key: Any, values: Any, about: Any, seconds: float) -> tuple[int, int]:
        """Performer: prompts here are made when they are asked."""
        return 0, 0

    async def _asked(self, life: Life, step: Any, llm: Any, call: Any, about: Any, live: Any) -> steps.Done:
        stage = life.instance.stage(call.key, call.turn)
        _ASKED.set(Asked(life, stage, about.standing.workflow, step.name))
        message = {"role": "user", "content": _text(stage, f"{about.run} {call.key}")}
        return await self._ask(step, llm, [message], call, about, live)


def _text(stage: Stage, own: str) -> str:
    """A prompt of its tokens, in whose beginning stages of the same names agree."""
    size = max(1, stage.prompt_tokens // _COARSE) * _BYTES_OF_TOKEN
    parts = [f"{name:x}".ljust(_BLOCK_BYTES, ".") for name in stage.names]
    return "".join([*parts, f"{own} ".ljust(size, "-")])[: max(size, len(parts) * _BLOCK_BYTES)]


def _engine(spec: PoolSpec, port: int, speed: float) -> list[str]:
    time = spec.step_time

    def each(seconds: float) -> str:
        return f"{seconds * _COARSE * 1e9:.0f}ns"

    options = {
        "ports": port,
        "model": spec.name,
        "max-num-seqs": spec.slots,
        "max-num-batched-tokens": _STEP_TOKENS,
        "block-size": BLOCK_TOKENS // _COARSE,
        "num-gpu-blocks": spec.kv_tokens // BLOCK_TOKENS,
        "base": each(time.base_seconds),
        "decode": each(time.per_sequence_seconds),
        "prefill": each(time.per_prefill_token_seconds),
        "scale": 1.0 / speed,
    }
    return [str(go_program("engine")), *(f"-{name}={value}" for name, value in options.items())]


class Stand:
    """Engines, sidecars, a gateway and its workflows, for one policy."""

    def __init__(self, policy: str, speed: float) -> None:
        self.policy = policy
        self.speed = speed
        self.lives: dict[str, Life] = {}
        self.done: list[Done] = []

    async def measure(self, runs: Sequence[tuple[float, Instance]]) -> list[Done]:
        """All runs, to their ends."""
        async with AsyncExitStack() as stack:
            workflows = await self._begin(stack)
            began = monotonic()
            tasks = []
            for at, instance in runs:
                await asyncio.sleep(max(0.0, began + at / self.speed - monotonic()))
                tasks.append(asyncio.create_task(self._run(workflows, instance)))
            await asyncio.gather(*tasks)
        return self.done

    async def _run(self, workflows: Workflows, instance: Instance) -> None:
        life = Life(instance)
        name = f"run-{instance.number}"
        self.lives[name] = life
        began = monotonic()
        driver: Driver = await workflows.begin(
            workflows.find(instance.shape), Called({}, background=True, run=name), {}, None
        )
        # Late runs are counted, not ended: every policy does the same work.
        driver.run.deadline = began + DEADLINES[instance.shape] / self.speed
        await driver.over()
        assert driver.summary is not None, name
        assert driver.summary.verdict == "Succeeded", driver.summary
        seconds = (monotonic() - began) * self.speed
        late = seconds > DEADLINES[instance.shape]
        self.done.append(Done(instance.shape, seconds, late, life.quality, life.stages, life.output_tokens))

    async def _begin(self, stack: AsyncExitStack) -> Workflows:
        urls = await self._sidecars(stack)
        limits = Limits()
        services = Services(limits)
        services.pools.start()
        stack.push_async_callback(services.close)
        fleet = GatewayFleet(name="bench", boot="bench")
        await fleet.start()
        stack.push_async_callback(fleet.close)
        pools = (FleetPool(name=f"default/{name}", models=(name,), endpoints=(url,)) for name, url in urls.items())
        fleet.apply(Fleet(pools=tuple(pools)))
        await until(lambda: all(pod.report for pool in fleet.pools.values() for pod in pool.pods.values()))
        inner = InProcess(Gateway(services, fleet, "0"), limits)
        inner.start()
        stack.push_async_callback(inner.close)
        profiles = Profiles()
        client: Any = Client(inner, self.policy, profiles)
        models = (Models if self.policy == Ours.name else InTurn)(client, fleet, profiles)
        nobody: Any = None
        performer = Live(models, nobody, Renderer(), nobody, profiles, lives=self.lives, speed=self.speed)
        workflows = Workflows(performer, SqlJournal(MEMORY), "bench")
        qualities = tuple((spec.name, spec.quality) for spec in POOLS)
        found = plans(qualities)
        workflows.apply(
            [
                FleetWorkflow(
                    name=f"default/{name}",
                    spec={
                        **plan.spec.model_dump(mode="json", by_alias=True, exclude_none=True),
                        "deadline": "3600s",
                    },
                )
                for name, plan in found.items()
            ],
            list(fleet.pools),
        )
        workflows.start()
        stack.push_async_callback(workflows.close)
        return workflows

    async def _sidecars(self, stack: AsyncExitStack) -> dict[str, str]:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tidepool-bench-")))
        engines = stack.enter_context(ExitStack())
        urls = {}
        for spec in POOLS:
            port = free_port(1)
            log = folder / f"{spec.name}.log"
            engines.enter_context(process(_engine(spec, port, self.speed), None, log))
            await asyncio.to_thread(wait_for, f"http://127.0.0.1:{port}/health", None, 20.0, log)
            settings = SidecarSettings(pool=spec.name)
            sidecar = await start_sidecar(
                f"http://127.0.0.1:{port}",
                settings=settings,
                pod=spec.name,
                first_byte_seconds=600.0,
                chunk_seconds=600.0,
            )
            stack.push_async_callback(sidecar.stop)
            urls[spec.name] = f"http://127.0.0.1:{sidecar.port}"
        return urls


SIMULATED = {policy.name: policy for policy in (RoundRobin, ShortestFirst, Ours)}


def measure(runs: int, seed: int = SEED, speed: float = SPEED) -> dict[str, Any]:
    """Figures of each policy, live and simulated, on the same runs."""
    given = arrivals(seed, runs, RATE)
    found: dict[str, Any] = {"runs": runs, "seed": seed, "rate": RATE, "speed": speed, "live": {}, "simulated": {}}
    for policy in POLICIES:
        live = figures(asyncio.run(Stand(policy, speed).measure(given)))
        simulated = figures(World(POOLS, SIMULATED[policy]()).simulate(given))
        found["live"][policy], found["simulated"][policy] = asdict(live), asdict(simulated)
        print(
            f"{policy}: live {told(found['live'][policy])}; simulated {told(found['simulated'][policy])}",
            flush=True,
        )
    return found


def main() -> int:
    """Print them, and keep them under build/bench."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=150)
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--speed", type=float, default=SPEED, help="faster than modelled (default %(default)s)")
    given = parser.parse_args()
    found = measure(given.runs, given.seed, given.speed)
    print(f"\n{workflow_report.live(found)}")
    RESULTS.parent.mkdir(parents=True, exist_ok=True)
    RESULTS.write_text(json.dumps(found, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
