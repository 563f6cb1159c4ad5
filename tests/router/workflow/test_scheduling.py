"""What steps take is learned, what a run still needs is foreseen, and a pool is chosen by it."""

import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scripted.examples import examples
from tidepool_router.admission import Limits, Queue, Ticket
from tidepool_router.workflow.core.choice import SLACK_SHARE, Offer, ranked
from tidepool_router.workflow.core.outlook import outlook, sole_pools, standing
from tidepool_router.workflow.core.profiles import Figure, Profiles
from tidepool_router.workflow.core.run import Entry, Run
from tidepool_router.workflow.core.states import Call, Ending, Key, Output, Phase
from workflows.graphs import Rim, planned, workflows

LLM = {"llm": {"pools": [{"name": "p"}]}}
DONE = Ending(Phase.SUCCEEDED, output=Output("x", None, 100))


def learned(figure: Figure, *values: float, now: float = 0.0) -> Figure:
    for value in values:
        figure.learn(value, now)
    return figure


def test_a_figure_is_the_mean_of_what_was_seen() -> None:
    figure = learned(Figure(), 10.0, 20.0, 30.0)

    assert figure.mean == pytest.approx(20.0)
    assert figure.or_else(100.0) == pytest.approx(40.0)  # the prior weighs one observation


def test_a_figure_follows_within_a_dozen_when_it_drifts() -> None:
    luck = random.Random(1)
    figure = learned(Figure(), *(luck.gauss(100.0, 10.0) for _ in range(500)))

    learned(figure, *(luck.gauss(200.0, 10.0) for _ in range(20)))

    assert figure.mean == pytest.approx(200.0, rel=0.1)


def test_a_figure_does_not_take_noise_for_drift() -> None:
    luck = random.Random(2)
    figure = learned(Figure(), *(luck.expovariate(0.01) for _ in range(300)))

    assert figure.mean == pytest.approx(100.0, rel=0.4)


def test_the_least_is_believed_only_when_it_was_seen_a_few_times() -> None:
    assert learned(Figure(), 20.0).at_least() < 4.0
    assert learned(Figure(), *[25.0, 20.0] * 50).at_least() == pytest.approx(20.0, rel=0.25)


@given(st.lists(st.floats(0.0, 1e6), min_size=1, max_size=50))
def test_the_least_is_never_above_the_mean(values: list[float]) -> None:
    figure = learned(Figure(), *values)

    assert 0.0 <= figure.at_least() <= figure.least <= figure.mean * (1 + 1e-9)


def test_what_was_seen_long_ago_weighs_little() -> None:
    figure = learned(Figure(), *[10.0] * 20)

    learned(figure, 30.0, now=10 * 3600.0)

    assert figure.mean == pytest.approx(30.0, rel=0.1)


def test_profiles_that_were_not_used_for_long_are_forgotten() -> None:
    profiles = Profiles(most=2)
    profiles.step("w", "a").tokens.learn(7.0, 0.0)
    profiles.step("w", "b")
    profiles.step("w", "a")
    profiles.step("w", "c")

    assert len(profiles) == 2
    assert profiles.step("w", "a").tokens.mean == 7.0


def known(**steps: tuple[int, float]) -> Profiles:
    """Tokens and seconds of a unit of each step, seen often."""
    profiles = Profiles()
    for name, (tokens, seconds) in steps.items():
        for _ in range(200):
            profiles.worked("test", name, tokens=tokens, seconds=seconds, now=0.0)
    return profiles


def test_pools_that_a_run_will_need_are_known_from_its_beginning_also_those_of_workflows_inside() -> None:
    def asking(name: str, *pools: str) -> dict[str, object]:
        return {"name": name, "llm": {"pools": [{"name": pool} for pool in pools]}}

    inner = replace(planned(asking("i", "deep"), asking("j", "either", "or")), name="inner")
    plan = planned(asking("a", "first"), asking("seldom", "last"), {"name": "sub", "workflow": {"name": "inner"}})
    profiles = Profiles()
    for _ in range(9):
        profiles.ended("test", "seldom", 0, 0.0)

    assert sole_pools(plan, profiles, {"inner": inner}) == {"first", "deep"}


def test_a_run_needs_what_its_steps_need_that_have_not_ended() -> None:
    plan = planned({"name": "a", **LLM}, {"name": "tool", "depends": "a"}, {"name": "b", "depends": "tool", **LLM})
    profiles = known(a=(100, 1.0), tool=(0, 5.0), b=(1000, 2.0))
    run = Run(plan, deadline=60.0)
    run.begin(0.0)

    first = outlook(run.root, Key("a"), profiles)
    run.ended(Key("a"), DONE, 1.0)
    run.ended(Key("tool"), DONE, 2.0)
    second = outlook(run.root, Key("b"), profiles)

    assert first.tokens == pytest.approx(1100, rel=0.01)
    assert first.tail_seconds == pytest.approx(7.0, rel=0.01)  # tool and b come after it
    assert (second.tokens, second.tail_seconds) == (pytest.approx(1000, rel=0.01), 0.0)


def test_the_tail_is_the_longest_way_and_counts_rounds_of_items() -> None:
    plan = planned(
        {"name": "a", **LLM},
        {"name": "short", "depends": "a", **LLM},
        {"name": "many", "depends": "a", "withItems": [1] * 6, "maxParallel": 2, **LLM},
        {"name": "end", "depends": "short && many", **LLM},
    )
    profiles = known(a=(1, 1.0), short=(1, 4.0), many=(1, 2.0), end=(1, 1.0))
    for _ in range(200):
        profiles.ended("test", "many", 6, 0.0)
    run = Run(plan, deadline=60.0)
    run.begin(0.0)

    # Three rounds of 2 s, and 1 s.
    assert outlook(run.root, Key("a"), profiles).tail_seconds == pytest.approx(7.0, rel=0.01)
    assert outlook(run.root, Key("short"), profiles).tail_seconds == pytest.approx(1.0, rel=0.01)


def test_a_step_that_seldom_runs_counts_by_its_share() -> None:
    plan = planned({"name": "a", **LLM}, {"name": "rare", "depends": "a", **LLM})
    profiles = known(a=(100, 1.0), rare=(1000, 8.0))
    for at in range(400):
        profiles.ended("test", "rare", int(at % 4 == 0), 0.0)
    run = Run(plan, deadline=60.0)
    run.begin(0.0)

    found = outlook(run.root, Key("a"), profiles)
    assert found.tokens == pytest.approx(350, rel=0.35)
    assert found.tail_seconds == pytest.approx(2.0, rel=0.6)


def test_turns_count_as_the_whole_that_choosing_takes_less_what_is_used() -> None:
    choose = {"pools": [{"name": "p"}], "among": ["t"]}
    plan = planned({"name": "look", "choose": choose}, {"name": "t"}, {"name": "end", "depends": "look", **LLM})
    profiles = known(look=(1000, 10.0), end=(500, 1.0))
    run = Run(plan, deadline=60.0)
    run.begin(0.0)
    run.entered(Key("look"), 1, Entry(), 0.0)
    pick = Key("look", None, "look.1/")

    before = outlook(run.root, pick, profiles)
    run.used(400, 0.0, "look.1/")
    after = outlook(run.root, pick, profiles)

    assert (before.tokens, after.tokens) == (pytest.approx(1500, rel=0.01), pytest.approx(1100, rel=0.01))
    assert before.tail_seconds == pytest.approx(1.0, rel=0.01)


def test_slack_is_what_the_deadline_leaves_beside_the_tail() -> None:
    plan = planned({"name": "a", **LLM}, {"name": "b", "depends": "a", **LLM})
    run = Run(plan, deadline=60.0)
    call = next(effect for effect in run.begin(0.0) if isinstance(effect, Call))

    found = standing(run, call, known(a=(1, 1.0), b=(1, 20.0)), 10.0, now=10.0)

    assert found.slack_seconds == pytest.approx(30.0, rel=0.01)
    assert found.waited_seconds == 10.0


@examples(15)
@given(workflows(), st.integers(0, 1000))
def test_whatever_a_run_does_its_outlook_is_there_and_shrinks_to_nothing(plan: object, luck: int) -> None:
    class Looking(Rim):
        def _answer(self, call: Call) -> None:
            found = outlook(self.run.root, call.key, profiles)
            assert found.tokens >= 1.0
            assert 0.0 <= found.least_tail_seconds <= found.tail_seconds
            super()._answer(call)

    profiles = Profiles()
    rim = Looking(plan, luck, random.Random(luck)).go()  # type: ignore[arg-type]
    assert outlook(rim.run.root, Key("s0"), profiles).tokens == 1.0


QUICK = Offer(
    "quick",
    0.6,
    wait_seconds=0.0,
    uncached_tokens=1000,
    output_tokens=100,
    prompt_token_seconds=1e-4,
    step_seconds=0.01,
)
GOOD = replace(QUICK, pool="good", quality=0.9, step_seconds=0.03)  # 3.1 s, not 1.1 s
SLACK = 2.0 / 0.3 / SLACK_SHARE  # for which the better answer is worth 2 s


def first(*offers: Offer, slack: float = 1.1 * SLACK, cheap: bool = False) -> str:
    return ranked(offers, slack, cheap=cheap)[0].pool


def test_a_better_answer_may_take_longer_by_what_the_deadline_leaves() -> None:
    assert first(QUICK, GOOD) == "good"
    assert first(QUICK, GOOD, slack=0.9 * SLACK) == "quick"


def test_the_quickest_answers_when_the_best_pool_is_busy() -> None:
    assert first(QUICK, replace(GOOD, wait_seconds=2.0)) == "quick"


def test_the_quickest_answers_when_nobody_is_in_time() -> None:
    assert first(replace(GOOD, quality=1.0), QUICK, slack=1.0) == "quick"
    assert first(replace(GOOD, quality=1.0), QUICK, slack=-5.0) == "quick"


def test_tokens_that_must_be_prefilled_again_count() -> None:
    there = replace(QUICK, uncached_tokens=0.0)

    assert first(there, replace(GOOD, uncached_tokens=5000.0)) == "quick"  # it has nothing of the run's prompt
    assert first(there, replace(GOOD, uncached_tokens=0.0)) == "good"


def test_without_measured_quality_the_quickest_answers() -> None:
    assert first(replace(GOOD, quality=None), replace(QUICK, quality=None)) == "quick"


def test_a_pool_at_zero_is_woken_only_where_nobody_else_answers() -> None:
    assert first(QUICK, replace(GOOD, ready=False)) == "quick"
    assert first(replace(QUICK, ready=False), replace(GOOD, ready=False)) == "good"


def test_a_spent_budget_asks_the_pool_of_least_quality() -> None:
    assert first(GOOD, QUICK, cheap=True) == "quick"


def test_a_pool_whose_tries_fail_takes_longer() -> None:
    assert first(QUICK, replace(GOOD, success=0.3)) == "quick"


def ticket(number: int, run: tuple[int, float] | None = None, tokens: int = 100) -> Ticket:
    return Ticket(priority=0, body_bytes=number, prompt_tokens=tokens, offered_at=0.0, deadline=1e9, run=run)


def order(*tickets: Ticket, now: float) -> list[int]:
    queue: Queue[Ticket] = Queue(Limits(100, 10**6))
    for one in tickets:
        queue.offer(one)
    found = []
    while (one := queue.next(now)) is not None:  # type: ignore[assignment]
        queue.went(one)
        found.append(one.body_bytes)
    return found


def test_of_two_runs_the_one_that_needs_less_goes_first_whatever_its_request_needs() -> None:
    assert order(ticket(1, (50_000, 1.0), 100), ticket(2, (800, 1.0), 700), now=1.0) == [2, 1]


def test_a_higher_priority_goes_before_whoever_waits_at_a_full_engine_vllm_40004() -> None:
    urgent = Ticket(priority=1, body_bytes=9, prompt_tokens=5000, offered_at=1.0, deadline=1e9)

    assert order(ticket(1, (10, 500.0)), ticket(2), urgent, now=1.0)[0] == 9


def test_a_long_run_goes_first_when_it_has_waited_in_proportion() -> None:
    assert order(ticket(1, (1000, 0.0)), ticket(2, (20_000, 100.0)), now=1.0)[0] == 2


def test_of_runs_that_need_the_same_the_older_one_goes_first() -> None:
    assert order(ticket(1, (1000, 1.0)), ticket(2, (1000, 9.0)), ticket(3, (1000, 5.0)), now=1.0) == [2, 3, 1]
