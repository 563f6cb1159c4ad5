"""MCP steps: one tool of a server, over streamable HTTP, by the protocol's own client library.

The library speaks; where its requests go is decided here, as for http steps: allowed hosts alone, an address that
was judged, and a breaker for each host. It is loaded with the first call.
"""

import asyncio
import json
import logging
from collections.abc import Mapping, Sequence
from contextlib import suppress
from time import monotonic
from typing import TYPE_CHECKING, Any, Final

from tidepool_router.workflow.breakers import Breakers
from tidepool_router.workflow.core.texts import data_of
from tidepool_router.workflow.failures import StepFailed, timed_out
from tidepool_router.workflow.hosts import Hosts, NotAllowed, Unresolved

if TYPE_CHECKING:
    from mcp import ClientSession
    from mcp.types import CallToolResult

    from tidepool_router.workflow.mcp_wire import Pinned

MAX_ANSWER_BYTES: Final = 1 << 20
# Of JSON-RPC: what would be answered the same again.
_NOT_AGAIN: Final = frozenset((-32600, -32601, -32602))
# The library writes down what it is sent, and that holds prompts.
_QUIET: Final = ("mcp", "httpx2", "httpcore2")


class McpTools:
    """For all runs of a process."""

    def __init__(self, hosts: Hosts, breakers: Breakers) -> None:
        self._hosts = hosts
        self._breakers = breakers
        for name in _QUIET:
            logging.getLogger(name).setLevel(logging.CRITICAL)

    async def call(
        self, server: str, tool: str, arguments: Mapping[str, Any], key: str, more_hosts: Sequence[str] = ()
    ) -> tuple[str, Any]:
        """Text of the tool's answer, and its structure where it has one. `key`: of idempotency, as in every try.

        Raises StepFailed.
        """
        from tidepool_router.workflow.mcp_wire import Pinned

        try:
            _, _, port = await self._hosts.pinned(server, more_hosts)
        except NotAllowed as error:
            raise StepFailed(str(error), again=isinstance(error, Unresolved)) from error
        wire = Pinned(self._hosts, more_hosts, MAX_ANSWER_BYTES)
        place = f"{wire.host_of(server)}:{port}"
        self._breakers.require(place, monotonic())
        try:
            found = await self._called(wire, server, tool, arguments, key)
        except StepFailed as failure:
            self._breakers.count(place, monotonic(), failed=failure.again and wire.broken)
            raise
        except asyncio.CancelledError as cut:
            if timed_out(cut):
                self._breakers.count(place, monotonic(), failed=True)
            raise
        self._breakers.count(place, monotonic(), failed=False)
        return found

    async def _called(
        self, wire: "Pinned", server: str, tool: str, arguments: Mapping[str, Any], key: str
    ) -> tuple[str, Any]:
        from mcp import Client, MCPError
        from mcp.client.streamable_http import streamable_http_client

        try:
            async with (
                wire.client({"idempotency-key": key, "user-agent": "tidepool"}) as client,
                Client(streamable_http_client(server, http_client=client), cache=None) as session,
            ):
                _let_lists_fail(session.session)
                result = await session.call_tool(tool, dict(arguments))
        except* Exception as group:
            if wire.failure is not None:
                raise wire.failure from group
            first = _first(group)
            again = not isinstance(first, MCPError) or first.code not in _NOT_AGAIN
            said = first.message if isinstance(first, MCPError) else f"{type(first).__name__} {first}"
            raise StepFailed(f"{tool}: {said[:300]}".rstrip(), again=again) from group
        text = "\n".join(block.text for block in result.content if block.type == "text")
        if result.is_error:
            raise StepFailed(f"{tool} failed: {text[:300]}".rstrip(": "), again=True)
        data = result.structured_content
        if data is None:
            data = data_of(text)
        return text or ("" if data is None else json.dumps(data, ensure_ascii=False)), data


def _let_lists_fail(session: "ClientSession") -> None:
    """Have an answer count where the server cannot list its tools.

    The library asks for the list after a call, for the schema of the answer. The tool has done its work by then,
    and would do it again in the next try.
    """
    from mcp import MCPError

    check = session.validate_tool_result

    async def checked(name: str, result: "CallToolResult") -> None:
        with suppress(MCPError, ValueError):
            await check(name, result)

    session.validate_tool_result = checked  # type: ignore[method-assign]


def _first(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
