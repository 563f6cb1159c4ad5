"""Token estimates: learned from usage, bounded whatever comes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidepool_router.facts import Api, RequestFacts
from tidepool_router.ledger import RateMeter, TokenEstimator


def chat(
    prompt_bytes: int = 400, max_tokens: int | None = None, choices: int = 1, api: Api = Api.CHAT
) -> RequestFacts:
    return RequestFacts(
        api=api, path="/v1/x", model="m", max_tokens=max_tokens, choices=choices, prompt_bytes=prompt_bytes
    )


@pytest.mark.parametrize(
    ("facts", "prompt", "output", "why"),
    [
        (chat(400), 100, 256, "four bytes a token and the first guess of output"),
        (chat(0), 1, 256, "no request is free"),
        (chat(400, max_tokens=7), 100, 7, "the client's cap holds"),
        (chat(400, max_tokens=7, choices=3), 100, 21, "each choice makes tokens"),
        (chat(400, max_tokens=0), 100, 0, "an odd cap is taken at its word"),
        (chat(400, api=Api.EMBEDDINGS), 100, 0, "embeddings make none"),
        (chat(400, api=Api.TOKENIZE, max_tokens=9), 100, 0, "tokenize makes none, whatever it says"),
    ],
)
def test_first_estimates(facts: RequestFacts, prompt: int, output: int, why: str) -> None:
    estimate = TokenEstimator().estimate(facts)

    assert (estimate.prompt_tokens, estimate.output_tokens) == (prompt, output), why


def test_learns_the_pools_own_ratio_and_output() -> None:
    estimator = TokenEstimator()
    for _ in range(500):
        estimator.learn(chat(2000), prompt_tokens=1000, output_tokens=40)

    estimate = estimator.estimate(chat(2000))

    assert abs(estimate.prompt_tokens - 1000) <= 5
    assert abs(estimate.output_tokens - 40) <= 2


def test_output_is_learned_for_each_api() -> None:
    estimator = TokenEstimator()
    for _ in range(300):
        estimator.learn(chat(api=Api.COMPLETIONS), 100, 10)

    assert estimator.estimate(chat(api=Api.COMPLETIONS)).output_tokens < 20
    assert estimator.estimate(chat()).output_tokens == 256


def test_one_odd_request_does_not_spoil_the_ratio() -> None:
    estimator = TokenEstimator()
    estimator.learn(chat(prompt_bytes=8_000_000), prompt_tokens=10, output_tokens=1)

    assert 3.5 < estimator.bytes_per_token < 4.5


@given(
    st.lists(st.tuples(st.integers(0, 10**8), st.integers(0, 10**7), st.integers(0, 10**6)), max_size=60),
    st.integers(0, 10**8),
)
def test_estimates_stay_in_bounds_whatever_is_learned(lessons: list[tuple[int, int, int]], size: int) -> None:
    estimator = TokenEstimator()
    for prompt_bytes, prompt, output in lessons:
        estimator.learn(chat(prompt_bytes), prompt, output)

    estimate = estimator.estimate(chat(size, max_tokens=100))

    assert 1 <= estimate.prompt_tokens <= max(1, size * 4)
    assert 0 <= estimate.output_tokens <= 100
    assert estimator.typical_tokens >= 0


def test_rate_follows_a_steady_counter() -> None:
    meter = RateMeter()
    readings = [meter.read(total=second * 50, now=float(second)) for second in range(120)]

    assert readings[0] is None
    assert readings[-1] == pytest.approx(50, rel=0.01)


def test_rate_of_a_counter_that_stands_still_falls() -> None:
    meter = RateMeter()
    for second in range(60):
        meter.read(second * 50, float(second))

    assert (meter.read(59 * 50, 69.0) or 0) == pytest.approx(25, rel=0.05)


def test_rate_ignores_readings_that_are_too_close() -> None:
    meter = RateMeter()
    meter.read(0, 0.0)
    first = meter.read(100, 1.0)

    assert meter.read(100_000, 1.0) == first
