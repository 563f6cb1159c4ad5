"""Fields of the spec as arguments of vLLM 0.32.

Every argument is one word, `--flag=value`, and is taken alike by `vllm serve` (the entrypoint of vLLM's images)
and by `python -m vllm.entrypoints.openai.api_server`.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Final

from tidepool_api.contract import ENGINE_PORT, ROLE_DECODE, ROLE_MIXED, ROLE_PREFILL
from tidepool_api.engine import Engine, Preset
from tidepool_api.modelpool import ModelPool
from tidepool_operator.pool import adapters, cache, groups
from tidepool_operator.pool.cache import Way
from tidepool_operator.pool.model import Object

# NIXL's roles (vllm/config/kv_transfer.py); `kv_both` is deprecated for this connector.
_KV_ROLES: Final[Mapping[str, str]] = {ROLE_PREFILL: "kv_producer", ROLE_DECODE: "kv_consumer"}

# vLLM's own bundles of settings; "balanced" is its default (vllm/config/vllm.py, performance_mode).
PRESETS: Final[Mapping[Preset, tuple[str, ...]]] = {
    Preset.BALANCED: (),
    Preset.LOW_LATENCY: ("--performance-mode=interactivity",),
    Preset.HIGH_THROUGHPUT: ("--performance-mode=throughput",),
}


def model_path(pool: ModelPool) -> str:
    """Where the engine is told to find the model: a path, or a repository of the hub."""
    if cache.way(pool) in (Way.POD, Way.JOB):
        return cache.files(pool).path
    scheme, _, rest = pool.spec.model.uri.partition("://")
    if scheme in ("pvc", "oci"):
        return f"{cache.MODEL_MOUNT}/{rest.partition('/' if scheme == 'pvc' else '#')[2]}".rstrip("/")
    return rest


def model_volume(pool: ModelPool) -> Object | None:
    """The volume that holds the model as it is; None for one that is downloaded or in the engine's image."""
    scheme, _, rest = pool.spec.model.uri.partition("://")
    claim = cache.model_claim(pool)
    if claim is not None:
        return {"name": "model", "persistentVolumeClaim": {"claimName": claim, "readOnly": True}}
    if scheme == "oci":
        return {"name": "model", "image": {"reference": rest.partition("#")[0]}}
    return None


def arguments(pool: ModelPool, role: str = ROLE_MIXED) -> tuple[str, ...]:
    """All arguments of the engine, in a fixed order, the user's own last."""
    made = (*_fixed(pool), *_engine(pool.spec.engine), *_parallelism(pool), *adapters.arguments(pool))
    return (*made, *_transfer(role), *groups.arguments(pool), *pool.spec.engine.args)


def _fixed(pool: ModelPool) -> Iterator[str]:
    yield f"--model={model_path(pool)}"
    # Aliases are the routers' affair: a further one must not restart an engine.
    yield f"--served-model-name={pool.served_name}"
    if pool.spec.model.revision and cache.way(pool) is Way.ENGINE:
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


def _transfer(role: str) -> Iterator[str]:
    kv_role = _KV_ROLES.get(role)
    if kv_role is not None:
        # Blocks that cannot be fetched are computed: by default the request would fail.
        setting = {"kv_connector": "NixlConnector", "kv_role": kv_role, "kv_load_failure_policy": "recompute"}
        yield f"--kv-transfer-config={json.dumps(setting, separators=(',', ':'))}"
