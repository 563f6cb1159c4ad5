"""Consistent hashing with bounded loads: prompts that begin alike go to one pod while it is not above its share.

Each pod stands at many places of a ring; a request goes to the first pod after its own place that has room. When
a pod comes or goes, only the requests of its places move. Bound and number of places as KubeAI has them; the bound
is that of Mirrokni, Thorup, Zadimoghaddam, "Consistent Hashing with Bounded Loads" (2016).
"""

from bisect import bisect_left
from collections.abc import Sequence
from typing import Final
from zlib import crc32

from tidepool_router.facts import RequestFacts
from tidepool_router.ledger import Estimate
from tidepool_router.picking.candidate import Candidate
from tidepool_router.picking.policy import NO_MATCHES, Matches, Pick

REASON: Final = "prefix-hash"
REASON_SPILLED: Final = "prefix-hash-spilled"
REASON_NO_PREFIX: Final = "least-requests"

# A pod with more than this many times the mean of requests, this one counted, takes no more.
_BOUND: Final = 1.25
_PLACES: Final = 256
# The key is the hash at the fourth border, 1 kB in: behind a short system prompt, before most conversations part,
# and the same in each turn of one.
_KEY_BORDER: Final = 3


class PrefixHash:
    """A request with a session goes by that, one without any prefix to the pod with the fewest requests."""

    uses_matches = False

    def __init__(self) -> None:
        self._pods: Sequence[Candidate] = ()
        self._keys: tuple[str, ...] = ()
        self._places: list[int] = []
        self._owners: list[int] = []
        self._turn = 0

    def pick(
        self,
        candidates: Sequence[Candidate],
        request: Estimate,  # noqa: ARG002
        facts: RequestFacts,
        cached: Matches = NO_MATCHES,  # noqa: ARG002
    ) -> Pick:
        """See Picker."""
        place = _place_of(facts)
        total = sum([pod.load_requests for pod in candidates])
        if place is None:
            return Pick(self._least(candidates), REASON_NO_PREFIX)
        self._arrange(candidates)
        room = _BOUND * (total + 1) / len(candidates)
        start = bisect_left(self._places, place)
        owners, count = self._owners, len(self._owners)
        for step in range(count):
            owner = owners[(start + step) % count]
            if candidates[owner].load_requests <= room:
                return Pick(owner, REASON if owner == owners[start % count] else REASON_SPILLED)
        return Pick(self._least(candidates), REASON_SPILLED)  # never: some pod is not above the mean

    def _arrange(self, candidates: Sequence[Candidate]) -> None:
        """The ring for these pods; made anew only when they are others."""
        if candidates is self._pods:
            return
        self._pods = candidates
        keys = tuple([pod.key for pod in candidates])
        if keys == self._keys:
            return
        self._keys = keys
        ring = sorted(
            (_spread(crc32(b"%b#%d" % (key.encode(), place))), owner)
            for owner, key in enumerate(keys)
            for place in range(_PLACES)
        )
        self._places = [place for place, _ in ring]
        self._owners = [owner for _, owner in ring]

    def _least(self, candidates: Sequence[Candidate]) -> int:
        least = min([pod.load_requests for pod in candidates])
        ties = [at for at, pod in enumerate(candidates) if pod.load_requests == least]
        self._turn += 1
        return ties[self._turn % len(ties)]


def _place_of(facts: RequestFacts) -> int | None:
    if facts.session is not None:
        return _spread(crc32(facts.session.encode("utf-8", "surrogatepass")))
    prefix = facts.prefix
    if not prefix:
        return None
    key = prefix[min(_KEY_BORDER, len(prefix) - 1)]
    return _spread(key if facts.adapter is None else crc32(facts.adapter.encode(), key))


def _spread(value: int) -> int:
    """CRC-32 of texts that differ in a digit are near each other in their bits; a multiplication parts them.

    The constant is Knuth's, 2^32 divided by the golden ratio; the shifts bring the high bits down.
    """
    value = (value ^ (value >> 16)) * 0x9E3779B1 & 0xFFFFFFFF
    return (value ^ (value >> 15)) * 0x85EBCA6B & 0xFFFFFFFF
