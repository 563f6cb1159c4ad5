"""How many tokens a request will take, before an engine has counted them."""

from typing import Final

import msgspec

from tidepool_router.facts import Api, RequestFacts
from tidepool_router.ledger.chain import FIRST_BORDER_BYTES
from tidepool_router.ledger.lengths import OutputLengths

# English prose in the tokenizers of current models: about 4 bytes a token (llm-d assumes the same).
_FIRST_BYTES_PER_TOKEN: Final = 4.0
# A pool's own ratio, whatever the language or tokenizer, lies between these; one odd request must not leave them.
_LEAST_BYTES_PER_TOKEN: Final = 0.25
_MOST_BYTES_PER_TOKEN: Final = 32.0
# Each answer weighs 2 %: a new kind of load is learned within some hundred requests.
_LEARNING_RATE: Final = 0.02
_FIRST_OUTPUT_TOKENS: Final = 256.0
# These make no tokens, so nothing is expected of them after the prompt.
_WITHOUT_OUTPUT: Final = frozenset({Api.EMBEDDINGS, Api.RERANK, Api.SCORE, Api.TOKENIZE, Api.COUNT_TOKENS})


# Half of the way from a border of the chain to the next: at least so far, and a 64th to a 32nd of the text.
_LEAST_HALF_STEP_BYTES: Final = FIRST_BORDER_BYTES // 2


class Estimate(msgspec.Struct, frozen=True, gc=False):
    """Tokens of one request: the whole prompt, the output of all its choices, and what of the prompt is cached.

    `most_output_tokens` is what the client allows; 0 when it sets no limit.
    """

    prompt_tokens: int
    output_tokens: int
    cached_tokens: int = 0
    most_output_tokens: int = 0


def whole_blocks(matched_bytes: int, tokens_per_byte: float, prompt_tokens: int, block_tokens: int) -> int:
    """Cached tokens of a prompt as its engine counts them, where a beginning of so many bytes was matched.

    A match is known to a border of the chain, and the texts part somewhere before the next one, half way on the
    mean. vLLM finds whole blocks only, and computes at least one token of each prompt: there is nothing to sample
    from otherwise (KVCacheManager.get_computed_blocks looks up to `num_tokens - 1`).
    """
    if matched_bytes <= 0:
        return 0
    likely_bytes = matched_bytes + max(_LEAST_HALF_STEP_BYTES, matched_bytes * 3 // 128)
    tokens = min(int(likely_bytes * tokens_per_byte), prompt_tokens - 1)
    return tokens - tokens % block_tokens


class TokenEstimator:
    """Learns a pool's bytes per prompt token and its output lengths per API from the usage that engines report."""

    def __init__(self) -> None:
        # Decayed sums, so that long prompts weigh as much as their tokens.
        self._bytes = _FIRST_BYTES_PER_TOKEN * 1000.0
        self._tokens = 1000.0
        self._lengths: dict[Api, OutputLengths] = {}
        self._unlearned = OutputLengths(_FIRST_OUTPUT_TOKENS)
        self._typical = 2 * _FIRST_OUTPUT_TOKENS
        self.bytes_per_token = _FIRST_BYTES_PER_TOKEN  # in force

    @property
    def typical_tokens(self) -> int:
        """KV tokens of a request of which nothing is known but that it is there."""
        return round(self._typical)

    def lengths(self, api: Api) -> OutputLengths:
        """Output lengths of an API, as learned so far."""
        return self._lengths.get(api, self._unlearned)

    def estimate(self, facts: RequestFacts) -> Estimate:
        """Never below one prompt token; output is the API's running mean, capped by what the request allows."""
        prompt_tokens = int(facts.prompt_bytes / self.bytes_per_token + 0.5) or 1
        api = facts.api
        if api in _WITHOUT_OUTPUT:
            return Estimate(prompt_tokens, 0)
        lengths = self._lengths.get(api, self._unlearned)
        cap, choices = facts.max_tokens, facts.choices
        if cap is None:
            return Estimate(prompt_tokens, int(lengths.mean * choices + 0.5))
        return Estimate(prompt_tokens, int(lengths.capped_mean(cap) * choices + 0.5), 0, cap * choices)

    def learn(self, facts: RequestFacts, prompt_tokens: int, output_tokens: int) -> None:
        """Take in what an engine counted for a request that ended well; counts of zero teach nothing."""
        low, high = _LEAST_BYTES_PER_TOKEN, _MOST_BYTES_PER_TOKEN
        if prompt_tokens > 0 and facts.prompt_bytes > 0:
            seen_bytes = min(high * prompt_tokens, max(low * prompt_tokens, float(facts.prompt_bytes)))
            keep = 1.0 - _LEARNING_RATE
            self._bytes = keep * self._bytes + seen_bytes
            self._tokens = keep * self._tokens + prompt_tokens
            self.bytes_per_token = min(high, max(low, self._bytes / self._tokens))
        self._typical += _LEARNING_RATE * (prompt_tokens + output_tokens - self._typical)
        if output_tokens > 0 and facts.api not in _WITHOUT_OUTPUT:
            lengths = self._lengths.get(facts.api)
            if lengths is None:
                lengths = self._lengths[facts.api] = OutputLengths(_FIRST_OUTPUT_TOKENS)
            lengths.learn(output_tokens / max(1, facts.choices))
