"""A watch that has gone quiet is found, and what it did not tell is mended."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tidepool_operator.cluster.canary import Canary
from tidepool_operator.cluster.kinds import MODEL_POOL, POD, Kind, Object
from tidepool_operator.cluster.listing import Version
from tidepool_operator.cluster.store import Key, Store, key_of, version_of
from tidepool_operator.errors import NotFound

pytestmark = [pytest.mark.traffic]  # waits for what does not come


def item(name: str, version: int) -> Object:
    return {"metadata": {"name": name, "namespace": "default", "resourceVersion": str(version), "uid": name}}


class Cluster:
    """What the API server would list."""

    def __init__(self, *items: Object) -> None:
        self.items = list(items)
        self.lists = 0

    async def versions(self, *_: Any, **__: Any) -> AsyncIterator[list[Version]]:
        self.lists += 1
        yield [Version(*_place(found), version_of(found)) for found in self.items]

    async def get(self, _kind: Kind, namespace: str, name: str) -> Object:
        for found in self.items:
            if key_of(found) == Key(namespace, name):
                return found
        raise NotFound("gone")


def _place(found: Object) -> tuple[str, str]:
    return found["metadata"]["namespace"], found["metadata"]["name"]


def canary(cluster: Cluster, store: Store) -> Canary:
    return Canary(cluster, store, {}, kinds=[POD])  # type: ignore[arg-type]


def pod(store: Store, name: str, version: int) -> None:
    store.put(POD, item(name, version) | {"spec": {}, "status": {}})


async def test_a_watch_that_tells_everything_is_not_quiet() -> None:
    cluster, store = Cluster(item("a", 1)), Store()
    watched = canary(cluster, store)
    await watched.sweep(POD)
    pod(store, "a", 1)
    cluster.items = [item("a", 5)]
    await watched.sweep(POD)

    assert watched.quiet() == {}, "the newest change has until the next sweep"


async def test_a_change_that_is_not_told_by_the_next_sweep_is_a_quiet_watch() -> None:
    cluster, store = Cluster(item("a", 5)), Store()
    pod(store, "a", 1)
    watched = canary(cluster, store)
    await watched.sweep(POD)
    await watched.sweep(POD)

    assert "default/a" in watched.quiet()["Pod"]
    pod(store, "a", 5)
    await watched.sweep(POD)
    assert watched.quiet() == {}


async def test_a_new_object_that_is_not_told_is_a_quiet_watch() -> None:
    watched = canary(Cluster(item("a", 1)), Store())
    await watched.sweep(POD)
    await watched.sweep(POD)

    assert list(watched.quiet()) == ["Pod"]


async def test_an_object_that_was_deleted_between_sweeps_is_no_complaint() -> None:
    cluster, store = Cluster(item("a", 1)), Store()
    watched = canary(cluster, store)
    await watched.sweep(POD)
    cluster.items = []
    await watched.sweep(POD)

    assert watched.quiet() == {}


async def test_what_vanished_while_a_watch_was_down_is_forgotten() -> None:
    cluster, store = Cluster(), Store()
    pod(store, "a", 1)
    watched = canary(cluster, store)
    await watched.sweep(POD)
    assert store.get(POD, Key("default", "a")), "its watch has its time to tell"
    await watched.sweep(POD)

    assert store.get(POD, Key("default", "a")) is None


async def test_a_watch_that_takes_its_time_is_waited_for_and_not_outrun_by_lists() -> None:
    cluster, store = Cluster(item("a", 1), item("b", 2)), Store()
    pod(store, "a", 1)
    waiting = asyncio.create_task(canary(cluster, store).synced())
    await asyncio.sleep(0.5)
    assert not waiting.done(), "half a picture is no picture"
    pod(store, "b", 2)
    await asyncio.wait_for(waiting, 5)

    assert cluster.lists == 1


async def test_a_look_at_the_object_itself_is_only_for_what_two_lists_lack() -> None:
    cluster, store = Cluster(item("a", 1)), Store()
    pod(store, "a", 1)
    watched = canary(cluster, store)
    await watched.sweep(POD)
    cluster.items = []
    await watched.sweep(POD)

    assert store.get(POD, Key("default", "a")), "gone since the last list: its watch has until the next"
    await watched.sweep(POD)
    assert store.get(POD, Key("default", "a")) is None


async def test_one_of_the_same_name_that_came_while_it_was_asked_for_is_kept() -> None:
    cluster, store = Cluster(), Store()
    pod(store, "a", 1)

    async def gone(*_: Any) -> Object:
        store.put(POD, item("a", 7) | {"metadata": item("a", 7)["metadata"] | {"uid": "another"}})
        raise NotFound("gone")

    cluster.get = gone  # type: ignore[method-assign]
    watched = canary(cluster, store)
    await watched.sweep(POD)
    await watched.sweep(POD)

    assert version_of(store.get(POD, Key("default", "a"))) == 7


async def test_what_vanished_is_looked_for_as_soon_as_its_kind_is_listed_anew() -> None:
    cluster, store = Cluster(item("b", 2)), Store()
    pod(store, "a", 1)
    pod(store, "b", 1)
    forgotten = asyncio.Event()
    store.listen(lambda _kind, _before, after: None if after else forgotten.set())
    watched = Canary(cluster, store, {}, kinds=[POD], sweep_seconds=600.0)  # type: ignore[arg-type]
    running = asyncio.create_task(watched.run())
    watched.hurry(POD)
    watched.hurry(MODEL_POOL)  # not one of its kinds
    await asyncio.wait_for(forgotten.wait(), 10)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)

    assert store.keys(POD) == [Key("default", "b")]
    assert watched.quiet() == {}, "a watch that lists anew still has much to tell"


async def test_with_many_pools_lists_wait_until_the_watches_rest() -> None:
    """They cost as much as all else of a start, and are worth nothing while most is still to be told."""
    pools = [item(f"pool-{number}", 1) for number in range(150)]
    cluster, store = Cluster(*pools), Store()
    watched = Canary(cluster, store, {}, kinds=[MODEL_POOL, POD])  # type: ignore[arg-type]
    waiting = asyncio.create_task(watched.synced())
    for found in pools:
        store.put(MODEL_POOL, found)
    for found in pools:
        assert cluster.lists <= 1, "pods are still being told"
        pod(store, found["metadata"]["name"], 1)
        await asyncio.sleep(0.01)
    await asyncio.wait_for(waiting, 10)

    assert cluster.lists == 3


async def test_a_list_from_a_cache_that_lags_removes_nothing() -> None:
    cluster, store = Cluster(item("a", 1)), Store()
    pod(store, "a", 1)
    listed, cluster.versions = cluster.versions, _empty  # type: ignore[method-assign]
    watched = canary(cluster, store)
    await watched.sweep(POD)
    await watched.sweep(POD)
    cluster.versions = listed  # type: ignore[method-assign]

    assert store.get(POD, Key("default", "a")) is not None


async def _empty(*_: Any, **__: Any) -> AsyncIterator[list[Version]]:
    yield []
