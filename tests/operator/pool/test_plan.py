"""Plans: what is written for a look, and what is not."""

from dataclasses import replace
from typing import Any

import pytest

from pools.objects import NOW, SETTINGS, condition, observe, pod, raw_pool, stored
from tidepool_api.contract import POD_DELETION_COST
from tidepool_api.load import LoadReport
from tidepool_operator.pool.drift import stamped
from tidepool_operator.pool.model import Mark, Object, Observed, Plan, Scale
from tidepool_operator.pool.plan import plan
from tidepool_operator.pool.render import deployment, render
from tidepool_operator.pool.served import settings_by_pods
from tidepool_operator.scaling.model import Decision


def complete(*, pods: tuple[Object, ...] | None = None, replicas: int = 2, live: int = 2, **spec: Any) -> Observed:
    """A pool whose objects are all as they should be, with `live` replicas in its Deployment."""
    raw = raw_pool(replicas=replicas, **spec)
    bare = observe(raw)
    made = render(bare.pool, SETTINGS)
    items = tuple(stored(stamped(item)) for item in (*made.objects, deployment(bare.pool, made, live)))
    found = pods if pods is not None else tuple(pod(f"p{n}", made.revision, ready=True) for n in range(live))
    first = replace(bare, objects=items, pods=found)
    status = plan(first, NOW).status
    assert status is not None
    return replace(first, raw_status=status)


def revision(observed: Observed) -> str:
    return render(observed.pool, SETTINGS).revision


def test_a_new_pool_is_checked_first_then_applied() -> None:
    made = plan(observe(raw_pool(replicas=2)), NOW)
    kinds = [item["kind"] for item in made.applies]

    assert [item["kind"] for item in made.checks] == ["Deployment"]
    assert kinds == [
        "ServiceAccount",
        "ConfigMap",
        "NetworkPolicy",
        "Service",
        "Service",
        "PodDisruptionBudget",
        "Deployment",
    ]
    assert made.applies[-1]["spec"]["replicas"] == 2


def test_when_all_is_as_it_should_be_nothing_is_written() -> None:
    made = plan(complete(), NOW + 3600)

    assert (made.checks, made.applies, made.marks, made.scales, made.deletes) == ((), (), (), (), ())
    assert made.status is None
    assert made.notes == ()


def test_lists_that_the_api_server_fills_in_are_no_news() -> None:
    observed = complete()
    filled = {**observed.raw_status, "variants": [], "adapters": []}

    assert plan(replace(observed, raw_status=filled), NOW + 3600).status is None


def test_a_foreign_edit_is_put_back() -> None:
    observed = complete()
    service = next(item for item in observed.objects if item["metadata"]["name"] == "llama-peers")
    service["spec"]["publishNotReadyAddresses"] = False
    made = plan(observed, NOW)

    assert [item["metadata"]["name"] for item in made.applies] == ["llama-peers"]


def test_a_refused_template_touches_nothing_and_says_the_servers_words() -> None:
    observed = complete()
    asked = observe(raw_pool(replicas=2, podTemplate={"spec": {"nodeName": 7}}))
    changed = replace(observed, pool=asked.pool, problems=())
    said = "spec.template.spec.nodeName: expected string"
    made = plan(replace(changed, refused={revision(changed): said}), NOW)

    assert (made.applies, made.checks, made.scales, made.deletes) == ((), (), (), ())
    assert made.status is not None
    ready = condition(made.status, "Ready")
    assert (ready["status"], ready["reason"]) == ("False", "PodTemplateRejected")
    assert said in ready["message"]
    assert "2 pods of an earlier revision serve" in ready["message"]


def test_an_invalid_spec_touches_nothing_and_names_the_field() -> None:
    observed = complete()
    broken = observe(raw_pool(replicas=2, scaling={"maxReplicas": 1, "minReplicas": 3}))
    made = plan(replace(broken, objects=observed.objects, pods=observed.pods), NOW)

    assert (made.applies, made.scales, made.deletes) == ((), (), ())
    assert made.status is not None
    ready = condition(made.status, "Ready")
    assert ready["reason"] == "SpecInvalid"
    assert "spec.scaling.maxReplicas" in ready["message"]


def test_a_spec_that_cannot_even_be_read_still_gets_a_status() -> None:
    made = plan(observe(raw_pool(engine="fast", replicas=3)), NOW)

    assert made.status is not None
    assert condition(made.status, "Ready")["reason"] == "SpecInvalid"
    assert "spec.engine" in condition(made.status, "Ready")["message"]


def test_somebody_elses_object_is_not_taken_over() -> None:
    made = plan(replace(observe(raw_pool()), taken=("Service llama",)), NOW)

    assert made.applies == ()
    assert made.status is not None
    assert condition(made.status, "Ready")["reason"] == "NameTaken"
    assert "Service llama" in condition(made.status, "Ready")["message"]


def test_what_a_pool_of_the_same_name_left_is_waited_for() -> None:
    observed = complete()
    for item in observed.objects:
        item["metadata"]["ownerReferences"][0]["uid"] = "uid-of-the-one-before"
    made = plan(observed, NOW)

    assert made.applies == ()
    assert made.requeue_after_seconds == 2.0


def test_a_pool_that_is_being_deleted_is_left_to_the_garbage_collector() -> None:
    raw = raw_pool()
    raw["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    made = plan(observe(raw), NOW)

    assert (made.applies, made.deletes, made.status) == ((), (), None)


def test_the_least_loaded_pod_is_marked_and_the_count_waits_for_the_mark() -> None:
    """ai-dynamo/dynamo#13559, kthena#1589: whichever pod went, its requests were cut."""
    observed = complete(replicas=1)
    loads = {"p0": LoadReport(running=5), "p1": LoadReport(running=1)}
    made = plan(replace(observed, loads=loads), NOW)

    assert made.marks == (Mark("p1", -1000),)
    assert made.scales == ()


def test_the_count_is_lowered_when_the_mark_is_seen() -> None:
    observed = complete(replicas=1)
    observed.pods[1]["metadata"]["annotations"] = {POD_DELETION_COST: "-1000"}
    loads = {"p0": LoadReport(running=1), "p1": LoadReport(running=9)}
    made = plan(replace(observed, loads=loads), NOW)

    assert made.marks == (), "a mark does not wander with the load"
    assert made.scales == (Scale(f"llama-{revision(observed)}", 1),)


def test_the_mark_stays_until_the_pod_is_gone() -> None:
    observed = complete(replicas=1, live=1)
    pods = (
        pod("p0", revision(observed), ready=True),
        pod("p1", revision(observed), ready=True, cost=-1000),
    )
    made = plan(replace(observed, pods=pods), NOW)

    assert made.marks == ()


def test_a_mark_is_lifted_when_the_pod_stays_after_all() -> None:
    observed = complete()
    observed.pods[1]["metadata"]["annotations"] = {POD_DELETION_COST: "-1000"}

    assert plan(observed, NOW).marks == (Mark("p1", None),)


def test_a_pod_that_does_not_serve_goes_without_a_mark() -> None:
    observed = complete(replicas=1)
    pods = (pod("p0", revision(observed), ready=True), pod("p1", revision(observed)))
    made = plan(replace(observed, pods=pods), NOW)

    assert made.marks == ()
    assert made.scales == (Scale(f"llama-{revision(observed)}", 1),)


def test_growing_needs_no_mark() -> None:
    observed = complete(replicas=3)

    assert plan(observed, NOW).scales == (Scale(f"llama-{revision(observed)}", 3),)


SCALING = {"minReplicas": 0, "maxReplicas": 4}


def test_at_zero_the_pools_own_service_leads_to_the_gateways() -> None:
    observed = replace(complete(replicas=0, live=0, scaling=SCALING), gateways=("10.0.0.2", "10.0.0.1"))
    made = plan(observed, NOW)
    slices = [item for item in made.applies if item["kind"] == "EndpointSlice"]

    assert [entry["addresses"] for entry in slices[0]["endpoints"]] == [["10.0.0.1"], ["10.0.0.2"]]
    assert slices[0]["metadata"]["labels"]["kubernetes.io/service-name"] == "llama"


def test_the_slice_goes_with_the_first_ready_pod() -> None:
    empty = replace(complete(replicas=0, live=0, scaling=SCALING), gateways=("10.0.0.1",))
    made = next(item for item in plan(empty, NOW).applies if item["kind"] == "EndpointSlice")
    observed = complete(replicas=1, live=1, scaling=SCALING)
    served = replace(observed, objects=(*observed.objects, stored(made)), gateways=("10.0.0.1",))

    assert [doomed.name for doomed in plan(served, NOW).deletes] == ["llama-gateway"]


def test_zero_by_design_is_ready() -> None:
    status = complete(replicas=0, live=0, scaling=SCALING).raw_status
    ready = condition(dict(status), "Ready")

    assert (ready["status"], ready["reason"]) == ("True", "ScaledToZero")


def test_old_pods_never_make_a_changed_pool_ready() -> None:
    observed = complete()
    changed = replace(observed, pool=observe(raw_pool(generation=2, engine={"maxModelLen": 99})).pool)
    status = plan(changed, NOW).status

    assert status is not None
    assert condition(status, "Ready")["status"] == "False"
    assert condition(status, "Ready")["observedGeneration"] == 2
    assert (status["readyReplicas"], status["updatedReplicas"]) == (2, 0)


def test_missing_accelerators_are_counted() -> None:
    observed = complete(replicas=3, live=3, accelerator={"count": 2}, parallelism={"tensor": 2})
    waiting = tuple(pod(f"w{n}", revision(observed), scheduled=False) for n in range(2))
    status = plan(replace(observed, pods=(pod("p0", revision(observed), ready=True), *waiting)), NOW).status

    assert status is not None
    capacity = condition(status, "CapacityAvailable")
    assert (capacity["status"], capacity["reason"]) == ("False", "InsufficientAccelerators")
    assert "2 pods wait for 4 more nvidia.com/gpu" in capacity["message"]


@pytest.mark.parametrize(
    ("age_seconds", "expected"), [(100.0, 3501.0), (3590.0, 11.0)], ids=["early", "just before"]
)
def test_a_look_is_asked_for_when_a_deadline_will_pass(age_seconds: float, expected: float) -> None:
    observed = complete(replicas=1, live=1)
    item = next(item for item in observed.objects if item["kind"] == "Deployment")
    item["metadata"]["creationTimestamp"] = "2020-01-01T00:00:00Z"
    loading = (pod("p0", revision(observed), age_seconds=age_seconds),)

    assert plan(replace(observed, pods=loading), NOW).requeue_after_seconds == expected


def test_transition_times_move_only_with_the_status() -> None:
    observed = complete(replicas=1, live=1)
    since = condition(dict(observed.raw_status), "Ready")["lastTransitionTime"]
    status = plan(replace(observed, pool=observe(raw_pool(replicas=1, generation=2)).pool), NOW + 500).status

    assert status is not None
    assert condition(status, "Ready")["lastTransitionTime"] == since


def decided(at: float, replicas: int = 2, message: str = "KV at 40%") -> Decision:
    return Decision(time=at, replicas=replicas, reason="WithinTargets", message=message, binding="kv")


def test_live_figures_are_written_once_a_minute_at_most() -> None:
    observed = complete(scaling={"maxReplicas": 4})
    first = replace(observed, decision=decided(NOW))
    status = plan(first, NOW).status
    assert status is not None

    def later(seconds: float, message: str) -> Object | None:
        look = replace(first, raw_status=status, decision=decided(NOW + seconds, message=message))
        return plan(look, NOW + seconds).status

    assert later(30, "KV at 60%") is None, "a figure alone is not worth a write within the minute"
    assert later(61, "KV at 60%") is not None
    assert later(3600, "KV at 40%") is None, "nothing moved"


def test_a_changed_decision_is_written_at_once_and_told() -> None:
    observed = complete(scaling={"maxReplicas": 4})
    status = plan(replace(observed, decision=decided(NOW)), NOW).status
    assert status is not None
    made = plan(replace(observed, raw_status=status, decision=decided(NOW + 5, 3, "KV at 90%")), NOW + 5)

    assert made.status is not None
    assert made.status["scaling"]["lastDecision"]["replicas"] == 3
    assert [(note.reason, "KV at 90%" in note.message) for note in made.notes] == [("WithinTargets", True)]


def test_events_tell_what_changed_and_only_that() -> None:
    observed = complete(replicas=1, live=1)
    crash = {
        "state": {"waiting": {"reason": "CrashLoopBackOff"}},
        "lastState": {"terminated": {"exitCode": 1, "message": "ValueError: no"}},
    }
    failing = replace(observed, pods=(pod("p0", revision(observed), engine=crash),))
    first = plan(failing, NOW)
    assert first.status is not None
    second = plan(replace(failing, raw_status=first.status), NOW)

    assert [(note.severity, note.reason) for note in first.notes] == [("Warning", "EngineCrashed")]
    assert second.notes == ()


def test_figures_are_shown_in_buckets_and_only_when_they_are_figures() -> None:
    samples = {
        "kvUtilization": "0.4137 (2 of 3 pods)",
        "outputTokensPerSecond": "1234.5",
        "timeToFirstTokenSeconds": "stale (too old): 0.2, 300 s old",
    }
    decision = replace(decided(NOW), samples=samples)
    status = plan(replace(complete(scaling={"maxReplicas": 4}), decision=decision), NOW).status

    assert status is not None
    assert {key: value for key, value in status["figures"].items() if key != "time"} == {
        "kvUtilization": "40%",
        "outputTokensPerSecond": "1200",
    }


def test_pools_with_one_model_name_are_both_told_which_of_them_the_gateways_take() -> None:
    mine, other = complete(), "aaa/first"
    made = plan(replace(mine, namesakes={"llama": (other,)}), NOW)
    turned = plan(replace(mine, namesakes={"llama": ("zzz/last",)}), NOW)

    assert made.status is not None
    assert turned.status is not None
    told = condition(made.status, "Degraded")
    assert (told["status"], told["reason"]) == ("True", "ModelNameShared")
    assert "gateways lead it to aaa/first" in told["message"]
    assert "gateways lead it to this pool" in condition(turned.status, "Degraded")["message"]
    assert condition(made.status, "Ready")["status"] == "True", "the pool itself serves"
    assert [note.reason for note in made.notes] == ["ModelNameShared"]


def test_what_a_pool_of_the_same_name_was_made_to_leave_is_taken_over() -> None:
    observed = complete()
    for item in observed.objects:
        item["metadata"]["ownerReferences"] = []
    made = plan(observed, NOW)

    assert {item["kind"] for item in made.applies} >= {"Deployment", "Service", "ConfigMap"}
    assert made.applies[-1]["spec"]["replicas"] == 2, "with the pods that it has"
    assert made.applies[-1]["metadata"]["ownerReferences"][0]["uid"] == "uid-llama"


def test_a_left_deployment_of_another_revision_is_drained_and_then_deleted() -> None:
    observed = complete()
    left = next(item for item in observed.objects if item["kind"] == "Deployment")
    left["metadata"]["ownerReferences"] = []
    changed = observe(raw_pool(replicas=2, engine={"maxModelLen": 99})).pool
    bare = observe(raw_pool(replicas=2, engine={"maxModelLen": 99}))
    made = render(bare.pool, SETTINGS)
    new = stored(stamped(deployment(bare.pool, made, 2)))
    pods = tuple(pod(f"n{number}", made.revision, ready=True) for number in range(2))
    rolled = replace(observed, pool=changed, objects=(*observed.objects, new), pods=(*observed.pods, *pods))
    emptied = {**left, "spec": {**left["spec"], "replicas": 0}}
    done = replace(rolled, objects=(*(item for item in rolled.objects if item is not left), emptied), pods=pods)

    assert Scale(left["metadata"]["name"], 0) in plan(rolled, NOW).scales
    assert [doomed.name for doomed in plan(done, NOW).deletes] == [left["metadata"]["name"]]


def test_a_pool_that_goes_needs_no_sound_spec() -> None:
    raw = raw_pool(engine="fast", replicas=2)
    raw["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"

    assert plan(observe(raw), NOW) == Plan()


def test_old_engines_keep_their_name_and_answer_to_the_new_one() -> None:
    observed = complete()
    asked = raw_pool(replicas=2, model={"uri": "hf://acme/llama", "name": "llama-next", "aliases": ["chat"]})
    changed = observe(asked)
    new = render(changed.pool, SETTINGS)
    objects = (*observed.objects, stored(stamped(deployment(changed.pool, new, 1))))
    pods = (*observed.pods, pod("n0", new.revision))
    given = {
        item["metadata"]["name"]: (settings.model, settings.aliases)
        for settings, group in settings_by_pods(replace(changed, objects=objects, pods=pods))
        for item in group
    }

    old = ("llama", ("llama-next", "chat"))
    assert given == {"p0": old, "p1": old, "n0": ("llama-next", ("chat",))}


def test_the_old_name_as_an_alias_is_not_doubled() -> None:
    observed = complete()
    changed = observe(raw_pool(model={"uri": "hf://acme/llama", "name": "next", "aliases": ["llama"]}))
    ((settings, _),) = settings_by_pods(replace(changed, objects=observed.objects, pods=observed.pods))

    assert (settings.model, settings.aliases) == ("llama", ("next",))
