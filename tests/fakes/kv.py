"""KV cache of the engine double: blocks, and the block prefix cache with its LRU of idle blocks.

The rules are vLLM's: only full blocks are shared, a block is found by the chained hash of all tokens before it, at
least one prompt token is always computed, and a freed block stays findable until its room is needed.
"""

from collections import OrderedDict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass


def block_keys(token_ids: Sequence[int], block_size: int, salt: Hashable) -> list[int]:
    """Chained hashes of the full blocks of a prompt; `salt` is what else must match (adapter, cache_salt)."""
    keys: list[int] = []
    before = hash(("root", salt))
    for start in range(0, len(token_ids) - block_size + 1, block_size):
        before = hash((before, tuple(token_ids[start : start + block_size])))
        keys.append(before)
    return keys


@dataclass(slots=True, eq=False)
class Block:
    """One block; `key` is None while its content is not a full block of a prompt."""

    key: int | None = None
    users: int = 0


class KvCache:
    """`total` blocks of `block_size` tokens."""

    def __init__(self, total: int, block_size: int) -> None:
        self.total = total
        self.block_size = block_size
        self._findable: dict[int, Block] = {}
        self._never_used = total  # made when they are needed: there may be thousands
        self._idle: OrderedDict[int, Block] = OrderedDict()  # those without content first

    @property
    def free_blocks(self) -> int:
        """Blocks without a user; cached ones count as free, as vLLM's gauge has it."""
        return self._never_used + len(self._idle)

    @property
    def usage(self) -> float:
        """Share of blocks with a user, 0 to 1."""
        return 1 - self.free_blocks / self.total

    def blocks_for(self, tokens: int) -> int:
        """Blocks that `tokens` fill, the last perhaps in part."""
        return -(-tokens // self.block_size)

    def full_block_tokens(self, tokens: int) -> int:
        """Of `tokens`, those in full blocks."""
        return tokens // self.block_size * self.block_size

    def cached(self, keys: Sequence[int], tokens: int) -> list[Block]:
        """The longest run of cached blocks that leaves at least one of `tokens` to compute."""
        found: list[Block] = []
        for key in keys[: (tokens - 1) // self.block_size]:
            block = self._findable.get(key)
            if block is None:
                break
            found.append(block)
        return found

    def admit(self, keys: Sequence[int], tokens: int) -> tuple[list[Block], int] | None:
        """Blocks for a prompt of `tokens` and how many of its tokens are cached; None when it does not fit."""
        shared = self.cached(keys, tokens)
        needed = self.blocks_for(tokens) - len(shared)
        if needed > self.free_blocks - sum(block.users == 0 for block in shared):
            return None
        for block in shared:
            self._use(block)
        return shared + [self._fresh() for _ in range(needed)], len(shared) * self.block_size

    def grow(self) -> Block | None:
        """One more block for a sequence that decodes; None when all are in use."""
        return self._fresh() if self.free_blocks else None

    def publish(self, blocks: Sequence[Block], keys: Sequence[int], computed_tokens: int) -> None:
        """Make the full prompt blocks that are computed findable."""
        for block, key in zip(blocks, keys[: computed_tokens // self.block_size], strict=False):
            if block.key is None and key not in self._findable:
                block.key = key
                self._findable[key] = block

    def release(self, blocks: Sequence[Block]) -> None:
        """Give blocks back; the tail of a prompt is evicted before its head."""
        for block in reversed(blocks):
            block.users -= 1
            if block.users == 0:
                self._idle[id(block)] = block
                if block.key is None:
                    self._idle.move_to_end(id(block), last=False)

    def reset(self) -> bool:
        """Forget all cached prefixes; refused while anything runs."""
        if self.free_blocks < self.total:
            return False
        self._findable.clear()
        for block in self._idle.values():
            block.key = None
        return True

    def _use(self, block: Block) -> None:
        if block.users == 0:
            del self._idle[id(block)]
        block.users += 1

    def _fresh(self) -> Block:
        first = next(iter(self._idle.values()), None)
        if self._never_used and (first is None or first.key is not None):
            self._never_used -= 1
            return Block(users=1)
        _, block = self._idle.popitem(last=False)
        if block.key is not None:
            del self._findable[block.key]
            block.key = None
        block.users = 1
        return block
