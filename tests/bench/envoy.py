"""Envoy's configuration: one listener, one cluster, no bound that the benchmark could meet."""

from collections.abc import Sequence
from typing import Any
from urllib.parse import urlsplit

_EXTENSIONS = "type.googleapis.com/envoy.extensions.filters"
_NO_BOUND = 100_000


def config(policy: str, port: int, urls: Sequence[str]) -> dict[str, Any]:
    """A bootstrap document. `policy` as Envoy's lb_policy names it; timeouts that would cut a stream are off."""
    route = {"match": {"prefix": "/"}, "route": {"cluster": "engines", "timeout": "0s"}}
    manager = {
        "@type": f"{_EXTENSIONS}.network.http_connection_manager.v3.HttpConnectionManager",
        "stat_prefix": "bench",
        "stream_idle_timeout": "0s",
        "route_config": {"virtual_hosts": [{"name": "all", "domains": ["*"], "routes": [route]}]},
        "http_filters": [
            {
                "name": "envoy.filters.http.router",
                "typed_config": {"@type": f"{_EXTENSIONS}.http.router.v3.Router"},
            }
        ],
    }
    chain = {"filters": [{"name": "envoy.filters.network.http_connection_manager", "typed_config": manager}]}
    bounds = dict.fromkeys(("max_connections", "max_pending_requests", "max_requests"), _NO_BOUND)
    cluster = {
        "name": "engines",
        "type": "STATIC",
        "connect_timeout": "2s",
        "lb_policy": policy,
        "circuit_breakers": {"thresholds": [bounds]},
        "load_assignment": {"cluster_name": "engines", "endpoints": [{"lb_endpoints": [_place(u) for u in urls]}]},
    }
    listener = {"name": "front", "address": _address("127.0.0.1", port), "filter_chains": [chain]}
    return {"static_resources": {"listeners": [listener], "clusters": [cluster]}}


def _place(url: str) -> dict[str, Any]:
    parts = urlsplit(url)
    return {"endpoint": {"address": _address(str(parts.hostname), int(parts.port or 80))}}


def _address(host: str, port: int) -> dict[str, Any]:
    return {"socket_address": {"address": host, "port_value": port}}
