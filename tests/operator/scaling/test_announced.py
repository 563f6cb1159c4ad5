"""Calls that workflow runs announce: they may grow a pool before they come, and nothing else."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fakes.readings import GONE, OLD, UNTOLD, asked, blind, pod, pool, settled
from tidepool_operator.scaling.capacity import SETTLED, Capacity
from tidepool_operator.scaling.decide import decide
from tidepool_operator.scaling.model import Known, Memory, PoolReading, Sample, ScalingSpec

NOW = 1_800_000_000.0
SPEC = ScalingSpec(1, 8)


def knowing(current: int = 1, **more: float) -> Memory:
    """Of an operator that saw requests wait at eight a pod."""
    return settled(current, NOW, saturated_running=8.0, saturated_at=NOW - 60.0, **more)


def coming(calls: float | Sample, in_flight: float | Sample = 0, pods: int = 1, **figures: float) -> PoolReading:
    serving = [pod(f"pod-{index}", **figures) for index in range(pods)]
    return pool(*serving, demand=asked(in_flight=in_flight, coming=calls))


GROWING = pool(pod(), *(blind(f"new-{n}") for n in range(3)), demand=asked(coming=32))


@pytest.mark.parametrize(
    ("reading", "current", "replicas", "reason", "why"),
    [
        (coming(32), 1, 4, "ScaleUp", "four replicas run eight each"),
        (coming(24, in_flight=8, running=8), 1, 4, "ScaleUp", "what runs keeps its place"),
        (coming(24, in_flight=0, running=8), 1, 3, "ScaleUp", "the pods' figure is older: these have ended"),
        (coming(24, in_flight=OLD, running=8), 1, 4, "ScaleUp", "a silent gateway: then the pods' figure"),
        (
            coming(24, in_flight=80, running=8),
            1,
            4,
            "ScaleUp",
            "what is beyond the pods' room is judged as waiting",
        ),
        (
            coming(8, in_flight=8, running=8, waiting=8),
            1,
            3,
            "ScaleUp",
            "what waits asks for two, what comes for one",
        ),
        (coming(200), 1, 5, "ScaleUp", "25 wanted, and no more at once than behavior allows"),
        (coming(200, pods=8), 8, 8, "AtMaximum", "never beyond the maximum"),
        (GROWING, 4, 4, "Starting", "those that start are counted once"),
        (coming(4, in_flight=4, running=4), 1, 1, "WithinTargets", "there is room"),
        (coming(1, kv=0.95, pods=4), 4, 5, "ScaleUp", "other resources ask as ever"),
        (coming(0), 1, 1, "WithinTargets", "nothing comes"),
        (coming(UNTOLD), 1, 1, "WithinTargets", "gateways of an older release do not tell, and no gap is that"),
        (coming(OLD), 1, 1, "WithinTargets", "too old to act on"),
        (coming(24, pods=3), 3, 3, "WithinTargets", "it holds what it will fill"),
        (coming(UNTOLD, pods=3), 3, 2, "ScaleDown", "and a pool of which nobody tells shrinks as ever"),
        (coming(0, pods=3), 3, 2, "ScaleDown", "as one of which nothing is told but nought"),
    ],
    ids=lambda value: value if isinstance(value, str) and " " in value else "",
)
def test_what_is_announced(reading: PoolReading, current: int, replicas: int, reason: str, why: str) -> None:
    decision, _ = decide(NOW, reading, SPEC, current, knowing(current))

    assert (decision.replicas, decision.reason) == (replicas, reason), why


def test_the_decision_names_it_in_words() -> None:
    decision, _ = decide(NOW, coming(12, in_flight=6, running=6), SPEC, 1, knowing())

    assert decision.message == (
        "1 -> 3: 12 calls that workflow runs will make soon, beside 6 now; a replica runs 8.0; binding: announced"
    )
    assert decision.binding == "announced"
    assert decision.samples["announced"] == "12"
    single, _ = decide(NOW, coming(1, in_flight=8, running=8), SPEC, 1, knowing())
    assert "1 call that workflow runs" in single.message


def test_a_pool_of_which_nobody_knows_what_a_replica_runs_is_left_as_it_is() -> None:
    decision, _ = decide(NOW, coming(200), SPEC, 1, settled(1, NOW))

    assert (decision.replicas, decision.binding) == (1, "kv")


def test_what_a_replica_runs_is_learned_from_its_speed_too() -> None:
    """Steps of 10 ms and 1 ms a sequence: at 0.85 of its time a step is 66.7 ms, and 56.7 get a token in it."""
    capacity = Capacity(figures=(0.010, 1e-5, 1e-3), readings=SETTLED)
    known = settled(1, NOW, capacity=capacity, demand=(NOW, 0.0, 400.0))
    fewer = settled(1, NOW, capacity=replace(capacity, readings=SETTLED - 1), demand=(NOW, 0.0, 400.0))

    assert capacity.at_once(0.0, 400.0, None) == pytest.approx(56.7, abs=0.1)
    assert capacity.at_once(0.0, 400.0, 0.02) == pytest.approx(10.0, abs=0.1)  # half of the time, steps of 20 ms
    assert capacity.at_once(40_000.0, 400.0, None) == pytest.approx(28.3, abs=0.1)  # prompts take the other half
    assert capacity.at_once(100.0, 0.0, None) is None
    assert "a replica runs 56.7" in decide(NOW, coming(100), SPEC, 1, known)[0].message
    assert decide(NOW, coming(100), SPEC, 1, fewer)[0].replicas == 1  # a prior asks for none


def test_a_pool_whose_first_pod_starts_is_grown_and_never_shrunk_by_what_comes() -> None:
    starting = pool(blind(), demand=asked(coming=32))
    few = pool(blind("a"), blind("b"), blind("c"), demand=asked(coming=1))

    assert decide(NOW, starting, SPEC, 1, knowing())[0].replicas == 4
    decision, _ = decide(NOW, few, SPEC, 3, knowing(3))
    assert (decision.replicas, decision.reason) == (3, "Starting")


def test_without_figures_of_its_pods_a_pool_does_not_shrink_because_something_comes() -> None:
    dark = pool(*(pod(f"pod-{n}", kv=GONE, waiting=GONE, running=GONE) for n in range(3)), demand=asked(coming=1))

    decision, _ = decide(NOW, dark, SPEC, 3, knowing(3))

    assert (decision.replicas, decision.reason) == (3, "MetricsMissing")


def test_a_pool_at_zero_wakes_by_what_is_held_alone() -> None:
    spec = ScalingSpec(0, 8)

    assert decide(NOW, pool(demand=asked(coming=50)), spec, 0, knowing(0))[0].replicas == 0
    assert decide(NOW, pool(demand=asked(held=50, coming=50)), spec, 0, knowing(0))[0].replicas == 1


@given(st.integers(0, 500), st.integers(0, 500), st.integers(1, 8), st.floats(0, 16), st.floats(0, 16))
def test_more_that_comes_never_yields_fewer(
    less: int, more: int, current: int, running: float, waiting: float
) -> None:
    def replicas(calls: int) -> int:
        reading = coming(calls, in_flight=current * running, pods=current, running=running, waiting=waiting)
        return decide(NOW, reading, SPEC, current, knowing(current))[0].replicas

    assert replicas(less) <= replicas(less + more) <= SPEC.max_replicas
    untold = coming(UNTOLD, in_flight=current * running, pods=current, running=running, waiting=waiting)
    assert decide(NOW, untold, SPEC, current, knowing(current))[0].replicas <= replicas(less)


def test_known_zero_is_told_apart_from_untold() -> None:
    assert decide(NOW, coming(Known(0.0)), SPEC, 1, knowing())[0].samples["announced"] == "0"
    assert decide(NOW, coming(UNTOLD), SPEC, 1, knowing())[0].samples["announced"].startswith("missing")
