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
