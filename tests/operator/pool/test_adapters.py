"""Adapters of a spec: what makes new pods and what does not, what sidecars are told, what the status says."""

from dataclasses import replace
from typing import Any

import pytest

from pools.objects import NOW, SETTINGS, condition, observe, pod, raw_pool, stored
from tidepool_api.load import LoadReport
from tidepool_operator.pool.drift import stamped
from tidepool_operator.pool.model import Object, Observed, Plan
from tidepool_operator.pool.plan import plan
from tidepool_operator.pool.reasons import Reason
from tidepool_operator.pool.render import Rendered, deployment, render
from tidepool_operator.pool.served import settings_by_pods

SQL = {"name": "sql", "uri": "hf://acme/sql-lora"}
TAX = {"name": "tax", "uri": "pvc://adapters/tax"}
CLAIM = {"persistentVolumeClaim": "models"}


def model(*adapters: Object, uri: str = "pvc://models/llama", **rest: Any) -> Object:
    return {"model": {"uri": uri, "adapters": list(adapters), **rest}}


def rendered(**spec: Any) -> Rendered:
    observed = observe(raw_pool(**spec))
    assert observed.problems == ()
    return render(observed.pool, SETTINGS)


def look(*, live: int = 2, objects: tuple[Object, ...] = (), loads: Any = None, **spec: Any) -> Observed:
    """A pool that serves this spec with `live` pods."""
    bare = observe(raw_pool(replicas=live, **spec))
    made = render(bare.pool, SETTINGS)
    items = tuple(stored(stamped(item)) for item in (*made.objects, deployment(bare.pool, made, live)))
    pods = tuple(pod(f"p{number}", made.revision, ready=True) for number in range(live))
    return replace(bare, objects=(*items, *objects), pods=pods, loads=loads or {})


def told(observed: Observed) -> dict[str, dict[str, str] | None]:
    """Adapters that the sidecar of each pod is to load."""
    return {
        item["metadata"]["name"]: None
        if settings.adapters is None
        else {one.name: one.path for one in settings.adapters}
        for settings, pods in settings_by_pods(observed)
        for item in pods
    }


def test_an_engine_without_adapters_is_started_as_ever() -> None:
    made = rendered()

    assert "lora" not in str(made.template)
    assert "adapters" not in str(made.objects)


def test_engines_are_started_so_that_they_can_take_adapters() -> None:
    made = rendered(**model(SQL))
    environment = {entry["name"]: entry.get("value") for entry in made.template["spec"]["containers"][0]["env"]}

    assert made.engine_args[-2:] == ("--enable-lora", "--max-loras=4")
    assert environment["VLLM_ALLOW_RUNTIME_LORA_UPDATING"] == "True"


@pytest.mark.parametrize(
    ("before", "after", "same", "why"),
    [
        (model(SQL), model(SQL, {"name": "law", "uri": "hf://acme/law"}), True, "a further one"),
        (model(SQL), model({**SQL, "uri": "hf://acme/sql-2"}), True, "another version of one"),
        (model(SQL, TAX), model(TAX), True, "one less"),
        (model(adapterSlots=2), model(SQL, adapterSlots=2), True, "the first, where slots are held ready"),
        (model(SQL), model(SQL, {"name": "law", "uri": "pvc://models/law"}), True, "on the model's own claim"),
        (model(TAX), model(TAX, {"name": "law", "uri": "pvc://adapters/law"}), True, "on a claim that is mounted"),
        (model(), model(SQL), False, "the first: engines must be started for it"),
        (model(SQL), model(SQL, TAX), False, "on a claim that pods do not mount"),
        (model(SQL), model(SQL, adapterSlots=8), False, "more slots"),
    ],
)
def test_what_makes_new_pods(before: Object, after: Object, same: bool, why: str) -> None:
    assert (rendered(**before).revision == rendered(**after).revision) is same, why


def test_where_adapters_lie() -> None:
    adapters = (
        SQL,
        TAX,
        {"name": "law", "uri": "pvc://models/law"},
        {"name": "own", "uri": "file:///opt/own"},
    )

    assert told(look(**model(*adapters)))["p0"] == {
        "sql": "acme/sql-lora",
        "tax": "/adapters/adapters/tax",
        "law": "/models/law",
        "own": "/opt/own",
    }


def test_a_pool_without_adapters_leaves_them_to_the_engines_own_flags() -> None:
    assert told(look())["p0"] is None
    assert told(look(**model(adapterSlots=2)))["p0"] == {}


def test_what_is_fetched_into_the_cache_is_told_of_when_it_is_there() -> None:
    store = {"name": "law", "uri": "s3://adapters/law"}
    spec = {**model(store), "cache": CLAIM}
    observed = look(**spec)
    (job,) = [item for item in plan(observed, NOW).applies if item["kind"] == "Job"]
    loader = job["spec"]["template"]["spec"]["containers"][0]

    assert loader["args"][1] == "s3://adapters/law"
    assert told(observed)["p0"] == {}
    done = {**stored(job), "status": {"conditions": [{"type": "Complete", "status": "True"}]}}
    after = replace(observed, objects=(*observed.objects, done))
    assert told(after)["p0"] == {"law": loader["args"][2]}
    mounts = {one["name"]: one for one in rendered(**spec).template["spec"]["containers"][0]["volumeMounts"]}
    assert loader["args"][2].startswith(mounts["cache"]["mountPath"])


def test_a_preloaded_model_has_its_hub_adapters_fetched_by_jobs_too_since_its_engines_are_offline() -> None:
    observed = observe(raw_pool(**model(SQL, uri="hf://acme/llama"), cache=CLAIM))
    jobs = [item for item in plan(observed, NOW).applies if item["kind"] == "Job"]

    assert sorted(job["spec"]["template"]["spec"]["containers"][0]["args"][1] for job in jobs) == [
        "hf://acme/llama",
        "hf://acme/sql-lora",
    ]


def test_the_models_credentials_go_to_no_other_kind_of_store() -> None:
    spec = model({"name": "law", "uri": "s3://adapters/law"}, uri="hf://acme/llama", authSecretRef={"name": "hf"})
    observed = observe(raw_pool(**spec, cache=CLAIM))
    jobs = {
        item["spec"]["template"]["spec"]["containers"][0]["args"][1]: str(item)
        for item in plan(observed, NOW).applies
        if item["kind"] == "Job"
    }

    assert "secretKeyRef" in jobs["hf://acme/llama"]
    assert "secretKeyRef" not in jobs["s3://adapters/law"]


def test_pods_wait_for_the_model_and_not_for_an_adapter() -> None:
    spec = {**model({"name": "law", "uri": "s3://adapters/law"}), "cache": CLAIM}
    made = plan(observe(raw_pool(**spec)), NOW)

    assert [item["kind"] for item in made.applies][-1] == "Deployment"


def test_engines_of_an_earlier_revision_are_told_of_what_they_can_load() -> None:
    new = look(**model(SQL, TAX, {"name": "law", "uri": "pvc://models/law"}))
    plain, earlier = look(live=1), look(live=1, **model(SQL))
    renamed = [
        {**item, "metadata": {**item["metadata"], "name": name}}
        for name, item in (("plain", plain.pods[0]), ("earlier", earlier.pods[0]))
    ]
    olds = tuple(item for one in (plain, earlier) for item in one.objects if item["kind"] == "Deployment")
    found = told(replace(new, objects=(*new.objects, *olds), pods=(*new.pods, *renamed)))

    assert set(found["p0"] or {}) == {"sql", "tax", "law"}
    assert found["plain"] is None, "it was not started for adapters"
    assert set(found["earlier"] or {}) == {"sql", "law"}, "it does not mount the claim of the other"


def entries(made: Plan) -> dict[str, tuple[str, int, str | None]]:
    assert made.status is not None
    return {
        one["name"]: (one["state"], one["loadedReplicas"], one.get("reason")) for one in made.status["adapters"]
    }


def reports(*served: tuple[str, ...], failed: tuple[tuple[str, str], ...] = ()) -> dict[str, LoadReport]:
    return {
        f"p{number}": LoadReport(pod=f"p{number}", served_adapters=names, adapters_failed=failed)
        for number, names in enumerate(served)
    }


def test_sidecars_are_asked_how_far_adapters_are() -> None:
    assert plan(look(**model(SQL)), NOW).wants_loads
    assert not plan(look(**model(SQL), loads=reports(("sql",), ("sql",))), NOW).wants_loads
    assert not plan(look(), NOW).wants_loads


@pytest.mark.parametrize(
    ("loads", "expected", "why"),
    [
        (reports(("sql",), ("sql",)), ("Loaded", 2, None), "everywhere"),
        (reports(("sql",), ()), ("Loading", 1, None), "in one of two"),
        (reports(("sql",)), ("Loading", 1, None), "one does not answer"),
    ],
)
def test_the_status_of_an_adapter(loads: Any, expected: Any, why: str) -> None:
    made = plan(look(**model(SQL), loads=loads), NOW)

    assert entries(made)["sql"] == expected, why
    assert made.requeue_after_seconds is None or expected[0] == "Loading", why


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        ("Loading lora sql failed: No adapter found for acme/sql-lora", Reason.ADAPTER_NOT_FOUND),
        (
            "Call to add_lora method failed: Worker failed with error 'LoRA rank 64 is greater than max_lora_rank "
            "16.', please check the stack trace above for the root cause",
            Reason.ADAPTER_REFUSED,
        ),
        ("Call to add_lora method failed: LoRA rank 64 is greater than max_lora_rank 16.", Reason.ADAPTER_REFUSED),
        ("something new", Reason.ADAPTER_FAILED),
    ],
)
def test_an_adapter_that_engines_refuse_has_a_reason_and_leaves_the_pool_ready(said: str, reason: Reason) -> None:
    made = plan(look(**model(SQL), loads=reports((), (), failed=(("sql", said),))), NOW)
    assert made.status is not None

    assert entries(made)["sql"] == ("Failed", 0, reason)
    assert condition(made.status, "Ready")["status"] == "True"
    degraded = condition(made.status, "Degraded")
    assert (degraded["status"], degraded["reason"]) == ("True", reason)
    assert "sql" in degraded["message"]
    assert made.requeue_after_seconds, "nobody tells when it is mended"


def test_an_adapter_that_is_fetched_says_so_and_one_without_a_pod_waits() -> None:
    spec = {**model({"name": "law", "uri": "s3://adapters/law"}, SQL), "cache": CLAIM}
    loads = reports((), ())

    assert entries(plan(look(**spec, loads=loads), NOW))["law"] == ("Fetching", 0, None)
    assert entries(plan(observe(raw_pool(**model(SQL))), NOW))["sql"] == ("Waiting", 0, None)


def test_adapters_that_are_taken_out_leave_the_status() -> None:
    observed = look(**model(adapterSlots=2))
    before = {"adapters": [{"name": "sql", "state": "Loaded", "loadedReplicas": 2}]}
    made = plan(replace(observed, raw_status=before), NOW)

    assert made.status is not None
    assert made.status["adapters"] is None
