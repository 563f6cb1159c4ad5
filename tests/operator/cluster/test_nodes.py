"""Looks at the whole cluster: shared, bounded, and done without where they are not allowed."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any, cast

import pytest

from tidepool_operator.cluster.api import Api
from tidepool_operator.cluster.kinds import NODE, POD, Kind, Object
from tidepool_operator.cluster.nodes import Nodes
from tidepool_operator.errors import ApiError, Forbidden, Unavailable

ONE: Object = {
    "metadata": {"name": "n1"},
    "status": {"allocatable": {"pods": "3"}, "conditions": [{"type": "Ready", "status": "True"}]},
}


def pod(uid: str) -> Object:
    return {"metadata": {"uid": uid}, "spec": {"nodeName": "n1", "containers": []}}


class Lists:
    """Pages of nodes and pods, as an API server gives them; `error` instead, where it is set."""

    def __init__(self, error: ApiError | None = None) -> None:
        self.error = error
        self.asked: list[tuple[str, str]] = []
        self.found: list[Object] = [ONE]

    async def list(self, kind: Kind, *, fields: str = "") -> Sequence[Object]:
        self.asked.append((kind.kind, fields))
        if self.error is not None:
            raise self.error
        return [one for one in self.found if fields == f"metadata.name={one['metadata']['name']}"]

    async def pages(self, kind: Kind, *, fields: str = "") -> AsyncIterator[Sequence[Object]]:
        self.asked.append((kind.kind, fields))
        await asyncio.sleep(0)
        if self.error is not None:
            raise self.error
        for page in {NODE: [[ONE]], POD: [[pod("a")], [pod("b")]]}[kind]:
            yield page


def nodes(lists: Lists, **rest: Any) -> Nodes:
    return Nodes(cast("Api", lists), **rest)


async def test_all_pages_count_and_pods_that_have_ended_are_not_even_asked_for() -> None:
    lists = Lists()
    room = await nodes(lists).room()

    assert room is not None
    assert room.nodes[0].free == {"pods": 1}
    assert lists.asked == [("Node", ""), ("Pod", "status.phase!=Succeeded,status.phase!=Failed")]


async def test_pools_that_roll_at_the_same_time_share_a_look() -> None:
    lists = Lists()
    one = nodes(lists)
    rooms = await asyncio.gather(one.room(), one.room(), one.room())

    assert len(lists.asked) == 2
    assert rooms[0] is rooms[1] is rooms[2]


@pytest.mark.parametrize("error", [Forbidden("nodes is forbidden", status=403), Unavailable("no answer")])
async def test_rollouts_go_on_without_a_look_and_do_not_ask_at_each_step(error: ApiError) -> None:
    lists = Lists(error)
    one = nodes(lists)

    assert await one.room() is None
    assert await one.room() is None
    assert len(lists.asked) == 1


async def test_where_the_cluster_is_not_ours_to_see_nothing_is_asked() -> None:
    lists = Lists()

    assert await nodes(lists, wanted=False).room() is None
    assert lists.asked == []


@pytest.mark.parametrize(
    ("ready", "expected", "why"),
    [
        ({"status": "True"}, "", "it is well"),
        (
            {"status": "Unknown", "message": "Kubelet stopped posting node status."},
            "node n1 does not answer: Kubelet stopped posting node status.",
            "its controller has not heard of it",
        ),
        (
            {"status": "False", "message": "container runtime is down"},
            "node n1: container runtime is down",
            "it says so itself",
        ),
    ],
)
async def test_what_is_wrong_with_a_node_is_told_in_its_own_words(ready: Object, expected: str, why: str) -> None:
    lists = Lists()
    lists.found = [{"metadata": {"name": "n1"}, "status": {"conditions": [{"type": "Ready", **ready}]}}]

    assert await nodes(lists).trouble("n1") == expected, why
    assert lists.asked == [("Node", "metadata.name=n1")], "the right to list is the only one that there is"


async def test_a_node_that_is_no_more_is_gone() -> None:
    assert await nodes(Lists()).trouble("n2") == "node n2 is gone"


async def test_a_node_that_is_not_ours_to_see_is_nothing_that_is_known() -> None:
    assert await nodes(Lists(), wanted=False).trouble("n2") == ""
    assert await nodes(Lists(Forbidden("no", status=403))).trouble("n2") == ""
