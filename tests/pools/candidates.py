"""Pods as a picker sees them, with figures that a test sets."""

from dataclasses import dataclass, field


@dataclass
class FakeSpeed:
    """A pod's learned times, in seconds."""

    prompt_token_seconds: float = 0.0001  # 10,000 prompt tokens a second
    step_seconds: float = 0.01
    step_seconds_a_request: float = 0.0001


@dataclass
class FakePod:
    """A picking.Candidate."""

    slot: int = 0
    key: str = ""
    load_tokens: int = 0
    load_requests: int = 0
    live_requests: int = 0
    queued_tokens: int = 0
    kv_tokens: int = 0
    expected_tokens: int = 0
    kv_capacity_tokens: int = 100_000
    kv_block_tokens: int = 1
    adapters: frozenset[str] = frozenset()
    adapter_slots: int = 2
    speed: FakeSpeed = field(default_factory=FakeSpeed)
