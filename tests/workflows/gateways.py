"""Gateways as whole programs that share a store, an engine before which they die, and what it was asked."""

import asyncio
import json
import signal
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx

from fakes.postgres import PostgresServer
from scripted.programs import Program, run_program
from scripted.upstreams import ScriptedEngine, Seen
from tidepool_api.routing import Fleet, FleetPool, FleetWorkflow
from workflows.rooms import echo

RUNS = "/v1/workflows/research/runs"
LEASE_SECONDS = 5.0  # a busy machine holds a program up for seconds
_PATIENCE_SECONDS = 60.0  # for programs on a busy machine


def _llm(name: str, content: str, **more: Any) -> dict[str, Any]:
    ask = {"pools": [{"name": "pool"}], "messages": [{"role": "user", "content": content}]}
    return {"name": name, "llm": ask, **more}


SPEC = {
    "steps": [
        _llm("plan", "plan {{ input.q }}"),
        _llm("search", "{{ item }} {{ steps.plan.text }}", depends="plan", withItems=["a", "b"]),
        _llm("write", "{{ steps.search.text }}", depends="search"),
    ]
}
UNITS = ("plan", "search.0", "search.1", "write")


def answer(question: str) -> str:
    """What a run comes to, however often its gateway died."""
    plan = f"<plan {question}>"
    return f"<<a {plan}>\n<b {plan}>>"


async def until(condition: Callable[[], Awaitable[Any]], what: str) -> Any:
    """Wait for what another process does."""
    try:
        async with asyncio.timeout(_PATIENCE_SECONDS):
            while not (found := await condition()):  # noqa: ASYNC110 (another process has no event for it)
                await asyncio.sleep(0.02)
            return found
    except TimeoutError:
        raise AssertionError(f"it did not come to it: {what}") from None


@dataclass
class Calls:
    """The engine's script. `on` has what is done when a unit is asked for, before it is answered."""

    counts: Counter[str] = field(default_factory=Counter)
    on: dict[str, Callable[[Seen], Awaitable[bool]]] = field(default_factory=dict)

    async def __call__(self, seen: Seen) -> None:
        unit = seen.headers[b"x-request-id"].decode().rpartition(".")[0]
        self.counts[unit] += 1
        act = self.on.pop(unit.partition(".")[2], None)
        if act is None or await act(seen):
            await echo(seen)


class Gateways:
    """Programs by their names; one that was killed is replaced on demand."""

    def __init__(self, stack: AsyncExitStack, server: PostgresServer, folder: Path) -> None:
        self.calls = Calls()
        self.programs: dict[str, Program] = {}
        self.client = httpx.AsyncClient(timeout=20.0, trust_env=False)
        self._server = server
        self._stack = stack
        self._folder = folder
        self._database = ""
        self._fleet = folder / "fleet.json"
        self._store = folder / "store"

    async def begin(self, *names: str) -> None:
        """Start."""
        await self._stack.enter_async_context(self.client)
        engine = await self._stack.enter_async_context(ScriptedEngine(self.calls))
        pool = FleetPool(name="default/pool", models=("tiny",), endpoints=(engine.url,))
        workflow = FleetWorkflow(name="default/research", spec=SPEC)
        self._fleet.write_text(Fleet(pools=(pool,), workflows=(workflow,)).model_dump_json(by_alias=True))
        url = await asyncio.to_thread(self._server.database)
        self._store.write_text(url)
        self._database = urlsplit(url).path.lstrip("/")
        await asyncio.gather(*(self.start(name) for name in names))

    async def start(self, name: str) -> None:
        """Start one."""
        arguments = ("--workflow-store-file", str(self._store), "--workflow-lease-seconds", f"{LEASE_SECONDS:g}")
        self.programs[name] = await self._stack.enter_async_context(
            run_program(
                "gateway", "--fleet", str(self._fleet), *arguments,
                ready="/readyz", environment={"POD_NAME": name}, within_seconds=_PATIENCE_SECONDS,
            )
        )  # fmt: skip

    async def query(self, statement: str) -> list[Any]:
        """Ask the store itself."""
        return await asyncio.to_thread(self._server.query, statement, self._database)

    async def owner(self, run: str) -> str:
        """Name of the gateway that has a run."""
        found = await self.query(f"select owner from workflow_runs where id = '{run}'")
        return str(found[0][0]).partition("/")[0]

    async def committed(self, run: str) -> set[str]:
        """Units of a run that have ended for good, as the engine's requests name them."""
        rows = await self.query(f"select step, item from workflow_endings where run = '{run}'")
        return {f"{run}.{step}" if item < 0 else f"{run}.{step}.{item}" for step, item in rows}

    async def kill(self, name: str) -> Program:
        """As a crash of its machine."""
        program = self.programs.pop(name)
        program.process.send_signal(signal.SIGKILL)
        await program.process.wait()
        return program

    def url(self) -> str:
        """Of a gateway that lives."""
        return next(iter(self.programs.values())).url()

    async def post(self, question: str, key: str | None = None) -> str:
        """Begin a run; its id."""
        headers = {} if key is None else {"idempotency-key": key}
        begun = await self.client.post(self.url() + RUNS, json={"input": {"q": question}}, headers=headers)
        assert begun.status_code == 202, begun.text
        return str(begun.json()["id"])

    async def state(self, run: str) -> dict[str, Any]:
        """A run, as any gateway tells it."""
        found = await self.client.get(f"{self.url()}{RUNS}/{run}")
        assert found.status_code == 200, found.text
        return dict(json.loads(found.text))

    async def ended(self, run: str) -> dict[str, Any]:
        """A run, when it is over."""

        async def over() -> dict[str, Any] | None:
            found = await self.state(run)
            return None if found["ended"] is None else found

        return dict(await until(over, f"{run} ends"))


@asynccontextmanager
async def gateways(server: PostgresServer, folder: Path, *names: str) -> AsyncIterator[Gateways]:
    """Programs of these names."""
    async with AsyncExitStack() as stack:
        found = Gateways(stack, server, folder)
        await found.begin(*names)
        yield found
