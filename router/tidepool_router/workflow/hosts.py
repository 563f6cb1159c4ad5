"""Which addresses a gateway calls for others, the steps of workflows and the classifiers of pools: those that an
administrator named, and never what is forbidden.

A name is resolved once and the connection goes to the address that was judged, so DNS cannot answer twice; each
redirect is judged anew.
"""

import asyncio
import ipaddress
import os
import socket
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from typing import Final
from urllib.parse import SplitResult, urlsplit

from tidepool_api.contract import WORKFLOW_HOSTS_ANNOTATION
from tidepool_router.errors import RouterError

Resolve = Callable[[str, int], Awaitable[Sequence[str]]]
_METADATA: Final = frozenset(
    ipaddress.ip_address(text)
    for text in ("169.254.169.254", "fd00:ec2::254", "100.100.100.200", "168.63.129.16", "192.0.0.192")
)
_Address = ipaddress.IPv4Address | ipaddress.IPv6Address
_PORTS: Final = {"http": 80, "https": 443}
_SECONDS: Final = 5.0


class NotAllowed(RouterError):
    """The address may not be called; the message says who may change that."""


class Unresolved(NotAllowed):
    """The name leads nowhere at the moment."""


class Hosts:
    """`allowed`: names as `search.tools`, `*.tools` or `search.tools:8080`; without a port, 80 and 443 are meant.

    `forbidden`: addresses that are never called beside loopback, link-local and metadata ones, the API server's;
    or names, which lead to such addresses.
    """

    def __init__(
        self,
        allowed: Iterable[str] = (),
        forbidden: Iterable[str] = (),
        resolve: Resolve | None = None,
        *,
        loopback: bool = False,
    ) -> None:
        self._allowed = tuple(name.lower() for name in allowed)
        named = {text: _address_of(text) for text in forbidden}
        self._forbidden = frozenset(address for address in named.values() if address is not None)
        self._forbidden_names = tuple(text for text, address in named.items() if address is None)
        self._resolve = resolve or resolve_host
        self._loopback = loopback

    async def pinned(self, url: str, more: Iterable[str] = ()) -> tuple[SplitResult, str, int]:
        """The URL's parts, and the address and port to connect to. `more`: what else is allowed to who asks.

        Raises NotAllowed.
        """
        parts, host, port = _split(url)
        if not any(_matches(name, host, port) for name in (*self._allowed, *more)):
            raise NotAllowed(
                f"{host}:{port} is not among the hosts that workflows may call, and classifiers be at; an "
                "administrator can allow it by gateway.workflows.allowedHosts of the chart (--workflow-allow at "
                f"the gateway), the annotation {WORKFLOW_HOSTS_ANNOTATION} of the namespace, or `hosts` of the "
                "workflow or pool in a fleet file"
            )
        addresses = await self._addresses(host, port)
        forbidden = set(self._forbidden)
        for name in self._forbidden_names:
            led = map(_address_of, await self._addresses(name, _PORTS["https"]))
            forbidden |= {address for address in led if address is not None}
        for address in addresses:
            self._judge(host, address, forbidden)
        return parts, addresses[0], port

    async def _addresses(self, host: str, port: int) -> Sequence[str]:
        """One at least. Raises Unresolved."""
        try:
            async with asyncio.timeout(_SECONDS):
                found = await self._resolve(host, port)
        except (OSError, TimeoutError) as error:
            raise Unresolved(f"{host} cannot be resolved: {error or 'no answer'}") from error
        if not found:
            raise Unresolved(f"{host} has no address")
        return found

    def _judge(self, host: str, text: str, forbidden: Collection[_Address]) -> None:
        address = ipaddress.ip_address(_unscoped(text))
        mapped = getattr(address, "ipv4_mapped", None) or getattr(address, "sixtofour", None)
        for one in (address, *((mapped,) if mapped is not None else ())):
            closed = one.is_link_local or one.is_multicast or one.is_unspecified or one.is_reserved
            closed = closed or one in _METADATA or one in forbidden
            if closed or (one.is_loopback and not self._loopback):
                raise NotAllowed(
                    f"{host} leads to {text}, an address that no workflow may call and no classifier has"
                )


def allowed_hosts(allowed: Sequence[str], environment: Mapping[str, str] | None = None) -> Hosts:
    """Hosts that an administrator allowed; the API server's address is never among them."""
    found = os.environ if environment is None else environment
    server = found.get("KUBERNETES_SERVICE_HOST", "")
    return Hosts(allowed, [server] if server else [])


def pinned_url(parts: SplitResult, address: str, port: int) -> str:
    """The URL with the address that was judged in place of its host."""
    literal = f"[{address}]" if ipaddress.ip_address(address.partition("%")[0]).version == 6 else address
    return parts._replace(netloc=f"{literal}:{port}", fragment="").geturl()


async def resolve_host(host: str, port: int) -> Sequence[str]:
    """Addresses of a host. Raises OSError."""
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [str(entry[4][0]) for entry in found]


def _address_of(text: str) -> _Address | None:
    """None: it is a name."""
    try:
        return ipaddress.ip_address(_unscoped(text))
    except ValueError:
        return None


def _unscoped(text: str) -> str:
    return text.partition("%")[0]


def _split(url: str) -> tuple[SplitResult, str, int]:
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise NotAllowed(f"{url[:200]!r} is no URL: {error}") from error
    if parts.scheme not in _PORTS or not host:
        raise NotAllowed(f"{url[:200]!r} is no http:// or https:// URL")
    if parts.username is not None or parts.password is not None:
        raise NotAllowed("the URL carries a user or a password; leave them out")
    return parts, host.lower().rstrip("."), port or _PORTS[parts.scheme]


def _matches(name: str, host: str, port: int) -> bool:
    name, _, wanted = name.partition(":")
    if port != int(wanted or 0) and (wanted or port not in _PORTS.values()):
        return False
    return host == name or (name.startswith("*.") and host.endswith(name[1:]))
