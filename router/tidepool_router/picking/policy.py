"""What a policy sees and what it answers."""

from collections.abc import Mapping, Sequence
from typing import Final, Protocol

import msgspec

from tidepool_router.facts import RequestFacts
from tidepool_router.ledger import Estimate

# Bytes of the prompt that each pod has cached, by slot; pods that have none are left out.
Matches = Mapping[int, int]
NO_MATCHES: Final[Matches] = {}


class Speed(Protocol):
    """What a pod takes for its work, as learned: see ledger.PodSpeed."""

    @property
    def prompt_token_seconds(self) -> float:
        """Each uncached prompt token."""

    @property
    def step_seconds(self) -> float:
        """One output token with nothing beside it."""

    @property
    def step_seconds_a_request(self) -> float:
        """What each request beside it adds to that."""


class Candidate(Protocol):
    """One pod's load as believed at this moment: last report, own reservations since, own endings since.

    `load_tokens`: tokens of work and memory (queued prompt, held KV, expected output). `load_requests`: running
    and waiting; `live_requests` the same by the own ledger alone where nobody else sends there, so that late
    reports do not count. `queued_tokens`: uncached prompt tokens that wait. `kv_tokens`: KV tokens in use or asked
    for; `expected_tokens`: by which they will grow; `kv_capacity_tokens`: 0 when not known. `kv_block_tokens`: of
    one block, which is cached as a whole or not at all; 1 when not known. `adapters`: LoRA adapters loaded,
    `adapter_slots` how many fit, 0 when not known.
    """

    key: str
    slot: int
    load_tokens: int
    load_requests: int
    live_requests: int
    queued_tokens: int
    kv_tokens: int
    expected_tokens: int
    kv_capacity_tokens: int
    kv_block_tokens: int
    adapters: frozenset[str]
    adapter_slots: int

    @property
    def speed(self) -> Speed:
        """Learned times."""


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
