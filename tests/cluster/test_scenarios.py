"""What the scenarios judge by: a dip that lasts for one event is seen, and a row says what was."""

import pytest

from scenarios.capacity import Capacity
from scenarios.kube import Object, rolled_out
from scenarios.rows import HEADS, table


def pod(name: str, *, ready: bool = True, going: bool = False) -> Object:
    conditions = [{"type": "PodScheduled", "status": "True"}, {"type": "Ready", "status": str(ready)}]
    metadata = {"name": name, "uid": f"uid-{name}"} | ({"deletionTimestamp": "2026-01-01"} if going else {})
    return {"metadata": metadata, "status": {"conditions": conditions}}


def test_a_dip_between_two_looks_is_seen() -> None:
    capacity = Capacity()
    for at, (kind, one) in enumerate(
        [
            ("ADDED", pod("a")),
            ("ADDED", pod("b")),
            ("MODIFIED", pod("a", going=True)),
            ("ADDED", pod("c", ready=False)),
            ("MODIFIED", pod("c")),
            ("DELETED", pod("a", going=True)),
        ]
    ):
        capacity.take(kind, one, float(at))

    assert [one.serving for one in capacity.samples] == [1, 2, 1, 1, 2, 2]
    assert [one.at_seconds for one in capacity.below(2, at_seconds=1.5)] == [2.0, 3.0]
    assert [one["metadata"]["name"] for one in capacity.pods()] == ["b", "c"]
    assert len(capacity.seen) == 3


def test_what_held_when_the_time_began_counts_though_no_event_tells_it_again() -> None:
    capacity = Capacity()
    capacity.take("ADDED", pod("a"), 1.0)

    assert [one.serving for one in capacity.below(2, at_seconds=5.0)] == [1]


def test_an_error_in_the_watch_is_no_pod() -> None:
    with pytest.raises(ValueError, match="Expired"):
        Capacity().take("ERROR", {"kind": "Status", "reason": "Expired"}, 0.0)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({}, True),
        ({"observedGeneration": 1}, False),
        ({"updatedReplicas": 1}, False),
        ({"conditions": [{"type": "Ready", "status": "True"}]}, False),
    ],
    ids=["all is told", "of an earlier spec", "an old pod serves still", "it has not said so"],
)
def test_a_rollout_is_complete_when_the_status_speaks_of_this_spec(change: Object, expected: bool) -> None:
    conditions = [
        {"type": "Ready", "status": "True"},
        {"type": "Progressing", "status": "False", "reason": "Complete"},
    ]
    status = {"observedGeneration": 2, "updatedReplicas": 2, "conditions": conditions} | change

    assert rolled_out({"metadata": {"generation": 2}, "status": status}, 2) is expected


def test_a_table_has_a_line_for_each_row() -> None:
    rows = [dict.fromkeys(HEADS, number) for number in (1, 2)]

    assert [line.count("|") for line in table(rows).splitlines()] == [len(HEADS) + 1] * 4
