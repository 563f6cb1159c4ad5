"""How many requests one engine is worth having at once: as many as it runs, and a few more so that it never idles.

An engine takes whatever it is sent and queues what it cannot run. A request in that queue has lost its place
among priorities and tenants, cannot go to another pod, and cannot be refused in time; so what would only wait
there waits here. Three limits meet, and each is learned, for vLLM tells none of them as such:

- Sequences (`max_num_seqs`): at a look at which requests wait in the engine, those that run are all it can.
- Prefill (`max_num_batched_tokens` a step): then few run and many wait, and how many run changes from step to
step.
  Streams say when they start; while less is unstarted than fills two steps, the engine wants more.
- KV cache: the most that will be in use at once fits (`peak_tokens`). That is less than all that is expected,
  for requests end while others grow.
"""

from math import exp
from typing import Final

import msgspec

# vLLM's default for max_num_batched_tokens in a server on a large GPU; smaller engines only queue a little more.
_STEP_TOKENS: Final = 8192
_UNSTARTED_TOKENS: Final = 2 * _STEP_TOKENS
_UNSTARTED_REQUESTS: Final = 2
# Beyond what runs, so that a place that falls free is taken within the same step: two, and one in 32.
_SPARE: Final = 2
_SPARE_SHARE: Final = 32
# So many looks in a row at which the same number ran while others waited: that number is the engine's limit.
_LOOKS_AT_LIMIT: Final = 3
# Of the output that is expected, so much on top, for what ends later than expected. Chosen on the training seeds
# of the simulator's decode load: with half of it requests wait for seconds beside free memory, with a tenth an
# overloaded engine preempts five times as often.
_GROWING_SHARE: Final = 0.2
_NO_LIMIT: Final = 1 << 60


class Load(msgspec.Struct, frozen=True, gc=False):
    """What an engine was sent and has not finished, as the ledger sums it; token figures as in LoadReport."""

    requests: int = 0
    unstarted: int = 0
    queued_tokens: int = 0
    held_tokens: int = 0
    expected_tokens: int = 0


class Room:
    """What looks at one engine have taught. Until requests were seen to wait in it, only its KV cache limits
    it."""

    __slots__ = ("_at_limit", "_kv_share", "_most", "_running", "kv_capacity_tokens", "slots")

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Another engine stands there now."""
        self.slots = _NO_LIMIT  # requests that it can run at once, of the kind that it has now
        self.kv_capacity_tokens = 0  # 0: unknown
        # Of the tokens that requests hold, those that take room in the cache: prefixes are shared.
        self._kv_share = 1.0
        self._most = 0  # that were seen running while others waited
        self._running = -1  # at the last look at which some waited, and at how many in a row it was the same
        self._at_limit = 0

    @property
    def unlimited(self) -> bool:
        """Nothing is known that would make anybody wait."""
        return self.slots == _NO_LIMIT and not self.kv_capacity_tokens

    def looked(
        self,
        load: Load,
        running: int | None,
        waiting: int | None,
        kv_usage: float | None,
        kv_capacity_tokens: int | None,
    ) -> None:
        """Take in a look at the engine's own figures; None is missing, and teaches nothing."""
        if self.kv_capacity_tokens and kv_capacity_tokens not in (None, self.kv_capacity_tokens):
            self.forget()  # it has been started anew, with other settings
        self.kv_capacity_tokens = kv_capacity_tokens or self.kv_capacity_tokens
        if running is None or waiting is None:
            return
        if waiting > 0:
            self._at_limit = self._at_limit + 1 if running == self._running else 1
            self._running = running
            self._most = max(self._most, running)
            self.slots = max(1, running)
            return
        self._running, self._at_limit = -1, 0
        if self.slots != _NO_LIMIT and load.requests >= self.slots:
            self.slots = 2 * max(self.slots, running)  # it ran all that it was given: it can do more
        if kv_usage is not None and kv_capacity_tokens and load.held_tokens:
            self._kv_share = min(1.0, kv_usage * kv_capacity_tokens / load.held_tokens)

    def surely_takes(self, requests: int, tokens: int) -> bool:
        """`takes` where there is plenty of room, for less: `tokens` is all that is queued, held and expected."""
        return requests < self.slots and (tokens <= self.kv_capacity_tokens or not self.kv_capacity_tokens)

    def takes(self, load: Load, prompt_tokens: int, output_tokens: int) -> bool:
        """Whether one more request would be worked on, or wait in the engine no longer than a step or two."""
        if load.requests == 0:
            return True
        capacity = self.kv_capacity_tokens
        if capacity:
            held = self._kv_share * (load.held_tokens + prompt_tokens)
            if peak_tokens(held, load.expected_tokens + output_tokens) > capacity:
                return False
        spare = _SPARE + self.slots // _SPARE_SHARE
        if load.requests < self.slots + spare:
            return True
        if self._at_limit >= _LOOKS_AT_LIMIT or load.requests >= self._most + self._most // 4 + spare:
            return False
        return load.unstarted < _UNSTARTED_REQUESTS or load.queued_tokens + prompt_tokens <= _UNSTARTED_TOKENS

    def limit(self, load: Load) -> int | None:
        """Requests at which this engine is full, for those who send to it; None while nothing limits it."""
        if self.unlimited:
            return None
        if not self.takes(load, 1, 1):
            return load.requests
        if self.slots == _NO_LIMIT:
            return None
        return max(load.requests + 1, self.slots + _SPARE + self.slots // _SPARE_SHARE)


def peak_tokens(held: float, expected: float) -> float:
    """Most KV tokens in use at once, of requests that hold so many and are to make so many, if nobody else comes.

    Each of n requests holds s tokens and has r to go. If they end at an even rate, n exp(-t / r) are left after t
    steps, with s + t tokens each: the most is n r exp(s / r - 1), r - s steps from now. Where s is r or more it is
    now, for those that end give back at least what the others take.
    """
    peak = held if held >= expected else expected * exp(held / expected - 1.0)
    return peak + _GROWING_SHARE * expected
