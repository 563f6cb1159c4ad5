"""The running engine of the double: moves the scheduler on, in real time or by hand, and hands out tokens."""

import asyncio
import contextlib
import secrets
import time
import weakref
from collections import Counter
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any

from fakes.kv import block_keys
from fakes.requests import Ask
from fakes.scheduler import Scheduler, Sequence, StepPlan
from fakes.settings import EngineSettings, Pace


@dataclass(frozen=True, slots=True)
class Tokens:
    """What a step gave one choice; `reason` is set with the last tokens."""

    choice: int
    start: int  # tokens that the choice had before
    count: int
    reason: str | None


@dataclass(slots=True, eq=False)
class Generation:
    """One request in the engine."""

    ask: Ask
    name: str = field(default_factory=lambda: secrets.token_hex(8))
    sequences: list[Sequence] = field(default_factory=list)
    ready: asyncio.Queue[Tokens] = field(default_factory=asyncio.Queue)
    arrived: float = 0.0
    first_token: dict[Sequence, float] = field(default_factory=dict)  # when, monotonic
    last_token: dict[Sequence, float] = field(default_factory=dict)

    @property
    def cached_tokens(self) -> int:
        """Prompt tokens found in the prefix cache; of the first choice of each prompt."""
        return sum(sequence.cached for sequence in self.sequences[:: self.ask.choices])

    @property
    def output_tokens(self) -> int:
        """Output tokens of all choices so far."""
        return sum(sequence.output for sequence in self.sequences)


@dataclass(slots=True)
class Counts:
    """Counters of the metrics page."""

    prompt_tokens: int = 0
    generation_tokens: int = 0
    finished: Counter[str] = field(default_factory=Counter)  # by finished_reason
    observed: dict[str, list[float]] = field(default_factory=dict)  # samples of histograms, by name

    def observe(self, name: str, value: float) -> None:
        """A sample of a histogram; a few thousand are kept, sums stay exact for them."""
        samples = self.observed.setdefault(name, [])
        if len(samples) < 100_000:
            samples.append(value)


# All engines of the process, as NIXL's side channel lets them find each other.
_ENGINES: weakref.WeakValueDictionary[str, "EngineCore"] = weakref.WeakValueDictionary()


class EngineCore:
    """`run` is the engine's loop; with Pace.MANUAL `step` is called instead."""

    def __init__(self, settings: EngineSettings, changed: Callable[[], None]) -> None:
        self.settings = settings
        self.engine_id = secrets.token_hex(8)
        _ENGINES[self.engine_id] = self
        self.scheduler = Scheduler(settings)
        self.counts = Counts()
        self._changed = changed
        self._work = asyncio.Event()

    @contextlib.asynccontextmanager
    async def generate(self, ask: Ask) -> AsyncIterator[Generation]:
        """A generation that ends with the block: what has not finished by then is aborted."""
        generation = Generation(ask, arrived=time.monotonic())
        brought = self._fetched(ask)
        for prompt in ask.prompts:
            for _ in range(ask.choices):
                sequence = self._sequence(generation, prompt)
                sequence.brought = brought
                if ask.transfer.get("do_remote_decode"):
                    sequence.kept_as = generation.name
                generation.sequences.append(sequence)
        for sequence in generation.sequences:
            self.scheduler.add(sequence)
        self._work.set()
        self._changed()
        try:
            yield generation
        finally:
            self._close(generation)

    async def run(self) -> None:
        """Step in real time for ever."""
        due = time.monotonic()
        while True:
            if self.scheduler.idle:
                self._work.clear()
                await self._work.wait()
                due = time.monotonic()
            plan = self.scheduler.plan()
            due = max(due + self.settings.step_seconds(plan.prefill_tokens), time.monotonic() - 0.2)
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            self._commit(plan)

    def step(self) -> None:
        """One step by hand."""
        if self.settings.pace is not Pace.MANUAL:
            raise RuntimeError("this engine moves by itself: EngineSettings(pace=Pace.MANUAL) is stepped by hand")
        self._commit(self.scheduler.plan())

    def told(self, generation: Generation) -> dict[str, Any] | None:
        """kv_transfer_params of an answer; None where no blocks were kept."""
        if generation.name not in self.scheduler.kept:
            return None
        blocks = self.scheduler.kept[generation.name][1]
        return {
            "do_remote_prefill": True,
            "do_remote_decode": False,
            "remote_block_ids": [list(range(len(blocks)))],
            "remote_engine_id": self.engine_id,
            "remote_request_id": generation.name,
            "remote_host": "127.0.0.1",
            "remote_port": 5600,
            "tp_size": 1,
            "remote_num_tokens": generation.ask.prompt_tokens,
        }

    def _fetched(self, ask: Ask) -> int:
        if not ask.transfer.get("do_remote_prefill"):
            return 0
        other = _ENGINES.get(str(ask.transfer.get("remote_engine_id")))
        return 0 if other is None else other.scheduler.fetch(str(ask.transfer.get("remote_request_id")))

    def _commit(self, plan: StepPlan) -> None:
        before = self.counts.generation_tokens
        self.scheduler.commit(plan)
        tokens = self.counts.generation_tokens - before + plan.prefill_tokens
        self.counts.observe("iteration_tokens_total", tokens)
        self._changed()

    def _sequence(self, generation: Generation, prompt: tuple[int, ...]) -> Sequence:
        ask, choice = generation.ask, len(generation.sequences)
        sent = 0

        def on_tokens(count: int, reason: str | None) -> None:
            nonlocal sent
            generation.ready.put_nowait(Tokens(choice, sent, count, reason))
            sent += count
            self._account(generation, sequence, count, reason)

        sequence = Sequence(
            prompt_tokens=len(prompt),
            max_tokens=ask.max_tokens,
            keys=block_keys(prompt, self.settings.block_size, (ask.model, ask.salt)),
            on_tokens=on_tokens,
            priority=ask.priority,
            stop_at=None if ask.ignore_eos else self.settings.eos_after_tokens,
        )
        return sequence

    def _account(self, generation: Generation, sequence: Sequence, count: int, reason: str | None) -> None:
        now, counts = time.monotonic(), self.counts
        first = sequence.output == count
        if first:
            generation.first_token[sequence] = now
            counts.prompt_tokens += sequence.prompt_tokens
            counts.observe("time_to_first_token_seconds", now - generation.arrived)
        else:
            counts.observe("inter_token_latency_seconds", now - generation.last_token[sequence])
        generation.last_token[sequence] = now
        counts.generation_tokens += count
        if reason is not None:
            self._account_end(generation, sequence, reason, now)

    def _account_end(self, generation: Generation, sequence: Sequence, reason: str, now: float) -> None:
        counts, decoding = self.counts, now - generation.first_token[sequence]
        counts.finished[reason] += 1
        counts.observe("e2e_request_latency_seconds", now - generation.arrived)
        counts.observe("request_prompt_tokens", sequence.prompt_tokens)
        counts.observe("request_generation_tokens", sequence.output)
        counts.observe("request_decode_time_seconds", decoding)
        if sequence.output > 1:
            counts.observe("request_time_per_output_token_seconds", decoding / (sequence.output - 1))

    def _close(self, generation: Generation) -> None:
        for sequence in generation.sequences:
            if self.scheduler.abort(sequence):
                self.counts.finished["abort"] += 1
        self._changed()
