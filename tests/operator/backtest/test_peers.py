"""The rules of others, by worked examples of their own sources and documentation."""

import math

import numpy as np
import pytest

from tidepool_operator.backtest.arima import Arima, Predictor
from tidepool_operator.backtest.peers import Dynamo, Hpa, Knative, WvaV2, keda
from tidepool_operator.backtest.plant import Engine, Seen

SMALL = Engine((0.02, 5e-4, 2.8e-3), kv_tokens=16_000.0)


@pytest.mark.parametrize(
    ("metric", "replicas", "wanted"),
    [
        (200.0, 4, 8),  # "if the current metric value is 200m, and the desired value is 100m, ... doubled"
        (50.0, 4, 2),  # "if the current value is instead 50m, the number of replicas will be halved"
        (105.0, 4, 4),  # within the tolerance of a tenth
    ],
)
def test_an_hpa_answers_as_its_documentation_says(metric: float, replicas: int, wanted: int) -> None:
    hpa = Hpa(lambda _: metric, 100.0, window_seconds=0.0)

    assert hpa(0.0, Seen(replicas, 0), replicas, None) == wanted


@pytest.mark.parametrize("replicas", [1, 2, 3, 5])
def test_keda_divides_the_queue_by_what_one_pod_handles(replicas: int) -> None:
    """keda.sh, scalers, queueLength: "if one pod can handle 10 messages, set the queue length target to 10. If the
    actual number of messages in the queue is 30, the scaler scales to 3 pods"."""
    rule = keda(10.0)
    rule.window_seconds = 0.0

    assert rule(0.0, Seen(replicas, 0, waiting=30.0), replicas, None) == 3


@pytest.mark.parametrize(
    ("ready", "total", "wanted"),
    [
        # pkg/autoscaler/scaling/autoscaler_test.go, target 10: StableModeIncreaseWithConcurrencyDefault
        (1, 50.0, 5),
        (1, 100.0, 10),
        (8, 100.0, 10),  # StableModeDecrease, its first half
        (8, 50.0, 5),  # and its second
        (3, 0.0, 1),  # never below half of the ready ones at once
    ],
)
def test_knative_divides_the_whole_by_the_target(ready: int, total: float, wanted: int) -> None:
    knative = Knative(target=10.0)

    assert knative(0.0, Seen(ready, 0, running=total / ready), ready, None) == wanted


def test_knative_in_panic_follows_each_rise_and_never_shrinks() -> None:
    """autoscaler_test.go, PanicModeExponentialTrackAndStablize, target 1: 6, 36, 216, 1296 pods, in turn ready;
    and 60 s without panic before it shrinks (PanicThenUnPanicScaleDown)."""
    knative = Knative(target=1.0)
    ready = 1
    for second, total in enumerate([6.0, 36.0, 216.0, 1296.0]):
        assert knative(float(second), Seen(ready, 0, running=total / ready), ready, None) == total
        ready = int(total)

    assert knative(5.0, Seen(ready, 0, running=0.1), ready, None) == 1296
    assert knative(70.0, Seen(ready, 0, running=0.1), ready, None) == 648


@pytest.mark.parametrize(
    ("used", "waiting", "holds"),
    [
        # saturation_v2/analyzer_test.go: a cache of 16,000 tokens, prompts of 100, answers of 50
        (5000.0, 0.0, 12_800.0),  # "k1 = 16000 * 0.8 = 12800, k2 = k1 (fallback, queue < threshold)"
        (8000.0, 6.0, 8000.0),  # "k2 = 8000 (observed: tokensInUse when queue saturated)"
        (4000.0, 10.0, 4000.0),  # "compute-bound when k2 < k1 with high queue and low KV"
    ],
)
def test_wva_takes_the_least_of_memory_and_computing(used: float, waiting: float, holds: float) -> None:
    assert WvaV2(SMALL, 100.0).holds(used, waiting) == holds


def test_wva_remembers_what_a_full_replica_held() -> None:
    """analyzer_test.go: "Should use historical k2=8000, not fallback to k1=12800"."""
    rule = WvaV2(SMALL, 100.0)
    rule.holds(8000.0, 6.0)

    assert rule.holds(6000.0, 2.0) == 8000.0


def test_wva_derives_what_a_replica_holds_from_its_flags() -> None:
    """analyzer_test.go: B=8192, S=64, I=100, O=200: "N_steady = min(5461, 64) = 64, k2 = 64 * 200 = 12800"; and
    B=4096, S=256, I=500, O=100: 140,800."""
    few = Engine(max_running=64, batched_tokens=8192)
    many = Engine(max_running=256, batched_tokens=4096)

    assert WvaV2(few, 100.0, 200.0).derived() == 12_800.0
    assert WvaV2(many, 500.0, 100.0).derived() == 140_800.0


@pytest.mark.parametrize(
    ("kv_tokens", "ready", "starting", "demand", "wanted", "why"),
    [
        # engines/saturation: demand over 0.85 less what all hold, spare of the ready ones over demand / 0.70
        (12_500.0, 1, 0, 10_000.0, 2, "RC = 10000/0.85 - 10000 = 1764.7: one more of 10,000"),
        (3_125.0, 4, 0, 5_000.0, 3, "SC = 10000 - 5000/0.70 = 2857.1: one of 2,500 goes"),
        (12_500.0, 1, 0, 8_000.0, 1, "utilization 0.80: neither"),
        (2_500.0, 1, 0, 8_000.0, 5, "current 1 + ceil((8000/0.85 - 2000) / 2000) = 5"),
        (12_500.0, 1, 1, 10_000.0, 2, "pending replicas count in what is anticipated"),
        (12_500.0, 1, 3, 5_000.0, 4, "and not in what could go"),
    ],
)
def test_wva_scales_by_its_two_thresholds(
    kv_tokens: float, ready: int, starting: int, demand: float, wanted: int, why: str
) -> None:
    rule = WvaV2(Engine(kv_tokens=kv_tokens), 100.0)
    seen = Seen(ready, starting, kv_usage=demand / ready / kv_tokens)

    assert rule(0.0, seen, ready + starting, None) == wanted, why


def planned(requests: float, tokens_a_second: float, ready: int = 1) -> int:
    """Replicas after one interval of 60 s with so many requests, each of 3,000 and 150 tokens."""
    rule = Dynamo(
        lambda _, output: output / tokens_a_second, 0.05, by_load=False, interval_seconds=60.0, predictor=Predictor
    )
    rate = requests / 60.0 / ready
    seen = Seen(ready, 0, requests_rate=rate, prompt_rate=3000.0 * rate, output_rate=150.0 * rate)
    return rule(0.0, seen, ready, None)


def test_dynamo_divides_what_is_expected_by_what_one_engine_serves() -> None:
    """Its tests, test_scaling_scenario_low_to_high_load: "Formula: ceil(num_req / interval / engine_rps)", with 10
    requests in 60 s at 10,000 / 150 a second: 1; with 500 at 1,000 / 150: 2."""
    assert planned(10, 10_000.0) == 1
    assert planned(500, 1_000.0) == 2
    assert planned(500, 1_000.0, ready=3) == 2


@pytest.mark.parametrize(
    ("step", "starting", "wanted", "why"),
    [
        (0.06, 0, 4, "every engine misses the target: one more"),
        (0.06, 1, 4, "scaling in progress: observed only"),
        (0.02, 0, 2, "0.02 x 3 / 2 = 0.03 stays within 80 % of 0.05: one fewer"),
        (0.03, 0, 3, "0.03 x 3 / 2 = 0.045 does not"),
    ],
)
def test_dynamo_corrects_by_load_between(step: float, starting: int, wanted: int, why: str) -> None:
    """core/load_scaling.py: consolidation is n / (n - 1), the sensitivity 80 %."""
    rule = Dynamo(lambda _prompt, _output: 1.0, 0.05)
    seen = Seen(3, starting, requests_rate=1.0, prompt_rate=1.0, output_rate=1.0, step_seconds=step)

    assert rule(0.0, seen, 3 + starting, None) == wanted, why


def test_dynamos_floor_is_what_its_throughput_asks_for() -> None:
    """core/load_scaling.py: desired = max(desired, throughput_lower_bound)."""
    rule = Dynamo(lambda _prompt, _output: 3.0, 0.05)
    calm = Seen(3, 0, requests_rate=1.0, prompt_rate=1.0, output_rate=1.0, step_seconds=0.001)

    assert rule(0.0, calm, 3, None) == 3


def test_an_arima_foresees_what_one_can_and_is_never_below_nothing() -> None:
    chance = np.random.default_rng(0)
    swings = [100.0]
    for _ in range(400):
        swings.append(100.0 + 0.8 * (swings[-1] - 100.0) * -1.0 + chance.normal(0.0, 3.0))
    arima, last = Arima(), Predictor()

    said = [(arima.expect(value), last.expect(value)) for value in swings]

    errors = [
        [abs(each[who] - came) for each, came in zip(said[100:-1], swings[101:], strict=True)] for who in (0, 1)
    ]
    assert np.mean(errors[0]) < 0.5 * np.mean(errors[1])
    falling = Arima()
    assert all(falling.expect(max(0.0, 50.0 - 10.0 * step)) >= 0.0 for step in range(30))
    assert math.isfinite(Arima().expect(3.0))
