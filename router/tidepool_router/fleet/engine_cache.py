"""What a sidecar knows of its engine's prefix cache: what went in, what a request finds, what to tell."""

from typing import Final

import msgspec

from tidepool_router.facts import RequestFacts
from tidepool_router.ledger import Entry, Estimate, PrefixIndex, TokenEstimator, whole_blocks
from tidepool_router.ledger.chain import BORDERS, with_adapter
from tidepool_router.ledger.stored import FILL, StoredLog

_DEPTHS: Final = {border: depth for depth, border in enumerate(BORDERS, 1)}


class EngineCache:
    """One engine's, by the prompts that passed; corrected by what it reports."""

    def __init__(self, estimator: TokenEstimator) -> None:
        self.log = StoredLog()
        self._estimator = estimator
        self._index = PrefixIndex()
        self._slot = self._index.join()
        self._block_tokens = 1

    def look(self, facts: RequestFacts) -> tuple[Estimate, tuple[int, ...], int]:
        """Tokens of a request, with the prompt tokens that it finds cached if it goes to the engine now.

        Beside them its chain, and how many bytes of that were found: `took_in` wants to know both.
        """
        estimate = self._estimator.estimate(facts)
        prefix = facts.prefix if facts.adapter is None else with_adapter(facts.prefix, facts.adapter)
        found = self._index.match(prefix).get(self._slot, 0)
        if not found:
            return estimate, prefix, 0
        prompt, block = estimate.prompt_tokens, self._block_tokens
        cached = whole_blocks(found, prompt / facts.prompt_bytes, prompt, block)
        cached = round(cached * self._index.trust(self._slot) / block) * block
        return msgspec.structs.replace(estimate, cached_tokens=cached), prefix, found

    def took_in(self, prefix: tuple[int, ...], found: int) -> None:
        """The engine gets the request: it will hold all of its prompt, and gateways are to know.

        In the same step as the look at it.
        """
        if not prefix:
            return
        depth = _DEPTHS.get(found, 0)
        self._index.sent(self._slot, prefix)
        # The new blocks, tail first, and the last one that was there, which tells that all before it was used.
        for border in range(len(prefix) - 1, max(depth - 2, -1), -1):
            self.log.add(border, prefix[border])

    def ended(self, entry: Entry) -> None:
        """An answer's usage says what was cached, and how much room its output took."""
        if not entry.counted_by_engine:
            return
        if entry.cached_told:
            predicted = entry.estimate.cached_tokens + entry.moved_tokens
            self._index.corrected(self._slot, predicted, entry.cached_tokens)
        size_bytes = int(entry.output_tokens * self._estimator.bytes_per_token)
        if size_bytes > 0:
            self._index.filled(self._slot, size_bytes)
            self.log.add(FILL, size_bytes)

    def resize(self, capacity_tokens: int, block_tokens: int | None) -> None:
        """The engine's KV cache has room for so many tokens, in blocks of so many (None: it does not tell)."""
        self._block_tokens = block_tokens or 1
        self._index.resize(self._slot, capacity_tokens * self._estimator.bytes_per_token)

    def forget(self) -> None:
        """The engine is a new process."""
        self._index.forget(self._slot)
