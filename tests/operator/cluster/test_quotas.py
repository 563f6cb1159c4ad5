"""Quotas and priorities, as lists of the API server have them."""

from collections.abc import AsyncIterator, Sequence
from typing import cast

import pytest

from tidepool_operator.cluster.api import Api
from tidepool_operator.cluster.kinds import PRIORITY_CLASS, RESOURCE_QUOTA, Kind, Object
from tidepool_operator.cluster.quotas import Bounds, Quotas, left_of, priorities_of
from tidepool_operator.errors import ApiError, Forbidden, Unavailable


def quota(name: str, hard: str, used: str, **spec: object) -> Object:
    resource = "requests.nvidia.com/gpu"
    return {
        "metadata": {"name": name, "namespace": "team"},
        "spec": {"hard": {resource: hard}, **spec},
        "status": {"hard": {resource: hard, "pods": "9"}, "used": {resource: used}},
    }


def test_the_tightest_quota_counts_and_one_for_some_pods_only_does_not() -> None:
    found = left_of(
        [quota("wide", "8", "1"), quota("tight", "4", "3"), quota("some", "1", "1", scopes=["BestEffort"])]
    )

    assert found == {("team", "nvidia.com/gpu"): ("tight", 1)}


def test_what_is_used_beyond_a_quota_leaves_less_than_nothing() -> None:
    assert left_of([quota("lowered", "2", "5")]) == {("team", "nvidia.com/gpu"): ("lowered", -3)}


def test_priorities_are_by_class_and_the_default_is_the_lowest_of_those_marked() -> None:
    classes: list[Object] = [
        {"metadata": {"name": "gold"}, "value": 100},
        {"metadata": {"name": "usual"}, "value": 10, "globalDefault": True},
        {"metadata": {"name": "other"}, "value": 5, "globalDefault": True},
    ]

    found = priorities_of(classes)

    assert (found[""], found["gold"]) == (5, 100)
    assert found["system-node-critical"] > found["system-cluster-critical"] > 100
    assert priorities_of([])[""] == 0


class Lists:
    """An API server's lists; `error` instead of those of `refuses`."""

    def __init__(self, error: ApiError | None = None, refuses: Kind = RESOURCE_QUOTA) -> None:
        self.error, self.refuses, self.asked = error, refuses, 0

    async def pages(self, kind: Kind, *, fields: str = "") -> AsyncIterator[Sequence[Object]]:
        self.asked += 1
        if self.error is not None and kind == self.refuses:
            raise self.error
        yield [quota("gpus", "4", "1")] if kind == RESOURCE_QUOTA else [{"metadata": {"name": "gold"}, "value": 7}]


async def test_both_are_listed_once_for_many_looks() -> None:
    lists = Lists()
    quotas = Quotas(cast(Api, lists))

    first, second = await quotas.bounds(), await quotas.bounds()

    assert first is second
    assert (first.left["team", "nvidia.com/gpu"], first.priorities["gold"]) == (("gpus", 3), 7)
    assert lists.asked == 2


@pytest.mark.parametrize("error", [Forbidden("no", status=403), Unavailable("away", status=503)])
@pytest.mark.parametrize("refused", [RESOURCE_QUOTA, PRIORITY_CLASS])
async def test_what_cannot_be_listed_bounds_nobody(error: ApiError, refused: Kind) -> None:
    found = await Quotas(cast(Api, Lists(error, refused))).bounds()

    assert bool(found.left) == (refused is not RESOURCE_QUOTA)
    assert ("gold" in found.priorities) == (refused is not PRIORITY_CLASS)


async def test_an_installation_that_may_not_see_the_cluster_asks_nothing() -> None:
    lists = Lists()

    assert await Quotas(cast(Api, lists), wanted=False).bounds() == Bounds()
    assert lists.asked == 0
