"""Small rules of time: addresses that vanish from DNS, the end of a drain, the load header."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidepool_api.load import Health, LoadReport
from tidepool_router.fleet.drain import Drain
from tidepool_router.fleet.loadheader import read_load_header, write_load_header
from tidepool_router.fleet.resolve import AddressBook


def test_an_address_goes_after_three_answers_without_it() -> None:
    book = AddressBook()
    answers = [["a", "b"], ["a"], ["a"], ["a"], ["a"]]

    in_force = [set(book.answered(answer)) for answer in answers]

    assert in_force == [{"a", "b"}, {"a", "b"}, {"a", "b"}, {"a"}, {"a"}]


def test_one_short_answer_drops_nobody() -> None:
    book = AddressBook()
    for answer in (["a", "b"], [], ["a", "b"], [], ["b"], ["a"], ["a", "b"]):
        assert set(book.answered(answer)) == {"a", "b"}


def test_a_service_without_pods_is_empty_in_the_end() -> None:
    book = AddressBook()
    book.answered(["a"])

    assert [len(book.answered([])) for _ in range(3)] == [1, 1, 0]


@pytest.mark.parametrize(
    ("live", "over_at", "why"),
    [
        ([0] * 100, 5.0, "idle: at least five seconds, for endpoint lists lag"),
        ([1] * 80 + [0] * 100, 10.0, "the last one ended at 8 s, then two quiet seconds"),
        ([0] * 48 + [1] + [0] * 100, 6.9, "one that came late is served, and quiet begins anew"),
        ([1] * 1000, 30.0, "bounded by its timeout"),
    ],
)
def test_when_a_drain_is_over(live: list[int], over_at: float, why: str) -> None:
    drain = Drain(began=0.0, timeout_seconds=30.0)

    ended = next(tenth / 10 for tenth, count in enumerate(live) if drain.over(tenth / 10, count))

    assert ended == pytest.approx(over_at, abs=0.11), why


def test_a_timeout_below_the_minimum_holds() -> None:
    assert Drain(0.0, 1.0).over(1.0, 0)


figures = st.integers(0, 10**9)


@given(figures, figures, figures, figures, st.none() | figures, figures)
def test_a_load_header_says_what_the_report_says(
    running: int, queued: int, opened: int, closed: int, limit: int | None, direct: int
) -> None:
    last = LoadReport(pod="p", boot="b", seq=1, health=Health.READY, kv_capacity_tokens=7, held=3, limit=9)
    new = LoadReport(
        pod="p", boot="b", seq=2, health=Health.READY, kv_capacity_tokens=7,
        running=running, queued_tokens=queued, opened_total=opened, closed_total=closed, limit=limit,
        held_direct=direct,
    )  # fmt: skip

    assert read_load_header(write_load_header(new), last) == new
    assert read_load_header(write_load_header(new) + ";99;1", last) == new  # of a later release


def test_a_load_header_of_the_release_before_leaves_what_it_does_not_say() -> None:
    last = LoadReport(boot="b", seq=1, held=3, limit=9, held_direct=2)

    for text in ("b;2;1;0;0;0;0;1;0", "b;2;1;0;0;0;0;1;0;3;9"):
        new = read_load_header(text, last)

        assert new is not None
        assert (new.running, new.held, new.limit, new.held_direct) == (1, 3, 9, 2)


@pytest.mark.parametrize(
    "text", ["", "b", "b;1;2", "b;x;1;1;1;1;1;1;1", "other;9;1;1;1;1;1;1;1", "b;1;1;1;1;1;1;1;1"]
)
def test_a_load_header_that_is_bad_foreign_or_old_is_ignored(text: str) -> None:
    assert read_load_header(text, LoadReport(boot="b", seq=1)) is None


@given(st.text(max_size=60))
def test_no_load_header_raises(text: str) -> None:
    read_load_header(text, LoadReport(boot="b", seq=1))
