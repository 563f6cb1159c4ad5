"""Keeps the addresses of a DNS name: every A and AAAA record of a headless Service is one pod."""

import asyncio
import logging
import socket
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from tidepool_router.fleet.endpoint import Endpoint

_INTERVAL_SECONDS: Final = 1.0
_TIMEOUT_SECONDS: Final = 5.0
# An address must be missing from so many answers in a row: a DNS server that restarts may answer short at first.
_MISSES: Final = 3
# "The name has no addresses": a Service without pods. Every other failure says nothing about pods.
_EMPTY_CODES: Final = frozenset(
    code for name in ("EAI_NONAME", "EAI_NODATA") if (code := getattr(socket, name, None)) is not None
)

log = logging.getLogger("tidepool.fleet")

Lookup = Callable[[str], Sequence[str]]


def look_up(host: str) -> Sequence[str]:
    """All addresses of a host; none when the name has none. Blocks; raises OSError when DNS does not answer.

    A dual-stack Service has two addresses a pod: the IPv6 ones count only where there are no others.
    """
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except socket.gaierror as error:
        if error.errno in _EMPTY_CODES:
            return ()
        raise
    addresses = {(family, str(address[0])) for family, *_, address in found}
    v4 = sorted(text for family, text in addresses if family == socket.AF_INET)
    return v4 or sorted(text for _, text in addresses)


class AddressBook:
    """Which addresses count, given one answer after another. Pure."""

    def __init__(self) -> None:
        self._misses: dict[str, int] = {}

    def answered(self, addresses: Sequence[str]) -> tuple[str, ...]:
        """Take in an answer; returns the addresses in force."""
        for address in self._misses:
            self._misses[address] += 1
        self._misses.update(dict.fromkeys(addresses, 0))
        self._misses = {address: misses for address, misses in self._misses.items() if misses < _MISSES}
        return tuple(self._misses)


class Resolver:
    """Asks for one name every second and tells `changed` the endpoints when they changed."""

    def __init__(
        self,
        source: Endpoint,
        changed: Callable[[tuple[Endpoint, ...]], None],
        executor: ThreadPoolExecutor,
        lookup: Lookup = look_up,
    ) -> None:
        self._source = source
        self._changed = changed
        self._executor = executor
        self._lookup = lookup
        self._book = AddressBook()
        self._failing = False

    async def run(self) -> None:
        """Ends only by cancellation."""
        known: tuple[str, ...] | None = None
        while True:
            addresses = await self._ask()
            if addresses is not None:
                in_force = self._book.answered(addresses)
                if in_force != known:
                    known = in_force
                    self._changed(
                        tuple(Endpoint.at(address, self._source.port, self._source.trust) for address in in_force)
                    )
            await asyncio.sleep(_INTERVAL_SECONDS)

    async def _ask(self) -> Sequence[str] | None:
        """None when DNS did not answer; the last answer then stays in force."""
        asked = asyncio.get_running_loop().run_in_executor(self._executor, self._lookup, self._source.host)
        try:
            done, _ = await asyncio.wait({asked}, timeout=_TIMEOUT_SECONDS)
            while not done:  # a thread cannot be stopped: ask nothing new before it is back
                self._complain("no answer in time")
                done, _ = await asyncio.wait({asked}, timeout=_TIMEOUT_SECONDS)
            addresses = asked.result()
        except OSError as error:
            self._complain(str(error))
            return None
        if self._failing:
            self._failing = False
            log.info("DNS answers again", extra={"host": self._source.host})
        return addresses

    def _complain(self, reason: str) -> None:
        if not self._failing:
            self._failing = True
            log.warning(
                "DNS does not answer; keeping the pods known so far",
                extra={"host": self._source.host, "reason": reason},
            )
