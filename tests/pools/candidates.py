"""Pods as a picker sees them, with figures that a test sets."""

from tidepool_router.ledger import Speed
from tidepool_router.picking import Candidate


def fake_speed(
    prompt_token_seconds: float = 0.0001,  # 10,000 prompt tokens a second
    step_seconds: float = 0.01,
    step_seconds_a_request: float = 0.0001,
) -> Speed:
    """A pod's learned times, in seconds."""
    return Speed(prompt_token_seconds, step_seconds, step_seconds_a_request)


def fake_pod(
    slot: int = 0,
    key: str = "",
    *,
    load_tokens: int = 0,
    load_requests: int = 0,
    live_requests: int = 0,
    queued_tokens: int = 0,
    kv_tokens: int = 0,
    expected_tokens: int = 0,
    kv_capacity_tokens: int = 100_000,
    kv_block_tokens: int = 1,
    adapters: frozenset[str] = frozenset(),
    adapter_slots: int = 2,
    speed: Speed | None = None,
) -> Candidate:
    """A pod with nothing to do, but for what is named."""
    pod = Candidate(slot, key, speed or fake_speed())
    pod.load_tokens, pod.load_requests, pod.live_requests = load_tokens, load_requests, live_requests
    pod.queued_tokens, pod.kv_tokens, pod.expected_tokens = queued_tokens, kv_tokens, expected_tokens
    pod.kv_block_tokens = kv_block_tokens
    pod.kv_capacity_tokens, pod.adapters, pod.adapter_slots = kv_capacity_tokens, adapters, adapter_slots
    return pod
