"""What a policy sees of a pod. A class and no protocol: a pick reads some ten figures of each pod."""

from typing import Final

from tidepool_router.ledger import Speed

_NO_ADAPTERS: Final[frozenset[str]] = frozenset()


class Candidate:
    """One pod's load as believed at this moment: last report, own reservations since, own endings since.

    `load_tokens`: tokens of work and memory (queued prompt, held KV, expected output). `load_requests`: running
    and waiting; `live_requests` the same by the own ledger alone where nobody else sends there, so that late
    reports do not count. `queued_tokens`: uncached prompt tokens that wait. `kv_tokens`: KV tokens in use or asked
    for; `expected_tokens`: by which they will grow; `kv_capacity_tokens`: 0 when not known. `kv_block_tokens`: of
    one block, which is cached as a whole or not at all; 1 when not known. `adapters`: LoRA adapters loaded,
    `adapter_slots` how many fit, 0 when not known. `speed`: learned times.
    """

    __slots__ = (
        "adapter_slots",
        "adapters",
        "expected_tokens",
        "key",
        "kv_block_tokens",
        "kv_capacity_tokens",
        "kv_tokens",
        "live_requests",
        "load_requests",
        "load_tokens",
        "queued_tokens",
        "slot",
        "speed",
    )

    def __init__(self, slot: int, key: str, speed: Speed) -> None:
        self.slot = slot
        self.key = key
        self.speed: Speed = speed
        self.load_tokens = self.load_requests = self.live_requests = 0
        self.queued_tokens = self.kv_tokens = self.expected_tokens = 0
        self.kv_capacity_tokens = 0
        self.kv_block_tokens = 1
        self.adapters: frozenset[str] = _NO_ADAPTERS
        self.adapter_slots = 0
