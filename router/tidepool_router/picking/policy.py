"""What a policy sees and what it answers."""

from collections.abc import Sequence
from typing import Protocol

import msgspec

from tidepool_router.facts import RequestFacts
from tidepool_router.ledger import Estimate


class Candidate(Protocol):
    """One pod's load as believed at this moment: last report, own reservations since, own endings since."""

    @property
    def key(self) -> str:
        """Stable name of the endpoint."""

    @property
    def load_tokens(self) -> int:
        """Tokens of work and memory: queued prompt, held KV and expected output."""

    @property
    def load_requests(self) -> int:
        """Requests running and waiting."""


class Pick(msgspec.Struct, frozen=True, gc=False):
    """Index into the candidates, and the reason as metrics and headers name it."""

    index: int
    reason: str


class Picker(Protocol):
    """Chooses among at least one candidate; holds no more state than it needs to be fair."""

    def pick(self, candidates: Sequence[Candidate], request: Estimate, facts: RequestFacts) -> Pick:
        """O(n), no allocation in the loop. `candidates` is never empty."""
