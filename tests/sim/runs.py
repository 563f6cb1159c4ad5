"""One run by name, so that runs can be done by several processes; loads are drawn once a process."""

import asyncio
from dataclasses import dataclass
from functools import cache
from typing import Final

from .candidates import CANDIDATES
from .engine import EngineConfig
from .faults import FAULTS, NONE, Fault
from .score import Score, score
from .steptime import LLAMA_8B_KV_TOKENS, llama_8b_on_two_a100
from .workload import LOADS, Load
from .world import Hire, World

PODS: Final = 8
_FAULTS: Final = {fault.name: fault for fault in (NONE, *FAULTS)}


@dataclass(frozen=True, slots=True)
class Run:
    """A load of a seed at a rate (requests a second of all pods) under a candidate and a fault."""

    load: str
    seed: int
    rate: float
    candidate: str
    fault: str = NONE.name
    gateways: int = 1


@cache
def drawn(load: str, seed: int) -> Load:
    """A load, with what is read from its bodies kept."""
    return LOADS[load](seed)


@cache
def engine(kv_tokens: int) -> EngineConfig:
    """The engine of the tables."""
    return EngineConfig(llama_8b_on_two_a100(), kv_tokens)


def do(run: Run) -> Score:
    """Play it."""
    return play(run, CANDIDATES[run.candidate])


def play(run: Run, hire: Hire) -> Score:
    """Play it with this staff."""
    load = drawn(run.load, run.seed)
    return asyncio.run(_play(run, load, hire, _FAULTS[run.fault]))


async def _play(run: Run, load: Load, hire: Hire, fault: Fault) -> Score:
    """In a loop, because the product's held requests wait for futures; nothing is awaited."""
    config = engine(load.kv_tokens or LLAMA_8B_KV_TOKENS)
    world = World(load.at(run.rate), config, hire, pods=PODS, gateways=run.gateways, fault=fault, seed=run.seed)
    lives = world.play()
    return score(lives, world.engines, load.warm_up)
