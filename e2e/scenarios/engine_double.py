"""The engine double in a pod, in place of vLLM: takes the operator's flags, and orders while it runs.

Its speed and its start-up come from the environment. A step takes BASE_SECONDS, EACH_SECONDS for each running
sequence and PROMPT_SECONDS for each prompt token, as an engine's step does. A file of an order's name in ORDERS
(`kubectl exec ... touch`) is obeyed from the next half second on.
"""

import argparse
import asyncio
import dataclasses
import os
from pathlib import Path

from fakes import metrics
from fakes.engine import EngineDouble
from fakes.faults import Fault, Wrong
from fakes.settings import EngineSettings

ORDERS = Path("/tmp/orders")
FAIL, FLAP, OLD_NAMES = "fail", "flap", "old-names"
FLAP_SECONDS = 4.0
# As vLLM named them before 0.7 and before 0.10.
OLD = {
    "vllm:kv_cache_usage_perc": "vllm:gpu_cache_usage_perc",
    "vllm:prefix_cache_hits": "vllm:gpu_prefix_cache_hits",
    "vllm:prefix_cache_queries": "vllm:gpu_prefix_cache_queries",
    "vllm:prompt_tokens_cached_total": "vllm:nobody_asks_for_this_total",
    "vllm:request_time_per_output_token_seconds": "vllm:time_per_output_token_seconds",
}


@dataclasses.dataclass(frozen=True, slots=True)
class Paced(EngineSettings):
    """A step that takes longer with each running sequence."""

    base_seconds: float = 0.01
    each_seconds: float = 0.0
    prompt_seconds: float = 0.0
    running: list[object] = dataclasses.field(default_factory=list)

    def step_seconds(self, prefill_tokens: int) -> float:
        return self.base_seconds + self.each_seconds * len(self.running) + self.prompt_seconds * prefill_tokens


def _number(name: str, otherwise: float) -> float:
    return float(os.environ.get(name, otherwise))


def _settings(flags: argparse.Namespace) -> Paced:
    return Paced(
        model=flags.served_model_name[0],
        max_model_len=flags.max_model_len,
        max_num_seqs=flags.max_num_seqs,
        num_gpu_blocks=flags.num_gpu_blocks_override,
        eos_after_tokens=10_000_000,
        base_seconds=_number("BASE_SECONDS", 0.01),
        each_seconds=_number("EACH_SECONDS", 0.0),
        prompt_seconds=_number("PROMPT_SECONDS", 0.0),
    )


async def _obey(engine: EngineDouble) -> None:
    page, failing, ticks = metrics.render, False, 0
    metrics.render = lambda core, start: _renamed(page(core, start)) if _ordered(OLD_NAMES) else page(core, start)
    while True:
        if failing != _ordered(FAIL):
            failing = not failing
            engine.order(Fault(Wrong.STATUS, times=None)) if failing else engine.faults.clear()
        ticks += 1
        down = _ordered(FLAP) and int(ticks * 0.5 / FLAP_SECONDS) % 2
        engine.api.health_status = 503 if down else 200
        await asyncio.sleep(0.5)


def _ordered(name: str) -> bool:
    return (ORDERS / name).exists()


def _renamed(text: str) -> str:
    for new, old in OLD.items():
        text = text.replace(new, old)
    return text


async def _serve(flags: argparse.Namespace) -> None:
    engine = EngineDouble(_settings(flags), port=flags.port, host=flags.host, loading=True)
    # The scheduler's own list, which it keeps.
    object.__setattr__(engine.settings, "running", engine.core.scheduler.running)
    async with engine:
        await asyncio.sleep(_number("LOADING_SECONDS", 0.0))
        await engine.listen()
        print(f"engine double of {engine.settings.model!r} on {engine.url}", flush=True)
        await _obey(engine)


def main() -> None:
    """Serve until ended; flags that only a real engine knows are left aside."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--served-model-name", nargs="+", required=True)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--max-model-len", type=int, default=16384)
    parser.add_argument("--max-num-seqs", type=int, default=64)
    parser.add_argument("--num-gpu-blocks-override", type=int, default=8192)
    ORDERS.mkdir(exist_ok=True)
    asyncio.run(_serve(parser.parse_known_args()[0]))


if __name__ == "__main__":
    main()
