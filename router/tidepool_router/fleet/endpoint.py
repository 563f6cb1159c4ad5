"""Where a sidecar or a bare engine listens, and how such an address is written."""

import ipaddress
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

from tidepool_router.errors import SettingsError
from tidepool_router.tls import Trust, system_trust

DNS_PREFIX: Final = "dns+"
_PORTS: Final = {"http": 80, "https": 443}
_EXAMPLE: Final = "write it like http://10.0.0.7:8080"


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One address to connect to. `key` ("host:port", "[v6]:port") names it in maps, logs and metrics.

    With `trust` it speaks TLS, and its key begins with "https://": another endpoint than the same port without.
    """

    key: str
    host: str
    port: int
    trust: Trust | None = None

    @classmethod
    def at(cls, host: str, port: int, trust: Trust | None = None) -> "Endpoint":
        """The endpoint of a host, with the brackets that an IPv6 address needs in its key."""
        authority = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        return cls(authority if trust is None else f"https://{authority}", host, port, trust)

    @property
    def authority(self) -> str:
        """Host and port as a Host header has them."""
        return self.key.removeprefix("https://")


@dataclass(frozen=True, slots=True)
class Source:
    """One line of FleetPool.endpoints: a fixed endpoint, or a name whose every A record is one."""

    endpoint: Endpoint
    by_dns: bool


def parse_source(url: str, trust: Trust | None = None) -> Source:
    """Read `http://host:port` or `dns+http://host:port`, or either with https, which `trust` is for.

    Without `trust` the system's authorities are believed. Raises SettingsError that names the URL and what a right
    one looks like.
    """
    by_dns = url.startswith(DNS_PREFIX)
    plain = url.removeprefix(DNS_PREFIX)
    try:
        parts = urlsplit(plain)
        port = parts.port
    except ValueError as error:
        raise SettingsError(
            f"endpoint {url!r} cannot be read ({error}); write it like http://10.0.0.7:8080"
        ) from error
    if parts.scheme not in _PORTS:
        raise SettingsError(f"endpoint {url!r} must begin with http://, https://, dns+http:// or dns+https://")
    if not parts.hostname:
        raise SettingsError(f"endpoint {url!r} has no host; {_EXAMPLE}")
    if parts.path not in ("", "/") or parts.query or parts.fragment or parts.username:
        raise SettingsError(f"endpoint {url!r} must end after the port; paths are the client's")
    if by_dns and _is_address(parts.hostname):
        raise SettingsError(f"endpoint {url!r} is an address, which DNS cannot resolve; leave out {DNS_PREFIX!r}")
    if port is None:
        port = _PORTS[parts.scheme]
    if parts.scheme == "https":
        return Source(Endpoint.at(parts.hostname, port, trust or system_trust()), by_dns)
    return Source(Endpoint.at(parts.hostname, port), by_dns)


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
