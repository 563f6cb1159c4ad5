"""Each pod in turn, whatever its load."""

from collections.abc import Sequence

from tidepool_router.facts import RequestFacts
from tidepool_router.ledger import Estimate
from tidepool_router.picking.candidate import Candidate
from tidepool_router.picking.policy import NO_MATCHES, Matches, Pick

REASON = "round-robin"


class RoundRobin:
    """Turns go by position among the pods that can take a request now."""

    uses_matches = False

    def __init__(self) -> None:
        self._next = 0

    def pick(
        self,
        candidates: Sequence[Candidate],
        request: Estimate,  # noqa: ARG002
        facts: RequestFacts,  # noqa: ARG002
        cached: Matches = NO_MATCHES,  # noqa: ARG002
    ) -> Pick:
        """See Picker."""
        index = self._next % len(candidates)
        self._next = index + 1
        return Pick(index, REASON)
