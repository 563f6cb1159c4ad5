"""Clients of plain HTTP, which need no certificates; those of all the world's authorities take long to read."""

import ssl
from typing import Any, Final

import httpx

NOBODY: Final = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


def plain(url: str = "", **more: Any) -> httpx.AsyncClient:
    """A client that trusts nobody who would speak TLS."""
    return httpx.AsyncClient(base_url=url, verify=NOBODY, **more)
