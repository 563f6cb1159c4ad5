"""A pool on several kinds of accelerator: a Deployment each, rolled out, shrunk and told of apart."""

from dataclasses import replace
from typing import Any

from pools.objects import NOW, SETTINGS, condition, observe, pod, raw_pool, stored
from tidepool_api.contract import POOL_LABEL, VARIANT_LABEL
from tidepool_operator.pool.drift import stamped
from tidepool_operator.pool.model import Mark, Object, Observed, Scale
from tidepool_operator.pool.plan import plan
from tidepool_operator.pool.render import Rendered, deployment, render
from tidepool_operator.pool.variants import device_of, parts, rendered, wanted
from tidepool_operator.scaling.model import Decision

VARIANTS = [
    {"name": "l4", "cost": "1", "accelerator": {"nodeSelector": {"gpu": "l4"}}},
    {
        "name": "a100",
        "cost": "3",
        "capacity": "4",
        "accelerator": {"count": 2, "resource": "acme.com/gpu"},
        "parallelism": {"tensor": 2},
    },
]
SCALING: Object = {"maxReplicas": 9, "variants": VARIANTS}


def decided(**mix: int) -> Decision:
    return Decision(NOW, sum(mix.values()), "ScaleUp", "more", mix=mix)


def of(made: Rendered, name: str, **rest: Any) -> Object:
    found = pod(name, made.revision, **rest)
    if made.variant:
        found["metadata"]["labels"][VARIANT_LABEL] = made.variant
    return found


def complete(l4: int = 2, a100: int = 1, **spec: Any) -> Observed:
    """A pool with variants whose objects and pods are all as they should be."""
    raw = raw_pool(replicas=l4 + a100, scaling=SCALING, **spec)
    first = replace(observe(raw), decision=decided(l4=l4, a100=a100))
    items: list[Object] = []
    pods: list[Object] = []
    made = rendered(first)
    for one, count in zip(made, (l4, a100), strict=True):
        part = next(part for part in parts(first, made, {}) if part.rendered is one)
        items.append(deployment(part.observed.pool, one, count))
        pods += [of(one, f"{one.variant}-{index}", ready=True) for index in range(count)]
    objects = tuple(stored(stamped(item)) for item in (*made[0].objects, *items))
    looked = replace(first, objects=objects, pods=tuple(pods))
    status = plan(looked, NOW).status
    assert status is not None
    return replace(looked, raw_status=status)


def name_of(observed: Observed, variant: str) -> str:
    return next(one.deployment for one in rendered(observed) if one.variant == variant)


def test_each_variant_gets_a_deployment_with_its_accelerator() -> None:
    observed = replace(observe(raw_pool(replicas=3, scaling=SCALING)), decision=decided(l4=2, a100=1))

    made = plan(observed, NOW)

    small, large = (item for item in made.applies if item["kind"] == "Deployment")
    assert [item["spec"]["replicas"] for item in (small, large)] == [2, 1]
    pods = [item["spec"]["template"]["spec"] for item in (small, large)]
    assert [one["containers"][0]["resources"]["limits"] for one in pods] == [
        {"nvidia.com/gpu": "1"},
        {"acme.com/gpu": "2"},
    ]
    assert (pods[0]["nodeSelector"], "nodeSelector" in pods[1]) == ({"gpu": "l4"}, False)
    assert "--tensor-parallel-size=2" in pods[1]["containers"][0]["args"]
    assert len(made.checks) == 2
    for item, name in ((small, "l4"), (large, "a100")):
        assert item["metadata"]["labels"][VARIANT_LABEL] == name
        assert item["spec"]["template"]["metadata"]["labels"][VARIANT_LABEL] == name
        assert item["spec"]["selector"]["matchLabels"][POOL_LABEL] == "llama"
        router = item["spec"]["template"]["spec"]["initContainers"][0]
        assert {"name": "POD_VARIANT", "value": name} in router["env"]
    assert len([item for item in made.applies if item["kind"] == "Service"]) == 2


def test_a_complete_pool_is_left_alone_and_tells_of_each_variant() -> None:
    observed = complete()

    made = plan(observed, NOW + 3600)

    assert (made.applies, made.scales, made.marks, made.deletes, made.status) == ((), (), (), (), None)
    status = observed.raw_status
    assert [(one["name"], one["replicas"], one["readyReplicas"]) for one in status["variants"]] == [
        ("l4", 2, 2),
        ("a100", 1, 1),
    ]
    assert (status["replicas"], status["readyReplicas"], status["updatedReplicas"]) == (3, 3, 3)
    assert condition(dict(status), "Ready")["status"] == "True"
    assert condition(dict(status), "Progressing")["reason"] == "Complete"


def test_a_decision_scales_the_variant_that_it_names() -> None:
    observed = complete()
    grown = observed.pool.model_copy(update={"spec": observed.pool.spec.model_copy(update={"replicas": 4})})

    made = plan(replace(observed, pool=grown, decision=decided(l4=2, a100=2)), NOW)

    assert made.scales == (Scale(name_of(observed, "a100"), 2),)


def test_the_victim_is_a_pod_of_the_variant_that_shrinks() -> None:
    observed = complete()
    shrunk = observed.pool.model_copy(update={"spec": observed.pool.spec.model_copy(update={"replicas": 2})})

    made = plan(replace(observed, pool=shrunk, decision=decided(l4=1, a100=1)), NOW)

    assert [mark.pod for mark in made.marks] == ["l4-0"]
    assert isinstance(made.marks[0], Mark)
    assert made.wants_loads


def test_without_a_decision_the_status_says_the_mix_and_a_new_count_settles_on_it() -> None:
    """An operator that starts anew, or somebody who writes the count: cheapest first up, dearest first down."""
    observed = replace(complete(l4=1, a100=2), decision=None)

    def mix_of(replicas: int) -> dict[str, int]:
        spec = observed.pool.spec.model_copy(update={"replicas": replicas})
        return wanted(replace(observed, pool=observed.pool.model_copy(update={"spec": spec})))

    assert mix_of(3) == {"l4": 1, "a100": 2}
    assert mix_of(5) == {"l4": 1, "a100": 4}, "an a100 is the cheaper for what it carries"
    assert mix_of(2) == {"l4": 0, "a100": 2}


def test_without_a_status_the_deployments_say_the_mix() -> None:
    observed = replace(complete(l4=2, a100=1), decision=None, raw_status={})

    assert wanted(observed) == {"l4": 2, "a100": 1}


def test_a_decision_that_is_not_written_yet_moves_nothing() -> None:
    observed = complete()

    assert wanted(replace(observed, decision=decided(l4=0, a100=1))) == {"l4": 2, "a100": 1}


def test_each_variant_rolls_out_by_itself() -> None:
    observed = complete()
    changed = observe(raw_pool(replicas=3, scaling=SCALING, engine={"maxModelLen": 99}))
    old_names = {name_of(observed, name) for name in ("l4", "a100")}

    made = plan(replace(observed, pool=changed.pool), NOW)

    new = [item for item in made.applies if item["kind"] == "Deployment"]
    assert {item["metadata"]["labels"][VARIANT_LABEL]: item["spec"]["replicas"] for item in new} == {
        "l4": 2,
        "a100": 1,
    }
    assert not [scale for scale in made.scales if scale.deployment in old_names], (
        "old pods serve until new ones do"
    )


def test_a_pool_that_gets_variants_keeps_its_pods_until_those_serve() -> None:
    bare = observe(raw_pool(replicas=2))
    made = render(bare.pool, SETTINGS)
    objects = tuple(stored(stamped(item)) for item in (*made.objects, deployment(bare.pool, made, 2)))
    pods = tuple(of(made, f"p{index}", ready=True) for index in range(2))
    asked = observe(raw_pool(replicas=2, scaling=SCALING))
    before = replace(asked, objects=objects, pods=pods)

    first = plan(before, NOW)

    new = [item for item in first.applies if item["kind"] == "Deployment"]
    assert sum(item["spec"]["replicas"] for item in new) == 2
    assert first.scales == ()
    one = next(entry for entry in rendered(asked) if entry.variant == "a100")
    ready = tuple(of(one, f"new-{index}", ready=True) for index in range(2))
    after = replace(before, objects=(*objects, *(stored(item) for item in new)), pods=(*pods, *ready))
    then = plan(after, NOW)
    assert {mark.pod for mark in then.marks} or Scale(made.deployment, 0) in then.scales


def test_a_variant_that_is_late_stops_itself_and_not_the_others() -> None:
    observed = complete()
    changed = observe(raw_pool(replicas=3, scaling=SCALING, engine={"maxModelLen": 99}))
    news = {one.variant: one for one in rendered(changed)}
    looked = replace(observed, pool=changed.pool)
    items = [stored(item, age_seconds=9000) for item in plan(looked, NOW).applies if item["kind"] == "Deployment"]
    late = of(news["a100"], "late", ready=False, age_seconds=9000)
    fresh = [of(news["l4"], f"fresh-{index}", ready=False, age_seconds=30) for index in range(2)]
    young = [item if item["metadata"]["labels"][VARIANT_LABEL] == "a100" else stored(item, 30) for item in items]

    made = plan(replace(looked, objects=(*observed.objects, *young), pods=(*observed.pods, late, *fresh)), NOW)

    assert made.status is not None
    told = {one["name"]: one.get("stuck", False) for one in made.status["variants"]}
    assert told == {"l4": False, "a100": True}
    assert condition(made.status, "Progressing")["reason"] == "ProgressDeadlineExceeded"


def test_a_refused_template_names_the_variant() -> None:
    observed = observe(raw_pool(replicas=1, scaling=SCALING))
    large = next(one for one in rendered(observed) if one.variant == "a100")

    made = plan(replace(observed, refused={large.revision: "no such field"}), NOW)

    assert (made.applies, made.scales) == ((), ())
    assert made.status is not None
    assert "the pods of variant a100: no such field" in condition(made.status, "Ready")["message"]


def test_pods_without_a_place_are_told_of_by_variant() -> None:
    observed = complete(l4=1, a100=1)
    large = next(one for one in rendered(observed) if one.variant == "a100")
    lacking = "0/2 nodes are available: 2 Insufficient acme.com/gpu."
    waits = of(large, "waits", scheduled=False, unplaced=lacking, age_seconds=60)

    made = plan(replace(observed, pods=(observed.pods[0], waits)), NOW)

    assert made.status is not None
    capacity = condition(made.status, "CapacityAvailable")
    assert capacity["reason"] == "InsufficientAccelerators"
    assert "1 of a100" in capacity["message"]


def test_a_pod_that_asks_for_no_accelerator_names_none() -> None:
    """Who is short of room was told of "0 nvidia.com/gpu"."""
    pool = observe(raw_pool(replicas=3, scaling=SCALING)).pool
    plain = observe(raw_pool(accelerator={"count": 0})).pool

    assert [device_of(pool, name) for name in ("l4", "a100")] == [("nvidia.com/gpu", 1), ("acme.com/gpu", 2)]
    assert device_of(plain, "") == ("", 0)
