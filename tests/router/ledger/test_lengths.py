"""Output lengths: what is expected of an answer before it begins, and once it goes on."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidepool_router.ledger import Estimate, Ledger, OutputLengths


def learned(*lengths: int, rounds: int = 200) -> OutputLengths:
    sketch = OutputLengths(256.0)
    for _ in range(rounds):
        for length in lengths:
            sketch.learn(length)
    return sketch


def test_mean_and_cap() -> None:
    sketch = learned(10, 1000)

    assert sketch.mean == pytest.approx(505, rel=0.05)
    assert sketch.capped_mean(10_000) == pytest.approx(sketch.mean)
    assert sketch.capped_mean(100) == pytest.approx(55, rel=0.05)  # half are short, half end at the cap
    assert sketch.capped_mean(0) == 0.0


def test_an_output_that_goes_on_is_one_of_the_long_ones() -> None:
    sketch = learned(10, 1000)

    assert sketch.remaining(0) == pytest.approx(505, rel=0.05)
    assert sketch.remaining(50) == pytest.approx(950, rel=0.01)
    assert sketch.remaining(4000) == 1000.0  # longer than any: a quarter more


def test_quantiles() -> None:
    sketch = OutputLengths(256.0)
    for length in list(range(1, 1001)) * 3:
        sketch.learn(length)

    # The last hundred lengths weigh most: 2 % each.
    assert sketch.quantile(0.5) == pytest.approx(966, rel=0.2)
    assert learned(10, 1000).quantile(0.25) == pytest.approx(10)
    assert learned(10, 1000).quantile(0.75) == pytest.approx(1000)
    assert learned(10, 1000).quantile(0.25, produced=50) == pytest.approx(1000)


def test_a_new_kind_of_load_is_learned_within_some_hundred_answers() -> None:
    sketch = learned(1000)
    for _ in range(250):
        sketch.learn(20)

    assert sketch.mean < 40


@given(st.lists(st.integers(1, 10**6), max_size=80), st.integers(0, 10**7), st.floats(0, 1))
def test_answers_stay_in_bounds(lengths: list[int], produced: int, share: float) -> None:
    sketch = OutputLengths(256.0)
    for length in lengths:
        sketch.learn(length)

    assert 0 <= sketch.capped_mean(produced) <= max(produced, 1) * 1.0001
    assert sketch.capped_mean(produced) <= sketch.mean * 1.0001
    assert sketch.remaining(produced) >= 1.0
    assert sketch.quantile(share, produced) >= produced


def test_an_entry_that_outgrows_its_estimate_is_expected_to_go_on() -> None:
    ledger = Ledger()
    entry = ledger.open(Estimate(100, 505), 0.0, learned(10, 1000))
    entry.progress(504, 1.0)
    assert ledger.expected_tokens == 1

    entry.progress(505, 1.0)

    assert ledger.expected_tokens == pytest.approx(495, abs=5)
    assert ledger.sums().expected_tokens == entry.expected_tokens


def test_nothing_is_expected_beyond_the_clients_cap() -> None:
    ledger = Ledger()
    entry = ledger.open(Estimate(100, 100, most_output_tokens=120), 0.0, learned(10, 1000))

    entry.progress(100, 1.0)
    assert ledger.expected_tokens == 20
    entry.progress(120, 1.0)
    assert ledger.expected_tokens == 0
