"""Loads of an hour: traces whose requests each have their time and lengths. The last third is what is counted."""

import csv
import io
import json
import lzma
from collections.abc import Sequence
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Final

import numpy as np

from tidepool_operator.backtest.plant import Arrivals, Engine
from tidepool_operator.backtest.replay import Demand, Requests, Targets

from .loads import ENGINE, TARGETS, TICK_SECONDS, Load, binned_rates
from .series import DATA

SIM_DATA: Final = Path(__file__).parent.parent / "sim" / "data"
# Prompts of Mooncake's trace have 12,000 tokens in the mean and up to 126,000: an engine that computes them ten
# times as fast, and the target of its paper.
LONG: Final = (Engine((0.02, 5e-5, 2.8e-3), kv_tokens=2_000_000.0), Targets(30.0, 0.1))
NAMES: Final = ("azure-code", "azure-conv", "mooncake")

Row = tuple[float, float, float]  # seconds, prompt and output tokens


@cache
def trace(name: str) -> Load:
    """One trace, as it was recorded: nothing is drawn."""
    rows = np.array(_mooncake() if name == "mooncake" else _azure(name))
    engine, targets = LONG if name == "mooncake" else (ENGINE, TARGETS)
    at = ((rows[:, 0] - rows[0, 0]) // TICK_SECONDS).astype(np.int64)
    ticks = int(at[-1]) + 1
    counts = np.bincount(at, minlength=ticks)
    tokens = np.stack([np.bincount(at, rows[:, column], minlength=ticks) for column in (1, 2)])
    arrivals = [Arrivals(*row) for row in np.stack([counts, *tokens], axis=1).tolist()]
    demand = Demand(0.0, TICK_SECONDS, arrivals, Requests(at, rows[:, 1], rows[:, 2]))
    return Load(name, demand, engine, binned_rates(tokens), 0, 2 * ticks // 3, 120.0, targets)


def _azure(name: str) -> Sequence[Row]:
    file = {
        "azure-code": SIM_DATA / "AzureLLMInferenceTrace_code.csv.xz",
        "azure-conv": DATA / "AzureLLMInferenceTrace_conv.csv.xz",
    }[name]
    with lzma.open(file) as opened:
        found = csv.DictReader(io.TextIOWrapper(opened))
        return [
            (
                # Seven digits of a second; datetime reads six.
                datetime.fromisoformat(row["TIMESTAMP"][:26] + "+00:00").timestamp(),
                float(row["ContextTokens"]),
                max(1.0, float(row["GeneratedTokens"])),
            )
            for row in found
        ]


def _mooncake() -> Sequence[Row]:
    """Prompts without the blocks that an earlier request had already, as a cache without bound would find them."""
    seen: set[int] = set()
    found = []
    with lzma.open(SIM_DATA / "mooncake_conversation_trace.jsonl.xz") as opened:
        for line in opened:
            row = json.loads(line)
            known = 0
            while known < len(row["hash_ids"]) and row["hash_ids"][known] in seen:
                known += 1
            seen.update(row["hash_ids"])
            prompt = max(1, row["input_length"] - 512 * known)
            found.append((row["timestamp"] / 1000, float(prompt), float(max(1, row["output_length"]))))
    return found
