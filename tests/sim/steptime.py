"""How long one step of an engine takes, and the fit of that to measurements."""

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Final

DATA: Final = Path(__file__).parent / "data"


@dataclass(frozen=True, slots=True)
class StepTime:
    """Seconds of one step: a sum of what it costs at all, what it decodes, and what it prefills.

    A decoding sequence costs `per_sequence` and its context `per_context_token`; a prefilled token costs
    `per_prefill_token`, and `per_prefill_pair` for each token before it, to which it attends.
    """

    base_seconds: float
    per_sequence_seconds: float
    per_context_token_seconds: float
    per_prefill_token_seconds: float
    per_prefill_pair_seconds: float = 0.0

    def decode(self, sequences: int, context_tokens: float) -> float:
        """Seconds of a step that prefills nothing."""
        return (
            self.base_seconds
            + self.per_sequence_seconds * sequences
            + self.per_context_token_seconds * context_tokens
        )

    def prefill(self, tokens: int, before: int) -> float:
        """Seconds that a chunk of `tokens`, after `before` tokens of the same prompt, adds to a step."""
        pairs = tokens * (before + tokens / 2)
        return self.per_prefill_token_seconds * tokens + self.per_prefill_pair_seconds * pairs

    def scaled(self, factor: float) -> "StepTime":
        """The same engine, `factor` times as slow."""
        return StepTime(
            self.base_seconds * factor,
            self.per_sequence_seconds * factor,
            self.per_context_token_seconds * factor,
            self.per_prefill_token_seconds * factor,
            self.per_prefill_pair_seconds * factor,
        )


# vLLM of that time ran contexts beyond this without CUDA graphs, at half the speed; V1 has no such edge.
_GRAPHS_UNTIL_TOKENS: Final = 8192


# Shorter prompts are bound by the launch of kernels, which chunked prefill beside decodes does not pay again.
_PREFILL_FROM_TOKENS: Final = 1024


def fit_gpu(path: Path, pair_seconds: float) -> StepTime:
    """Fit to a table of SageServe (columns in data/README.md), by least squares of relative errors.

    Rows of a batch tell the decode, rows of one request the prefill too: the prompt time of a batch in these
    tables is that of its first member. `pair_seconds` is given, for a square fitted to 8,192 tokens says little of
    the 126,000 that a trace may ask for.
    """
    repeats: dict[tuple[int, int, int], list[tuple[float, float]]] = {}
    with path.open() as file:
        for row in csv.DictReader(file):
            key = (int(row["prompt_size"]), int(row["batch_size"]), int(row["token_size"]))
            repeats.setdefault(key, []).append((float(row["prompt_time"]), float(row["token_time"])))
    decode: list[tuple[Sequence[float], float]] = []
    prompts: list[tuple[int, float]] = []
    for (prompt, batch, out), times in repeats.items():
        if prompt + out < _GRAPHS_UNTIL_TOKENS:
            step = median(time for _, time in times) / out
            decode.append(((1.0, batch, batch * (prompt + out / 2)), step))
        if batch == 1:
            prompts.append((prompt, median(time for time, _ in times)))
    base, sequence, token = least_squares(decode)
    # A prompt alone is one step too, so it pays the base as well.
    prefill = [
        ((prompt,), seconds - base - pair_seconds * prompt * prompt / 2)
        for prompt, seconds in prompts
        if prompt >= _PREFILL_FROM_TOKENS
    ]
    return StepTime(base, sequence, token, least_squares(prefill)[0], pair_seconds)


def least_squares(samples: Sequence[tuple[Sequence[float], float]]) -> list[float]:
    """Coefficients, none below zero, that make the sum of squared relative errors least.

    One that would be negative is left out and the rest fitted again.
    """
    size = len(samples[0][0])
    active = list(range(size))
    while True:
        solved = _solve(samples, active)
        lowest = min(range(len(active)), key=lambda i: solved[i])
        if solved[lowest] >= 0:
            break
        del active[lowest]
    found = [0.0] * size
    for index, value in zip(active, solved, strict=True):
        found[index] = value
    return found


def _solve(samples: Sequence[tuple[Sequence[float], float]], active: Sequence[int]) -> list[float]:
    n = len(active)
    # Normal equations of rows divided by their outcome; columns scaled, for they differ by ten powers of ten.
    scale = [max(abs(row[i] / y) for row, y in samples) or 1.0 for i in active]
    matrix = [[0.0] * (n + 1) for _ in range(n)]
    for row, y in samples:
        line = [row[i] / y / scale[k] for k, i in enumerate(active)]
        for a in range(n):
            for b in range(n):
                matrix[a][b] += line[a] * line[b]
            matrix[a][n] += line[a]
    for a in range(n):
        pivot = max(range(a, n), key=lambda r: abs(matrix[r][a]))
        matrix[a], matrix[pivot] = matrix[pivot], matrix[a]
        for b in range(a + 1, n):
            factor = matrix[b][a] / matrix[a][a]
            matrix[b] = [x - factor * z for x, z in zip(matrix[b], matrix[a], strict=True)]
    solved = [0.0] * n
    for a in reversed(range(n)):
        rest = sum(matrix[a][b] * solved[b] for b in range(a + 1, n))
        solved[a] = (matrix[a][n] - rest) / matrix[a][a]
    return [value / scale[k] for k, value in enumerate(solved)]


def llama_8b_on_two_a100() -> StepTime:
    """Llama-3.1-8B, tensor parallel over two A100-80GB: the engine of the quality tables.

    Attention takes 4 operations a pair of tokens, layer and hidden unit (32 x 4,096), at 60 % of 2 x 312 TFLOP/s.
    """
    return fit_gpu(DATA / "Llama-3.1-8B-tp-2.csv", pair_seconds=4 * 32 * 4096 / (0.6 * 2 * 312e12))


# Of 160 GB, 0.9 for vLLM, less 16 GB of weights and 4 GB of activations; a token takes 131,072 bytes (32 layers, 8
# heads of 128, key and value, 2 bytes).
LLAMA_8B_KV_TOKENS: Final = 946_000
