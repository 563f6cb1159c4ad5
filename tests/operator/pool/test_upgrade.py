"""An operator of another release finds pools that one before it made: no engine is restarted."""

import json
from copy import deepcopy
from dataclasses import replace
from typing import Any

import pytest

from pools.objects import NOW, condition, observe, pod, raw_pool, stored
from pools.releases import AROUND_THE_ENGINE, a_volume, made_by
from tidepool_api.contract import REVISION_LABEL
from tidepool_operator.pool.model import Object, Observed, RenderSettings, Scale
from tidepool_operator.pool.plan import plan
from tidepool_operator.pool.revision import ROUTER_ANNOTATION, made_with

GROUP: dict[str, Any] = {
    "parallelism": {"tensor": 4, "pipeline": 2, "hosts": 2},
    "accelerator": {"count": 4},
    "model": {"uri": "s3://models/llama"},
}
NEXT = RenderSettings("tidepool-router:next", "tidepool", groups=True)


def look(objects: tuple[Object, ...] = (), pods: tuple[Object, ...] = (), **spec: Any) -> Observed:
    seen = observe(raw_pool(**{"replicas": 2, **spec}), objects=objects, pods=pods)
    return replace(seen, settings=replace(seen.settings, groups=True))


def workload(items: tuple[Object, ...]) -> Object:
    (found,) = [item for item in items if item["kind"] in ("Deployment", "LeaderWorkerSet")]
    return found


def made(**spec: Any) -> Observed:
    """A pool as this release makes and leaves it: two pods serve."""
    objects = tuple(stored(item) for item in plan(look(**spec), NOW).applies)
    revision = workload(objects)["metadata"]["labels"][REVISION_LABEL]
    found = look(objects, tuple(pod(f"p{number}", revision, ready=True) for number in range(2)), **spec)
    status = plan(found, NOW).status
    assert status is not None
    return replace(found, raw_status=status)


def asked_for(observed: Observed, **spec: Any) -> Observed:
    """Somebody edits the spec."""
    return replace(observed, pool=look(**spec).pool)


def images(item: Object) -> set[str]:
    return {one["image"] for one in item["spec"]["template"]["spec"]["initContainers"]}


@pytest.mark.parametrize("change", AROUND_THE_ENGINE)
@pytest.mark.parametrize("spec", [{}, GROUP], ids=["pods", "groups"])
def test_what_serves_is_left_as_it_is_and_told_of_the_newer_router(spec: dict[str, Any], change: str) -> None:
    before = made(**spec)
    with made_by(AROUND_THE_ENGINE[change]):
        after = plan(before, NOW)

    assert (after.checks, after.applies, after.scales, after.deletes) == ((), (), (), ())
    assert after.status is not None
    assert condition(after.status, "Ready") == condition(dict(before.raw_status), "Ready")
    assert "a new value of spec.rollout.restart brings" in condition(after.status, "Progressing")["message"]


@pytest.mark.parametrize("change", AROUND_THE_ENGINE)
def test_what_is_written_of_a_deployment_that_serves_leaves_its_pods_whole(change: str) -> None:
    """The router that they have, with the volumes of its own: of the release before, and of the one after."""
    spec: dict[str, Any] = {"model": {"uri": "s3://models/llama"}}
    earlier, harmless = made(**spec), {"rollout": {"progressDeadline": "5m"}} | spec
    with made_by(AROUND_THE_ENGINE[change]):
        later = made(**spec)
        forth = plan(asked_for(earlier, **harmless), NOW)
    back = plan(asked_for(later, **harmless), NOW)

    for observed, after in ((earlier, forth), (later, back)):
        written = workload(after.applies)["spec"]
        assert written["progressDeadlineSeconds"] == 300
        assert written["template"] == workload(observed.objects)["spec"]["template"]


def test_pods_that_are_added_have_the_router_of_those_beside_them() -> None:
    before = made()
    with made_by(a_volume):
        after = plan(replace(asked_for(before, replicas=3), settings=NEXT), NOW)

    assert after.scales == (Scale(workload(before.objects)["metadata"]["name"], 3),)
    assert after.applies == ()


@pytest.mark.parametrize(
    ("engines", "expected", "why"),
    [
        ([{"started": True}], "tidepool-router:test", "it serves"),
        ([{"started": False, "ready": False}], "tidepool-router:test", "it loads, for hours perhaps"),
        ([{"started": False, "ready": False, "state": {"waiting": {}}}], "tidepool-router:next", "none runs"),
        ([{"state": {"waiting": {}}}, {}], "tidepool-router:test", "one of them is up"),
        ([], "tidepool-router:next", "the pool comes back from zero"),
    ],
)
def test_the_newest_router_comes_where_no_engine_runs(engines: list[Object], expected: str, why: str) -> None:
    before = made()
    revision = workload(before.objects)["metadata"]["labels"][REVISION_LABEL]
    pods = tuple(
        pod(f"p{number}", revision, ready=engine.get("ready", True), engine=engine)
        for number, engine in enumerate(engines)
    )
    after = plan(replace(before, pods=pods, settings=NEXT), NOW)
    found = [item for item in after.applies if item["kind"] == "Deployment"] or before.objects

    assert images(workload(tuple(found))) == {expected}, why


def test_a_foreign_edit_of_a_router_is_put_back_to_the_one_that_it_was_made_with() -> None:
    before = made()
    template = workload(before.objects)["spec"]["template"]
    good = deepcopy(template)
    template["spec"]["initContainers"][0]["args"] = []
    with made_by(a_volume):
        after = plan(replace(before, settings=NEXT), NOW)

    assert workload(after.applies)["spec"]["template"] == good


@pytest.mark.parametrize("record", [None, "", "{", "[]", '{"containers": 1, "volumes": [], "annotations": {}}'])
def test_without_a_record_that_can_be_read_the_router_that_is_there_is_kept(record: str | None) -> None:
    before = made()
    live = workload(before.objects)
    live["metadata"]["annotations"].pop(ROUTER_ANNOTATION)
    if record is not None:
        live["metadata"]["annotations"][ROUTER_ANNOTATION] = record
    with made_by(a_volume):
        after = plan(replace(before, settings=NEXT), NOW)
    written = workload(after.applies)

    assert written["spec"]["template"] == live["spec"]["template"]
    assert "tidepool-router:test" in written["metadata"]["annotations"][ROUTER_ANNOTATION]


# As the first release with records writes them.
RECORD = """{"containers":[{"name":"router","image":"r:1","args":["sidecar"],
"volumeMounts":[{"name":"x","mountPath":"/x"}]}],"volumes":[{"name":"x","emptyDir":{}}],"annotations":{"a":"b"}}"""


@pytest.mark.parametrize(
    "record", [RECORD, RECORD[:-1] + ',"of":{"a":"release to come"}}'], ids=["first", "later"]
)
def test_records_of_other_releases_are_understood(record: str) -> None:
    found = made_with({"kind": "Deployment", "metadata": {"annotations": {ROUTER_ANNOTATION: record}}})

    assert found.image == "r:1"
    assert json.loads(found.encode()) == json.loads(RECORD)


def test_a_pool_says_that_its_routers_are_of_an_earlier_release() -> None:
    after = plan(replace(made(), settings=NEXT), NOW)

    assert after.applies == ()
    assert after.status is not None
    told = condition(after.status, "Progressing")["message"]
    assert "tidepool-router:test" in told
    assert "spec.rollout.restart brings tidepool-router:next" in told


def test_a_restart_that_is_asked_for_brings_the_newest_router() -> None:
    with made_by(a_volume):
        after = plan(replace(asked_for(made(), rollout={"restart": "1"}), settings=NEXT), NOW)
    template = after.applies[-1]["spec"]["template"]

    assert template["spec"]["initContainers"][0]["image"] == "tidepool-router:next"
    assert "spool" in {volume["name"] for volume in template["spec"]["volumes"]}
    assert template["metadata"]["annotations"]["tidepool.dev/restart"] == "1"
