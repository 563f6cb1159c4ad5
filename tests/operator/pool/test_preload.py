"""Files come before pods: Jobs that load a model into the pool's cache."""

from dataclasses import replace
from typing import Any

import pytest

from pools.objects import NOW, SETTINGS, condition, observe, pod, raw_pool, stored
from tidepool_api import contract
from tidepool_operator.pool import loader
from tidepool_operator.pool.clues import Question, wanted
from tidepool_operator.pool.drift import stamped
from tidepool_operator.pool.model import Clues, Object, Observed, Plan
from tidepool_operator.pool.plan import plan
from tidepool_operator.pool.preload import JOB_LABEL, there, unready
from tidepool_operator.pool.reasons import Reason
from tidepool_operator.pool.render import deployment, render

CACHED = {"model": {"uri": "hf://acme/llama"}, "cache": {"persistentVolumeClaim": "models"}}
DONE = [{"type": "SuccessCriteriaMet", "status": "True"}, {"type": "Complete", "status": "True"}]


def look(*objects: Object, pods: tuple[Object, ...] = (), settings: Any = SETTINGS, **spec: Any) -> Observed:
    observed = observe(raw_pool(**{**CACHED, **spec}), objects=objects, pods=pods)
    return replace(observed, settings=settings)


def jobs(made: Plan) -> list[Object]:
    return [item for item in made.applies if item["kind"] == "Job"]


def job_of(observed: Observed, conditions: list[Object] = DONE, **status: Any) -> Object:
    """The Job that a first look makes, as the API server stores it, having come so far."""
    (item,) = jobs(plan(replace(observed, objects=()), NOW))
    return {**stored(item), "status": {"conditions": conditions, **status}}


def said_of(made: Plan, kind: str) -> tuple[str, str]:
    assert made.status is not None
    found = condition(made.status, kind)
    return found["status"], found["reason"]


def loader_pod(job: Object, **status: Any) -> Object:
    found = pod("loading-1", "")
    found["metadata"]["labels"] = {
        contract.LOADS_FOR_LABEL: "llama",
        JOB_LABEL: job["metadata"]["name"],
    }
    del found["status"]["initContainerStatuses"]
    found["status"]["containerStatuses"] = [{"name": "loader", "restartCount": 3, "ready": False, **status}]
    return found


def serving(observed: Observed, replicas: int = 2) -> tuple[tuple[Object, ...], tuple[Object, ...]]:
    """Objects and pods of a pool that serves this spec."""
    made = render(observed.pool, SETTINGS)
    items = tuple(stored(stamped(item)) for item in (*made.objects, deployment(observed.pool, made, replicas)))
    return items, tuple(pod(f"p{number}", made.revision, ready=True) for number in range(replicas))


def test_files_are_loaded_before_there_is_a_pod() -> None:
    made = plan(look(replicas=2), NOW)
    (job,) = jobs(made)

    assert "Deployment" not in [item["kind"] for item in made.applies]
    assert [item["kind"] for item in made.checks] == ["Deployment"], (
        "what can never work is told before hours of loading"
    )
    assert job["spec"]["template"]["spec"]["containers"][0]["args"][:2] == [
        "load",
        "hf://acme/llama",
    ]
    assert job["metadata"]["ownerReferences"][0]["uid"] == "uid-llama"
    assert said_of(made, "Ready") == ("False", "Preloading")
    assert said_of(made, "Progressing") == ("True", "Preloading")
    assert said_of(made, "Degraded") == ("False", "Healthy")


def test_pods_are_made_when_the_job_is_done_and_find_what_it_brought() -> None:
    first = look(replicas=2)
    job = job_of(first)
    made = plan(replace(first, objects=(job,)), NOW)
    (item,) = [item for item in made.applies if item["kind"] == "Deployment"]
    spec = item["spec"]["template"]["spec"]
    engine = spec["containers"][0]
    loader = job["spec"]["template"]["spec"]["containers"][0]
    variables = {entry["name"]: entry.get("value") for entry in engine["env"]}
    mounts = {entry["name"]: entry for entry in engine["volumeMounts"]}

    assert jobs(made) == []
    assert engine["args"][0] == f"--model={loader['args'][2]}"
    assert loader["args"][2].startswith(mounts["cache"]["mountPath"] + "/")
    assert mounts["cache"]["readOnly"]
    assert variables["HF_HUB_OFFLINE"] == variables["TRANSFORMERS_OFFLINE"] == "1"
    assert {"name": "cache", "persistentVolumeClaim": {"claimName": "models"}} in spec["volumes"]


def test_the_old_model_serves_on_in_full_while_the_new_one_is_loaded() -> None:
    before = look(replicas=3)
    items, pods = serving(before)
    old = job_of(before)
    now = look(*items, old, pods=pods, replicas=3, model={"uri": "hf://acme/llama-2"})
    made = plan(now, NOW)

    assert len(jobs(made)) == 1
    assert [scale.replicas for scale in made.scales] == [3], "what is wanted more meanwhile the old revision takes"
    assert [item["kind"] for item in made.applies if item["kind"] == "Deployment"] == []
    assert "2 pods of an earlier revision serve" in str(made.status)


def test_a_revision_that_serves_is_not_taken_down_for_files_that_are_not_known_to_be_there() -> None:
    observed = look(replicas=3)
    items, pods = serving(observed, 2)
    made = plan(replace(observed, objects=items, pods=pods), NOW)

    assert len(jobs(made)) == 1, "somebody has deleted the Job, which is the record"
    assert [scale.replicas for scale in made.scales] == [3], "it goes on as ever"
    assert said_of(made, "Ready") == ("True", "Serving")


def test_a_change_of_arguments_loads_nothing_anew_and_one_of_the_model_does() -> None:
    first = look()
    job = job_of(first)
    items, pods = serving(first)
    args = plan(look(*items, job, pods=pods, engine={"maxModelLen": 9}), NOW)
    other = plan(look(*items, job, pods=pods, model={"uri": "hf://acme/llama", "revision": "v2"}), NOW)

    assert jobs(args) == []
    assert args.deletes == ()
    assert len(jobs(other)) == 1
    assert [(doomed.kind, doomed.name) for doomed in other.deletes] == [("Job", job["metadata"]["name"])]


def test_an_upgrade_of_the_operator_loads_nothing_anew_and_restarts_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nor where it loads otherwise: with another image, arguments, variables, limits."""
    first = look(replicas=2)
    items, pods = serving(first)
    newer, job, now = replace(SETTINGS, router_image="tidepool-router:next"), job_of(first), loader.container

    def to_come(*given: Any) -> Object:
        return {**now(*given), "resources": {}, "args": ["fetch"], "env": [{"name": "THREADS", "value": "8"}]}

    monkeypatch.setattr(loader, "container", to_come)
    made = plan(look(*items, job, pods=pods, settings=newer, replicas=2), NOW)

    assert (made.applies, made.scales, made.deletes) == ((), (), ())


def test_a_pool_that_keeps_nothing_any_more_keeps_no_job() -> None:
    job = job_of(look())
    made = plan(observe(raw_pool(), objects=(job,)), NOW)

    assert [doomed.name for doomed in made.deletes] == [job["metadata"]["name"]]


def test_a_job_that_an_earlier_pool_of_that_name_left_is_made_anew_as_our_own() -> None:
    first = look()
    left = job_of(first)
    left["metadata"]["ownerReferences"] = []
    made = plan(replace(first, objects=(left,)), NOW)

    assert [doomed.name for doomed in made.deletes] == [left["metadata"]["name"]]
    assert jobs(made) == [], "its name is taken until it is gone"
    assert said_of(made, "Ready") == ("False", "Preloading")


def test_a_job_that_somebody_made_fail_is_made_anew() -> None:
    first = look()
    failed = job_of(first, [{"type": "Failed", "status": "True"}])

    assert [doomed.kind for doomed in plan(replace(first, objects=(failed,)), NOW).deletes] == ["Job"]


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        (
            "huggingface_hub.errors.GatedRepoError: 403 Client Error. Cannot access gated repo",
            Reason.MODEL_GATED,
        ),
        (
            "tidepool_router.loading.errors.StorageAccessDeniedError: s3://m/llama: SignatureDoesNotMatch",
            Reason.STORAGE_ACCESS_DENIED,
        ),
        ("OSError: [Errno 28] No space left on device", Reason.DISK_FULL),
        ("RuntimeError: something new", Reason.LOADER_FAILED),
    ],
)
def test_a_job_that_does_not_get_on_says_why(said: str, reason: Reason) -> None:
    first = look()
    job = job_of(first, [], active=1, ready=0)
    ended = {"exitCode": 1, "message": f"2026-01-01 tidepool.load: starting\n{said}\n"}
    broken = loader_pod(job, state={"waiting": {"reason": "CrashLoopBackOff"}}, lastState={"terminated": ended})
    asked = wanted(broken)
    made = plan(replace(first, objects=(job,), loaders=(broken,)), NOW)

    assert unready(replace(first, objects=(job,))) == (job["metadata"]["name"],)
    assert asked is not None
    assert asked.container == "loader"
    assert Question.LOG in asked.questions
    assert said_of(made, "Ready") == ("False", reason)
    assert said_of(made, "Degraded") == ("True", reason)
    assert said.partition(": ")[2].partition(":")[0] in str(made.status)


@pytest.mark.parametrize(
    ("state", "more"),
    [
        ({"waiting": {"reason": "ContainerCreating"}}, {}),
        ({"running": {"startedAt": "2026-01-01T00:00:00Z"}}, {}),
        ({"running": {"startedAt": "2026-01-01T00:00:00Z"}}, {"deletionTimestamp": "2026-01-01T00:01:00Z"}),
        ({"terminated": {"exitCode": 0, "reason": "Completed", "message": "s3://m is in 0 s at /cache"}}, {}),
    ],
    ids=["starts", "runs", "goes", "is done before its Job"],
)
def test_a_job_whose_pod_is_well_loads_files_and_nothing_more(state: Object, more: Object) -> None:
    """A pod that starts, or one that has just ended well, is not the reason of an adapter that failed."""
    first = look()
    job = job_of(first, [], active=1)
    well = loader_pod(job, state=state)
    well["metadata"] |= more
    made = plan(replace(first, objects=(job,), loaders=(well,)), NOW)

    assert said_of(made, "Ready") == ("False", "Preloading")
    assert said_of(made, "Degraded") == ("False", "Healthy")
    assert f"loads {CACHED['model']['uri']} into the cache" in str(made.status)


def test_a_job_whose_claim_is_missing_says_so() -> None:
    first = look()
    job = job_of(first, [], active=1)
    stuck = loader_pod(job)
    stuck["status"] = {
        "phase": "Pending",
        "conditions": [
            {
                "type": "PodScheduled",
                "status": "False",
                "reason": "Unschedulable",
                "message": '0/2 nodes are available: persistentvolumeclaim "models" not found.',
            }
        ],
    }
    made = plan(replace(first, objects=(job,), loaders=(stuck,)), NOW)

    assert said_of(made, "Ready") == ("False", "VolumePending")
    assert said_of(made, "CapacityAvailable") == ("False", "VolumePending")
    assert made.requeue_after_seconds, "nobody tells of pods that are not watched"


def test_a_job_that_runs_is_not_asked_about() -> None:
    job = job_of(look(), [], active=1, ready=1)

    assert unready(look(job)) == ()
    assert unready(look(job_of(look()))) == ()


def test_the_jobs_pods_are_none_of_the_pools() -> None:
    template = jobs(plan(look(), NOW))[0]["spec"]["template"]

    assert contract.POOL_LABEL not in template["metadata"]["labels"]
    assert contract.ROLE_LABEL not in template["metadata"]["labels"]


def test_the_job_goes_where_the_engines_go_and_asks_for_no_device() -> None:
    accelerator = {"nodeSelector": {"gpu": "h100"}, "tolerations": [{"operator": "Exists"}]}
    own = {
        "imagePullSecrets": [{"name": "registry"}],
        "containers": [{"name": "engine", "resources": {"limits": {"memory": "64Gi"}}}],
        "volumes": [{"name": "scratch", "emptyDir": {}}],
    }
    spec = jobs(plan(look(accelerator=accelerator, podTemplate={"spec": own}), NOW))[0]["spec"]["template"]["spec"]

    assert spec["nodeSelector"] == {"gpu": "h100"}
    assert spec["tolerations"] == [{"operator": "Exists"}]
    assert spec["imagePullSecrets"] == [{"name": "registry"}]
    assert [one["name"] for one in spec["containers"]] == ["loader"]
    assert [one["name"] for one in spec["volumes"]] == ["tmp", "cache"]
    assert "nvidia.com/gpu" not in str(spec["containers"])


def test_another_secret_makes_another_job_for_the_same_files() -> None:
    first, other = (
        jobs(plan(look(model={"uri": "hf://acme/llama", "authSecretRef": {"name": name}}), NOW))[0]
        for name in ("one", "two")
    )

    def args(job: Object) -> list[str]:
        return list(job["spec"]["template"]["spec"]["containers"][0]["args"])

    assert first["metadata"]["name"] != other["metadata"]["name"]
    assert args(first) == args(other)


def test_the_longest_name_of_a_pool_leaves_room_for_a_label() -> None:
    observed = observe(raw_pool("a" * 50, **CACHED))

    assert len(jobs(plan(observed, NOW))[0]["metadata"]["name"]) <= 63


def test_a_pod_whose_loader_fails_says_why() -> None:
    spec = {"model": {"uri": "s3://models/llama"}}
    observed = observe(raw_pool(**spec))
    revision = render(observed.pool, SETTINGS).revision
    line = "tidepool_router.loading.errors.StorageNotFoundError: s3://models/llama: there are no files"
    ended = {"terminated": {"exitCode": 1, "message": line}}
    loader = {"name": "loader", "ready": False, "restartCount": 2, "state": {"waiting": {}}, "lastState": ended}
    broken = pod("p1", revision)
    broken["status"]["initContainerStatuses"].append(loader)
    broken["status"]["containerStatuses"] = [
        {"name": "engine", "ready": False, "state": {"waiting": {"reason": "PodInitializing"}}}
    ]
    asked = wanted(broken)
    made = plan(replace(observed, pods=(broken,), clues={"p1": Clues()}), NOW)

    assert asked is not None
    assert asked.container == "loader"
    assert said_of(made, "Ready") == ("False", "ModelNotFound")


def test_an_init_container_that_ended_well_is_no_crash() -> None:
    observed = observe(raw_pool())
    revision = render(observed.pool, SETTINGS).revision
    loading = pod("p1", revision)
    done = {"state": {"terminated": {"exitCode": 0}}, "ready": True, "restartCount": 0}
    loading["status"]["initContainerStatuses"].append({"name": "loader", **done})
    made = plan(replace(observed, pods=(loading,)), NOW)

    assert said_of(made, "Ready") == ("False", "Loading")


DELETES = {"cache": {"persistentVolumeClaim": "models", "retention": "Delete"}}


def moved_on(*jobs: Object, deployments: tuple[Object, ...] = ()) -> Plan:
    """The pool wants another model by now, which is loaded and serves."""
    now = look(model={"uri": "hf://acme/llama-2"}, **DELETES)
    items, pods = serving(now)
    return plan(
        look(*items, *deployments, job_of(now), *jobs, pods=pods, model={"uri": "hf://acme/llama-2"}, **DELETES),
        NOW,
    )


def test_files_go_when_nothing_needs_them_and_their_job_after_them() -> None:
    secret = {"model": {"uri": "hf://acme/llama", "authSecretRef": {"name": "hf"}}}
    old = job_of(look(**DELETES, **secret))
    made = moved_on(old)
    (drop,) = jobs(made)
    (container,) = drop["spec"]["template"]["spec"]["containers"]

    assert made.deletes == ()
    assert container["args"][0] == "drop"
    assert container["args"][1] == old["spec"]["template"]["spec"]["containers"][0]["args"][2]
    assert drop["spec"]["template"]["spec"]["volumes"] == old["spec"]["template"]["spec"]["volumes"]
    assert "secretKeyRef" not in str(drop), "the Secret may be gone with the model"
    running = stored(drop)
    assert (jobs(moved_on(old, running)), moved_on(old, running).deletes) == ([], ())
    for kind in ("Complete", "Failed"):
        over = {**running, "status": {"conditions": [{"type": kind, "status": "True"}]}}
        assert {doomed.name for doomed in moved_on(old, over).deletes} == {
            old["metadata"]["name"],
            drop["metadata"]["name"],
        }


def test_files_of_a_revision_that_is_kept_for_a_change_back_stay() -> None:
    before = look(**DELETES)
    items, _ = serving(before, 0)
    history = tuple(item for item in items if item["kind"] == "Deployment")
    made = moved_on(job_of(before), deployments=history)

    assert (jobs(made), made.deletes) == ([], ())


def test_files_on_a_claim_of_before_are_not_there_and_go_unless_a_revision_has_them() -> None:
    other = {"cache": {"persistentVolumeClaim": "faster", "retention": "Delete"}}
    before, now = look(**DELETES), look(**other)
    old, (items, pods) = job_of(before), serving(now)
    kept = tuple(item for item in serving(before, 0)[0] if item["kind"] == "Deployment")
    made = plan(look(*items, job_of(now), old, pods=pods, **other), NOW)
    spared = plan(look(*items, *kept, job_of(now), old, pods=pods, **other), NOW)
    (drop,) = jobs(made)

    assert drop["spec"]["template"]["spec"]["volumes"] == old["spec"]["template"]["spec"]["volumes"]
    assert (made.deletes, jobs(spared), spared.deletes) == ((), [], ())
    assert there(look(old, **DELETES))
    assert not there(look(old, **other))


def test_another_secret_for_the_same_files_drops_nothing() -> None:
    old = job_of(look(**DELETES))
    secret = {"model": {"uri": "hf://acme/llama", "authSecretRef": {"name": "hf"}}}
    now = look(**DELETES, **secret)
    made = plan(replace(now, objects=(old, job_of(now))), NOW)

    assert jobs(made) == []
    assert [doomed.name for doomed in made.deletes] == [old["metadata"]["name"]]


def test_a_job_that_never_ended_goes_without_another() -> None:
    made = moved_on(job_of(look(**DELETES), []))

    assert jobs(made) == []
    assert len(made.deletes) == 1


def test_files_that_are_wanted_again_while_they_go_are_loaded_anew() -> None:
    old = job_of(look(**DELETES))
    (drop,) = jobs(moved_on(old))
    back = look(old, stored(drop), **DELETES)
    made = plan(back, NOW)

    assert {doomed.name for doomed in made.deletes} == {old["metadata"]["name"], drop["metadata"]["name"]}
    assert said_of(made, "Ready") == ("False", "Preloading")
    assert "Deployment" not in [item["kind"] for item in made.applies]
