"""The memory of baselines that guess what is cached where: block names by pod, bounded, oldest use first out."""

from collections import OrderedDict
from collections.abc import Sequence
from typing import Final

from .request import NAME_TOKENS

# llm-d's approximate index (approx-prefix-cache-producer): 31,250 blocks a pod, 64 tokens each at least.
LLM_D_BLOCKS: Final = 31_250 * 64 // NAME_TOKENS


class PrefixMemory:
    """What was sent to each pod. Names are hashes of all text up to their block, so a match is a walk from 0."""

    def __init__(self, pods: int, blocks_a_pod: int) -> None:
        self._pods: list[OrderedDict[int, None]] = [OrderedDict() for _ in range(pods)]
        self._limit = blocks_a_pod

    def matches(self, names: Sequence[int]) -> list[int]:
        """Leading blocks that each pod was sent before."""
        found = []
        for known in self._pods:
            count = 0
            for name in names:
                if name not in known:
                    break
                count += 1
            found.append(count)
        return found

    def note(self, pod: int, names: Sequence[int]) -> None:
        """The pod computes this prompt."""
        known = self._pods[pod]
        for name in names:
            if name in known:
                known.move_to_end(name)
            else:
                known[name] = None
        while len(known) > self._limit:
            known.popitem(last=False)
