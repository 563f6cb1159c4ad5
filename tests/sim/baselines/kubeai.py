"""KubeAI's consistent hashing with bounded loads (internal/loadbalancer/balance_chwbl.go at 2f32ef4).

A ring of 256 points a pod; from the hash of the beginning of the first user message on, the first pod whose own
requests are at most 1.25 times the mean, with this request counted in the mean. KubeAI hashes with xxhash; which
hash it is makes no difference to the rule.
"""

import hashlib
from bisect import bisect_left
from collections.abc import Collection
from typing import Final

from sim.picker import Board, Immediate
from sim.request import Request

# model_types.go: replication 256, meanLoadFactor 125 %.
REPLICATION: Final = 256
LOAD_FACTOR: Final = 1.25


def ring_hash(text: str) -> int:
    """64 bits of a text."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")


class KubeAI(Immediate):
    """Knows its own requests in flight."""

    def __init__(
        self,
        pods: int,
        board: Board,
        seed: int,
        *,
        replication: int = REPLICATION,
        load_factor: float = LOAD_FACTOR,
    ) -> None:
        self.in_flight = [0] * pods
        self._total = 0
        self._load_factor = load_factor
        points = sorted((ring_hash(f"pod-{pod}{i}"), pod) for pod in range(pods) for i in range(replication))
        self._points = [point for point, _ in points]
        self._owners = [pod for _, pod in points]

    def pick(self, request: Request, now: float, exclude: Collection[int] = ()) -> int:
        """See the module."""
        return self.pick_for(str(request.opening), exclude)

    def pick_for(self, prefix: str, exclude: Collection[int] = ()) -> int:
        """The pod for a prefix, and one more request on it."""
        start = bisect_left(self._points, ring_hash(prefix)) % len(self._points)
        fallback = None
        for offset in range(len(self._points)):
            pod = self._owners[(start + offset) % len(self._points)]
            if pod in exclude:
                continue
            if fallback is None:
                fallback = pod
            if self._load_allows(pod):
                break
        else:
            pod = fallback if fallback is not None else self._owners[start]
        self.in_flight[pod] += 1
        self._total += 1
        return pod

    def ended(self, request: Request, pod: int, now: float, *, failed: bool, cached_tokens: int) -> None:
        """One less."""
        self.in_flight[pod] -= 1
        self._total -= 1

    def _load_allows(self, pod: int) -> bool:
        if self._total == 0:
            return True
        mean = (self._total + 1) / len(self.in_flight)
        return self.in_flight[pod] <= mean * self._load_factor
