"""The KV cache of one engine in blocks, as vLLM's BlockPool keeps it (v1/core/block_pool.py, 0.32).

A block is named by the hash of its text and all text before it. In use it has a count of users; unused it stays
findable until its memory is wanted, the one that was freed first going first. Blocks whose text has no name (the
last one of a request, not yet full) are reused before any named one.
"""

from collections import OrderedDict
from collections.abc import Sequence


class Holding:
    """What one request holds: named blocks that others may share, and `private` ones that nobody can find."""

    __slots__ = ("named", "private")

    def __init__(self) -> None:
        self.named: list[int] = []
        self.private = 0

    @property
    def blocks(self) -> int:
        """All of them."""
        return len(self.named) + self.private


class BlockPool:
    """Invariant: blocks in use + unused named ones + blank ones = `total`."""

    __slots__ = ("_blank", "_filler", "_unused", "_unused_count", "_users", "total")

    def __init__(self, total: int) -> None:
        self.total = total
        self._users: dict[int, int] = {}
        # Name to number of blocks, oldest first. A positive name is one block; a negative one stands for a run of
        # full blocks that no other request will ask for (answers), so that a long answer costs one entry.
        self._unused: OrderedDict[int, int] = OrderedDict()
        self._unused_count = 0
        self._blank = total
        self._filler = 0

    @property
    def free(self) -> int:
        """Blocks that can be had, findable or not."""
        return self._blank + self._unused_count

    @property
    def used(self) -> int:
        """Blocks in use, each counted once."""
        return self.total - self.free

    def match(self, names: Sequence[int], most: int) -> int:
        """How many of the first `most` names are here, from the first on without a gap."""
        users, unused = self._users, self._unused
        for index in range(min(most, len(names))):
            name = names[index]
            if name not in users and name not in unused:
                return index
        return min(most, len(names))

    def unused_among(self, names: Sequence[int], count: int) -> int:
        """How many of the first `count` names are unused: to hold them takes free blocks."""
        unused = self._unused
        return sum([name in unused for name in names[:count]])

    def share(self, holding: Holding, names: Sequence[int], count: int) -> None:
        """Hold the first `count` names, which are here."""
        users, unused = self._users, self._unused
        for index in range(count):
            name = names[index]
            seen = users.get(name)
            if seen is None:
                del unused[name]
                self._unused_count -= 1
                users[name] = 1
            else:
                users[name] = seen + 1
        holding.named += names[:count]

    def take(self, count: int) -> None:
        """Get `count` blocks without a name; what was found in them is forgotten. The caller saw to `free`."""
        if count > self.free:
            raise ValueError(f"{count} blocks wanted and {self.free} free")
        blank = min(count, self._blank)
        self._blank -= blank
        count -= blank
        self._unused_count -= count
        while count > 0:
            name, size = self._unused.popitem(last=False)
            if size > count:
                self._unused[name] = size - count
                self._unused.move_to_end(name, last=False)
                return
            count -= size

    def give_names(self, holding: Holding, names: Sequence[int]) -> None:
        """So many private blocks are full and findable from now on; where a name is here already, nothing.

        Then two requests computed the same text at once, and the second copy is found by nobody.
        """
        users, unused, named = self._users, self._unused, holding.named
        before = len(named)
        for name in names:
            if name not in users and name not in unused:
                named.append(name)
                users[name] = 1
        holding.private -= len(named) - before

    def release(self, holding: Holding, full_private: int) -> None:
        """Give all back, the last block first, so that the beginning of a prompt lives longest.

        `full_private` of the private blocks are full: findable in principle, they age as named ones do.
        """
        if full_private:
            self._filler -= 1
            self._unused[self._filler] = full_private
            self._unused_count += full_private
        self._blank += holding.private - full_private
        users, unused = self._users, self._unused
        freed = 0
        for name in reversed(holding.named):
            left = users[name] - 1
            if left:
                users[name] = left
            else:
                del users[name]
                unused[name] = 1
                freed += 1
        self._unused_count += freed
        holding.named = []
        holding.private = 0
