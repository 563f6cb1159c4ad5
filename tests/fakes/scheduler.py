"""Scheduler of the engine double: continuous batching with chunked prefill, priorities and preemption.

No clock and no I/O: `plan` says what the next step would do, `commit` does it. One step gives every sequence whose
prompt is computed its next token(s) and spends the rest of the token budget on prompts.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from fakes.kv import Block, KvCache
from fakes.settings import EngineSettings


@dataclass(slots=True, eq=False)
class Sequence:
    """One choice of one request. `on_tokens(count, finish_reason)` is called at each step that makes tokens."""

    prompt_tokens: int
    max_tokens: int
    keys: list[int]
    on_tokens: Callable[[int, str | None], None]
    priority: int = 0
    stop_at: int | None = None  # tokens after which the model itself ends; None: it never does
    arrival: int = 0
    computed: int = 0
    target: int = 0  # tokens to compute before the next token: the prompt, and after a preemption the output too
    output: int = 0
    cached: int = 0
    brought: int = 0  # prompt tokens whose blocks another engine hands over
    kept_as: str = ""  # its blocks stay for another engine, under this name
    preemptions: int = 0
    blocks: list[Block] = field(default_factory=list)
    started: bool = False

    @property
    def decoding(self) -> bool:
        """All that comes before the next token is computed."""
        return self.started and self.computed >= self.target


@dataclass(slots=True)
class StepPlan:
    """What the step computes: prompt tokens by sequence; every other running sequence decodes."""

    prefill: list[tuple[Sequence, int]] = field(default_factory=list)

    @property
    def prefill_tokens(self) -> int:
        """Prompt tokens in the step."""
        return sum(tokens for _, tokens in self.prefill)


class Scheduler:
    """Owns the sequences and the KV cache."""

    def __init__(self, settings: EngineSettings) -> None:
        self.settings = settings
        self.kv = KvCache(settings.num_gpu_blocks, settings.block_size)
        self.waiting: list[Sequence] = []
        self.running: list[Sequence] = []
        self.preemptions = 0
        self.prefix_queries = 0
        self.prefix_hits = 0
        self.brought_tokens = 0
        self.kept: dict[str, tuple[int, list[Block]]] = {}  # prompt tokens and blocks that wait to be fetched
        self._arrivals = 0

    @property
    def idle(self) -> bool:
        """Nothing waits and nothing runs."""
        return not self.waiting and not self.running

    def add(self, sequence: Sequence) -> None:
        """Queue a sequence."""
        self._arrivals += 1
        sequence.arrival = self._arrivals
        sequence.target = sequence.prompt_tokens
        self.waiting.append(sequence)
        self._sort()

    def abort(self, sequence: Sequence) -> bool:
        """Drop a sequence wherever it is; False when it had ended."""
        for queue in (self.waiting, self.running):
            if sequence in queue:
                queue.remove(sequence)
                self._free(sequence)
                return True
        return False

    def fetch(self, name: str) -> int:
        """Another engine has got what was kept under this name: so many prompt tokens; 0: nothing was."""
        tokens, blocks = self.kept.pop(name, (0, []))
        self.kv.release(blocks)
        return tokens

    def plan(self) -> StepPlan:
        """Admit what fits and share out the step's token budget."""
        self._grow()
        plan = StepPlan()
        budget = self.settings.max_num_batched_tokens - sum(s.decoding for s in self.running)
        for sequence in self.running:
            budget -= self._give(plan, sequence, budget)
        while self.waiting and budget > 0 and len(self.running) < self.settings.max_num_seqs:
            if not self._admit(self.waiting[0]):
                break
            sequence = self.waiting.pop(0)
            self.running.append(sequence)
            budget -= self._give(plan, sequence, budget)
        return plan

    def commit(self, plan: StepPlan) -> None:
        """Carry the step out: computed prompts, then a token for each sequence that is ready for one."""
        for sequence, tokens in plan.prefill:
            if sequence in self.running:
                sequence.computed += tokens
                self.kv.publish(sequence.blocks, sequence.keys, sequence.computed)
        for sequence in [s for s in self.running if s.decoding]:
            self._emit(sequence)

    def _emit(self, sequence: Sequence) -> None:
        ends = min(sequence.max_tokens, sequence.stop_at or sequence.max_tokens)
        count = min(self.settings.tokens_per_step, ends - sequence.output)
        sequence.output += count
        sequence.computed += count
        sequence.target = sequence.computed
        finish = None
        if sequence.output >= ends:
            finish = "stop" if sequence.stop_at is not None and sequence.output >= sequence.stop_at else "length"
            self.running.remove(sequence)
            if sequence.kept_as:
                self.kept[sequence.kept_as] = sequence.prompt_tokens, sequence.blocks
            else:
                self._free(sequence)
        sequence.on_tokens(count, finish)

    def _give(self, plan: StepPlan, sequence: Sequence, budget: int) -> int:
        tokens = max(0, min(sequence.target - sequence.computed, budget))
        if tokens:
            plan.prefill.append((sequence, tokens))
        return tokens

    def _admit(self, sequence: Sequence) -> bool:
        admitted = self.kv.admit(sequence.keys, sequence.target)
        if admitted is None:
            return False
        sequence.blocks, cached = admitted
        brought = max(0, min(sequence.brought, sequence.prompt_tokens - 1) - cached)
        self.brought_tokens += brought
        sequence.brought = 0  # once: after a preemption it is computed
        sequence.computed = cached + brought
        self.prefix_queries += sequence.target
        self.prefix_hits += cached
        if not sequence.started:
            sequence.cached = sequence.computed
        sequence.started = True
        return True

    def _grow(self) -> None:
        """A place for each next token; the sequence that came last, of the least priority, makes room."""
        for sequence in list(self.running):
            while sequence in self.running and sequence.decoding:
                needed = self.kv.blocks_for(sequence.computed + self.settings.tokens_per_step)
                if len(sequence.blocks) >= needed:
                    break
                block = self.kv.grow()
                if block is not None:
                    sequence.blocks.append(block)
                else:
                    self._preempt(max(self.running, key=_order))

    def _preempt(self, sequence: Sequence) -> None:
        self.running.remove(sequence)
        self._free(sequence)
        sequence.target = sequence.prompt_tokens + sequence.output
        sequence.computed = 0
        sequence.preemptions += 1
        self.preemptions += 1
        self.waiting.append(sequence)
        self._sort()

    def _free(self, sequence: Sequence) -> None:
        self.kv.release(sequence.blocks)
        sequence.blocks = []

    def _sort(self) -> None:
        self.waiting.sort(key=_order if self.settings.priority_scheduling else lambda s: s.arrival)


def _order(sequence: Sequence) -> tuple[int, int]:
    """Lower is sooner, as in vLLM."""
    return sequence.priority, sequence.arrival
