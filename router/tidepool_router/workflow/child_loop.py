"""The other end of child.py: requests on stdin, answers on stdout, nothing else within reach.

It has no secrets (an empty environment, no open files but the two) and a bound of memory of its own. Who asks
kills it when it takes too long.
"""

import json
import resource
import sys
from collections.abc import Callable, Mapping
from typing import Any, Final

_MEMORY_BYTES: Final = 128 << 20  # beside what the process has when it starts
_LENGTH_BYTES: Final = 4


def serve(answer: Callable[[Mapping[str, Any]], Mapping[str, Any]]) -> None:
    """Until stdin ends. What is imported late should be there by now."""
    _bound_memory()
    read, write = sys.stdin.buffer, sys.stdout.buffer
    write.write(b".")
    write.flush()
    while head := read.read(_LENGTH_BYTES):
        told = json.dumps(answer(json.loads(read.read(int.from_bytes(head))))).encode()
        write.write(len(told).to_bytes(_LENGTH_BYTES) + told)
        write.flush()


def _bound_memory() -> None:
    pages = int(open("/proc/self/statm").read().split()[0])  # noqa: SIM115, PTH123 - once, at the start
    bound = pages * resource.getpagesize() + _MEMORY_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (bound, bound))
