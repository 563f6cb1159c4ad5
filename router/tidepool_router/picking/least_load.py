"""The pod with the fewest tokens of work; with equal tokens the one with fewer requests."""

from collections.abc import Sequence

from tidepool_router.facts import RequestFacts
from tidepool_router.ledger import Estimate
from tidepool_router.picking.policy import Candidate, Pick

REASON = "least-load"


class LeastLoad:
    """Starts the scan one further each time, so that equal pods take turns and no first one is preferred."""

    def __init__(self) -> None:
        self._start = 0

    def pick(self, candidates: Sequence[Candidate], request: Estimate, facts: RequestFacts) -> Pick:  # noqa: ARG002
        """Compares (tokens, requests); see Picker."""
        count = len(candidates)
        start = self._start % count
        self._start = start + 1
        best = start
        best_tokens = candidates[start].load_tokens
        best_requests = candidates[start].load_requests
        for step in range(1, count):
            index = start + step
            if index >= count:
                index -= count
            candidate = candidates[index]
            tokens = candidate.load_tokens
            if tokens > best_tokens:
                continue
            if tokens == best_tokens and candidate.load_requests >= best_requests:
                continue
            best, best_tokens, best_requests = index, tokens, candidate.load_requests
        return Pick(best, REASON)
