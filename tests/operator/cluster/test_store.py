"""The cache of what the watches told."""

import json
from typing import Any

import pytest

from tidepool_api.contract import POOL_LABEL
from tidepool_operator.cluster.kinds import MODEL_POOL, POD, SERVICE, Object
from tidepool_operator.cluster.store import Key, Store, pool_of

LLAMA = Key("default", "llama")


def item(name: str = "a", version: int = 1, pool: str | None = "llama", **rest: Any) -> Object:
    labels = {POOL_LABEL: pool} if pool else {}
    metadata = {
        "name": name,
        "namespace": "default",
        "uid": f"uid-{name}",
        "resourceVersion": str(version),
        "labels": labels,
        "managedFields": [{"x": 1}],
    }
    return {"metadata": metadata, **rest}


def test_an_older_state_never_replaces_a_newer_one() -> None:
    store = Store()

    assert store.put(SERVICE, item(version=10))
    assert not store.put(SERVICE, item(version=9)), "a watch that lags behind our own write"
    assert not store.put(SERVICE, item(version=10))
    assert store.put(SERVICE, item(version=11))


def test_objects_are_found_by_their_pool_until_they_leave_it() -> None:
    store = Store()
    store.put(SERVICE, item("a"))
    store.put(SERVICE, item("b", pool="other"))
    store.put(SERVICE, item("a", version=2, pool=None))

    assert list(store.of_pool(SERVICE, LLAMA)) == []
    assert [found["metadata"]["name"] for found in store.of_pool(SERVICE, Key("default", "other"))] == ["b"]


def test_a_late_word_of_an_earlier_objects_end_does_not_remove_the_new_one() -> None:
    store = Store()
    store.put(SERVICE, item("a"))

    assert not store.forget(SERVICE, Key("default", "a"), uid="uid-of-the-earlier-one")
    assert store.forget(SERVICE, Key("default", "a"), uid="uid-a")
    assert not store.forget(SERVICE, Key("default", "a"))


def test_listeners_hear_before_and_after() -> None:
    store = Store()
    heard: list[tuple[int, int]] = []

    def version(found: Object | None) -> int:
        return int(found["metadata"]["resourceVersion"]) if found else 0

    store.listen(lambda _kind, before, after: heard.append((version(before), version(after))))
    store.put(SERVICE, item("a", 1))
    store.put(SERVICE, item("a", 2))
    store.put(SERVICE, item("a", 2))
    store.forget(SERVICE, Key("default", "a"))

    assert heard == [(0, 1), (1, 2), (2, 0)]


def test_what_nobody_reads_takes_no_memory() -> None:
    store = Store()
    limits = {"limits": {"nvidia.com/gpu": "8"}}
    big = {"containers": [{"name": "engine", "env": ["x"] * 100, "resources": limits}], "nodeName": "n1"}
    store.put(POD, item("p", spec=big, status={"phase": "Running", "qosClass": "x"}))
    found = store.get(POD, Key("default", "p"))

    assert found is not None
    assert found["spec"] == {"nodeName": "n1", "containers": [{"name": "engine", "resources": limits}]}
    assert found["status"] == {"phase": "Running"}
    assert "managedFields" not in found["metadata"]


def test_of_a_container_only_what_plans_read_is_kept() -> None:
    store = Store()
    told = {
        "name": "engine",
        "image": "x",
        "imageID": "sha256:1",
        "ready": True,
        "lastState": {},
        "restartCount": 0,
    }
    store.put(POD, item("p", spec={}, status={"containerStatuses": [told]}))
    found = store.get(POD, Key("default", "p"))

    assert found is not None
    assert found["status"]["containerStatuses"] == [{"name": "engine", "ready": True, "restartCount": 0}]


def test_words_that_thousands_of_objects_say_are_kept_once() -> None:
    store = Store()
    for name in ("a", "b"):
        store.put(POD, json.loads(json.dumps(item(name, spec={}, status={"phase": "Running and well"}))))
    first, second = (store.get(POD, Key("default", name)) for name in ("a", "b"))

    assert first is not None
    assert second is not None
    assert first["status"]["phase"] is second["status"]["phase"]


@pytest.mark.parametrize(("kind", "expected"), [(MODEL_POOL, Key("default", "a")), (SERVICE, LLAMA)])
def test_pool_of(kind: Any, expected: Key) -> None:
    assert pool_of(kind, item("a")) == expected


@pytest.mark.parametrize("known", [5, 9], ids=["others came between", "the write before"])
def test_an_own_write_is_known_at_once_and_what_the_watch_tells_of_it_goes_before(known: int) -> None:
    store = Store()
    store.put(SERVICE, item(version=known, spec={"replicas": 2, "kept": 1}))
    store.amend(SERVICE, Key("default", "a"), 10, {"replicas": 4})
    amended = store.get(SERVICE, Key("default", "a"))
    assert amended is not None
    assert amended["spec"] == {"replicas": 4, "kept": 1}

    assert not store.put(SERVICE, item(version=9, spec={"replicas": 2})), "what was before it is no news"
    assert store.put(SERVICE, item(version=10, spec={"replicas": 4, "kept": 2}))


def test_an_own_write_that_the_watch_has_told_already_changes_nothing() -> None:
    store = Store()
    store.put(SERVICE, item(version=11, spec={"replicas": 3}))
    store.amend(SERVICE, Key("default", "a"), 10, {"replicas": 4})
    found = store.get(SERVICE, Key("default", "a"))

    assert found is not None
    assert found["spec"] == {"replicas": 3}
