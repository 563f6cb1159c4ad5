"""A replay: the pool as a flow, the rules of others by their sources' examples, and the command."""

import json
import math
import time
from pathlib import Path

import numpy as np
import pytest

from tidepool_operator.__main__ import main
from tidepool_operator.backtest.plant import Arrivals, Engine, Plant, Seen
from tidepool_operator.backtest.policies import Oracle, Ours, Static
from tidepool_operator.backtest.replay import Demand, Requests, Targets, binned, foreseen, needed, played, replay
from tidepool_operator.scaling.model import ScalingSpec

ENGINE = Engine((0.02, 5e-4, 2.8e-3))
TARGETS = Targets(5.0, 0.1)
TICK = 15.0
BEGIN = 1_800_000_000.0 - 1_800_000_000.0 % 86_400


def settled(ready: int, rate: float, prompt: float = 200.0, output: float = 100.0) -> Seen:
    plant = Plant(ENGINE, 0.0, 0.0, ready=ready)
    arrivals = Arrivals(rate * TICK, rate * prompt * TICK, rate * output * TICK)
    return [plant.advance(arrivals, TICK) for _ in range(40)][-1]


@pytest.mark.parametrize("share", [0.2, 0.5, 0.8])
def test_a_steady_pool_shows_what_the_engines_model_says(share: float) -> None:
    """Step = base / (1 - work a replica), running by Little's law, tokens out as tokens in."""
    base, per_prompt, per_output = ENGINE.figures
    rate = share * 4 / (200 * per_prompt + 100 * per_output)

    seen = settled(4, rate)

    assert seen.step_seconds == pytest.approx(base / (1 - share), rel=0.02)
    assert seen.running == pytest.approx(rate / 4 * 100 * base / (1 - share), rel=0.02)
    assert seen.output_rate * 4 == pytest.approx(rate * 100, rel=0.02)
    assert seen.prompt_rate * 4 == pytest.approx(rate * 200, rel=0.02)


def test_a_pool_that_is_too_small_makes_requests_wait_longer_and_longer() -> None:
    plant = Plant(ENGINE, 0.0, 0.0, ready=1)
    waits = [plant.advance(Arrivals(300.0, 60_000.0, 30_000.0), TICK).wait_seconds for _ in range(20)]

    known = [wait for wait in waits if wait is not None]
    assert known == sorted(known)
    assert known[-1] > 30


def test_hours_count_from_asking_to_the_end_of_the_drain() -> None:
    plant = Plant(ENGINE, 300.0, 0.0, ready=1)
    plant.scale(3)
    seen = [plant.advance(Arrivals(1.0, 100.0, 100.0), TICK) for _ in range(40)]

    assert [each.ready for each in seen].count(1) == 19
    assert plant.gpu_seconds == 40 * TICK * 3
    plant.scale(1)
    assert plant.replicas == 1
    plant.advance(Arrivals(0.0, 0.0, 0.0), 1.0)
    assert plant.gpu_seconds > 40 * TICK * 3 + 1


class Paced:
    """A pool whose steps are given, tick by tick, and in which nobody waits."""

    def __init__(self, steps: list[float]) -> None:
        self.now, self.gpu_seconds, self.changes, self.replicas = 0.0, 0.0, 0, 1
        self._steps = iter(steps)

    def scale(self, target: int) -> None:
        """Stays."""

    def advance(self, arrivals: Arrivals, seconds: float) -> Seen:
        self.now += seconds
        step = next(self._steps)
        return Seen(1, 0, step_seconds=step, wait_seconds=None if step == 0 else step)


@pytest.mark.parametrize(
    ("prompt", "output", "steps", "held"),
    [
        (100.0, 40.0, [0.2, 0.05, 0.05, 0.05], 0.0),  # over within its slow tick
        (100.0, 300.0, [0.2, 0.05, 0.05, 0.05], 1.0),  # most of it in fast ones: 0.067 s a token
        (100.0, 9000.0, [0.05, 0.05, 0.05, 0.05], 1.0),  # goes on beyond the end
        (9700.0, 300.0, [0.2, 0.05, 0.05, 0.05], 0.0),  # the prompt alone takes 4.85 s, and the wait 0.2
        (100.0, 40.0, [0.0, 0.05, 0.05, 0.05], 0.0),  # no replica is there when it comes
    ],
)
def test_each_request_is_judged_by_its_own_first_token_and_pace(
    prompt: float, output: float, steps: list[float], held: float
) -> None:
    requests = Requests(np.array([0]), np.array([prompt]), np.array([output]))
    demand = Demand(0.0, TICK, [Arrivals(1.0, prompt, output), *[Arrivals(0.0, 0.0, 0.0)] * 3], requests)

    outcome = played(demand, ENGINE, TARGETS, Static(1), Paced(steps), 0)

    assert outcome.level.tolist() == [held, 1.0, 1.0, 1.0]
    assert outcome.service_level == held


def daily(days: float, peak_replicas: float = 6.0) -> Demand:
    """A wave between a fifth of the peak and all of it."""
    times = np.arange(int(days * 86_400 / TICK)) * TICK
    shape = 0.6 - 0.4 * np.cos(2 * np.pi * times / 86_400)
    rate = shape * peak_replicas * 0.8 / (200 * 5e-4 + 100 * 2.8e-3)
    arrivals = [Arrivals(each * TICK, each * TICK * 200, each * TICK * 100) for each in rate]
    return Demand(BEGIN, TICK, arrivals)


def test_one_that_knows_meets_targets_with_less_than_the_peak() -> None:
    demand = daily(0.5)
    needs = needed(demand, ENGINE, TARGETS).tolist()

    oracle = replay(demand, ENGINE, TARGETS, Oracle(needs, BEGIN, TICK, 300.0), 300.0, 2)
    peak = replay(demand, ENGINE, TARGETS, Static(math.ceil(max(needs))), 300.0, 6)

    assert oracle.service_level > 0.99
    assert oracle.gpu_hours < 0.9 * peak.gpu_hours


@pytest.mark.traffic
def test_a_rise_that_was_seen_the_day_before_is_met_in_time() -> None:
    """From four in the morning of the second day, with engines that take ten minutes, none is late."""
    demand = daily(2)
    bins, first = binned(demand)
    four = 5760 + 960
    late = Demand(BEGIN + four * TICK, TICK, demand.arrivals[four : four + 720])
    spec = ScalingSpec(1, 20, time_per_output_token_seconds=0.1, predicts=True)

    ours = replay(late, ENGINE, TARGETS, Ours(spec, 600.0, foreseen(bins, first, 600.0, TICK, 86_400.0)), 600.0, 4)

    assert ours.service_level > 0.99


HEADER = "time,requests_per_second,prompt_tokens_per_second,output_tokens_per_second\n"
POOL = "spec: {scaling: {minReplicas: 1, maxReplicas: 8, targets: {timePerOutputToken: 50ms}}}\n"


@pytest.mark.traffic
def test_the_command_plays_a_day_within_seconds(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [
        f"{BEGIN + TICK * index},{rate:.3f},{200 * rate:.1f},{'' if index % 50 == 7 else f'{100 * rate:.1f}'}"
        for index, rate in enumerate(20 + 15 * np.sin(np.arange(2000) / 300))
    ]
    (tmp_path / "history.csv").write_text(HEADER + "\n".join(rows) + "\n")
    (tmp_path / "pool.yaml").write_text(POOL)
    begin = time.process_time()

    given = ["backtest", "--pool", str(tmp_path / "pool.yaml"), "--history", str(tmp_path / "history.csv")]
    code = main([*given, "--startup", "300s"])

    printed = capsys.readouterr().out
    assert code == 0
    assert time.process_time() - begin < 10
    for name in ("tidepool", "always", "HPA on KV", "KEDA", "Knative", "Dynamo", "one that knows"):
        assert name in printed


def test_machines_get_what_came_of_each_policy_as_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [f"{BEGIN + TICK * index},9,1800,900" for index in range(200)]
    (tmp_path / "history.csv").write_text(HEADER + "\n".join(rows) + "\n")
    (tmp_path / "pool.yaml").write_text(POOL)

    given = ["backtest", "--pool", str(tmp_path / "pool.yaml"), "--history", str(tmp_path / "history.csv")]
    assert main([*given, "-o", "json"]) == 0

    told = json.loads(capsys.readouterr().out)
    assert {"tidepool", "Dynamo's planner", "one that knows"} <= set(told["policies"])
    assert told["policies"]["tidepool"]["gpuHours"] > 0
    assert {frozenset(each) for each in told["advice"]} <= {frozenset(("field", "now", "better", "why"))}


@pytest.mark.parametrize(
    ("history", "pool", "options", "said"),
    [
        ("time\n1\n2\n", POOL, [], "lacks the column requests_per_second"),
        (HEADER + "1,1,1,1\n", POOL, [], "two steps at least"),
        (HEADER + "noon,1,1,1\n16,1,1,1\n", POOL, [], "line 2: time 'noon' is neither"),
        (HEADER + "1,1,1,1\n16,1,1,1\n99,1,1,1\n", POOL, [], "even steps"),
        (HEADER + "1,-1,1,1\n16,1,1,1\n", POOL, [], "leave a gap empty"),
        (HEADER + "1,1,1,1\n16,1,1,1\n", "spec: {}\n", [], "no ModelPool with spec.scaling"),
        (HEADER + "1,1,1,1\n16,1,1,1\n", POOL, ["--engine", "fast"], "three numbers of seconds"),
        (HEADER + "1,1,1,1\n16,1,1,1\n", POOL, ["--startup", "soon"], "--startup 'soon' is no duration"),
        (HEADER + "1,1,1,1\n16,1,1,1\n", "[]\n", [], "is no ModelPool"),
    ],
)
def test_input_that_cannot_be_used_is_named(
    history: str, pool: str, options: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "history.csv").write_text(history)
    (tmp_path / "pool.yaml").write_text(pool)

    given = ["backtest", "--pool", str(tmp_path / "pool.yaml"), "--history", str(tmp_path / "history.csv")]
    code = main([*given, *options])

    assert code == 2
    assert said in capsys.readouterr().err
