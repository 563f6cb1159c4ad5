"""The loads of the quality tables. A load is drawn by a seed and then played at any rate.

Arrival times are made for one request a second and stretched, so a load at another rate is the same load. Seeds
below TEST_SEEDS tune; those from there on are for the tables alone. A load is long enough for its answers to begin
and end many times over, and for caches to turn over, after the warm-up.
"""

import csv
import io
import json
import lzma
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from itertools import pairwise
from random import Random
from typing import Final

from .request import Request
from .steptime import DATA

TEST_SEEDS: Final = 1000
_TICK_SECONDS: Final = 3.0  # Mooncake's clock
_PIECE: Final = 512


@dataclass(frozen=True, slots=True)
class Load:
    """Requests with their arrival at one a second; the first `warm_up` of them fill caches and are not counted."""

    name: str
    arrivals: tuple[tuple[float, Request], ...]
    warm_up: int
    kv_tokens: int | None = None  # of each engine, where the load needs another than the default

    def at(self, rate: float) -> list[tuple[float, Request]]:
        """The arrivals at so many requests a second."""
        return [(at / rate, request) for at, request in self.arrivals]


def _load(
    name: str, times: list[float], requests: list[Request], warm_up: float, kv_tokens: int | None = None
) -> Load:
    """Times of any unit become those of one request a second."""
    start, span = times[0], times[-1] - times[0]
    unit = (len(times) - 1) / span
    arrivals = tuple(((at - start) * unit, request) for at, request in zip(times, requests, strict=True))
    return Load(name, arrivals, round(warm_up * len(requests)), kv_tokens)


def _poisson(dice: Random, count: int) -> list[float]:
    now = 0.0
    times = []
    for _ in range(count):
        now += dice.expovariate(1.0)
        times.append(now)
    return times


class _Names:
    """Fresh names of text pieces."""

    def __init__(self) -> None:
        self._next = 1

    def take(self, tokens: int) -> list[int]:
        """Pieces for so many tokens."""
        count = -(-tokens // _PIECE)
        self._next += count
        return list(range(self._next - count, self._next))


@cache
def _mooncake_rows() -> list[tuple[int, int, int, list[int]]]:
    with lzma.open(DATA / "mooncake_conversation_trace.jsonl.xz") as file:
        rows = [json.loads(line) for line in file]
    return [(r["timestamp"], r["input_length"], r["output_length"], r["hash_ids"]) for r in rows]


def mooncake(seed: int, count: int = 2500) -> Load:
    """A stretch of Mooncake's conversation trace (FAST'25), the requests of each 3 s tick spread over it."""
    rows = _mooncake_rows()
    dice = Random(seed)
    first = dice.randrange(len(rows) - count)
    stretch = [(ms / 1000 + dice.random() * _TICK_SECONDS, *rest) for ms, *rest in rows[first : first + count]]
    stretch.sort(key=lambda row: row[0])
    requests = [
        # The first piece is common to all prompts of the trace; what follows it is the conversation's own.
        Request(number, tokens, out, ids, ids[min(1, len(ids) - 1)])
        for number, (_, tokens, out, ids) in enumerate(stretch)
    ]
    return _load("mooncake", [row[0] for row in stretch], requests, 0.3)


def agents(seed: int, count: int = 4000) -> Load:
    """llm-d's shared-prefix load: 150 groups of 5 prompts, 6,000 + 1,200 tokens in, 1,000 out, Poisson.

    As inference-perf draws it (datagen/synthetic/shared_prefix_datagen.py): the 750 prompts in a random order,
    again and again. The shared part is 6,144 tokens, the next border of a text piece, of 7,200 as there.
    """
    dice = Random(seed)
    names = _Names()
    prompts = []
    for _ in range(150):
        shared = names.take(6000)
        prompts += [shared + names.take(7200 - len(shared) * _PIECE) for _ in range(5)]
    dice.shuffle(prompts)
    requests = [
        Request(i, 7200, 1000, prompts[i % 750], prompts[i % 750][0], max_tokens=1000) for i in range(count)
    ]
    return _load("agents", _poisson(dice, count), requests, 0.375)


@cache
def _azure_rows() -> list[tuple[float, int, int]]:
    with lzma.open(DATA / "AzureLLMInferenceTrace_code.csv.xz") as file:
        rows = list(csv.DictReader(io.TextIOWrapper(file)))
    return [
        (
            datetime.fromisoformat(row["TIMESTAMP"][:26]).timestamp(),
            int(row["ContextTokens"]),
            int(row["GeneratedTokens"]),
        )
        for row in rows
    ]


def azure_code(seed: int, count: int = 5000) -> Load:
    """A stretch of Azure's code trace of 2023, with its bursts; it names no prefixes, so every prompt is new.

    Gaps beyond 20 times the mean (the trace has pauses of a minute) are cut to that.
    """
    rows = _azure_rows()
    dice = Random(seed)
    first = dice.randrange(len(rows) - count)
    stretch = rows[first : first + count]
    mean = (stretch[-1][0] - stretch[0][0]) / count
    times = [0.0]
    for (before, _, _), (after, _, _) in pairwise(stretch):
        times.append(times[-1] + min(after - before, 20 * mean))
    names = _Names()
    requests = []
    for number, (_, tokens, out) in enumerate(stretch):
        pieces = names.take(tokens)
        requests.append(Request(number, tokens, out, pieces, pieces[0]))
    return _load("azure-code", times, requests, 0.1)


def decode(seed: int, count: int = 9000) -> Load:
    """Short prompts and long answers whose length nobody knows before: what binds is memory for the answers.

    Prompts lognormal with median 250, answers with median 600 and sigma 0.9, as reasoning models have them.
    Engines of 131,072 KV tokens: a GPU that the weights nearly fill.
    """
    dice = Random(seed)
    names = _Names()
    requests = []
    for number in range(count):
        tokens = min(4000, 1 + round(dice.lognormvariate(5.52, 0.6)))
        out = min(8000, 1 + round(dice.lognormvariate(6.4, 0.9)))
        pieces = names.take(tokens)
        requests.append(Request(number, tokens, out, pieces, pieces[0]))
    return _load("decode", _poisson(dice, count), requests, 0.4, kv_tokens=131_072)


def tenants(seed: int, count: int = 2500) -> Load:
    """Three kinds of customers at once: chats of several turns, long documents in bursts, agents with a prefix.

    Of ten chat tenants the first sends as much as the others together (Zipf). A document is 4,000 to 16,000 tokens
    with a short answer, and three to eight of them come at once.
    """
    dice = Random(seed)
    names = _Names()
    shares = [1 / rank for rank in range(1, 11)]
    systems = [names.take(1024) for _ in range(10)]
    tools = [names.take(4096) for _ in range(6)]
    chats: list[tuple[int, list[int], int]] = []  # tenant, pieces, tokens
    times: list[float] = []
    requests: list[Request] = []
    now = 0.0
    while len(requests) < count:
        now += dice.expovariate(1.0)
        kind = dice.random()
        if kind < 0.70:
            requests.append(_chat_turn(dice, names, systems, shares, chats, len(requests)))
            times.append(now)
        elif kind < 0.75:
            for _ in range(dice.randrange(3, 9)):
                tokens = dice.randrange(4000, 16000)
                pieces = names.take(tokens)
                out = 50 + dice.randrange(150)
                requests.append(
                    Request(len(requests), tokens, out, pieces, pieces[0], max_tokens=256, tenant="documents")
                )
                times.append(now)
        else:
            prefix = dice.choice(tools)
            pieces = prefix + names.take(dice.randrange(200, 2000))
            tokens = len(prefix) * _PIECE + dice.randrange(100, 200)
            tokens = min(tokens + dice.randrange(1800), len(pieces) * _PIECE)
            pieces = pieces[: -(-tokens // _PIECE)]
            out = 1 + round(dice.lognormvariate(5.0, 0.7))
            requests.append(Request(len(requests), tokens, out, pieces, pieces[0], tenant="agents"))
            times.append(now)
    return _load("tenants", times, requests, 0.25)


def _chat_turn(
    dice: Random,
    names: _Names,
    systems: list[list[int]],
    shares: list[float],
    chats: list[tuple[int, list[int], int]],
    number: int,
) -> Request:
    """A new chat, or one more turn of one of the last hundred; a chat's text only grows."""
    out = 1 + round(dice.lognormvariate(5.3, 0.7))
    if chats and dice.random() < 0.7:
        index = dice.randrange(len(chats))
        tenant, pieces, tokens = chats.pop(index)
    else:
        tenant = dice.choices(range(10), shares)[0]
        pieces, tokens = systems[tenant], 1024
    # Turns end on piece borders, so that the names of a chat's beginning stay the same.
    more = _PIECE * (1 + (dice.random() < 0.3))
    pieces = pieces + names.take(more)
    tokens += more
    if tokens < 12_000:
        chats.append((tenant, pieces, tokens))
        del chats[:-100]
    opening = pieces[2]
    session = f"chat-{opening}"
    return Request(number, tokens, out, pieces, opening, tenant=f"chat-{tenant}", session=session)


LOADS: Final[dict[str, Callable[[int], Load]]] = {
    "mooncake": mooncake,
    "agents": agents,
    "azure-code": azure_code,
    "decode": decode,
    "tenants": tenants,
}
# Those whose prompts share beginnings throughout. In the mix of tenants the slowest tenth are documents, which
# share nothing.
SHARING: Final = ("mooncake", "agents")
