"""Fields of the spec as arguments of vLLM 0.32.

Every argument is one word, `--flag=value`, and is taken alike by `vllm serve` (the entrypoint of vLLM's images)
and by `python -m vllm.entrypoints.openai.api_server`.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from tidepool_api.contract import ENGINE_PORT
from tidepool_api.engine import Engine, Preset
from tidepool_api.modelpool import ModelPool

MODEL_MOUNT: Final = "/models"

# vLLM's own bundles of settings; "balanced" is its default (vllm/config/vllm.py, performance_mode).
PRESETS: Final[Mapping[Preset, tuple[str, ...]]] = {
    Preset.BALANCED: (),
    Preset.LOW_LATENCY: ("--performance-mode=interactivity",),
    Preset.HIGH_THROUGHPUT: ("--performance-mode=throughput",),
}


@dataclass(frozen=True, slots=True)
class Source:
    """Where the engine finds the model: what it is told, and the claim that must be mounted for it."""

    path: str
    claim: str | None = None


def source(uri: str) -> Source:
    """The place of a model address. Raises ValueError for a scheme that no part serves."""
    scheme, _, rest = uri.partition("://")
    if scheme == "hf":
        return Source(rest)
    if scheme == "file":
        return Source(rest)
    if scheme == "pvc":
        claim, _, path = rest.partition("/")
        return Source(f"{MODEL_MOUNT}/{path}".rstrip("/"), claim)
    raise ValueError(f"spec.model.uri: {scheme}:// is not served; use hf://, pvc:// or file://")


def arguments(pool: ModelPool) -> tuple[str, ...]:
    """All arguments of the engine, in a fixed order, the user's own last. Raises ValueError as `source` does."""
    return (*_fixed(pool), *_engine(pool.spec.engine), *_parallelism(pool), *pool.spec.engine.args)


def _fixed(pool: ModelPool) -> Iterator[str]:
    yield f"--model={source(pool.spec.model.uri).path}"
    # Aliases are the routers' affair: a further one must not restart an engine.
    yield f"--served-model-name={pool.served_name}"
    if pool.spec.model.revision:
        yield f"--revision={pool.spec.model.revision}"
    yield "--host=127.0.0.1"
    yield f"--port={ENGINE_PORT}"
    yield "--scheduling-policy=priority"
    # Without it `usage` names no cached tokens, and the ledger could not tell work from what needs none.
    yield "--enable-prompt-tokens-details"


def _engine(engine: Engine) -> Iterator[str]:
    yield from PRESETS[engine.preset]
    values = {
        "max-model-len": engine.max_model_len,
        "gpu-memory-utilization": engine.gpu_memory_utilization,
        "quantization": engine.quantization,
    }
    yield from (f"--{flag}={value}" for flag, value in values.items() if value is not None)
    switches = {
        "enable-prefix-caching": engine.prefix_caching,
        "enable-chunked-prefill": engine.chunked_prefill,
    }
    yield from (f"--{'' if on else 'no-'}{flag}" for flag, on in switches.items() if on is not None)
    if engine.speculative is not None:
        setting = {"method": engine.speculative.method, "num_speculative_tokens": engine.speculative.tokens}
        yield f"--speculative-config={json.dumps(setting, separators=(',', ':'))}"


def _parallelism(pool: ModelPool) -> Iterator[str]:
    ways = {
        "tensor-parallel-size": pool.spec.parallelism.tensor,
        "pipeline-parallel-size": pool.spec.parallelism.pipeline,
    }
    yield from (f"--{flag}={count}" for flag, count in ways.items() if count > 1)
