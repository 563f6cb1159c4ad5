"""The cluster in the words of the autoscaler and the gateways."""

from typing import Any

import pytest

from pools.objects import pod, raw_pool
from tidepool_api.contract import VARIANT_LABEL
from tidepool_operator.cluster.api import Api
from tidepool_operator.cluster.kinds import AGENT_WORKFLOW, MODEL_POOL, POD, Object
from tidepool_operator.cluster.store import Key, Store
from tidepool_operator.scaling.model import PodState
from tidepool_operator.view import View, pod_state

SCALING = {"minReplicas": 0, "maxReplicas": 4}


def view(*pools: Object, tls: bool = False, **more: Any) -> tuple[View, Store]:
    store = Store()
    for raw in pools:
        store.put(MODEL_POOL, raw)
    nobody: Any = None
    return View(Api(nobody), store, dict, lambda _: None, lambda: True, tls=tls, **more), store


def changed(raw: Object, **spec: Any) -> Object:
    """The pool after an edit."""
    metadata = {**raw["metadata"], "generation": 2, "resourceVersion": "2"}
    return {**raw, "metadata": metadata, "spec": {**raw["spec"], **spec}}


def test_only_pools_with_scaling_that_stay_are_scaled() -> None:
    going = raw_pool("c", scaling=SCALING)
    going["metadata"]["deletionTimestamp"] = "x"
    seen, _ = view(raw_pool("a", scaling=SCALING, replicas=2), raw_pool("b"), going)

    assert [(found.name, found.replicas) for found in seen.scaled_pools()] == [("a", 2)]


def test_an_edit_of_scaling_is_seen() -> None:
    raw = raw_pool("a", scaling=SCALING)
    seen, store = view(raw)
    seen.scaled_pools()
    store.put(MODEL_POOL, changed(raw, scaling={"minReplicas": 1, "maxReplicas": 9}))

    assert seen.scaled_pools()[0].spec.max_replicas == 9


def test_scaling_that_cannot_be_read_scales_nothing() -> None:
    seen, _ = view(raw_pool("a", scaling={"maxReplicas": "many"}))

    assert seen.scaled_pools() == []


def test_pods_that_go_are_no_capacity() -> None:
    seen, store = view(raw_pool("llama", scaling=SCALING))
    for item in (pod("a", "r", ready=True), pod("b", "r", ready=True, deleting=True)):
        item["metadata"]["resourceVersion"] = "1"
        store.put(POD, item)

    assert [found.name for found in seen.scaled_pools()[0].pods] == ["a"]


VARIANTS: Object = {
    "maxReplicas": 9,
    "variants": [
        {"name": "l4", "cost": "1", "accelerator": {"nodeSelector": {"gpu": "l4"}}},
        {
            "name": "a100",
            "cost": "3",
            "accelerator": {"count": 2, "resource": "acme.com/gpu"},
            "parallelism": {"tensor": 2},
        },
    ],
}


def test_replicas_and_pods_are_told_by_variant() -> None:
    status = {"variants": [{"name": "l4", "replicas": 2}, {"name": "a100"}], "updateRevision": "a+b"}
    seen, store = view(raw_pool("llama", scaling=VARIANTS, replicas=2, status=status))
    item = pod("a", "r", ready=True)
    item["metadata"] |= {"resourceVersion": "1", "labels": {**item["metadata"]["labels"], VARIANT_LABEL: "l4"}}
    store.put(POD, item)

    (found,) = seen.scaled_pools()

    assert (found.mix, found.identity) == ({"l4": 2, "a100": 0}, "a+b")
    assert [(one.variant, one.uid) for one in found.pods] == [("l4", "uid-a")]


def test_what_pods_ask_for_is_told_by_variant_and_follows_an_edit() -> None:
    raw = raw_pool("llama", scaling=VARIANTS, scheduling={"priorityClassName": "gold"})
    seen, store = view(raw)

    asks = seen.asks("default/llama")

    assert asks is not None
    assert asks.priority_class == "gold"
    small, large = asks.shapes["l4"], asks.shapes["a100"]
    assert (small[1:], large[1:]) == (("nvidia.com/gpu", 1), ("acme.com/gpu", 2))
    assert small[0].spec == {"nodeSelector": {"gpu": "l4"}}
    assert large[0].requests["acme.com/gpu"] == 2
    store.put(MODEL_POOL, changed(raw, scaling={"maxReplicas": "many"}))
    assert seen.asks("default/llama") is None
    assert seen.asks("default/nobody") is None


@pytest.mark.parametrize(
    ("item", "expected"),
    [
        (pod("a", "r", scheduled=False), PodState.PENDING),
        (pod("a", "r"), PodState.STARTING),
        (pod("a", "r", engine={"started": True}), PodState.UNREADY),
        (pod("a", "r", ready=True), PodState.READY),
    ],
)
def test_pod_state(item: Object, expected: PodState) -> None:
    assert pod_state(item) is expected


def test_gateways_keep_a_pool_whose_edit_is_unsound_and_lose_one_that_is_gone() -> None:
    raw = raw_pool("a")
    seen, store = view(raw, raw_pool("b"))
    before = seen.fleet()
    store.put(MODEL_POOL, changed(raw, engine="fast"))
    store.forget(MODEL_POOL, Key("default", "b"))

    assert [found.name for found in before] == ["default/a", "default/b"]
    assert seen.fleet() == before[:1]


def test_a_pool_whose_requests_are_classified_is_told_with_the_hosts_of_its_namespace() -> None:
    ask = {"url": "http://judge.tools/", "classes": [{"name": "hard", "pool": "plain"}]}
    asks = raw_pool("asks", traffic={"rules": [{"name": "a", "classifier": ask}]})
    seen, _ = view(asks, raw_pool("plain"), hosts=lambda namespace: {"default": ("judge.tools",)}[namespace])

    assert {pool.name: pool.hosts for pool in seen.fleet()} == {
        "default/asks": ("judge.tools",),
        "default/plain": (),
    }


def test_gateways_get_the_workflows_that_are_accepted_as_they_stand() -> None:
    seen, store = view(hosts=lambda namespace: {"default": ("search.tools",)}[namespace])
    for name, accepted, judged in (("sound", "True", 2), ("broken", "False", 2), ("edited", "True", 1)):
        condition = {"type": "Accepted", "status": accepted, "observedGeneration": judged}
        metadata = {"namespace": "default", "name": name, "uid": name, "generation": 2, "resourceVersion": "1"}
        spec = {"steps": [{"name": name}]}
        store.put(AGENT_WORKFLOW, {"metadata": metadata, "spec": spec, "status": {"conditions": [condition]}})

    assert [(found.name, found.spec, found.hosts) for found in seen.workflows()] == [
        ("default/sound", {"steps": [{"name": "sound"}]}, ("search.tools",))
    ]


@pytest.mark.parametrize(
    ("tls", "pods", "endpoints", "why"),
    [
        (False, ("old", "new"), ("plain",), "it is not wanted, or not any more: all pods still serve plain HTTP"),
        (True, ("new", "new"), ("secure",), "all pods have it"),
        (True, (), ("secure",), "the next one will have it"),
        (True, ("old", "new"), ("secure", "plain"), "pods of the revision before have none"),
    ],
)
def test_gateways_speak_tls_with_the_pods_that_can_and_with_no_other_longer_than_there_is_one(
    tls: bool, pods: tuple[str, ...], endpoints: tuple[str, ...], why: str
) -> None:
    urls = {
        "plain": "dns+http://llama-peers.default.svc:8080",
        "secure": "dns+https://llama-peers-tls.default.svc:8443",
    }
    seen, store = view(raw_pool("llama"), tls=tls)
    for number, kind in enumerate(pods):
        item = pod(f"p{number}", "r")
        item["metadata"]["resourceVersion"] = "1"
        if kind == "new":
            item["metadata"]["labels"]["tidepool.dev/tls"] = "true"
        store.put(POD, item)

    assert seen.fleet()[0].endpoints == tuple(urls[name] for name in endpoints), why
