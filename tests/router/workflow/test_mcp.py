"""MCP steps, before a real server of the same library."""

import asyncio
import gzip
import json
import socket
import threading
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from cluster.ports import free_ports
from scripted.upstreams import ScriptedEngine, Seen
from tidepool_router.workflow.breakers import BREAKS_AFTER, Breakers
from tidepool_router.workflow.failures import TIMED_OUT, StepFailed
from tidepool_router.workflow.hosts import Hosts
from tidepool_router.workflow.mcp_tools import MAX_ANSWER_BYTES, McpTools
from workflows.examples import spec_of
from workflows.rooms import Place, asked, echo, loopback, said

Start = Callable[..., Awaitable[Place]]
pytestmark = pytest.mark.traffic


@dataclass
class Wiki:
    """A server with three tools."""

    port: int
    calls: list[Any] = field(default_factory=list)
    keys: list[str] = field(default_factory=list)
    lists: bool = True  # its tools, when it is asked for them

    @property
    def url(self) -> str:
        return f"http://wiki.tools:{self.port}/mcp"

    @property
    def hosts(self) -> Hosts:
        return Hosts([f"wiki.tools:{self.port}"], resolve=loopback, loopback=True)


@pytest.fixture(scope="module")
def wiki() -> Iterator[Wiki]:
    import uvicorn
    from mcp.server.mcpserver import Context, MCPServer
    from mcp.server.transport_security import TransportSecuritySettings

    class Server(MCPServer):
        async def list_tools(self) -> Any:
            if not here.lists:
                raise ConnectionError("the list of tools is elsewhere, and that is away")
            return await super().list_tools()

    listening = socket.create_server(("127.0.0.1", 0))
    here = Wiki(listening.getsockname()[1])
    server = Server("wiki")

    def lookup(term: str, context: Context, count: int = 1) -> dict[str, Any]:  # type: ignore[type-arg]
        here.calls.append((term, count))
        here.keys.append(str((context.headers or {}).get("idempotency-key")))
        return {"title": term.title()}

    def long() -> str:
        return "x" * (MAX_ANSWER_BYTES + 1)

    def broken() -> str:
        raise ValueError("no such page")

    for tool in (lookup, long, broken):
        server.add_tool(tool)
    security = TransportSecuritySettings(enable_dns_rebinding_protection=False)
    app = server.streamable_http_app(transport_security=security)
    program = uvicorn.Server(uvicorn.Config(app, log_config=None, ws="none"))
    thread = threading.Thread(target=program.run, args=([listening],))
    thread.start()
    yield here
    program.should_exit = True
    thread.join(10.0)
    listening.close()


async def test_a_tool_is_called_with_what_the_model_picked(place: Start, wiki: Wiki) -> None:
    async def engine(seen: Seen) -> None:
        pick = (
            '{"step": null, "text": "done"}'
            if "title" in asked(seen)
            else '{"step": "lookup", "t": "sea", "n": 3}'
        )
        await seen.answer(said(pick))

    arguments = {"term": "{{ pick.t }}", "count": "{{ pick.n }}"}
    spec = {
        "steps": [
            {"name": "look", "choose": {"pools": [{"name": "pool"}], "among": ["lookup"]}},
            {"name": "lookup", "mcp": {"server": wiki.url, "tool": "lookup", "arguments": arguments}},
        ],
        "output": "{{ steps.look.turns | tojson }}",
    }
    here = await place(spec, engine=engine, hosts=wiki.hosts)

    answer = await here.chat()

    assert answer.status_code == 200, answer.text
    assert '"json": {"title": "Sea"}' in answer.json()["choices"][0]["message"]["content"]
    assert wiki.calls == [("sea", 3)]  # a number stays a number
    assert wiki.keys[0].startswith("run-")
    assert wiki.keys[0].endswith(".look.1/lookup")


async def test_the_research_example_runs_with_its_tools(place: Start, wiki: Wiki) -> None:
    picks = iter(
        [
            '{"step": "lookup", "term": "moon"}',
            '{"step": "calculate", "expression": "384400/2"}',
            '{"step": null, "text": "enough"}',
        ]
    )

    async def engine(seen: Seen) -> None:
        said_so = asked(seen)
        if said_so.startswith("List up to five"):
            await seen.answer(said('{"queries": ["tides", "the moon"]}'))
        elif said_so.startswith("Question: "):
            await seen.answer(said(next(picks)))
        else:
            await echo(seen)

    spec = spec_of("research-workflow.yaml")
    lookup = next(step for step in spec["steps"] if step["name"] == "lookup")
    lookup["mcp"]["server"] = wiki.url
    here = await place(spec, engine=engine, more_hosts=[f"wiki.tools:{wiki.port}"])

    answer = await here.chat("why are there tides?")

    assert answer.status_code == 200, answer.text
    text = answer.json()["choices"][0]["message"]["content"]
    assert text.startswith("<Answer in five sentences: why are there tides?")
    assert '"title": "Moon"' in text
    assert sorted(seen.line.split()[1] for seen in here.tool.requests) == [
        b"/",
        b"/api?q=the%20moon",
        b"/api?q=tides",
        b"/done",
    ]


@pytest.mark.parametrize(
    ("tool", "again", "told"),
    [
        ("broken", True, "broken failed: Error executing tool"),  # the tool says so: perhaps not the next time
        ("nobody", True, "nobody"),
        ("long", False, "longer than a step may read"),
    ],
)
async def test_a_tool_that_fails_says_why(wiki: Wiki, tool: str, again: bool, told: str) -> None:
    tools = McpTools(wiki.hosts, Breakers())

    with pytest.raises(StepFailed, match=told) as failed:
        await tools.call(wiki.url, tool, {}, "key")

    assert failed.value.again == again


async def test_a_server_that_answers_compressed_is_not_read() -> None:
    async def script(seen: Seen) -> None:
        await seen.answer(gzip.compress(bytes(1 << 20)), extra=b"content-encoding: gzip\r\n")

    async with ScriptedEngine(script) as server:
        tools = McpTools(Hosts([f"wiki.tools:{server.port}"], resolve=loopback, loopback=True), Breakers())
        with pytest.raises(StepFailed, match="answers in 'gzip'") as failed:
            await tools.call(f"http://wiki.tools:{server.port}/mcp", "lookup", {}, "key")

    assert not failed.value.again
    assert server.requests[0].headers[b"accept-encoding"] == b"identity"


async def test_a_server_that_is_not_allowed_is_never_called(wiki: Wiki) -> None:
    calls = len(wiki.calls)
    tools = McpTools(Hosts([], resolve=loopback, loopback=True), Breakers())

    with pytest.raises(StepFailed, match="not among the hosts that workflows may call"):
        await tools.call(wiki.url, "lookup", {"term": "x", "count": 1}, "key")
    assert len(wiki.calls) == calls


async def test_a_server_that_is_down_is_left_alone_kagent_1530() -> None:
    (port,) = free_ports(1)  # where nobody listens
    tools = McpTools(Hosts([f"wiki.tools:{port}"], resolve=loopback, loopback=True), Breakers())
    url = f"http://wiki.tools:{port}/mcp"

    for _ in range(BREAKS_AFTER):
        with pytest.raises(StepFailed, match=r"wiki.tools: ConnectError") as failed:
            await tools.call(url, "lookup", {}, "key")
        assert failed.value.again
    with pytest.raises(StepFailed, match="left alone"):
        await tools.call(url, "lookup", {}, "key")


async def test_a_tool_is_called_once_where_the_list_of_tools_cannot_be_had_kagent_2845(
    wiki: Wiki, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The library asks for the list after the call; the tool has done its work by then."""
    monkeypatch.setattr(wiki, "lists", False)
    calls = len(wiki.calls)
    tools = McpTools(wiki.hosts, Breakers())

    assert (await tools.call(wiki.url, "lookup", {"term": "sea"}, "key"))[1] == {"title": "Sea"}
    assert len(wiki.calls) == calls + 1


async def test_a_server_that_is_down_takes_no_tool_from_the_model_kagent_2845(place: Start) -> None:
    """The model is asked before any tool, and what it may pick stands in the workflow, whatever its servers do."""
    picks = iter(['{"step": "lookup", "t": "x"}', '{"step": "lookup", "t": "y"}', '{"step": null, "text": "no"}'])

    async def engine(seen: Seen) -> None:
        await seen.answer(said(next(picks)))

    (port,) = free_ports(1)  # where nobody listens
    mcp = {"server": f"http://wiki.tools:{port}/mcp", "tool": "lookup", "arguments": {"term": "{{ pick.t }}"}}
    spec = {
        "steps": [
            {"name": "look", "choose": {"pools": [{"name": "pool"}], "among": ["lookup"]}},
            {"name": "lookup", "mcp": mcp, "dependency": "Soft"},
        ],
        "output": "{{ steps.look.text }}",
    }
    here = await place(spec, engine=engine, more_hosts=[f"wiki.tools:{port}"])

    answer = await here.chat()

    assert answer.json()["choices"][0]["message"]["content"] == "no"
    questions = [json.loads(seen.body) for seen in here.engine.requests]
    assert len(questions) == 3
    shapes = [question["response_format"]["json_schema"]["schema"]["anyOf"] for question in questions]
    assert [shape["properties"]["step"] for shape in shapes[0]] == [{"enum": ["lookup"]}, {"type": "null"}]
    assert shapes[0] == shapes[1] == shapes[2]
    assert asked(here.engine.requests[2]).startswith("lookup Failed: wiki.tools: ConnectError")


@pytest.mark.parametrize(("why", "calls"), [(TIMED_OUT, BREAKS_AFTER), (None, BREAKS_AFTER + 1)])
async def test_a_server_that_hangs_is_left_alone_and_one_that_nobody_waits_for_is_not(
    why: str | None, calls: int
) -> None:
    async def hang(seen: Seen) -> None:
        await seen.closed.wait()

    async with ScriptedEngine(hang) as server:
        tools = McpTools(Hosts([f"wiki.tools:{server.port}"], resolve=loopback, loopback=True), Breakers())
        for _ in range(BREAKS_AFTER + 1):
            call = asyncio.ensure_future(tools.call(f"http://wiki.tools:{server.port}/mcp", "lookup", {}, "key"))
            arrived = asyncio.ensure_future(server.arrived.get())
            await asyncio.wait((call, arrived), return_when=asyncio.FIRST_COMPLETED)
            arrived.cancel()
            call.cancel(why)
            with pytest.raises((asyncio.CancelledError, StepFailed)):
                await call

    assert len(server.requests) == calls


async def test_a_call_that_nobody_waits_for_ends(wiki: Wiki) -> None:
    asking = asyncio.Event()

    async def resolve(host: str, port: int) -> list[str]:
        asking.set()
        return await loopback(host, port)

    tools = McpTools(Hosts([f"wiki.tools:{wiki.port}"], resolve=resolve, loopback=True), Breakers())
    call = asyncio.ensure_future(tools.call(wiki.url, "lookup", {"term": "x", "count": 1}, "key"))
    await asking.wait()

    call.cancel()

    with pytest.raises(asyncio.CancelledError):
        await call
