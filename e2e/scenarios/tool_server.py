"""The tools of examples/research-workflow.yaml as one small server: search, wiki (MCP), calculator, hook.

Runs in a pod, with the router's image, which has the protocol's library; imports nothing of the project:
`python tool_server.py PORT`. It remembers what was called, with the idempotency key of each call: GET /calls.
"""

import asyncio
import sys
from typing import Any

import uvicorn
from mcp.server.mcpserver import Context, MCPServer
from mcp.server.transport_security import TransportSecuritySettings
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse
from starlette.routing import Route

# Long enough that searches overlap, and that a gateway can be killed among them.
SEARCH_SECONDS = 1.0
MOST_CALLS = 10_000

_calls: list[dict[str, Any]] = []
_searching = [0, 0]  # now, and the most at a time


def _remember(tool: str, key: str | None, what: str) -> None:
    if len(_calls) < MOST_CALLS:
        _calls.append({"tool": tool, "key": key or "", "what": what[:200]})


async def _search(request: Request) -> JSONResponse:
    query = request.query_params.get("q", "")
    _remember("search", request.headers.get("idempotency-key"), query)
    _searching[0] += 1
    _searching[1] = max(_searching)
    try:
        await asyncio.sleep(SEARCH_SECONDS)
    finally:
        _searching[0] -= 1
    return JSONResponse({"query": query, "found": ["The Moon pulls at the sea.", "So does the Sun."]})


async def _calculate(request: Request) -> PlainTextResponse:
    expression = (await request.body()).decode(errors="replace")
    _remember("calculate", request.headers.get("idempotency-key"), expression)
    return PlainTextResponse("42")


async def _done(request: Request) -> PlainTextResponse:
    _remember("notify", request.headers.get("idempotency-key"), "")
    return PlainTextResponse("thanks")


async def _told(_: Request) -> JSONResponse:
    return JSONResponse({"calls": _calls, "most_searches_at_a_time": _searching[1]})


def lookup(term: Any, context: Context) -> dict[str, str]:  # type: ignore[type-arg]
    """What the wiki says of a term."""
    _remember("lookup", (context.headers or {}).get("idempotency-key"), str(term))
    return {"term": str(term)[:100], "says": "It rises and falls twice a day."}


def main(port: int) -> None:
    """Serve until ended."""
    server = MCPServer("wiki")
    server.add_tool(lookup)
    security = TransportSecuritySettings(enable_dns_rebinding_protection=False)
    app = server.streamable_http_app(transport_security=security)
    app.router.routes += [
        Route("/api", _search, methods=["GET"]),
        Route("/done", _done, methods=["POST"]),
        Route("/calls", _told, methods=["GET"]),
        Route("/", _calculate, methods=["POST"]),
    ]
    uvicorn.run(app, host="0.0.0.0", port=port, log_level="warning", ws="none")


if __name__ == "__main__":
    main(int(sys.argv[1]))
