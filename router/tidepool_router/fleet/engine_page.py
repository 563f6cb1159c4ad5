"""Figures of an engine's own metrics page. Pure text to numbers; None is missing, never zero."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

RUNNING: Final = "vllm:num_requests_running"
WAITING: Final = "vllm:num_requests_waiting"
KV_USAGE: Final = "vllm:kv_cache_usage_perc"
# Before vLLM 0.10; versions between the two export both, so the old one counts only where the new one is missing.
KV_USAGE_OLD: Final = "vllm:gpu_cache_usage_perc"
CACHE_CONFIG: Final = "vllm:cache_config_info"
# Its value is a time in Unix seconds; each combination of labels is a series of its own, the newest one holds.
LORA: Final = "vllm:lora_requests_info"
# Any of them moves whenever the engine works: prompts count at their end, iterations at every step.
PROGRESS: Final = ("vllm:prompt_tokens_total", "vllm:generation_tokens_total", "vllm:iteration_tokens_total_sum")

_WANTED: Final = frozenset({RUNNING, WAITING, KV_USAGE, KV_USAGE_OLD, CACHE_CONFIG, LORA, *PROGRESS})
_LABEL: Final = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\]|\\.)*)"')


@dataclass(frozen=True, slots=True)
class EngineFigures:
    """One scrape. Engines of a data-parallel pod (label `engine`) are added up; KV use is weighed by capacity."""

    running: int | None = None
    waiting: int | None = None
    kv_usage: float | None = None
    kv_capacity_tokens: int | None = None
    kv_block_tokens: int | None = None
    tokens_total: float | None = None  # a measure of work done; only its change means something
    adapters: tuple[str, ...] = ()  # LoRA adapters that requests use or wait for
    adapter_slots: int | None = None  # how many fit at once, in each engine

    def shows_work_since(self, last: "EngineFigures") -> bool:
        """Whether the engine has taken a step since the last scrape that made a token or went on with a prompt.

        Counters of tokens stand still until a prompt is done; the use of the KV cache grows with its chunks.
        """
        if self.tokens_total is not None and self.tokens_total != last.tokens_total:
            return True
        return self.kv_usage is not None and last.kv_usage is not None and self.kv_usage != last.kv_usage


@dataclass(frozen=True, slots=True)
class _Sample:
    engine: str
    labels: str
    value: float


def read_engine_page(page: bytes) -> EngineFigures:
    """Read what is there; lines that are no samples are skipped."""
    samples: dict[str, list[_Sample]] = {}
    for line in page.decode("utf-8", "replace").split("\n"):
        if line.startswith("vllm:"):
            name = line[: min(i for i in (line.find("{"), line.find(" "), len(line)) if i > 0)]
            sample = _sample(line, name) if name in _WANTED else None
            if sample is not None:
                samples.setdefault(name, []).append(sample)
    capacities = {s.engine: c for s in samples.get(CACHE_CONFIG, []) if (c := _capacity(s.labels)) is not None}
    adapters, adapter_slots = _adapters(samples.get(LORA, []))
    return EngineFigures(
        running=_total(samples.get(RUNNING)),
        waiting=_total(samples.get(WAITING)),
        kv_usage=_usage(samples.get(KV_USAGE) or samples.get(KV_USAGE_OLD), capacities),
        kv_capacity_tokens=sum(capacities.values()) if capacities else None,
        kv_block_tokens=_block_tokens(samples.get(CACHE_CONFIG, [])),
        tokens_total=_sum([s for name in PROGRESS for s in samples.get(name, [])]),
        adapters=adapters,
        adapter_slots=adapter_slots,
    )


def _sample(line: str, name: str) -> _Sample | None:
    # A label's value may hold a brace or a space, so the value is what follows the last brace.
    labels, _, rest = line[len(name) :].rpartition("}")
    try:
        value = float(rest.split()[0])
    except (ValueError, IndexError):
        return None
    found = re.search(r'(?:^|[{,])engine="([^"]*)"', labels)
    return _Sample(found[1] if found else "", labels, value) if value == value else None  # noqa: PLR0124 - NaN


def _capacity(labels: str) -> int | None:
    pairs = dict(_LABEL.findall(labels))
    tokens = _int(pairs.get("kv_cache_size_tokens"))
    if tokens:
        return tokens
    blocks, size = _int(pairs.get("num_gpu_blocks")), _int(pairs.get("block_size"))
    return blocks * size if blocks and size else None


def _block_tokens(samples: Iterable[_Sample]) -> int | None:
    """The largest of the engines': what is cached in all of them is whole blocks of it."""
    sizes = [size for s in samples if (size := _int(dict(_LABEL.findall(s.labels)).get("block_size")))]
    return max(sizes, default=None)


def _adapters(samples: list[_Sample]) -> tuple[tuple[str, ...], int | None]:
    """Names in use and the most at once, from each engine's newest series."""
    newest: dict[str, _Sample] = {}
    for sample in samples:
        if sample.engine not in newest or sample.value >= newest[sample.engine].value:
            newest[sample.engine] = sample
    names: set[str] = set()
    slots = None
    for sample in newest.values():
        pairs = dict(_LABEL.findall(sample.labels))
        for label in ("running_lora_adapters", "waiting_lora_adapters"):
            names.update(name for name in pairs.get(label, "").split(",") if name)
        most = _int(pairs.get("max_lora"))
        slots = most if slots is None else slots if most is None else min(slots, most)
    return tuple(sorted(names)), slots


def _int(text: str | None) -> int | None:
    return int(text) if text is not None and text.isdigit() else None


def _usage(samples: list[_Sample] | None, capacities: dict[str, int]) -> float | None:
    if not samples:
        return None
    weights = [float(capacities.get(sample.engine, 0)) for sample in samples]
    if not all(weights):
        weights = [1.0] * len(samples)
    return sum(s.value * w for s, w in zip(samples, weights, strict=True)) / sum(weights)


def _sum(samples: Iterable[_Sample] | None) -> float | None:
    values = [sample.value for sample in samples or ()]
    return sum(values) if values else None


def _total(samples: Iterable[_Sample] | None) -> int | None:
    total = _sum(samples)
    return round(total) if total is not None else None
