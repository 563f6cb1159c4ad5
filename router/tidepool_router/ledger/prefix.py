"""Which pod has which beginnings of prompts in its cache, as far as can be told from what was sent there.

One table for all pods: a hash leads to a bit mask of the pods that hold it, so that a match walks the chain once,
whatever the number of pods. Each pod has a bounded record of what it holds, in the order in which its engine will
evict: vLLM frees the blocks of a request tail first, and takes the one freed longest ago.
"""

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Final

from tidepool_router.ledger.chain import BORDERS
from tidepool_router.ledger.stored import FILL

# Hashes in memory, all pods of a pool together (about 200 bytes each), and of one pod.
_MOST_HASHES: Final = 400_000
_MOST_HASHES_A_POD: Final = 16_384
# Until a pod tells its KV cache: 200,000 tokens of 4 bytes.
_FIRST_CAPACITY_BYTES: Final = 800_000
# A reported hit that is under half of the predicted one: the cache is smaller, or fuller, than the record thinks.
_MISS_RATIO: Final = 0.5
_SHRINK, _GROW = 0.97, 1.01
_LEAST_SCALE: Final = 0.05
# A match is known to a border, and engines count whole blocks: what is off by less is no miss, and says nothing
# where the engine had none.
_EDGE_TOKENS: Final = 128
# Each report of cached tokens weighs 5 % in the trust in matches.
_TRUST_RATE: Final = 0.05
# Below this the pod's prefix cache is off, or not what its record thinks: its matches do not count until it tells
# of cached tokens again.
_LEAST_TRUST: Final = 0.2

NOTHING: Final[Mapping[int, int]] = {}
_NONE: Final = (-1, 0)
_STEPS: Final = tuple(end - start for start, end in zip((0, *BORDERS), BORDERS, strict=False))


class _Record:
    """One pod's cache, least recent first: the hash at the end of each block, to what the block is.

    That is its border in the low byte and the hash of the block before it above; or FILL and a number of bytes for
    an output: it takes room, no prompt is known to begin with it, and its key is below zero.
    """

    __slots__ = ("blocks", "capacity_bytes", "fills", "scale", "trust", "used_bytes")

    def __init__(self) -> None:
        self.blocks: OrderedDict[int, int] = OrderedDict()
        self.capacity_bytes = float(_FIRST_CAPACITY_BYTES)
        self.used_bytes = 0
        self.fills = 0
        self.scale = 1.0
        self.trust = 1.0


class PrefixIndex:
    """Pods are numbers (`slot`) that `join` gives and `leave` takes back."""

    def __init__(self) -> None:
        self._holders: dict[int, int] = {}
        self._records: list[_Record | None] = []
        self._limit = _MOST_HASHES_A_POD
        self._believed = -1  # mask of the slots whose matches engines confirm

    def __len__(self) -> int:
        return len(self._holders)

    def join(self) -> int:
        """A slot for a pod, with an empty record."""
        record = _Record()
        for slot, taken in enumerate(self._records):
            if taken is None:
                self._records[slot] = record
                break
        else:
            slot = len(self._records)
            self._records.append(record)
        self._limit_hashes()
        return slot

    def leave(self, slot: int) -> None:
        """The pod is gone; its slot may be another's next."""
        self.forget(slot)
        self._records[slot] = None
        self._limit_hashes()

    def forget(self, slot: int) -> None:
        """The pod's engine is a new process: its cache is empty."""
        record = self._records[slot]
        if record is None:
            return
        for value in record.blocks:
            self._drop(value, slot)
        self._records[slot] = _Record()
        self._believed |= 1 << slot

    def resize(self, slot: int, capacity_bytes: float) -> None:
        """Bytes of text that the pod's KV cache has room for."""
        record = self._records[slot]
        if record is not None and capacity_bytes > 0:
            record.capacity_bytes = capacity_bytes
            self._evict(record, slot)

    def trust(self, slot: int) -> float:
        """Share of a match that the pod's engine confirms, 0 to 1."""
        record = self._records[slot]
        return record.trust if record is not None else 0.0

    def match(self, hashes: Sequence[int]) -> Mapping[int, int]:
        """Bytes at the beginning of the text that each pod holds, by slot; pods that hold none are left out."""
        holders = self._holders.get
        mask = holders(hashes[0], 0) & self._believed if hashes else 0
        if not mask:
            return NOTHING
        found: dict[int, int] = {}
        depth = 0
        for value in hashes:
            still = holders(value, 0) & mask
            if still != mask:
                _note(found, mask ^ still, BORDERS[depth - 1])
                if not still:
                    return found
                mask = still
            depth += 1
        _note(found, mask, BORDERS[depth - 1])
        return found

    def sent(self, slot: int, hashes: Sequence[int]) -> None:
        """A prompt went to the pod: it will hold all of it, its beginning longest."""
        record = self._records[slot]
        if record is None or not hashes:
            return
        blocks, holders, bit = record.blocks, self._holders, 1 << slot
        touch = blocks.move_to_end
        for at in range(len(hashes) - 1, -1, -1):
            value = hashes[at]
            if value in blocks:
                touch(value)
            else:
                blocks[value] = (at | hashes[at - 1] << 8) if at else 0
                record.used_bytes += _STEPS[at]
                holders[value] = holders.get(value, 0) | bit
        self._evict(record, slot)

    def filled(self, slot: int, size_bytes: int) -> None:
        """An output, or a prompt's end after its last border, took so much room, in bytes of text."""
        record = self._records[slot]
        if record is None or size_bytes <= 0:
            return
        record.fills += 1
        record.blocks[-record.fills] = size_bytes << 8 | FILL
        record.used_bytes += size_bytes
        self._evict(record, slot)

    def stored(self, slot: int, entries: Sequence[tuple[int, int]]) -> None:
        """What the pod's sidecar tells of its cache (ledger.stored): prompts and outputs of all gateways."""
        record = self._records[slot]
        if record is None:
            return
        blocks, holders, bit = record.blocks, self._holders, 1 << slot
        for (border, value), child, parent in zip(entries, (_NONE, *entries), (*entries[1:], _NONE), strict=False):
            if border == FILL:
                self.filled(slot, value)
            elif value not in blocks:
                # A prompt's blocks come tail first, so the next entry is the one before, where it is told at all.
                known = border and parent[0] == border - 1
                blocks[value] = (border | parent[1] << 8) if known else border
                record.used_bytes += _STEPS[border]
                holders[value] = holders.get(value, 0) | bit
            elif child[0] != border + 1:
                _touch(blocks, value)
        self._evict(record, slot)

    def corrected(self, slot: int, predicted_tokens: int, cached_tokens: int) -> None:
        """The engine told how many prompt tokens it had cached, where a match had predicted some."""
        record = self._records[slot]
        if record is None or predicted_tokens + cached_tokens <= 0:
            return
        hit = 1.0
        if predicted_tokens - cached_tokens > _EDGE_TOKENS:
            hit = cached_tokens / predicted_tokens
        elif cached_tokens == 0:
            return
        record.trust += _TRUST_RATE * (hit - record.trust)
        if record.trust < _LEAST_TRUST:
            self._believed &= ~(1 << slot)
        else:
            self._believed |= 1 << slot
        if hit < _MISS_RATIO:
            record.scale = max(_LEAST_SCALE, record.scale * _SHRINK)
            self._evict(record, slot)
        else:
            record.scale = min(1.0, record.scale * _GROW)

    def _evict(self, record: _Record, slot: int) -> None:
        room = record.capacity_bytes * record.scale
        blocks = record.blocks
        while blocks and (record.used_bytes > room or len(blocks) > self._limit):
            value, block = blocks.popitem(last=False)
            record.used_bytes -= _size_of(block)
            self._drop(value, slot)

    def _drop(self, value: int, slot: int) -> None:
        if value < 0:
            return
        left = self._holders[value] & ~(1 << slot)
        if left:
            self._holders[value] = left
        else:
            del self._holders[value]

    def _limit_hashes(self) -> None:
        pods = sum(record is not None for record in self._records)
        self._limit = min(_MOST_HASHES_A_POD, _MOST_HASHES // max(1, pods))


def _size_of(block: int) -> int:
    border = block & 255
    return block >> 8 if border == FILL else _STEPS[border]


def _touch(blocks: OrderedDict[int, int], value: int) -> None:
    """A block was used, and with it all before it."""
    block = blocks.get(value)
    while block is not None:
        blocks.move_to_end(value)
        if not block & 255:
            return
        value = block >> 8
        block = blocks.get(value)


def _note(found: dict[int, int], mask: int, size_bytes: int) -> None:
    while mask:
        low = mask & -mask
        found[low.bit_length() - 1] = size_bytes
        mask ^= low
