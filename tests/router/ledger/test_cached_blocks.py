"""Predicted cached tokens against the rules of vLLM's prefix cache (fakes.kv), at four bytes a token."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fakes.kv import KvCache, block_keys
from tidepool_router.facts import Api, RequestFacts
from tidepool_router.fleet.engine_cache import EngineCache
from tidepool_router.ledger import TokenEstimator, chain, whole_blocks
from tidepool_router.ledger.chain import BORDERS

_BYTES_PER_TOKEN = 4
_CAPACITY_TOKENS = 1 << 16


class Engine:
    """An engine's cache, and what a sidecar believes of it."""

    def __init__(self, block_tokens: int) -> None:
        self.cache = KvCache(_CAPACITY_TOKENS // block_tokens, block_tokens)
        self.belief = EngineCache(TokenEstimator())
        self.belief.resize(_CAPACITY_TOKENS, block_tokens)

    def serve(self, tokens: list[int]) -> tuple[int, int]:
        """Cached tokens of a prompt, as predicted and as counted."""
        text = b"".join(token.to_bytes(_BYTES_PER_TOKEN, "big") for token in tokens)
        facts = RequestFacts(Api.CHAT, "/", "m", prompt_bytes=len(text), prefix=chain(text))
        estimate, prefix, found = self.belief.look(facts)
        predicted = estimate.cached_tokens
        self.belief.took_in(prefix, found)
        keys = block_keys(tokens, self.cache.block_size, "")
        admitted = self.cache.admit(keys, len(tokens))
        assert admitted is not None
        blocks, counted = admitted
        self.cache.publish(blocks, keys, len(tokens))
        self.cache.release(blocks)
        return predicted, counted


@pytest.mark.parametrize("block_tokens", [16, 64, 128])
@pytest.mark.parametrize("border", [1, 3, 16, 40])
def test_a_prompt_that_comes_again_is_predicted_to_the_token(block_tokens: int, border: int) -> None:
    engine = Engine(block_tokens)
    prompt = [random.Random(1).randrange(1 << 30) for _ in range(BORDERS[border] // _BYTES_PER_TOKEN)]

    assert engine.serve(prompt) == (0, 0)
    predicted, counted = engine.serve(prompt)

    assert predicted == counted == (len(prompt) - 1) // block_tokens * block_tokens


@given(st.integers(0, 3000), st.integers(1, 1500), st.integers(0, 1500), st.sampled_from([16, 32, 128]))
def test_a_shared_beginning_is_predicted_to_a_border_and_a_block(
    shared: int, first: int, second: int, block_tokens: int
) -> None:
    engine = Engine(block_tokens)
    draw = random.Random(shared)
    beginning = [draw.randrange(1 << 30) for _ in range(shared)]
    engine.serve(beginning + [draw.randrange(1 << 30) for _ in range(first)])
    prompt = beginning + [draw.randrange(1 << 30) for _ in range(second)]
    predicted, counted = engine.serve(prompt or [0])

    steps = [end - start for start, end in zip((0, *BORDERS), BORDERS, strict=False) if start <= shared * 4]
    assert predicted % block_tokens == 0
    assert abs(counted - predicted) <= steps[-1] // _BYTES_PER_TOKEN + block_tokens


def test_predictions_are_neither_too_high_nor_too_low_on_the_mean() -> None:
    draw = random.Random(5)
    engine = Engine(16)
    off = []
    for _ in range(200):
        beginning = [draw.randrange(1 << 30) for _ in range(draw.randrange(100, 2000))]
        engine.serve(beginning + [draw.randrange(1 << 30) for _ in range(200)])
        predicted, counted = engine.serve(beginning + [draw.randrange(1 << 30) for _ in range(300)])
        off.append(predicted - counted)

    assert abs(sum(off) / len(off)) < 8
    assert sum(map(abs, off)) / len(off) < 24  # half of the way between two borders is 32 tokens and more


@pytest.mark.parametrize(
    ("matched", "prompt", "block", "counted", "why"),
    [
        (
            2048,
            1000,
            16,
            544,
            "to half of the way to the next border; of a block in part nothing",
        ),
        (4000, 1000, 8, 992, "the last token is computed, and with it its block"),
        (4096, 1024, 128, 896, "also where the prompt is whole blocks"),
        (256, 1000, 128, 0, "less than a block is nothing"),
        (0, 1000, 16, 0, "nothing is nothing"),
        (4800, 1000, 1, 999, "an engine that does not tell its blocks"),
    ],
)
def test_whole_blocks(matched: int, prompt: int, block: int, counted: int, why: str) -> None:
    assert whole_blocks(matched, 0.25, prompt, block) == counted, why
