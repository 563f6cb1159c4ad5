"""One vLLM engine: the scheduler of vLLM V1 (v1/core/sched/scheduler.py, 0.32) over a model of its step time.

A step gives every decoding sequence one token and fills the rest of `max_batched_tokens` with prompts, oldest
first. Blocks are had when they are needed; without one, the youngest sequence loses its own, waits at the front,
and is computed again. A prompt begins only when all of it fits (`scheduler_reserve_full_isl`, on by default).

Between two events all decode steps are alike, so they are one leap: what k steps take and use is in closed form.
"""

import heapq
from collections import deque
from dataclasses import dataclass
from math import sqrt
from typing import Final

from .blocks import BlockPool, Holding
from .steptime import StepTime

NEVER: Final = float("inf")


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """Settings by vLLM's names; defaults are those of an A100 (engine/arg_utils.py, get_batch_defaults)."""

    step_time: StepTime
    kv_tokens: int
    block_tokens: int = 128  # vLLM's on the CPU; 16 on a GPU, which for prompts of thousands makes no difference
    max_batched_tokens: int = 2048
    max_num_seqs: int = 256
    by_priority: bool = False  # --scheduling-policy priority


class Sequence:
    """One request in an engine. `names` are those of its full prompt blocks, in order."""

    __slots__ = (
        "admitted",
        "arrived_at",
        "cached_tokens",
        "computed",
        "finish_step",
        "holding",
        "names",
        "order",
        "output_tokens",
        "preemptions",
        "priority",
        "prompt_tokens",
        "published",
        "request",
        "start_step",
        "target",
        "to_make",
    )

    def __init__(
        self, request: object, prompt_tokens: int, to_make: int, names: list[int], *, priority: int = 0
    ) -> None:
        self.request = request
        self.prompt_tokens = prompt_tokens
        self.to_make = max(1, to_make)
        self.names = names
        self.priority = priority  # vLLM's: the lower number goes first
        self.arrived_at = 0.0
        self.order = 0
        self.cached_tokens = 0  # at the first admission, as usage tells it
        self.preemptions = 0
        self.admitted = False
        self.holding = Holding()
        self.computed = 0
        self.target = prompt_tokens  # tokens to compute before it decodes
        self.published = 0  # prompt blocks with their names given
        self.output_tokens = 0  # up to start_step
        self.start_step = 0
        self.finish_step = 0

    def __repr__(self) -> str:
        return f"<Sequence {self.order} {self.computed}/{self.target} out={self.output_tokens}/{self.to_make}>"


@dataclass(slots=True)
class Counts:
    """What the engine's metrics page would count."""

    prefix_queries: int = 0
    prefix_hits: int = 0
    preemptions: int = 0
    prompt_tokens: int = 0  # computed, again after a preemption included
    output_tokens: int = 0
    steps: int = 0


class Engine:
    """Driven from outside: `submit` at any time; at `wake_at` first `complete`, then `begin`."""

    def __init__(self, config: EngineConfig, slowness: float = 1.0) -> None:
        self.config = config
        self.time = config.step_time.scaled(slowness)
        self.pool = BlockPool(config.kv_tokens // config.block_tokens)
        self.running: list[Sequence] = []
        self.counts = Counts()
        self.wake_at = NEVER
        self.step = 0  # steps completed
        self._waiting: deque[Sequence] = deque()
        self._by_priority: list[tuple[int, float, int, Sequence]] = []
        self._prefilling: list[Sequence] = []
        self._decoding = 0
        self._context = 0  # tokens in KV of the decoding ones, after this step
        # Decoding sequences by when they need their next block: at step s those of bucket -s mod block_tokens.
        self._buckets = [0] * config.block_tokens
        self._finishing: list[tuple[int, int, Sequence]] = []
        self._leap = 0  # steps from `_leap_at` to `wake_at`; 0: not running
        self._leap_at = 0.0
        self._chunks: list[tuple[Sequence, int]] = []
        self._orders = 0

    @property
    def waiting(self) -> int:
        """Requests not admitted."""
        return len(self._waiting) + len(self._by_priority)

    @property
    def kv_usage(self) -> float:
        """0 to 1, as the gauge kv_cache_usage_perc."""
        return self.pool.used / self.pool.total

    def submit(self, sequence: Sequence, now: float) -> None:
        """A request arrives; it is looked at when the step that runs now is over."""
        if sequence.prompt_tokens + sequence.to_make > self.pool.total * self.config.block_tokens:
            raise ValueError(f"{sequence!r} is longer than the KV cache; the API would refuse it")
        self._orders += 1
        sequence.order, sequence.arrived_at = self._orders, now
        self._enqueue(sequence)
        if self._leap == 0:
            return
        done = self._steps_until(now)
        if done < self._leap:
            self._leap = done
            self.wake_at = self._leap_at + self._decode_seconds(done)

    @property
    def idle(self) -> bool:
        """No step runs: after a submit `begin` is due."""
        return self._leap == 0

    def produced(self, sequence: Sequence, now: float) -> int:
        """Output tokens that the client has by now."""
        if sequence.finish_step == 0:
            return sequence.output_tokens
        step = self.step
        if self._leap > 1:
            step += min(self._leap, max(0, self._steps_until(now) - 1))
        return sequence.output_tokens + max(0, step - sequence.start_step)

    def complete(self) -> tuple[list[Sequence], list[Sequence]]:
        """The step, or the leap, is over: who has a first token (since its admission) and who is finished."""
        first: list[Sequence] = []
        steps = self._leap
        self._leap = 0
        self.wake_at = NEVER
        # Now and not at `begin`, because a leap may have been cut short; nobody else took any in between.
        self.pool.take(self._blocks_for(steps))
        self.step += steps
        counts = self.counts
        counts.steps += steps
        counts.output_tokens += steps * self._decoding
        self._context += steps * self._decoding
        for sequence, tokens in self._chunks:
            sequence.computed += tokens
            counts.prompt_tokens += tokens
            if sequence.computed == sequence.target:
                self._prefilling.remove(sequence)
                self._start_decoding(sequence, first)
        self._chunks = []
        return first, self._finished()

    def begin(self, now: float) -> None:
        """Schedule the next step from now on, if there is anything to do."""
        budget = self.config.max_batched_tokens
        blocks = self._buckets[-self.step % self.config.block_tokens]
        preempted = blocks > self.pool.free and self._make_room()
        budget -= self._decoding
        seconds, lost = self._continue_prefills(budget)
        preempted = preempted or lost
        used = sum(tokens for _, tokens in self._chunks)
        if not preempted and self.waiting and len(self.running) < self.config.max_num_seqs:
            seconds += self._admit(budget - used)
        if not self.running:
            if self.waiting and preempted:
                self.begin(now)
            return
        if self._chunks:
            self._leap = 1
            seconds += self.time.decode(self._decoding, self._context)
        else:
            # After a preemption nobody is admitted in the same step, but maybe in the next one.
            self._leap = 1 if preempted else self._leap_steps()
            seconds = self._decode_seconds(self._leap)
        self._leap_at = now
        self.wake_at = now + seconds

    # Time.

    def _decode_seconds(self, steps: int) -> float:
        """Seconds of so many decode steps from now; each makes every context one token longer."""
        first = self.time.decode(self._decoding, self._context)
        return steps * first + self.time.per_context_token_seconds * self._decoding * (steps * (steps - 1) / 2)

    def _steps_until(self, now: float) -> int:
        """Steps of the leap that are over when the one that runs at `now` is; at least one."""
        if self._leap <= 1:
            return self._leap
        elapsed = now - self._leap_at
        first = self.time.decode(self._decoding, self._context)
        grow = self.time.per_context_token_seconds * self._decoding / 2
        if grow > 0:
            guess = (sqrt((first - grow) ** 2 + 4 * grow * max(0.0, elapsed)) - (first - grow)) / (2 * grow)
        else:
            guess = elapsed / first
        steps = max(1, int(guess))
        while steps < self._leap and self._decode_seconds(steps) < elapsed:
            steps += 1
        return min(steps, self._leap)

    def _leap_steps(self) -> int:
        """Decode steps until somebody is done or blocks run out."""
        finishing = self._finishing
        while finishing[0][2].finish_step != finishing[0][0]:
            heapq.heappop(finishing)  # it was preempted since
        steps = max(1, finishing[0][0] - self.step)
        while steps > 1 and self._blocks_for(steps) > self.pool.free:
            steps = (steps + 1) // 2
        return steps

    # Blocks of decoding sequences.

    def _blocks_for(self, steps: int) -> int:
        size, step = self.config.block_tokens, self.step
        turns, rest = divmod(steps, size)
        buckets = self._buckets
        return turns * self._decoding + sum([buckets[-(step + i) % size] for i in range(rest)])

    def _bucket(self, sequence: Sequence) -> int:
        """Which bucket a decoding sequence is in: it needs a block when its tokens in KV fill all it has."""
        held = sequence.target + self.step - sequence.start_step
        return (held - self.step) % self.config.block_tokens

    def _make_room(self) -> bool:
        """Preempt until the decoding sequences have their blocks; True when somebody was."""
        any_lost = False
        while self._buckets[-self.step % self.config.block_tokens] > self.pool.free and len(self.running) > 1:
            self._preempt(self._victim())
            any_lost = True
        return any_lost

    def _victim(self) -> Sequence:
        if self.config.by_priority:
            return max(self.running, key=lambda s: (s.priority, s.arrived_at, s.order))
        return self.running[-1]

    # Prompts.

    def _continue_prefills(self, budget: int) -> tuple[float, bool]:
        """Chunks of admitted prompts: their seconds, and whether somebody was preempted for them."""
        seconds = 0.0
        lost = False
        for sequence in list(self._prefilling):
            if sequence not in self._prefilling:
                continue
            tokens = min(sequence.target - sequence.computed, budget)
            if tokens <= 0:
                break
            reserve = self._buckets[-self.step % self.config.block_tokens]
            while sequence in self._prefilling and self._blocks_missing(sequence, tokens) > (
                self.pool.free - reserve
            ):
                lost = True
                self._preempt(self._victim())
                reserve = self._buckets[-self.step % self.config.block_tokens]
            if sequence in self._prefilling:
                seconds += self._chunk(sequence, tokens)
                budget -= tokens
        return seconds, lost

    def _admit(self, budget: int) -> float:
        seconds = 0.0
        reserve = self._buckets[-self.step % self.config.block_tokens]
        size = self.config.block_tokens
        while budget > 0 and self.waiting and len(self.running) < self.config.max_num_seqs:
            sequence = self._first_waiting()
            # At least one token is computed, for there is nothing to sample from otherwise.
            hits = self.pool.match(sequence.names, (sequence.target - 1) // size)
            whole = -(-sequence.target // size)
            free = self.pool.free - reserve - self.pool.unused_among(sequence.names, hits)
            if whole - hits > free:
                break
            self._leave_queue()
            self.pool.share(sequence.holding, sequence.names, hits)
            sequence.published = hits
            sequence.computed = hits * size
            if not sequence.admitted:
                sequence.admitted = True
                sequence.cached_tokens = sequence.computed
                self.counts.prefix_queries += sequence.target
                self.counts.prefix_hits += sequence.computed
            self.running.append(sequence)
            self._prefilling.append(sequence)
            tokens = min(sequence.target - sequence.computed, budget)
            seconds += self._chunk(sequence, tokens)
            budget -= tokens
        return seconds

    def _blocks_missing(self, sequence: Sequence, tokens: int) -> int:
        return -(-(sequence.computed + tokens) // self.config.block_tokens) - sequence.holding.blocks

    def _chunk(self, sequence: Sequence, tokens: int) -> float:
        """Schedule so many tokens of a prompt. Their names are given at once, as vLLM does."""
        missing = self._blocks_missing(sequence, tokens)
        if missing > 0:
            self.pool.take(missing)
            sequence.holding.private += missing
        full = (sequence.computed + tokens) // self.config.block_tokens
        fresh = sequence.names[sequence.published : full]
        if fresh:
            self.pool.give_names(sequence.holding, fresh)
            sequence.published += len(fresh)
        self._chunks.append((sequence, tokens))
        return self.time.prefill(tokens, sequence.computed)

    # Beginnings and ends.

    def _start_decoding(self, sequence: Sequence, first: list[Sequence]) -> None:
        """All its tokens are computed, and the step has sampled one more."""
        sequence.start_step = self.step
        sequence.output_tokens += 1
        self.counts.output_tokens += 1
        sequence.finish_step = self.step + sequence.to_make - sequence.output_tokens
        if sequence.output_tokens == 1:
            first.append(sequence)
        self._decoding += 1
        self._context += sequence.target + 1
        self._buckets[self._bucket(sequence)] += 1
        heapq.heappush(self._finishing, (sequence.finish_step, sequence.order, sequence))

    def _finished(self) -> list[Sequence]:
        done: list[Sequence] = []
        finishing = self._finishing
        while finishing and finishing[0][0] <= self.step:
            step, _, sequence = heapq.heappop(finishing)
            if sequence.finish_step != step or sequence.output_tokens == 0:
                continue
            sequence.output_tokens = sequence.to_make
            self._stop_decoding(sequence)
            self.running.remove(sequence)
            sequence.finish_step = 0
            done.append(sequence)
        return done

    def _stop_decoding(self, sequence: Sequence) -> None:
        """Give back all it has; its last token was sampled and never computed."""
        size = self.config.block_tokens
        held = sequence.target + self.step - sequence.start_step
        self._buckets[self._bucket(sequence)] -= 1
        self._decoding -= 1
        self._context -= held + 1
        holding = sequence.holding
        # What the leaps took for it. A block for the token that comes next was not yet taken.
        holding.private += -(-held // size) - holding.blocks
        self.pool.release(holding, min(holding.private, max(0, held // size - len(holding.named))))

    def _preempt(self, sequence: Sequence) -> None:
        """It loses its blocks, and waits before all others to compute prompt and output again."""
        self.running.remove(sequence)
        if sequence in self._prefilling:
            self._prefilling.remove(sequence)
            self._chunks = [chunk for chunk in self._chunks if chunk[0] is not sequence]
            holding = sequence.holding
            size = self.config.block_tokens
            self.pool.release(
                holding, min(holding.private, max(0, sequence.computed // size - len(holding.named)))
            )
        else:
            sequence.output_tokens += self.step - sequence.start_step
            self._stop_decoding(sequence)
            sequence.target = sequence.prompt_tokens + sequence.output_tokens
        sequence.finish_step = 0
        sequence.computed = 0
        sequence.published = 0
        sequence.preemptions += 1
        self.counts.preemptions += 1
        self._enqueue(sequence, first=True)

    def _enqueue(self, sequence: Sequence, *, first: bool = False) -> None:
        if self.config.by_priority:
            item = (sequence.priority, sequence.arrived_at, sequence.order, sequence)
            heapq.heappush(self._by_priority, item)
        elif first:
            self._waiting.appendleft(sequence)
        else:
            self._waiting.append(sequence)

    def _first_waiting(self) -> Sequence:
        return self._by_priority[0][3] if self._by_priority else self._waiting[0]

    def _leave_queue(self) -> None:
        if self._by_priority:
            heapq.heappop(self._by_priority)
        else:
            self._waiting.popleft()
