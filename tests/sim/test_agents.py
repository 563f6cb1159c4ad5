"""The simulator of workflows: all work is done, the luck is the same for all, and the order of policies shows."""

from statistics import fmean

from sim.agents.policies import Ours, RoundRobin
from sim.agents.report import TWO, figures
from sim.agents.shapes import MOST_STAGES, arrivals
from sim.agents.world import Done, Policy, World

RUNS = arrivals(seed=3, runs=40, rate=1.2)


def simulated(policy: Policy) -> list[Done]:
    return World(TWO, policy).simulate(RUNS)


def test_every_run_ends_with_the_same_work_whatever_the_policy() -> None:
    ours, in_turn = simulated(Ours()), simulated(RoundRobin())

    def work(done: list[Done]) -> list[tuple[str, int, int]]:
        return sorted((one.shape, one.stages, one.output_tokens) for one in done)

    assert len(ours) == len(RUNS)
    assert work(ours) == work(in_turn)
    assert 1 <= min(one.stages for one in ours) <= max(one.stages for one in ours) <= MOST_STAGES
    assert figures(ours).mean < figures(in_turn).mean
    assert figures(ours).late <= figures(in_turn).late


def test_one_run_alone_takes_what_its_engine_takes() -> None:
    done = World(TWO, Ours()).simulate([(0.0, RUNS[0][1])])

    assert len(done) == 1
    assert done[0].seconds < 60.0
    assert fmean(one.seconds for one in simulated(Ours())) > done[0].seconds / 10
