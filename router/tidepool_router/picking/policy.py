"""What a policy sees and what it answers."""

from collections.abc import Mapping, Sequence
from typing import Final, Protocol

import msgspec

from tidepool_router.facts import RequestFacts
from tidepool_router.ledger import Estimate
from tidepool_router.picking.candidate import Candidate

# Bytes of the prompt that each pod has cached, by slot; pods that have none are left out.
Matches = Mapping[int, int]
NO_MATCHES: Final[Matches] = {}


class Pick(msgspec.Struct, frozen=True, gc=False):
    """Index into the candidates, the reason as metrics and headers name it, and cached prompt tokens there."""

    index: int
    reason: str
    cached_tokens: int = 0


class Picker(Protocol):
    """Chooses among at least one candidate; holds no more state than it needs to be fair.

    `uses_matches` says whether `cached` must be looked up for it.
    """

    uses_matches: bool

    def pick(
        self, candidates: Sequence[Candidate], request: Estimate, facts: RequestFacts, cached: Matches = NO_MATCHES
    ) -> Pick:
        """O(n), no allocation in the loop. `candidates` is never empty."""
