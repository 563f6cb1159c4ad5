"""Each pod in turn, whatever its load."""

from collections.abc import Sequence

from tidepool_router.facts import RequestFacts
from tidepool_router.ledger import Estimate
from tidepool_router.picking.policy import Candidate, Pick

REASON = "round-robin"


class RoundRobin:
    """Turns go by position among the pods that can take a request now."""

    def __init__(self) -> None:
        self._next = 0

    def pick(self, candidates: Sequence[Candidate], request: Estimate, facts: RequestFacts) -> Pick:  # noqa: ARG002
        """See Picker."""
        index = self._next % len(candidates)
        self._next = index + 1
        return Pick(index, REASON)
