"""Free ports on loopback for processes that cannot choose one themselves."""

import random
import socket

# Below the range that the kernel gives to outgoing connections (32768 and up), so that
# a port found free is not taken by a passing client before its owner listens on it.
_LOWEST, _HIGHEST = 20000, 32000


def free_ports(count: int, address: str = "127.0.0.1") -> list[int]:
    """Distinct TCP ports that nobody listened on a moment ago. Raises OSError after 200 tries."""
    found: list[int] = []
    for _ in range(200):
        port = random.randint(_LOWEST, _HIGHEST)
        if port not in found and _is_free(address, port):
            found.append(port)
        if len(found) == count:
            return found
    raise OSError(f"no {count} free ports found on {address} between {_LOWEST} and {_HIGHEST}")


def _is_free(address: str, port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind((address, port))
        except OSError:
            return False
    return True
