"""Learned speeds: a pool's lines, a pod's factors, and what must not spoil them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidepool_router.ledger import PodSpeed, PoolSpeed


def test_learns_seconds_a_prompt_token_apart_from_what_each_request_pays() -> None:
    speed = PodSpeed(PoolSpeed())
    for tokens in [200, 4000, 1000, 9000] * 200:
        speed.started(tokens, 0.1 + tokens / 5000)

    assert speed.prompt_token_seconds == pytest.approx(1 / 5000, rel=0.03)
    assert speed.first_token_seconds == pytest.approx(0.1, rel=0.1)


def test_learns_what_each_request_beside_adds_to_a_step() -> None:
    speed = PodSpeed(PoolSpeed())
    for requests in [1, 8, 64, 30] * 200:
        speed.stepped(requests, 0.02 + 0.0005 * requests)

    assert speed.step_seconds == pytest.approx(0.02, rel=0.1)
    assert speed.step_seconds_a_request == pytest.approx(0.0005, rel=0.1)


def test_a_slow_pod_shows_within_some_dozen_answers() -> None:
    pool = PoolSpeed()
    fast, slow = PodSpeed(pool), PodSpeed(pool)
    for tokens in [500, 3000, 8000] * 12:
        fast.started(tokens, 0.05 + tokens / 10_000)
        slow.started(tokens, 2 * (0.05 + tokens / 10_000))

    assert slow.prompt_token_seconds / fast.prompt_token_seconds == pytest.approx(2.0, rel=0.25)


def test_a_new_pod_begins_with_what_the_pool_knows() -> None:
    pool = PoolSpeed()
    old = PodSpeed(pool)
    for tokens in [500, 3000, 8000] * 300:
        old.started(tokens, tokens / 1000)

    assert PodSpeed(pool).prompt_token_seconds == pytest.approx(1 / 1000, rel=0.1)


def test_a_new_pod_begins_with_what_its_kind_of_accelerator_showed() -> None:
    pool = PoolSpeed()
    fast, slow = PodSpeed(pool), PodSpeed(pool)
    fast.join("h100")
    slow.join("l4")
    for tokens in [500, 3000, 8000] * 40:
        fast.started(tokens, 0.05 + tokens / 10_000)
        slow.started(tokens, 4 * (0.05 + tokens / 10_000))
        fast.stepped(8.0, 0.01)
        slow.stepped(8.0, 0.04)

    new, other, unknown = PodSpeed(pool), PodSpeed(pool), PodSpeed(pool)
    new.join("h100")
    other.join("l4")
    unknown.join("l40s")

    assert slow.prompt_token_seconds > 2.5 * fast.prompt_token_seconds
    assert new.prompt_token_seconds == pytest.approx(fast.prompt_token_seconds, rel=0.2)
    assert other.prompt_token_seconds == pytest.approx(slow.prompt_token_seconds, rel=0.2)
    assert new.step_seconds == pytest.approx(fast.step_seconds, rel=0.2)
    assert other.step_seconds == pytest.approx(slow.step_seconds, rel=0.2)
    assert unknown.prompt_token_seconds == PodSpeed(pool).prompt_token_seconds


def test_a_pod_that_has_shown_its_speed_keeps_it() -> None:
    pool = PoolSpeed()
    usual, odd = PodSpeed(pool), PodSpeed(pool)
    usual.join("h100")
    for tokens in [500, 3000, 8000] * 40:
        usual.started(tokens, tokens / 10_000)
        odd.started(tokens, 4 * tokens / 10_000)
    before = odd.prompt_token_seconds

    odd.join("h100")

    assert odd.prompt_token_seconds == before


def slowed(times: float, kind: str = "") -> tuple[PodSpeed, PodSpeed]:
    """A usual pod, and one that was so many times slower while it had work; both of that kind."""
    pool = PoolSpeed()
    usual, slow = PodSpeed(pool), PodSpeed(pool)
    if kind:
        usual.join(kind)
        slow.join(kind)
    for tokens in [500, 3000, 8000] * 40:
        usual.started(tokens, 0.05 + tokens / 10_000)
        slow.started(tokens, times * (0.05 + tokens / 10_000))
        usual.stepped(8.0, 0.01)
        slow.stepped(8.0, times * 0.01)
    return usual, slow


@pytest.mark.parametrize(
    ("kind", "times", "rest_seconds", "low", "high", "why"),
    [
        ("", 3.0, 2, 1.6, 3.0, "a pause between two requests changes little"),
        ("", 3.0, 120, 1.0, 1.15, "after two minutes it is as any other"),
        ("", 0.4, 120, 0.85, 1.0, "what was fast is no more sought for it either"),
        ("l4", 3.0, 120, 1.0, 1.15, "nor does its kind make it slow"),
    ],
)
def test_a_pod_that_rests_is_believed_to_be_as_the_others(
    kind: str, times: float, rest_seconds: int, low: float, high: float, why: str
) -> None:
    usual, slow = slowed(times, kind)
    for _ in range(rest_seconds):  # as heartbeats tell
        usual.rested(1.0)
        slow.rested(1.0)

    assert low <= slow.prompt_token_seconds / usual.prompt_token_seconds <= high, why
    assert low <= slow.step_seconds / usual.step_seconds <= high, why


def test_a_pod_of_a_slow_kind_rests_without_becoming_a_fast_one() -> None:
    pool = PoolSpeed()
    fast, slow = PodSpeed(pool), PodSpeed(pool)
    fast.join("h100")
    slow.join("l4")
    for tokens in [500, 3000, 8000] * 40:
        fast.started(tokens, 0.05 + tokens / 10_000)
        slow.started(tokens, 4 * (0.05 + tokens / 10_000))

    fast.rested(600.0)
    slow.rested(600.0)

    assert slow.prompt_token_seconds > 2.5 * fast.prompt_token_seconds


def test_a_pod_that_is_slow_after_its_rest_too_shows_it_sooner_than_before() -> None:
    usual, slow = slowed(3.0)
    slow.rested(120.0)
    for tokens in (500, 3000, 8000):
        usual.started(tokens, 0.05 + tokens / 10_000)
        slow.started(tokens, 3 * (0.05 + tokens / 10_000))

    assert slow.prompt_token_seconds > 1.2 * usual.prompt_token_seconds


def test_kinds_are_bounded() -> None:
    pool = PoolSpeed()
    for kind in range(100):
        PodSpeed(pool).join(f"kind-{kind}")

    assert len(pool.kinds) == 32


def test_one_wait_for_something_else_does_not_spoil_the_line() -> None:
    speed = PodSpeed(PoolSpeed())
    for tokens in [500, 3000, 8000] * 100:
        speed.started(tokens, tokens / 10_000)
    before = speed.prompt_token_seconds

    speed.started(500, 60.0)

    assert speed.prompt_token_seconds == pytest.approx(before, rel=0.2)


def test_answers_that_do_not_stream_teach_both() -> None:
    speed = PodSpeed(PoolSpeed())
    for tokens, output in [(500, 100), (8000, 10), (3000, 300)] * 300:
        speed.answered(tokens, 4.0, output, tokens / 5000 + output * 0.03)

    assert speed.prompt_token_seconds == pytest.approx(1 / 5000, rel=0.3)
    assert speed.step_seconds + 4 * speed.step_seconds_a_request == pytest.approx(0.03, rel=0.3)


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["started", "stepped", "rested"]),
            st.integers(0, 10**7),
            st.floats(0, 1e6, allow_subnormal=False),
        ),
        max_size=60,
    )
)
def test_no_answer_makes_a_figure_that_cannot_be(answers: list[tuple[str, int, float]]) -> None:
    speed = PodSpeed(PoolSpeed())
    for kind, amount, seconds in answers:
        getattr(speed, kind)(*((seconds,) if kind == "rested" else (amount, seconds)))

    figures = [
        speed.prompt_token_seconds,
        speed.first_token_seconds,
        speed.step_seconds,
        speed.step_seconds_a_request,
    ]
    assert all(0.0 <= figure < float("inf") for figure in figures), figures
