"""Who looks, what it costs, and what is sent."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from fakes.console import busy_world
from tidepool_operator.cluster.kinds import MODEL_POOL
from tidepool_operator.console.hub import MOST_BEHIND, MOST_SUBSCRIBERS, Hub, NothingThere, TooMany, Topic, What
from tidepool_operator.console.views.delta import Document

POOLS = Topic(What.POOLS)
EVERY = dict.fromkeys(What, 0.01)


class Counter:
    """A view with one figure, which counts how often it was made; `fails` is raised instead."""

    def __init__(self) -> None:
        self.made = 0
        self.value = 0
        self.fails: Exception | None = None

    async def __call__(self, topic: Topic) -> Document:
        self.made += 1
        if self.fails is not None:
            raise self.fails
        return {"rows": {"a": self.value}}


@pytest.fixture
async def counter() -> Counter:
    return Counter()


@pytest.fixture
async def hub(counter: Counter) -> AsyncIterator[Hub]:
    made = Hub(counter, EVERY, lambda: 1000.0)
    yield made
    await made.close()


async def told(events: Any) -> dict[str, Any]:
    async with asyncio.timeout(30):
        return dict(json.loads(await anext(events)))


async def test_who_comes_gets_the_whole_and_then_what_changes(hub: Hub, counter: Counter) -> None:
    events = hub.follow(POOLS)
    first = await told(events)
    counter.value = 1
    second = await told(events)
    late = await told(hub.follow(POOLS))

    assert first == {"at": 1000.0, "all": {"rows": {"a": 0}}}
    assert second == {"at": 1000.0, "put": {"rows": {"a": 1}}}
    assert late["all"] == {"rows": {"a": 1}}


async def test_nothing_is_made_when_nobody_looks(hub: Hub, counter: Counter) -> None:
    events = hub.follow(POOLS)
    await told(events)
    await events.aclose()
    assert hub.looking() == 0

    made = counter.made
    for _ in range(20):
        await asyncio.sleep(0)
    assert not [task for task in asyncio.all_tasks() if task.get_name().startswith("console") and not task.done()]
    assert counter.made == made


async def test_many_who_look_at_one_view_cost_one_making(hub: Hub, counter: Counter) -> None:
    followers = [hub.follow(POOLS) for _ in range(10)]
    await asyncio.gather(*(told(one) for one in followers))

    assert hub.looking() == 10
    assert counter.made <= 11


async def test_those_who_look_are_bounded(hub: Hub) -> None:
    followers = [hub.follow(POOLS) for _ in range(MOST_SUBSCRIBERS)]
    await asyncio.gather(*(told(one) for one in followers))

    with pytest.raises(TooMany):
        await anext(hub.follow(POOLS))


async def test_who_reads_too_slowly_is_let_go(hub: Hub, counter: Counter) -> None:
    slow, quick = hub.follow(POOLS), hub.follow(POOLS)
    await told(slow)
    await told(quick)
    for value in range(1, MOST_BEHIND + 3):
        counter.value = value
        while (await told(quick)).get("put") != {"rows": {"a": value}}:
            pass

    async with asyncio.timeout(30):
        rest = [event async for event in slow]

    assert rest == []


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (NothingThere("There is no ModelPool team/x."), {"gone": "There is no ModelPool team/x."}),
        (
            ZeroDivisionError(),
            {"trouble": "the operator failed to make this view; its log says why. Please report it."},
        ),
    ],
)
async def test_a_view_that_cannot_be_made_says_so_and_comes_back(
    hub: Hub, counter: Counter, error: Exception, expected: dict[str, str]
) -> None:
    counter.fails = error
    events = hub.follow(POOLS)
    assert await told(events) == {"at": 1000.0, **expected}

    counter.fails = None
    while "all" not in (event := await told(events)):
        pass

    assert event["all"] == {"rows": {"a": 0}}


async def test_a_pool_that_is_deleted_leaves_the_list() -> None:
    world = busy_world(3)
    hub = world.hub()
    events = hub.follow(POOLS)
    assert len((await told(events))["all"]["pools"]) == 3

    world.store.forget(MODEL_POOL, world.store.keys(MODEL_POOL)[1])
    changed = await told(events)
    await hub.close()

    assert changed["out"] == {"pools": ["team/pool-001"]}


async def test_without_prometheus_the_list_says_why_figures_are_missing() -> None:
    world = busy_world(1)
    world.prometheus.away = "Prometheus at p:9090 cannot be reached"
    hub = world.hub()
    first = await told(hub.follow(POOLS))
    await hub.close()

    assert first["all"]["about"] == {"leads": True, "trouble": "Prometheus at p:9090 cannot be reached"}
    assert "kv" not in first["all"]["pools"]["team/pool-000"]


async def test_one_pool_has_all_that_its_view_shows() -> None:
    world = busy_world(3)
    hub = world.hub()
    shown = (await told(hub.follow(Topic(What.POOL, "team/pool-000"))))["all"]
    gone = await told(hub.follow(Topic(What.POOL, "team/none")))
    await hub.close()

    assert shown["pool"]["row"]["now"] == 3
    assert shown["decisions"]["now"]["reason"] == "KvUtilization"
    assert [one["revision"] for one in shown["rollouts"] if one["newest"]] == ["abc123"]
    assert shown["pods"]["pool-000-1"]["ledger"]["running"] == 6
    assert len(shown["demand"]["at"]) == 288
    assert len(shown["replicas"]["at"]) == 288
    assert gone["gone"] == "There is no ModelPool team/none."


async def test_gateways_that_do_not_answer_leave_the_graph() -> None:
    world = busy_world(1)
    world.runs.away = True
    hub = world.hub()
    shown = (await told(hub.follow(Topic(What.WORKFLOW, "team/research"))))["all"]
    await hub.close()

    assert len(shown["graph"]) == 6
    assert shown["runs"] == {}
    assert "no gateway serves" in shown["about"]["trouble"]
