"""Whatever arrives, leaves and is preempted: the double's engine loses no token and no block."""

from collections.abc import Iterable
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fakes.kv import KvCache, block_keys
from fakes.scheduler import Scheduler, Sequence
from fakes.settings import EngineSettings

SMALL = EngineSettings(
    max_model_len=64, max_num_seqs=3, num_gpu_blocks=8, block_size=8, max_num_batched_tokens=16, tokens_per_step=2
)


@dataclass
class Client:
    """One request and what it was given."""

    wanted: int
    leaves_after: int | None
    tokens: int = 0
    reasons: list[str] = field(default_factory=list)

    def on_tokens(self, count: int, reason: str | None) -> None:
        self.tokens += count
        if reason is not None:
            self.reasons.append(reason)


REQUESTS = st.lists(
    st.tuples(
        st.integers(1, 40),  # prompt tokens
        st.integers(1, 24),  # tokens wanted
        st.sampled_from("ab"),  # whose prompt it shares
        st.integers(-1, 1),  # priority
        st.integers(0, 6),  # steps before it arrives
        st.none() | st.integers(1, 10),  # steps after which its client leaves
    ),
    max_size=12,
)


@given(REQUESTS)
def test_every_request_gets_exactly_its_tokens_and_all_blocks_come_back(
    requests: list[tuple[int, int, str, int, int, int | None]],
) -> None:
    scheduler = Scheduler(SMALL)
    clients: list[tuple[Client, Sequence]] = []
    for prompt, wanted, who, priority, gap, leaves in requests:
        steps(scheduler, clients, gap)
        client = Client(wanted, leaves)
        keys = block_keys([ord(who)] * prompt, SMALL.block_size, "")
        sequence = Sequence(prompt, wanted, keys, client.on_tokens, priority=priority)
        scheduler.add(sequence)
        clients.append((client, sequence))
    steps(scheduler, clients, 400)
    assert scheduler.idle
    assert scheduler.kv.free_blocks == SMALL.num_gpu_blocks
    for client, _ in clients:
        stayed = client.reasons == ["length"] and client.tokens == client.wanted
        left = not client.reasons and client.tokens < client.wanted
        assert stayed if client.leaves_after is None else stayed or left


def steps(scheduler: Scheduler, clients: Iterable[tuple[Client, Sequence]], count: int) -> None:
    for _ in range(count):
        scheduler.commit(scheduler.plan())
        assert len(scheduler.running) <= SMALL.max_num_seqs
        assert 0 <= scheduler.kv.free_blocks <= SMALL.num_gpu_blocks
        for client, sequence in clients:
            if client.leaves_after is not None:
                client.leaves_after -= 1
                if client.leaves_after == 0:
                    scheduler.abort(sequence)


def test_a_shared_prefix_takes_its_blocks_once() -> None:
    kv = KvCache(total=8, block_size=4)
    keys = block_keys(range(12), 4, "")
    first, cached = kv.admit(keys, 12) or ([], -1)
    assert cached == 0
    kv.publish(first, keys, 12)
    second, cached = kv.admit(keys, 12) or ([], -1)
    assert cached == 8, "the block with the last token is always computed"
    assert second[:2] == first[:2]
    assert kv.free_blocks == 8 - 4


def test_other_salt_shares_nothing() -> None:
    assert block_keys(range(8), 4, "one")[0] != block_keys(range(8), 4, "two")[0]


def test_the_tail_of_an_idle_prefix_is_evicted_before_its_head() -> None:
    kv = KvCache(total=4, block_size=4)
    keys = block_keys(range(16), 4, "")
    blocks, _ = kv.admit(keys, 16) or ([], -1)
    kv.publish(blocks, keys, 16)
    kv.release(blocks)
    kv.admit(block_keys([99] * 8, 4, ""), 8)
    assert [len(kv.cached(keys, tokens)) for tokens in (16, 9)] == [2, 2]


def test_an_engine_whose_cache_holds_no_longest_request_does_not_start() -> None:
    with pytest.raises(ValueError, match="max_model_len"):
        EngineSettings(max_model_len=100, num_gpu_blocks=4, block_size=16)
