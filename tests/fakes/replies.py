"""JSON answers as uvicorn frames them."""

import json
from typing import Any

from aiohttp import web


def reply(body: Any, status: int = 200, headers: dict[str, str] | None = None) -> web.Response:
    """A JSON answer as uvicorn frames it."""
    encoded = json.dumps(body, separators=(",", ":")).encode()
    return web.Response(
        body=encoded,
        status=status,
        headers={"content-type": "application/json", "server": "uvicorn"} | (headers or {}),
    )
