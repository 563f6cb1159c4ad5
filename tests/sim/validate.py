"""`python -m sim.validate`: does the simulator predict a real vLLM? On the CPU, on three loads.

Step times are calibrated on that engine by requests of their own: prompts alone, and streams side by side. Then
each load is played to the engine several times over, and the simulator plays the same arrivals. p50, p90 of TTFT
and of the time per token must agree within 20 %, or within the engine's own spread from run to run where that
is larger.
"""

import argparse
import asyncio
import json
import sys
import time
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from statistics import median
from typing import Any, Final
from urllib.parse import urlsplit

from .engine import NEVER, Engine, EngineConfig
from .engine import Sequence as EngineSequence
from .score import quantile
from .steptime import StepTime, least_squares

RESULTS: Final = Path("build/bench/sim-validation.json")
MODEL: Final = "tiny"
BLOCK_TOKENS: Final = 128  # vLLM's on the CPU
BLOCKS: Final = 80
MAX_NUM_SEQS: Final = 8
MAX_BATCHED_TOKENS: Final = 512
# The tests' tiny model makes a token in 2 ms, faster than one core can pass them on: then the front end is
# measured, and not the engine. Layers make a step long enough; the weights need not mean anything.
_LARGER: Final = {
    "num_hidden_layers": 24,
    "hidden_size": 256,
    "intermediate_size": 704,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
}
ENGINE_ARGUMENTS: Final = (
    "--load-format=dummy",
    f"--hf-overrides={json.dumps(_LARGER)}",
    "--enable-prefix-caching",
    "--scheduling-policy=fcfs",
    f"--max-num-seqs={MAX_NUM_SEQS}",
    f"--num-gpu-blocks-override={BLOCKS}",
    f"--max-num-batched-tokens={MAX_BATCHED_TOKENS}",
)
TOLERANCE: Final = 0.20
_PATIENCE_SECONDS: Final = 60.0
_VOCABULARY: Final = 400  # token ids from 100 on, which every tokenizer has


@dataclass(frozen=True, slots=True)
class Ask:
    """One request of a load: when, its prompt's token ids, how many tokens it wants."""

    at: float
    prompt: tuple[int, ...]
    out: int


@dataclass(frozen=True, slots=True)
class Seen:
    """Seconds from the request to its first token and to its last."""

    first: float
    last: float
    out: int

    @property
    def per_token(self) -> float:
        """Seconds per token after the first."""
        return (self.last - self.first) / max(1, self.out - 1)


@dataclass(frozen=True, slots=True)
class Calibration:
    """The engine's steps, and what HTTP and its front end add to each first token."""

    step: StepTime
    overhead_seconds: float


# The real engine.


async def ask(url: str, prompt: Sequence[int], out: int) -> Seen:
    """One streamed completion over a connection of its own."""
    parts = urlsplit(url)
    body = json.dumps(
        {"model": MODEL, "prompt": list(prompt), "max_tokens": out, "stream": True, "ignore_eos": True}
    ).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nhost: {parts.netloc}\r\ncontent-type: application/json\r\n"
    async with asyncio.timeout(_PATIENCE_SECONDS):
        reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
        started = time.perf_counter()
        writer.write(f"{head}connection: close\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body)
        first = last = 0.0
        tokens = 0
        while line := await reader.readline():
            if line.startswith(b"HTTP/1.1") and b" 200 " not in line:
                raise RuntimeError(f"the engine answered {line.decode().strip()}")
            if line.startswith(b"data: {"):
                last = time.perf_counter()
                first = first or last
                tokens += 1
        writer.close()
    return Seen(first - started, last - started, out)


async def replay(url: str, asks: Sequence[Ask]) -> list[Seen]:
    """All of a load, each at its time."""
    started = time.perf_counter()

    async def one(a: Ask) -> Seen:
        await asyncio.sleep(max(0.0, a.at - (time.perf_counter() - started)))
        return await ask(url, a.prompt, a.out)

    return list(await asyncio.gather(*(one(a) for a in asks)))


@dataclass(slots=True)
class Samples:
    """Times of calibration, in seconds.

    Of a token, by (streams side by side, tokens of context of each); of the first token, by tokens of the prompt.
    """

    decode: dict[tuple[int, int], list[float]]
    prefill: dict[int, list[float]]

    def fit(self) -> Calibration:
        """Least squares of the medians: a stream that the front end held up for once says nothing."""
        decode = [
            ((1.0, float(streams), float(streams * context)), median(times))
            for (streams, context), times in self.decode.items()
        ]
        base, sequence, context_token = least_squares(decode)
        # A prompt takes a step for each chunk; the first one's base and the front end are what is left over.
        prefill = [
            ((1.0, tokens, tokens * tokens / 2), median(times) - base * (-(-tokens // MAX_BATCHED_TOKENS) - 1))
            for tokens, times in self.prefill.items()
        ]
        alone, token, pair = least_squares(prefill)
        return Calibration(StepTime(base, sequence, context_token, token, pair), max(0.0, alone - base))


async def calibrate(url: str, dice: Random, samples: Samples, repeats: int = 3) -> None:
    """Prompts alone give the prefill, streams side by side the decode."""
    await asyncio.gather(*(ask(url, _fresh(dice, 64), 16) for _ in range(4)))  # warm
    for streams, prompt in ((1, 48), (2, 48), (4, 48), (8, 48), (1, 1600), (4, 900)):
        for _ in range(repeats):
            out = 60
            seen = await asyncio.gather(*(ask(url, _fresh(dice, prompt), out) for _ in range(streams)))
            # The last to begin: while others still prefill, a token's time is not that of a decode.
            times = samples.decode.setdefault((streams, prompt + out // 2), [])
            times.append(max(seen, key=lambda s: s.first).per_token)
    for tokens in (16, 128, 256, 448, 960, 1500):
        for _ in range(repeats):
            samples.prefill.setdefault(tokens, []).append((await ask(url, _fresh(dice, tokens), 1)).first)


def _fresh(dice: Random, tokens: int) -> tuple[int, ...]:
    return tuple(100 + dice.randrange(_VOCABULARY) for _ in range(tokens))


# The loads.


def loads(seed: int, seconds: float, run: int = 0) -> dict[str, list[Ask]]:
    """Three that press on different parts: the front, the prefill with a cache, and the queue.

    Every run has the same times and lengths with other tokens, which the engine does not know from the run before.
    """
    dice, words = Random(seed), Random(1000 * seed + run)
    shared = [_fresh(words, 640) for _ in range(3)]

    def chat() -> tuple[tuple[int, ...], int]:
        return _fresh(words, 50 + dice.randrange(250)), 24 + dice.randrange(40)

    def documents() -> tuple[tuple[int, ...], int]:
        beginning = dice.choice(shared) if dice.random() < 0.5 else _fresh(words, 640)
        return beginning + _fresh(words, 200 + dice.randrange(800)), 4 + dice.randrange(12)

    def answers() -> tuple[tuple[int, ...], int]:
        return _fresh(words, 30 + dice.randrange(60)), 60 + dice.randrange(120)

    def poisson(rate: float, draw: Any) -> list[Ask]:
        made, now = [], 0.0
        while (now := now + dice.expovariate(rate)) < seconds:
            made.append(Ask(now, *draw()))
        return made

    def bursts() -> list[Ask]:
        # Twenty at once, more than run at once: the rest waits in the engine's queue.
        return [Ask(start, *answers()) for start in (0.0, seconds * 0.55) for _ in range(20)]

    return {"chat": poisson(3.5, chat), "documents": poisson(1.0, documents), "bursts": bursts()}


# The simulated engine.


def simulate(calibration: Calibration, asks: Sequence[Ask]) -> list[Seen]:
    """The same arrivals; the overhead comes before the engine sees a request."""
    config = EngineConfig(
        calibration.step, (BLOCKS - 1) * BLOCK_TOKENS, BLOCK_TOKENS, MAX_BATCHED_TOKENS, MAX_NUM_SEQS
    )
    engine = Engine(config)
    known: dict[tuple[int, ...], int] = {}
    todo = []
    for a in asks:
        full = len(a.prompt) // BLOCK_TOKENS
        names = [known.setdefault(a.prompt[: (i + 1) * BLOCK_TOKENS], len(known)) for i in range(full)]
        todo.append((a.at + calibration.overhead_seconds, EngineSequence(a, len(a.prompt), a.out, names)))
    first: dict[int, float] = {}
    last: dict[int, float] = {}
    todo.sort(key=lambda pair: pair[0])
    index = 0
    while index < len(todo) or engine.wake_at < NEVER:
        if index < len(todo) and todo[index][0] <= engine.wake_at:
            now, sequence = todo[index]
            index += 1
            engine.submit(sequence, now)
            if engine.idle:
                engine.begin(now)
            continue
        now = engine.wake_at
        begun, done = engine.complete()
        first |= {id(s.request): now for s in begun}
        last |= {id(s.request): now for s in done}
        engine.begin(now)
    return [Seen(first[id(a)] - a.at, last[id(a)] - a.at, a.out) for a in asks]


# The comparison.

FIGURES: Final = ("ttft p50", "ttft p90", "token p50", "token p90")


def figures(seen: Sequence[Seen]) -> dict[str, float]:
    """Seconds."""
    first = [s.first for s in seen]
    token = [s.per_token for s in seen if s.out > 1]
    return dict(
        zip(
            FIGURES,
            (quantile(first, 0.5), quantile(first, 0.9), quantile(token, 0.5), quantile(token, 0.9)),
            strict=True,
        )
    )


@dataclass(frozen=True, slots=True)
class Comparison:
    """One figure of one load. `real` one a run; `spread` is their range over their median."""

    load: str
    figure: str
    real: list[float]
    simulated: float

    @property
    def spread(self) -> float:
        """Of the engine, from run to run."""
        return (max(self.real) - min(self.real)) / median(self.real)

    @property
    def error(self) -> float:
        """Of the simulator, against the median run; negative is too fast."""
        return self.simulated / median(self.real) - 1.0

    @property
    def holds(self) -> bool:
        """Within the tolerance, or the engine's spread."""
        return abs(self.error) <= max(TOLERANCE, self.spread)

    def __str__(self) -> str:
        real = " ".join(f"{1000 * value:.1f}" for value in self.real)
        mark = "ok" if self.holds else "MISSED"
        return (
            f"| {self.load} | {self.figure} | {real} | {1000 * self.simulated:.1f} | {self.error:+.0%} | "
            f"{self.spread:.0%} | {mark} |"
        )


def markdown(compared: Sequence[Comparison]) -> str:
    """A table with a line a figure; `real` and `simulated` in milliseconds."""
    head = (
        "| load | figure | vLLM, ms, each run | simulated | error | vLLM's spread | |",
        "|---|---|---|---|---|---|---|",
    )
    return "\n".join((*head, *map(str, compared)))


async def validate(url: str, runs: int, seconds: float, seed: int) -> tuple[Calibration, list[Comparison]]:
    """Calibrate, play, simulate. Calibrated before and after the loads, for a machine drifts."""
    samples = Samples({}, {})
    await calibrate(url, Random(seed), samples)
    real: dict[str, list[dict[str, float]]] = {}
    for run in range(runs):
        for name, asks in loads(seed, seconds, run).items():
            real.setdefault(name, []).append(figures(await replay(url, asks)))
            await asyncio.sleep(0.5)
    await calibrate(url, Random(seed + 1), samples)
    calibration = samples.fit()
    compared = []
    for name, per_run in real.items():
        simulated = figures(simulate(calibration, loads(seed, seconds)[name]))
        compared += [Comparison(name, f, [one[f] for one in per_run], simulated[f]) for f in FIGURES]
    return calibration, compared


def main() -> int:
    """Exit status 1 when a figure is missed."""
    parser = argparse.ArgumentParser(prog="sim.validate", description=__doc__)
    parser.add_argument("--url", help="an engine that runs already, with the arguments of ENGINE_ARGUMENTS")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=10.0, help="of each load")
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    with nullcontext() if arguments.url else _engine() as engine:
        url = arguments.url or engine.url  # type: ignore[union-attr]
        calibration, compared = asyncio.run(validate(url, arguments.runs, arguments.seconds, arguments.seed))
    step = calibration.step
    print(
        f"calibrated: step {1000 * step.base_seconds:.2f} ms + {1000 * step.per_sequence_seconds:.2f} ms a "
        f"sequence + {1e6 * step.per_context_token_seconds:.3f} us a context token + "
        f"{1e6 * step.per_prefill_token_seconds:.1f} us a prompt token + "
        f"{1e6 * step.per_prefill_pair_seconds:.4f} us a pair; front end "
        f"{1000 * calibration.overhead_seconds:.2f} ms\n"
    )
    print(markdown(compared))
    RESULTS.parent.mkdir(parents=True, exist_ok=True)
    RESULTS.write_text(
        json.dumps(
            {
                "date": datetime.now(UTC).date().isoformat(),
                "calibration": asdict(calibration),
                "figures": [asdict(c) for c in compared],
            },
            indent=1,
        )
    )
    print(f"written: {RESULTS}")
    return 0 if all(one.holds for one in compared) else 1


def _engine() -> Any:
    from cluster.engine import Engine as RealEngine

    return RealEngine(model_name=MODEL, extra_arguments=ENGINE_ARGUMENTS)


if __name__ == "__main__":
    sys.exit(main())
