"""A gateway that runs workflows, a scripted engine behind it, and a scripted tool beside it."""

import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any

import httpx

from scripted.plain import plain
from scripted.routers import RunningRouter, StartRouter
from scripted.upstreams import ScriptedEngine, Seen
from tidepool_api.routing import FleetPool, FleetWorkflow
from tidepool_router.proxy.gateway import Gateway
from tidepool_router.workflow.hosts import Hosts
from tidepool_router.workflow.start import WorkflowRooms

NAME = "default/research"


@dataclass
class Place:
    """What runs."""

    engine: ScriptedEngine
    tool: ScriptedEngine
    router: RunningRouter
    rooms: WorkflowRooms
    client: httpx.AsyncClient

    async def chat(self, text: str = "why", **more: Any) -> httpx.Response:
        body = {"model": "workflow/research", "messages": [{"role": "user", "content": text}], **more}
        return await self.client.post("/v1/chat/completions", json=body)


def said(text: str) -> bytes:
    """A whole chat completion of seven tokens."""
    message = {"role": "assistant", "content": text}
    usage = {"prompt_tokens": 5, "completion_tokens": 2}
    return json.dumps({"choices": [{"message": message}], "usage": usage}).encode()


def asked(seen: Seen) -> str:
    """The last message of a request."""
    return str(json.loads(seen.body)["messages"][-1]["content"])


def llm(name: str, content: str, **more: Any) -> dict[str, Any]:
    """A step that asks a model."""
    return {
        "name": name,
        "llm": {"pools": [{"name": "pool"}], "messages": [{"role": "user", "content": content}]},
        **more,
    }


def http(name: str, url: str, **more: Any) -> dict[str, Any]:
    """A step that calls a tool."""
    return {"name": name, "http": {"url": url}, **more}


def delta(text: str) -> bytes:
    """One event of a stream."""
    return b"data: " + json.dumps({"choices": [{"index": 0, "delta": {"content": text}}]}).encode() + b"\n\n"


USAGE = b'data: {"choices":[],"usage":{"prompt_tokens":5,"completion_tokens":2}}\n\n'
END = b"data: [DONE]\n\n"


async def echo(seen: Seen) -> None:
    """An engine that says what it was asked, whole or in one event."""
    text = f"<{asked(seen)}>"
    if not json.loads(seen.body).get("stream"):
        await seen.answer(said(text))
        return
    await seen.begin_stream()
    for data in (delta(text), USAGE, END, b""):
        await seen.chunk(data)


async def found(seen: Seen) -> None:
    """A tool that tells its path."""
    path = seen.line.split(b" ")[1].decode()
    await seen.answer(json.dumps({"path": path}).encode())


async def start_rooms(
    stack: AsyncExitStack,
    gateway: StartRouter,
    spec: dict[str, Any],
    *,
    engine: Callable[[Seen], Awaitable[None]] = echo,
    tool: Callable[[Seen], Awaitable[None]] = found,
    store: str | None = None,
    hosts: Hosts | None = None,
    lease_seconds: float = 15.0,
    place: Place | None = None,
    others: Mapping[str, dict[str, Any]] | None = None,
    more_hosts: Sequence[str] = (),
    pools: Sequence[str] = (),
) -> Place:
    """A place; of another one, where it is given, with the same engine and tool: a second gateway.

    `others`: more workflows, by their names in the namespace. `pools`: more pools before the same engine, whose
    models have their names.
    """
    engines = place.engine if place else await stack.enter_async_context(ScriptedEngine(engine))
    tools = place.tool if place else await stack.enter_async_context(ScriptedEngine(tool))
    # A bare engine tells of no load.
    more = tuple(FleetPool(name=f"default/{name}", models=(name,), endpoints=(engines.url,)) for name in pools)
    router = await gateway(engines.url, known=0, others=more)
    fleet, services = router.state, router.services
    inner = Gateway(services, fleet, "0")
    allowed = hosts or Hosts([f"tool:{tools.port}", *more_hosts], resolve=loopback, loopback=True)
    rooms = WorkflowRooms(services, fleet, inner, store, allowed, lease_seconds)
    rooms.start()
    stack.push_async_callback(rooms.close)
    specs = {NAME: spec, **{f"default/{name}": other for name, other in (others or {}).items()}}
    text = json.dumps(specs).replace("http://tool/", f"http://tool:{tools.port}/")
    fleets = [FleetWorkflow(name=name, spec=one) for name, one in json.loads(text).items()]
    rooms.workflows.apply(fleets, list(fleet.pools))
    router.server.application.workflows = rooms  # type: ignore[attr-defined]
    client = plain(f"http://127.0.0.1:{router.port}", timeout=20.0, trust_env=False)
    await stack.enter_async_context(client)
    return Place(engines, tools, router, rooms, client)


async def loopback(host: str, port: int) -> list[str]:
    del host, port
    return ["127.0.0.1"]
