"""JSON answers as uvicorn frames them, and the cards of /v1/models."""

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


def model_card(
    name: str, root: str, created: int, max_model_len: int, parent: str | None = None
) -> dict[str, Any]:
    """One entry of /v1/models."""
    return {
        "id": name,
        "object": "model",
        "created": created,
        "owned_by": "vllm",
        "root": root,
        "parent": parent,
        "max_model_len": max_model_len,
        "permission": [_permission(created)],
    }


def _permission(created: int) -> dict[str, Any]:
    allowed = dict.fromkeys(("allow_sampling", "allow_logprobs", "allow_view"), True)
    refused = dict.fromkeys(
        ("allow_create_engine", "allow_search_indices", "allow_fine_tuning", "is_blocking"), False
    )
    head = {"id": "modelperm-double", "object": "model_permission", "created": created}
    return head | allowed | refused | {"organization": "*", "group": None}
