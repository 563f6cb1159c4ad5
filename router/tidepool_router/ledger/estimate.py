"""How many tokens a request will take, before an engine has counted them."""

from typing import Final

import msgspec

from tidepool_router.facts import Api, RequestFacts

# English prose in the tokenizers of current models: about 4 bytes a token (llm-d assumes the same).
_FIRST_BYTES_PER_TOKEN: Final = 4.0
# A pool's own ratio, whatever the language or tokenizer, lies between these; one odd request must not leave them.
_BYTES_PER_TOKEN_RANGE: Final = (0.25, 32.0)
# Each answer weighs 2 %: a new kind of load is learned within some hundred requests.
_LEARNING_RATE: Final = 0.02
_FIRST_OUTPUT_TOKENS: Final = 256.0
# These make no tokens, so nothing is expected of them after the prompt.
_WITHOUT_OUTPUT: Final = frozenset({Api.EMBEDDINGS, Api.RERANK, Api.SCORE, Api.TOKENIZE, Api.COUNT_TOKENS})


class Estimate(msgspec.Struct, frozen=True, gc=False):
    """Tokens of one request: the whole prompt, and the output of all its choices."""

    prompt_tokens: int
    output_tokens: int


class TokenEstimator:
    """Learns a pool's bytes per prompt token and its mean output per API from the usage that engines report."""

    def __init__(self) -> None:
        # Decayed sums, so that long prompts weigh as much as their tokens.
        self._bytes = _FIRST_BYTES_PER_TOKEN * 1000.0
        self._tokens = 1000.0
        self._mean_output: dict[Api, float] = {}
        self._typical = 2 * _FIRST_OUTPUT_TOKENS

    @property
    def bytes_per_token(self) -> float:
        """Ratio in force."""
        low, high = _BYTES_PER_TOKEN_RANGE
        return min(high, max(low, self._bytes / self._tokens))

    @property
    def typical_tokens(self) -> int:
        """KV tokens of a request of which nothing is known but that it is there."""
        return round(self._typical)

    def estimate(self, facts: RequestFacts) -> Estimate:
        """Never below one prompt token; output is the API's running mean, capped by what the request allows."""
        return Estimate(
            prompt_tokens=max(1, round(facts.prompt_bytes / self.bytes_per_token)),
            output_tokens=self._output(facts),
        )

    def learn(self, facts: RequestFacts, prompt_tokens: int, output_tokens: int) -> None:
        """Take in what an engine counted for a request that ended well; counts of zero teach nothing."""
        if prompt_tokens > 0 and facts.prompt_bytes > 0:
            low, high = _BYTES_PER_TOKEN_RANGE
            seen_bytes = min(high * prompt_tokens, max(low * prompt_tokens, float(facts.prompt_bytes)))
            keep = 1.0 - _LEARNING_RATE
            self._bytes = keep * self._bytes + seen_bytes
            self._tokens = keep * self._tokens + prompt_tokens
        self._typical += _LEARNING_RATE * (prompt_tokens + output_tokens - self._typical)
        if output_tokens > 0 and facts.api not in _WITHOUT_OUTPUT:
            mean = self._mean_output.get(facts.api, _FIRST_OUTPUT_TOKENS)
            per_choice = output_tokens / max(1, facts.choices)
            self._mean_output[facts.api] = mean + _LEARNING_RATE * (per_choice - mean)

    def _output(self, facts: RequestFacts) -> int:
        if facts.api in _WITHOUT_OUTPUT:
            return 0
        expected = self._mean_output.get(facts.api, _FIRST_OUTPUT_TOKENS)
        if facts.max_tokens is not None:
            expected = min(expected, float(max(0, facts.max_tokens)))
        return round(expected * max(1, facts.choices))
