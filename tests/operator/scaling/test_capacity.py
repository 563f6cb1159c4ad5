"""What a replica can serve: learned from readings, whatever was believed before."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidepool_operator.scaling.capacity import LOAD_LIMITS, PRIOR, Capacity, Load, judged, learned

TARGET = 0.05


def reading(truth: tuple[float, float, float], share: float, prefill: float) -> Load:
    """What an engine shows that spends `share` of its time on demand, `prefill` of that on prompts."""
    base, per_prompt, per_output = truth
    prompt, output = share * prefill / per_prompt, share * (1 - prefill) / per_output
    return Load(output * base / (1 - share), prompt, output)


def watched(truth: tuple[float, float, float], minutes: float, seed: int = 0, noise: float = 0.05) -> Capacity:
    """After minutes of a load that rises from a fifth to three quarters, read every 15 s with some error."""
    chance, capacity = np.random.default_rng(seed), Capacity()
    for tick in range(int(minutes * 4)):
        exact = reading(truth, 0.2 + 0.55 * tick / (minutes * 4), chance.uniform(0.3, 0.6))
        seen = Load(*(value * (1 + noise * chance.standard_normal()) for value in _fields(exact)))
        capacity = learned(capacity, seen)
    return capacity


def _fields(load: Load) -> tuple[float, float, float]:
    return load.running, load.prompt_tokens, load.output_tokens


def needed(truth: tuple[float, float, float] | Capacity, load: Load, target: float) -> float:
    """Replicas for a demand within the target for the time per token."""
    base, per_prompt, per_output = truth.figures if isinstance(truth, Capacity) else truth
    return (per_prompt * load.prompt_tokens + per_output * load.output_tokens) / (1 - base / target)


@pytest.mark.parametrize(
    ("step_seconds", "readings", "expected"),
    [
        (0.085, 1, "one reading; a step takes 85 ms, give or take "),
        (0.0083, 80, "some 80 readings; a step takes 8.3 ms, give or take "),
        (0.0083, 4321, "some 4000 readings; "),
    ],
)
def test_what_is_known_of_a_step_is_told_in_plain_numbers(
    step_seconds: float, readings: int, expected: str
) -> None:
    capacity = Capacity(figures=(step_seconds, *PRIOR[1:]), readings=readings)
    slow = Capacity(precision=(2500.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 1.0), readings=readings)

    assert capacity.told().startswith(expected)
    assert slow.told().endswith("give or take 20 ms"), "it said 2e+01"


@pytest.mark.parametrize("wrong", [1 / 3, 1.0, 3.0])
@pytest.mark.parametrize("seed", range(1))
def test_a_prior_three_times_wrong_is_mended_within_ten_minutes(wrong: float, seed: int) -> None:
    base, per_prompt, per_output = (wrong * figure for figure in PRIOR)
    truth = (base, per_prompt, per_output)
    capacity = watched(truth, minutes=10, seed=seed)

    for prefill in (0.3, 0.5):
        load, target = reading(truth, 0.6, prefill), 4 * truth[0]
        assert needed(capacity, load, target) == pytest.approx(needed(truth, load, target), rel=0.15)


def test_confidence_is_told_and_grows() -> None:
    load = reading(PRIOR, 0.5, 0.4)
    few, many = watched(PRIOR, minutes=1), watched(PRIOR, minutes=20)

    assert "prior" in Capacity().told()
    assert Capacity().doubt(load) > few.doubt(load) > many.doubt(load)
    assert many.doubt(load) < 0.1
    assert "80 readings" in many.told()


@pytest.mark.parametrize(
    ("prompt", "output", "binds"),
    [
        (8000.0, 100.0, "prefill"),  # long prompts, short answers: 0.4 s of prompts against 0.03 s of answers
        (500.0, 1000.0, "decode"),
    ],
)
def test_what_takes_more_of_the_time_binds(prompt: float, output: float, binds: str) -> None:
    assert Capacity().binding(prompt, output) == binds


def test_a_tighter_target_allows_less_load() -> None:
    capacity = Capacity()

    assert capacity.limit(0.012) < capacity.limit(0.03) <= capacity.limit(None)
    assert capacity.limit(0.001) == LOAD_LIMITS[0]  # one request alone misses it: no number of replicas helps


def test_the_load_at_which_targets_break_is_found() -> None:
    """Here they break above 0.6: the limit comes down to it, and stays."""
    capacity = Capacity()
    for _ in range(300):
        limit = capacity.limit(None)
        capacity = judged(capacity, limit, limit, 1.2 if limit > 0.6 else 0.8)

    assert capacity.load_limit == pytest.approx(0.6, abs=0.03)


def test_a_pool_that_is_too_small_learns_nothing_from_being_late() -> None:
    """Replicas that were asked for take minutes: what is late until then would bring the limit to its lowest."""
    capacity = Capacity()
    for _ in range(40):
        capacity = judged(capacity, 1.2 * capacity.limit(None), capacity.limit(None), 4.0)

    assert capacity == Capacity()


def test_latencies_of_an_idle_pool_teach_nothing() -> None:
    """A target that is missed without load is missed for another reason; one that is met says nothing."""
    assert judged(Capacity(), 0.05, 0.85, 3.0) == Capacity()
    assert judged(Capacity(), 0.05, 0.85, 0.1) == Capacity()


nonsense = st.one_of(st.sampled_from([math.nan, math.inf, -math.inf, -1.0, 0.0, 1e300]), st.floats(0, 1e6))


@settings(max_examples=15, deadline=None)
@given(st.lists(st.builds(Load, nonsense, nonsense, nonsense), max_size=20))
def test_garbage_leaves_figures_that_can_be_used(loads: list[Load]) -> None:
    capacity = Capacity()
    for load in loads:
        capacity = learned(capacity, load)

    assert all(0 < figure < math.inf for figure in capacity.figures)
    assert all(math.isfinite(each) for each in capacity.precision)
    for one, other in itertools.pairwise([0.0, 100.0, 10_000.0]):
        assert capacity.load(one, one) < capacity.load(other, other)
