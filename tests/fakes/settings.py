"""What an engine double is: its model, its size and its speed. The defaults answer at once and hold plenty."""

from dataclasses import dataclass
from enum import StrEnum

VLLM_VERSION = "0.32.0"


class Pace(StrEnum):
    """What moves the engine on."""

    FREE = "free"  # real time, by the rates of the settings
    MANUAL = "manual"  # a test calls `step`


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """Rates are per engine for prefill and per sequence for output; None means no time at all passes.

    `tokens_per_step` above one is what speculative decoding looks like: several tokens in one event of a stream.
    `eos_after_tokens` is where the model would stop by itself (`ignore_eos` overrules it).
    """

    model: str = "tiny"
    aliases: tuple[str, ...] = ()
    max_model_len: int = 2048
    max_num_seqs: int = 64
    num_gpu_blocks: int = 4096
    block_size: int = 16
    max_num_batched_tokens: int = 2048
    priority_scheduling: bool = True
    prompt_tokens_details: bool = False
    eos_after_tokens: int = 64
    tokens_per_step: int = 1
    pace: Pace = Pace.FREE
    prefill_tokens_per_second: float | None = None
    output_tokens_per_second: float | None = None
    runtime_lora: bool = True
    development_paths: bool = True

    def __post_init__(self) -> None:
        if self.num_gpu_blocks * self.block_size < self.max_model_len:
            raise ValueError("a request of max_model_len would never fit: vLLM does not start like that either")

    @property
    def served_names(self) -> tuple[str, ...]:
        """All names that a request may carry; the first one is what answers say."""
        return (self.model, *self.aliases)

    def step_seconds(self, prefill_tokens: int) -> float:
        """How long a step takes that computes so many prompt tokens and one output token a sequence."""
        seconds = 0.0
        if self.output_tokens_per_second is not None:
            seconds += self.tokens_per_step / self.output_tokens_per_second
        if self.prefill_tokens_per_second is not None:
            seconds += prefill_tokens / self.prefill_tokens_per_second
        return seconds
