"""Hosts that an administrator lets the steps of workflows call, as an annotation of a namespace has them."""

import re
from typing import Final

# Of one namespace; FleetWorkflow has no room for more.
MOST: Final = 64
_LABEL: Final = "[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?"
_HOST: Final = re.compile(rf"(\*\.)?{_LABEL}(\.{_LABEL})*\.?(:[1-9][0-9]{{0,4}})?")


def read_hosts(text: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """(hosts, what is none) of names as `search.tools`, `*.tools`, `search.tools:8080`, commas or blanks between.

    In their order, each once; what is beyond MOST is none.
    """
    names = dict.fromkeys(name.lower() for name in re.split(r"[\s,]+", text) if name)
    sound = [name for name in names if is_host(name)]
    return tuple(sound[:MOST]), (*(name for name in names if not is_host(name)), *sound[MOST:])


def is_host(name: str) -> bool:
    """A DNS name or an IPv4 address in small letters, perhaps with `*.` before and a port behind."""
    found = _HOST.fullmatch(name)
    return found is not None and len(name) <= 253 and int(name.partition(":")[2] or 1) < 65_536
