"""An engine double as a pod's engine: `python -m fakes.container` with the arguments that vLLM is given.

What it has no use for it passes over, as long as it looks like a flag of vLLM's. Its speed comes from the
environment, since vLLM has no flag for that: DOUBLE_LOADING_SECONDS, and DOUBLE_OUTPUT_TOKENS_PER_SECOND (of one
sequence).
"""

import argparse
import asyncio
import os
import signal
import sys
from collections.abc import Mapping, Sequence

from fakes.engine import EngineDouble
from fakes.settings import EngineSettings


def settings(arguments: argparse.Namespace, environment: Mapping[str, str]) -> EngineSettings:
    """The double that these flags and variables ask for."""
    return EngineSettings(
        model=arguments.served_model_name,
        max_model_len=arguments.max_model_len,
        max_num_seqs=arguments.max_num_seqs,
        # Room for a few requests of the greatest length, whatever that is.
        num_gpu_blocks=max(4096, 4 * arguments.max_model_len // arguments.block_size),
        block_size=arguments.block_size,
        prompt_tokens_details=arguments.enable_prompt_tokens_details,
        prefill_tokens_per_second=8000.0,
        output_tokens_per_second=float(environment.get("DOUBLE_OUTPUT_TOKENS_PER_SECOND", "50")),
    )


def parse(words: Sequence[str]) -> argparse.Namespace:
    """vLLM's flags as the operator writes them. Raises SystemExit on words that are no flags."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--served-model-name", default="tiny")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--max-model-len", type=int, default=2048)
    parser.add_argument("--max-num-seqs", type=int, default=64)
    parser.add_argument("--block-size", type=int, default=16)
    parser.add_argument("--enable-prompt-tokens-details", action="store_true")
    found, others = parser.parse_known_args(words)
    strange = [word for word in others if not word.startswith("--")]
    if strange:
        parser.error(f"not a flag: {' '.join(strange)}")
    return found


async def serve(arguments: argparse.Namespace, environment: Mapping[str, str]) -> None:
    """Load, listen, and end with SIGTERM at once, whatever runs: as vLLM does."""
    ended = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ended.set)
    made = EngineDouble(settings(arguments, environment), port=arguments.port, host=arguments.host, loading=True)
    async with made as engine:
        loading_seconds = float(environment.get("DOUBLE_LOADING_SECONDS", "0"))
        try:
            await asyncio.wait_for(ended.wait(), loading_seconds)
        except TimeoutError:
            await engine.listen()
            print(f"engine double of {engine.settings.model!r} on {engine.url}", flush=True)
            await ended.wait()


if __name__ == "__main__":
    asyncio.run(serve(parse(sys.argv[1:]), os.environ))
