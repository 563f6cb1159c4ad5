"""Failures of other autoscalers that users reported in public, each as the behaviour that is wanted instead."""

import math

import pytest

from fakes.readings import GONE, NOBODY, Pool, asked, blind, pod, pool, settled
from tidepool_operator.scaling.capacity import SETTLED, Capacity
from tidepool_operator.scaling.decide import decide
from tidepool_operator.scaling.model import Forecast, Known, Memory, Missing, Moment, PodState, ScalingSpec

NOW = 1_800_000_000.0
LONG_IDLE = {"idle_since": NOW - 7200}


def test_a_ratio_of_nothing_to_nothing_neither_shrinks_nor_pins_an_idle_pool() -> None:
    """ai-dynamo/dynamo#6985, #3131: 0/0 = NaN when idle, and the pool never went down.

    Idle is known from counts, not from ratios, so a latency of no requests is in nobody's way.
    """
    nothing = {
        "time_to_first_token_seconds": Missing("not a number: no request in the window"),
        "time_per_output_token_seconds": Missing("not a number: no request in the window"),
    }
    spec = ScalingSpec(0, 8, time_to_first_token_seconds=1.5, time_per_output_token_seconds=0.05)

    two, _ = decide(NOW, pool(pod("a"), pod("b"), **nothing), spec, 2, settled(2, NOW))
    idle, _ = decide(NOW, pool(pod(), **nothing), spec, 1, settled(1, NOW, **LONG_IDLE))

    assert two.replicas == 1
    assert idle.replicas == 0


@pytest.mark.parametrize("figure", ["running", "waiting", "requests"])
def test_zero_only_while_the_scrapes_are_up(figure: str) -> None:
    """The same reports: a count that is not there is no count of zero."""
    decision, memory = decide(NOW, pool(pod(**{figure: GONE})), ScalingSpec(0, 8), 1, settled(1, NOW, **LONG_IDLE))

    assert decision.replicas == 1
    assert memory.idle_since is None


def test_prometheus_lost_at_peak_keeps_every_replica() -> None:
    """kedacore/keda#3065: Prometheus lost read as null, null as zero, and all went to the minimum at peak."""
    spec, memory = ScalingSpec(0, 20), settled(12, NOW)
    trouble = "Prometheus at prometheus:9090 cannot be reached"
    lost = [pod(f"p{i}", kv=GONE, running=GONE, waiting=GONE, requests=GONE) for i in range(12)]
    for tick in range(720):
        decision, memory = decide(NOW + tick * 5, pool(*lost, trouble=trouble), spec, 12, memory)
        assert decision.replicas == 12

    assert decision.reason == "MetricsMissing"
    assert trouble in decision.message


@pytest.mark.parametrize(("replicas", "bound"), [(0, 2), (1, 2), (9, 6)])
def test_bounds_hold_without_any_estimate(replicas: int, bound: int) -> None:
    """ai-dynamo/dynamo PR #14575: an outage left replicas below the floor."""
    decision, _ = decide(NOW, pool(), ScalingSpec(2, 6), replicas, Memory())

    assert decision.replicas == bound


def test_a_queue_that_grows_beside_an_empty_cache_scales_up() -> None:
    """llm-d-autoscaling#662: prefill-bound engines queue at 32 % of their KV cache; vllm#5176: KV use counts
    running requests only."""
    decision, _ = decide(NOW, pool(pod(kv=0.32, running=8, waiting=24)), ScalingSpec(1, 8), 1, settled(1, NOW))

    assert decision.replicas == 4
    assert decision.binding == "waiting"


def test_one_renamed_metric_leaves_the_other_signals_at_work() -> None:
    """inference-perf#277: a metric was renamed. What is left still scales up, and nothing shrinks."""
    spec = ScalingSpec(1, 8)
    busy = pool(*(pod(f"p{i}", kv=Missing(), running=8, waiting=8) for i in range(2)))
    calm = pool(*(pod(f"p{i}", kv=Missing(), running=1) for i in range(2)))

    up, _ = decide(NOW, busy, spec, 2, settled(2, NOW))
    held, _ = decide(NOW, calm, spec, 2, settled(2, NOW))

    assert up.replicas == 4
    assert (held.replicas, held.reason) == (2, "MetricsMissing")


@pytest.mark.parametrize("state", [PodState.PENDING, PodState.STARTING, PodState.UNREADY])
def test_pods_that_are_not_ready_do_not_block_scale_down(state: PodState) -> None:
    """kubernetes#79158, #82285: a pod that could not be scheduled held the whole group up."""
    reading = pool(pod("a", kv=0.3), pod("b", kv=0.3), blind("c", state))

    decision, _ = decide(NOW, reading, ScalingSpec(1, 8), 3, settled(3, NOW))

    assert (decision.replicas, decision.reason) == (2, "ScaleDown")


def test_unschedulable_pods_do_not_lead_to_more() -> None:
    """The same reports, upwards: while nothing new can be scheduled, the same load asks for no more."""
    full = pool(pod("a", kv=1.0, running=8, waiting=8), blind("b", PodState.PENDING))
    memory = settled(2, NOW)
    for tick in range(120):
        decision, memory = decide(NOW + tick * 5, full, ScalingSpec(1, 8), 2, memory)
        assert decision.replicas == 2


def test_one_pods_broken_metrics_do_not_block_growth() -> None:
    """vllm-project/aibrix#617: one pod's error stopped the whole pool."""
    reading = pool(pod("a", kv=GONE, running=GONE, waiting=GONE), pod("b", kv=1.0, running=8, waiting=32))

    decision, _ = decide(NOW, reading, ScalingSpec(1, 8), 2, settled(2, NOW))

    assert (decision.replicas, decision.reason) == (5, "ScaleUp")


def test_one_step_at_a_time_under_steady_demand() -> None:
    """LLMKube#484: 41 scale-ups in 14 minutes, for the count was written back by another hand."""
    pool = Pool(ScalingSpec(1, 8), demand=20.0, startup_seconds=180.0)

    seen = pool.run(14 * 60)

    assert sum(after != before for before, after in zip([1, *seen], seen, strict=False)) == 1


@pytest.mark.parametrize("demand", [asked(held=1), asked(refused=1)], ids=["held", "refused"])
def test_at_zero_the_gateways_wake_where_no_engine_has_metrics(demand: object) -> None:
    """kedacore/keda#6040, llm-d PR #2492: at zero the metric's source is gone; production-stack PR #679: requests
    that were refused count too."""
    decision, _ = decide(NOW, pool(demand=demand), ScalingSpec(0, 8), 0, Memory())

    assert decision.replicas == 1


def test_a_manual_edit_is_taken_as_the_new_start() -> None:
    """ai-dynamo/dynamo#4420: a manual edit and the planner fought. Within bounds it stands for a whole window."""
    pool = Pool(ScalingSpec(1, 8), demand=2.0)
    pool.run(600)
    pool.replicas = 5

    seen = pool.run(295)

    assert set(seen) == {5}


@pytest.mark.parametrize("predicted", [-3.0, math.nan, math.inf])
def test_a_forecast_that_is_no_forecast_is_not_heard(predicted: float) -> None:
    """ai-dynamo/dynamo#14493: negative forecasts; NaN and infinities likewise."""
    reading = pool(pod(kv=0.7))
    forecast = Forecast(225.0, (Moment(NOW + 240, predicted, predicted),))

    memory = settled(1, NOW, capacity=Capacity(readings=SETTLED))
    decision, _ = decide(NOW, reading, ScalingSpec(1, 8, predicts=True), 1, memory, forecast)

    assert decision.replicas == 1


def test_latency_of_finished_requests_alone_does_not_hold_a_pool_up() -> None:
    """A percentile that is known and good never blocks; one over target blocks the way down."""
    spec = ScalingSpec(1, 8, time_to_first_token_seconds=1.0)
    good = pool(pod("a", kv=0.1), pod("b", kv=0.1), demand=NOBODY, time_to_first_token_seconds=Known(0.1))
    slow = pool(pod("a", kv=0.1), pod("b", kv=0.1), demand=NOBODY, time_to_first_token_seconds=Known(1.0))

    down, _ = decide(NOW, good, spec, 2, settled(2, NOW))
    held, _ = decide(NOW, slow, spec, 2, settled(2, NOW))

    assert (down.replicas, held.replicas) == (1, 2)
