"""A pick as a record: all that the policy saw, so that it can be explained, and made again by any policy.

No prompt is in it: of the text only hashes.
"""

from collections.abc import Sequence

import msgspec

from tidepool_router.facts import Api, RequestFacts
from tidepool_router.ledger import Estimate, Speed
from tidepool_router.picking.candidate import Candidate
from tidepool_router.picking.policy import Matches, Pick


class SpeedSeen(msgspec.Struct):
    """A pod's learned times, in seconds; see ledger.Speed."""

    prompt_token_seconds: float
    step_seconds: float
    step_seconds_a_request: float


class PodSeen(msgspec.Struct):
    """A Candidate as it was, and the bytes of the prompt that it had cached."""

    key: str
    slot: int
    load_tokens: int
    load_requests: int
    live_requests: int
    queued_tokens: int
    kv_tokens: int
    expected_tokens: int
    kv_capacity_tokens: int
    adapters: frozenset[str]
    adapter_slots: int
    speed: SpeedSeen
    cached_bytes: int = 0
    kv_block_tokens: int = 1

    @property
    def candidate(self) -> Candidate:
        """For a policy that picks again."""
        speed = self.speed
        pod = Candidate(
            self.slot,
            self.key,
            Speed(speed.prompt_token_seconds, speed.step_seconds, speed.step_seconds_a_request),
        )
        pod.load_tokens, pod.load_requests, pod.live_requests = (
            self.load_tokens,
            self.load_requests,
            self.live_requests,
        )
        pod.queued_tokens, pod.kv_tokens, pod.expected_tokens = (
            self.queued_tokens,
            self.kv_tokens,
            self.expected_tokens,
        )
        pod.kv_capacity_tokens, pod.kv_block_tokens = self.kv_capacity_tokens, self.kv_block_tokens
        pod.adapters, pod.adapter_slots = self.adapters, self.adapter_slots
        return pod


class Decision(msgspec.Struct, frozen=True):
    """One pick. `at` is the gateway's monotonic clock, in seconds."""

    at: float
    pool: str
    pods: tuple[PodSeen, ...]
    request: Estimate
    api: Api
    prompt_bytes: int
    prefix: tuple[int, ...]
    picked: int
    reason: str
    session: str | None = None
    adapter: str | None = None

    @property
    def facts(self) -> RequestFacts:
        """What a policy looks at."""
        return RequestFacts(
            self.api,
            "",
            "",
            prompt_bytes=self.prompt_bytes,
            session=self.session,
            prefix=self.prefix,
            adapter=self.adapter,
        )

    @property
    def cached(self) -> Matches:
        """By slot."""
        return {pod.slot: pod.cached_bytes for pod in self.pods if pod.cached_bytes}


def decision_of(
    at: float,
    pool: str,
    candidates: Sequence[Candidate],
    request: Estimate,
    facts: RequestFacts,
    cached: Matches,
    pick: Pick,
) -> Decision:
    """The record of a pick, before its reservation changes what was seen."""
    return Decision(
        at,
        pool,
        tuple([seen(pod, cached.get(pod.slot, 0)) for pod in candidates]),
        request,
        facts.api,
        facts.prompt_bytes,
        facts.prefix,
        pick.index,
        pick.reason,
        facts.session,
        facts.adapter,
    )


def seen(pod: Candidate, cached_bytes: int) -> PodSeen:
    """A pod's figures at this moment."""
    speed = pod.speed
    return PodSeen(
        pod.key,
        pod.slot,
        pod.load_tokens,
        pod.load_requests,
        pod.live_requests,
        pod.queued_tokens,
        pod.kv_tokens,
        pod.expected_tokens,
        pod.kv_capacity_tokens,
        pod.adapters,
        pod.adapter_slots,
        SpeedSeen(speed.prompt_token_seconds, speed.step_seconds, speed.step_seconds_a_request),
        cached_bytes,
        pod.kv_block_tokens,
    )
