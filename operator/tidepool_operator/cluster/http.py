"""Clients of gateways, which speak plain HTTP inside the cluster."""

import ssl
from typing import Final

import httpx

# Else each client reads the certificates of all the world's authorities, for nothing: some 30 ms of a processor.
_NOBODY: Final = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
_LIMITS: Final = httpx.Limits(max_connections=100, max_keepalive_connections=20)


def plain_client(timeout: httpx.Timeout | float, limits: httpx.Limits = _LIMITS) -> httpx.AsyncClient:
    """A client that asks no proxy, and trusts nobody who would speak TLS. `timeout` in seconds."""
    return httpx.AsyncClient(verify=_NOBODY, timeout=timeout, limits=limits, trust_env=False)
