"""Replicas on several nodes: what is made of them, how they are counted, and a cluster that cannot."""

from dataclasses import replace
from typing import Any

import pytest

from pools.objects import NOW, SETTINGS, condition, observe, pod, raw_pool, stored
from tidepool_api import contract
from tidepool_operator.pool.model import Object, Observed, Plan, Scale
from tidepool_operator.pool.plan import plan
from tidepool_operator.pool.render import render

TWO: dict[str, Any] = {"parallelism": {"tensor": 4, "pipeline": 2, "hosts": 2}, "accelerator": {"count": 4}}


def look(*, groups: bool | None = True, objects: tuple[Object, ...] = (), **spec: Any) -> Observed:
    pods = spec.pop("pods", ())
    seen = observe(raw_pool(**(TWO | spec)), objects=objects, pods=pods)
    return replace(seen, settings=replace(SETTINGS, groups=groups))


def workload(made: Plan) -> Object:
    (found,) = [item for item in made.applies if item["kind"] in ("Deployment", "LeaderWorkerSet")]
    return found


def templates(item: Object) -> tuple[Object, Object]:
    made = item["spec"]["leaderWorkerTemplate"]
    return made["leaderTemplate"], made["workerTemplate"]


def member(name: str, group: int, *, worker: bool, **rest: Any) -> Object:
    made = pod(name, revision(), **rest)
    role = contract.ROLE_WORKER if worker else contract.ROLE_MIXED
    made["metadata"]["labels"] |= {
        contract.ROLE_LABEL: role,
        "leaderworkerset.sigs.k8s.io/name": f"llama-{revision()}",
        "leaderworkerset.sigs.k8s.io/group-index": str(group),
    }
    return made


def revision() -> str:
    return render(look().pool, SETTINGS).revision


def test_a_replica_is_a_group_whose_leader_is_the_pod_that_serves() -> None:
    item = workload(plan(look(replicas=3), NOW))
    leader, worker = templates(item)

    assert (item["apiVersion"], item["kind"]) == ("leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet")
    assert (item["spec"]["replicas"], item["spec"]["leaderWorkerTemplate"]["size"]) == (3, 2)
    assert leader["metadata"]["labels"][contract.ROLE_LABEL] == "mixed"
    assert [one["name"] for one in leader["spec"]["initContainers"]] == ["router"]
    arguments = leader["spec"]["containers"][0]["args"]
    assert "--tensor-parallel-size=4" in arguments
    assert "--pipeline-parallel-size=2" in arguments
    assert {"--nnodes=2", "--node-rank=$(LWS_WORKER_INDEX)", "--master-addr=$(LWS_LEADER_ADDRESS)"} < set(
        arguments
    )
    assert "--headless" not in arguments
    assert worker["spec"]["containers"][0]["args"] == [*arguments, "--headless"]


def test_a_worker_has_nothing_for_clients_and_no_door() -> None:
    leader, worker = templates(workload(plan(look(podTemplate=_ADDED), NOW)))
    engine = worker["spec"]["containers"][0]

    assert worker["metadata"]["labels"][contract.ROLE_LABEL] == "worker"
    assert worker["metadata"]["labels"]["mine"] == leader["metadata"]["labels"]["mine"] == "1"
    assert contract.SCRAPE_ANNOTATIONS.items().isdisjoint(worker["metadata"]["annotations"].items())
    assert worker["spec"]["initContainers"] == []
    assert not {"startupProbe", "readinessProbe", "lifecycle"} & engine.keys()
    assert engine["resources"] == leader["spec"]["containers"][0]["resources"]
    assert engine["env"] == leader["spec"]["containers"][0]["env"]
    (address,) = [one for one in engine["env"] if one["name"] == "VLLM_HOST_IP"]
    assert address["valueFrom"]["fieldRef"]["fieldPath"] == "status.podIP"
    # No token to prove itself with: it speaks to nobody but its leader.
    assert [volume["name"] for volume in worker["spec"]["volumes"]] == ["tmp", "shm"]


_ADDED: dict[str, Any] = {"metadata": {"labels": {"mine": "1"}}}


def test_services_lead_to_leaders_and_engines_of_a_group_reach_each_other() -> None:
    made = {f"{item['kind']} {item['metadata']['name']}": item for item in plan(look(), NOW).applies}

    assert made["Service llama"]["spec"]["selector"][contract.ROLE_LABEL] == "mixed"
    peers = {"podSelector": {"matchLabels": {contract.POOL_LABEL: "llama"}}}
    assert {"from": [peers]} in made["NetworkPolicy llama"]["spec"]["ingress"]
    alone = {item["kind"]: item for item in plan(observe(raw_pool()), NOW).applies}
    assert {"from": [peers]} not in alone["NetworkPolicy"]["spec"]["ingress"]


def test_a_pool_of_single_pods_is_a_deployment_as_ever() -> None:
    plain = workload(plan(observe(raw_pool()), NOW))
    assert plain["kind"] == "Deployment"
    assert not any(
        one.startswith("--nnodes") for one in plain["spec"]["template"]["spec"]["containers"][0]["args"]
    )


@pytest.mark.parametrize("serving", [False, True])
def test_a_cluster_without_leaderworkersets_is_told_what_to_do_and_what_serves_goes_on(serving: bool) -> None:
    before = workload(plan(observe(raw_pool()), NOW))
    old = before["metadata"]["labels"][contract.REVISION_LABEL]
    objects, pods = ((stored(before),), (pod("old", old, ready=True),)) if serving else ((), ())
    made = plan(look(groups=False, objects=objects, pods=pods), NOW)

    assert made.status is not None
    ready = condition(made.status, "Ready")
    assert (ready["status"], ready["reason"]) == ("False", "LeaderWorkerSetMissing")
    assert "lws.sigs.k8s.io" in ready["message"]
    assert "spec.parallelism.hosts 1" in ready["message"]
    assert (made.applies, made.scales, made.deletes) == ((), (), ())
    assert [note.reason for note in made.notes] == ["LeaderWorkerSetMissing"]
    assert made.status["readyReplicas"] == int(serving)


def test_nothing_is_said_before_it_is_known_what_the_cluster_has() -> None:
    assert plan(look(groups=None), NOW) == Plan(requeue_after_seconds=1.0)


def test_a_group_is_one_replica_and_what_a_worker_lacks_the_replica_lacks() -> None:
    item = stored(workload(plan(look(replicas=2), NOW)))
    item["spec"]["replicas"] = 2
    up = (member("a-0", 0, worker=False, ready=True), member("a-0-1", 0, worker=True, ready=True))
    waits = (
        member("a-1", 1, worker=False),
        member("a-1-1", 1, worker=True, scheduled=False),
    )
    made = plan(look(replicas=2, objects=(item,), pods=(*up, *waits)), NOW)

    assert made.status is not None
    assert (made.status["replicas"], made.status["readyReplicas"]) == (2, 1)
    assert condition(made.status, "Ready")["reason"] == "Serving"
    assert condition(made.status, "CapacityAvailable")["reason"] == "InsufficientAccelerators"
    assert made.wants_room is False


def test_fewer_groups_need_no_mark_since_none_would_be_heeded() -> None:
    item = stored(workload(plan(look(replicas=2), NOW)))
    pods = tuple(
        member(f"a-{group}{'-1' if worker else ''}", group, worker=worker, ready=True)
        for group in range(2)
        for worker in (False, True)
    )
    made = plan(look(replicas=1, objects=(item,), pods=pods), NOW)

    assert made.scales == (Scale(item["metadata"]["name"], 1, "LeaderWorkerSet"),)
    assert made.marks == ()


def test_a_pool_that_grows_over_nodes_is_rolled_over_like_any_change() -> None:
    before = stored(workload(plan(observe(raw_pool(replicas=2)), NOW)))
    old = before["metadata"]["labels"][contract.REVISION_LABEL]
    serving = tuple(pod(f"old-{number}", old, ready=True) for number in range(2))
    first = plan(look(replicas=2, objects=(before,), pods=serving), NOW)

    assert workload(first)["kind"] == "LeaderWorkerSet"
    assert first.scales == ()  # the old pods serve until groups do

    made = stored(workload(first))
    groups = tuple(
        member(f"a-{group}{'-1' if worker else ''}", group, worker=worker, ready=True)
        for group in range(2)
        for worker in (False, True)
    )
    then = plan(look(replicas=2, objects=(before, made), pods=(*serving, *groups)), NOW)
    assert Scale(before["metadata"]["name"], 0) in then.scales


@pytest.mark.parametrize(("ready", "left"), [(1, 2), (0, 1)], ids=["the last serves", "the first serves"])
def test_a_group_that_serves_does_not_go_for_one_before_it_that_does_not(ready: int, left: int) -> None:
    """A LeaderWorkerSet takes its last groups, whichever serve."""
    rollout = {"maxSurge": 2, "maxUnavailable": 1}
    before = stored(workload(plan(look(replicas=2, rollout=rollout), NOW)))
    before["spec"]["replicas"] = 2
    pods = tuple(member(f"a-{group}", group, worker=False, ready=group == ready) for group in range(2))
    spec: dict[str, Any] = {"replicas": 2, "rollout": rollout, "engine": {"args": ["--max-num-seqs=8"]}}
    new = stored(workload(plan(look(objects=(before,), pods=pods, **spec), NOW)), age_seconds=5)
    new["spec"]["replicas"] = 2
    made = plan(look(objects=(before, new), pods=pods, **spec), NOW)

    expected = () if left == 2 else (Scale(before["metadata"]["name"], left, "LeaderWorkerSet"),)
    assert made.scales == expected
