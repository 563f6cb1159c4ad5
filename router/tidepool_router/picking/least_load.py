"""The pod with the fewest tokens of work; with equal tokens the one with fewer requests."""

from collections.abc import Sequence

from tidepool_router.facts import RequestFacts
from tidepool_router.ledger import Estimate
from tidepool_router.picking.candidate import Candidate
from tidepool_router.picking.policy import NO_MATCHES, Matches, Pick

REASON = "least-load"


class LeastLoad:
    """Pods that are equally good take turns, wherever they stand among the others."""

    uses_matches = False

    def __init__(self) -> None:
        self._turn = 0

    def pick(
        self,
        candidates: Sequence[Candidate],
        request: Estimate,  # noqa: ARG002
        facts: RequestFacts,  # noqa: ARG002
        cached: Matches = NO_MATCHES,  # noqa: ARG002
    ) -> Pick:
        """Compares (tokens, requests); see Picker."""
        best, ties = 0, 0
        best_tokens = best_requests = -1
        for index, candidate in enumerate(candidates):
            tokens = candidate.load_tokens
            if ties and tokens > best_tokens:
                continue
            requests = candidate.load_requests
            if not ties or tokens < best_tokens or requests < best_requests:
                best, best_tokens, best_requests, ties = index, tokens, requests, 1
            elif requests == best_requests:
                ties += 1
        if ties > 1:
            self._turn += 1
            best = _nth_like(candidates, best, self._turn % ties)
        return Pick(best, REASON)


def _nth_like(candidates: Sequence[Candidate], first: int, skip: int) -> int:
    """Index of the pod that equals the first one, `skip` such pods further."""
    like = candidates[first]
    for index in range(first, len(candidates)):
        candidate = candidates[index]
        if candidate.load_tokens == like.load_tokens and candidate.load_requests == like.load_requests:
            if skip == 0:
                return index
            skip -= 1
    return first
