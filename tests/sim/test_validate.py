"""The comparison with a real engine: its own parts, without one."""

import pytest

from sim.steptime import StepTime
from sim.validate import Ask, Calibration, Comparison, Samples, figures, loads, simulate


def test_the_loads_of_all_runs_differ_in_nothing_but_their_tokens() -> None:
    first, second = loads(1, 5.0, run=0), loads(1, 5.0, run=1)
    assert first.keys() == second.keys() == {"chat", "documents", "bursts"}
    for name, asks in first.items():
        assert asks
        shapes = [[(a.at, len(a.prompt), a.out) for a in run[name]] for run in (first, second)]
        assert shapes[0] == shapes[1]
        assert [a.prompt for a in asks] != [a.prompt for a in second[name]]


def test_a_calibration_is_what_made_the_times() -> None:
    step = StepTime(0.012, 0.0005, 1e-6, 0.0003, 2e-7)
    samples = Samples({}, {})
    for streams, context in ((1, 78), (2, 78), (4, 78), (8, 78), (1, 1630), (4, 930)):
        samples.decode[streams, context] = [step.decode(streams, streams * context)]
    for tokens in (16, 128, 256, 448, 960, 1500):
        chunks = -(-tokens // 512)
        samples.prefill[tokens] = [0.004 + chunks * step.base_seconds + step.prefill(tokens, 0)]
    found = samples.fit()
    assert found.overhead_seconds == pytest.approx(0.004, rel=1e-3)
    assert found.step.base_seconds == pytest.approx(0.012, rel=1e-3)
    assert found.step.per_prefill_pair_seconds == pytest.approx(2e-7, rel=1e-3)


def test_a_simulated_request_takes_what_its_steps_take() -> None:
    calibration = Calibration(StepTime(0.010, 0.001, 0.0, 0.0001), overhead_seconds=0.005)
    (seen,) = simulate(calibration, [Ask(1.0, tuple(range(100)), 11)])
    assert seen.first == pytest.approx(0.005 + 0.010 + 0.010)
    assert seen.per_token == pytest.approx(0.011)


def test_equal_beginnings_are_found_in_the_simulated_cache() -> None:
    calibration = Calibration(StepTime(0.010, 0.0, 0.0, 0.001), overhead_seconds=0.0)
    prompt = tuple(range(300))
    cold, warm = simulate(calibration, [Ask(0.0, prompt, 1), Ask(5.0, prompt, 1)])
    assert cold.first == pytest.approx(0.310)
    assert warm.first == pytest.approx(0.310 - 0.256)


@pytest.mark.parametrize(
    ("real", "simulated", "holds", "reason"),
    [
        ([1.0, 1.0, 1.0], 1.19, True, "within 20 %"),
        ([1.0, 1.0, 1.0], 1.21, False, "beyond 20 %"),
        ([0.8, 1.0, 1.1], 1.29, True, "within the engine's own spread of 30 %"),
        ([0.8, 1.0, 1.1], 0.69, False, "beyond it, below as above"),
    ],
)
def test_a_figure_holds_within_a_fifth_or_the_engines_own_spread(
    real: list[float], simulated: float, holds: bool, reason: str
) -> None:
    assert Comparison("chat", "ttft p50", real, simulated).holds is holds, reason


def test_the_time_per_token_is_that_after_the_first() -> None:
    calibration = Calibration(StepTime(0.010, 0.0, 0.0, 0.0), 0.0)
    seen = simulate(calibration, [Ask(0.0, (1,) * 10, 5), Ask(3.0, (2,) * 10, 1)])
    assert figures(seen)["token p90"] == pytest.approx(0.010)
