"""Which LoRA adapters an engine has in its slots, from what it tells and from what was sent to it.

vLLM keeps the adapters that were used last, as many as it has slots (--max-loras), and its page names only those
that requests use at that moment: one that nobody asks for now is still there until its slot is needed.
"""

from collections import OrderedDict
from collections.abc import Iterable
from typing import Final

# Of an engine that does not tell how many slots it has; more are not remembered.
_UNTOLD_SLOTS: Final = 16


class LoadedAdapters:
    """One engine's. `names` is what a pick reads."""

    __slots__ = ("_last_used", "names", "slots")

    def __init__(self) -> None:
        self._last_used: OrderedDict[str, None] = OrderedDict()  # least recent first
        self.names: frozenset[str] = frozenset()
        self.slots = 0  # 0: not told

    def told(self, names: Iterable[str], slots: int | None) -> None:
        """Those that requests use now, in the engine or on their way to it, and how many fit; None: not told."""
        self.slots = slots or self.slots
        last_used = self._last_used
        for name in names:
            last_used[name] = None
            last_used.move_to_end(name)
        while len(last_used) > (self.slots or _UNTOLD_SLOTS):
            last_used.popitem(last=False)
        if last_used.keys() != self.names:
            self.names = frozenset(last_used)

    def forget(self) -> None:
        """The engine is a new process."""
        self._last_used.clear()
        self.names = frozenset()
