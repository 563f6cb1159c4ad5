"""The pool request by request: a steady load as the engine's model says, and what users see of a full one."""

import numpy as np
import pytest

from scaling.pods import Pods
from tidepool_operator.backtest.plant import Arrivals, Engine
from tidepool_operator.backtest.replay import Requests, Targets

pytestmark = pytest.mark.traffic  # minutes of a pool, request by request

ENGINE = Engine((0.02, 5e-4, 2.8e-3))
TARGETS = Targets(5.0, 0.1)
TICK = 15.0


def pool(share: float, ready: int, ticks: int) -> tuple[Pods, int]:
    """A pool that is given so much work, and requests a tick: of 200 and 100 tokens each."""
    _, per_prompt, per_output = ENGINE.figures
    each = round(share * ready * TICK / (200 * per_prompt + 100 * per_output))
    count = each * ticks
    requests = Requests(np.repeat(np.arange(ticks), each), np.full(count, 200.0), np.full(count, 100.0))
    return Pods(ENGINE, 0.0, 0.0, requests, TARGETS, ready), each


def played(share: float, ready: int = 3, ticks: int = 24) -> Pods:
    pods, each = pool(share, ready, ticks)
    for _ in range(ticks):
        pods.advance(Arrivals(each, 200.0 * each, 100.0 * each), TICK)
    return pods


@pytest.mark.parametrize("share", [0.3, 0.6])
def test_a_steady_pool_shows_what_the_engines_model_says(share: float) -> None:
    pods, each = pool(share, 3, 24)
    seen = [pods.advance(Arrivals(each, 200.0 * each, 100.0 * each), TICK) for _ in range(24)][4:]

    base = ENGINE.figures[0]
    assert np.mean([s.step_seconds for s in seen]) == pytest.approx(base / (1 - share), rel=0.1)
    assert np.mean([s.output_rate for s in seen]) * 3 == pytest.approx(each * 100 / TICK, rel=0.05)
    assert pods.gpu_seconds == pytest.approx(24 * TICK * 3)


def test_a_pool_at_ease_holds_all_and_a_full_one_none() -> None:
    easy, full = played(0.3), played(1.3)

    assert easy.level(24)[:20].min() == 1.0
    assert full.level(24)[8:20].max() == 0.0


def test_a_replica_that_goes_ends_its_requests_and_is_paid_until_then() -> None:
    pods, each = pool(0.6, 3, 4)
    pods.advance(Arrivals(each, 200.0 * each, 100.0 * each), TICK)
    before = pods.gpu_seconds

    pods.scale(2)
    pods.advance(Arrivals(each, 200.0 * each, 100.0 * each), TICK)

    assert pods.replicas == 2
    assert 2 * TICK < pods.gpu_seconds - before < 3 * TICK
    pods.advance(Arrivals(0, 0.0, 0.0), TICK)
    assert np.isfinite(pods.first_token[:each]).all()
