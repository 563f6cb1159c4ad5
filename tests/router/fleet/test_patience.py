"""How long an engine may be silent: never less than a minute, longer with prompts, never longer than ten."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidepool_router.fleet.patience import HUNG_SECONDS, LONGEST_SECONDS, Patience
from tidepool_router.ledger import Estimate, Ledger


def after(*prompts: tuple[int, float]) -> Patience:
    """What was learned from prompts of so many tokens that took so many seconds, one after the other."""
    patience, ledger, now = Patience(), Ledger(), 0.0
    for tokens, seconds in prompts:
        entry = ledger.open(Estimate(tokens, 1), now)
        patience.opened(entry, ledger.unstarted)
        now += seconds
        patience.started(entry, now)
        entry.first_token(now)
    return patience


@pytest.mark.parametrize(
    ("prompts", "queued_tokens", "seconds", "why"),
    [
        ([], 0, 60.0, "nothing to prefill: no token for a minute is too long"),
        ([], 1000, 90.0, "nothing learned: 100 tokens a second, three times over"),
        ([(10_000, 1.0)] * 9, 100_000, 90.0, "10,000 tokens a second"),
        ([(100, 10.0)] * 200, 1000, 360.0, "10 tokens a second"),
        ([], 1_000_000, 600.0, "by then everybody has given up"),
    ],
)
def test_patience_follows_what_prompts_take_here(
    prompts: list[tuple[int, float]], queued_tokens: int, seconds: float, why: str
) -> None:
    assert after(*prompts).seconds(queued_tokens) == pytest.approx(seconds, rel=0.1), why


def test_a_prompt_that_waited_for_others_teaches_nothing() -> None:
    """It took long because of the queue; learned as its own time it would hide a hung engine under load."""
    patience, ledger = Patience(), Ledger()
    entries = []
    for _ in range(50):
        entries.append(ledger.open(Estimate(1000, 1), 0.0))
        patience.opened(entries[-1], ledger.unstarted)
    for number, entry in enumerate(entries):
        patience.started(entry, 0.1 * (number + 1))
        entry.first_token(0.1 * (number + 1))

    assert patience.seconds(50_000) < 200.0


@given(
    st.lists(st.tuples(st.integers(0, 10**6), st.floats(0, 1e4)), max_size=30),
    st.integers(0, 10**9),
    st.integers(0, 10**9),
)
def test_it_stays_within_its_bounds_and_grows_with_the_queue(
    prompts: list[tuple[int, float]], one: int, other: int
) -> None:
    patience = after(*prompts)

    less, more = patience.seconds(min(one, other)), patience.seconds(max(one, other))

    assert HUNG_SECONDS <= less <= more <= LONGEST_SECONDS
