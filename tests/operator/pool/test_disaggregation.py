"""Prefill and decode apart: two roles of one pool, each with a count, a rollout and a status of its own."""

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pools.objects import NOW, SETTINGS, condition, observe, pod, raw_pool, stored
from pools.world import World
from scripted.examples import examples
from tidepool_api import contract
from tidepool_operator.pool.model import Object, Observed
from tidepool_operator.pool.plan import plan
from tidepool_operator.pool.render import Rendered, fleet_pool, render, render_prefill, selector

APART: dict[str, Any] = {"disaggregation": {"prefill": {"replicas": 2}}}
MODEL: dict[str, Any] = {"model": {"uri": "hf://acme/llama"}}


def both(**spec: Any) -> tuple[Rendered, Rendered]:
    """Decode and prefill."""
    pool = observe(raw_pool(**APART | spec)).pool
    apart = render_prefill(pool, SETTINGS)
    assert apart is not None
    return render(pool, SETTINGS), apart


def applied(observed: Observed) -> dict[str, Object]:
    return {f"{item['kind']} {item['metadata']['name']}": item for item in plan(observed, NOW).applies}


def deployments(observed: Observed) -> dict[str, Object]:
    """By role."""
    found = [item for name, item in applied(observed).items() if name.startswith("Deployment")]
    return {item["metadata"]["labels"][contract.ROLE_LABEL]: item for item in found}


@pytest.mark.parametrize(("at", "kv_role"), [(0, "kv_consumer"), (1, "kv_producer")])
def test_each_engine_is_told_its_side_of_the_connector_and_where_it_is_found(at: int, kv_role: str) -> None:
    made = both()[at]
    engine = made.template["spec"]["containers"][0]
    env = {entry["name"]: entry for entry in engine["env"]}

    flag, _, setting = made.engine_args[-1].partition("=")
    assert flag == "--kv-transfer-config"
    assert json.loads(setting) == {
        "kv_connector": "NixlConnector",
        "kv_role": kv_role,
        "kv_load_failure_policy": "recompute",
    }
    assert env["VLLM_NIXL_SIDE_CHANNEL_HOST"]["valueFrom"]["fieldRef"]["fieldPath"] == "status.podIP"
    assert env["VLLM_NIXL_SIDE_CHANNEL_PORT"]["value"] == "5600"
    assert env["UCX_TCP_PORT_RANGE"]["value"] == "5601-5699"
    assert {"name": "nixl", "containerPort": 5600} in engine["ports"]


def test_the_users_own_arguments_stay_last() -> None:
    assert both(engine={"args": ["--max-num-seqs=4"]})[0].engine_args[-1] == "--max-num-seqs=4"


def test_each_sidecar_finds_peers_of_its_own_role_and_believes_no_client_about_blocks() -> None:
    decode, prefill = (made.template["spec"]["initContainers"][0]["args"] for made in both())

    assert decode[decode.index("--peers") + 1] == "dns+http://llama-peers.default.svc:8080"
    assert prefill[prefill.index("--peers") + 1] == "dns+http://llama-prefill.default.svc:8080"
    assert "--hands-over" in decode
    assert "--hands-over" in prefill


def test_both_roles_take_the_podtemplate_and_keep_their_labels() -> None:
    template = {"metadata": {"labels": {"mine": "1", contract.ROLE_LABEL: "other"}}}
    for made, role in zip(both(podTemplate=template), ("decode", "prefill"), strict=True):
        labels = made.template["metadata"]["labels"]
        assert (labels["mine"], labels[contract.ROLE_LABEL]) == ("1", role)


def test_two_deployments_each_with_its_count() -> None:
    made = deployments(observe(raw_pool(replicas=3, **APART)))

    assert {role: item["spec"]["replicas"] for role, item in made.items()} == {"decode": 3, "prefill": 2}
    assert len({item["metadata"]["name"] for item in made.values()}) == 2
    for role, item in made.items():
        assert item["spec"]["template"]["metadata"]["labels"][contract.ROLE_LABEL] == role
    assert [item["kind"] for item in plan(observe(raw_pool(**APART)), NOW).checks] == ["Deployment"] * 2


def test_the_service_leads_to_decode_pods_and_gateways_find_both() -> None:
    observed = observe(raw_pool(**APART))
    made = applied(observed)
    found = fleet_pool(observed.pool)

    assert made["Service llama"]["spec"]["selector"][contract.ROLE_LABEL] == "decode"
    assert made["Service llama-peers"]["spec"]["selector"][contract.ROLE_LABEL] == "decode"
    assert made["Service llama-prefill"]["spec"]["selector"][contract.ROLE_LABEL] == "prefill"
    assert made["Service llama-prefill"]["spec"]["publishNotReadyAddresses"] is True
    assert found.endpoints == ("dns+http://llama-peers.default.svc:8080",)
    assert found.prefill is not None
    assert found.prefill.endpoints == ("dns+http://llama-prefill.default.svc:8080",)
    assert found.prefill.min_tokens == 256
    assert fleet_pool(observe(raw_pool()).pool).prefill is None


def test_a_pod_is_under_one_disruption_budget() -> None:
    made = applied(observe(raw_pool(**APART, disruption={"maxUnavailable": "25%"})))
    decode, prefill = made["PodDisruptionBudget llama"]["spec"], made["PodDisruptionBudget llama-prefill"]["spec"]

    assert prefill["selector"]["matchLabels"][contract.ROLE_LABEL] == "prefill"
    assert decode["selector"]["matchExpressions"] == [
        {"key": contract.ROLE_LABEL, "operator": "NotIn", "values": ["prefill"]}
    ]
    assert decode["maxUnavailable"] == prefill["maxUnavailable"] == "25%"


def test_only_peers_reach_an_engine_and_only_where_blocks_travel() -> None:
    def ports(**spec: Any) -> list[Object]:
        rules = applied(observe(raw_pool(**spec)))["NetworkPolicy llama"]["spec"]["ingress"]
        return [rule for rule in rules if rule["ports"][0]["port"] == contract.NIXL_PORT]

    (rule,) = ports(**APART)
    assert rule["from"] == [{"podSelector": {"matchLabels": {contract.POOL_LABEL: "llama"}}}]
    assert rule["ports"] == [{"protocol": "TCP", "port": 5600, "endPort": 5699}]
    assert ports() == []


def test_the_scale_subresource_counts_decode_pods() -> None:
    assert selector(observe(raw_pool(**APART)).pool).endswith(",tidepool.dev/role notin (prefill)")
    assert "role" not in selector(observe(raw_pool()).pool)


def test_the_least_prompt_restarts_nothing() -> None:
    other = {"disaggregation": {"prefill": {"replicas": 5, "minTokens": 1000}}}
    assert [made.revision for made in both(**other)] == [made.revision for made in both()]


# Over time.


def world(**spec: Any) -> World:
    made = World(accelerators=16, spec={"replicas": 3, **APART, **spec})
    made.settle()
    return made


def test_a_pool_that_is_complete_says_so_of_each_role() -> None:
    made = world()
    status = made.status

    assert (made.serving(), made.serving(prefill=True)) == (3, 2)
    assert (status["replicas"], status["readyReplicas"]) == (3, 3)
    prefill = status["prefill"]
    assert (prefill["replicas"], prefill["readyReplicas"], prefill["desiredReplicas"]) == (2, 2, 2)
    assert prefill["currentRevision"] == prefill["updateRevision"] != status["currentRevision"]
    assert condition(prefill, "Progressing")["reason"] == "Complete"
    assert condition(status, "Progressing")["reason"] == "Complete"
    assert made.look().status is None


@pytest.mark.parametrize("wanted", [0, 1, 5])
def test_scaling_counts_decode_pods_and_a_pool_at_zero_has_no_pod_at_all(wanted: int) -> None:
    made = world()
    made.change(replicas=wanted)
    made.settle()

    assert (made.serving(), made.serving(prefill=True)) == (wanted, 2 if wanted else 0)


def test_fewer_prefill_pods_are_chosen_among_prefill_pods() -> None:
    made = world()
    made.change(disaggregation={"prefill": {"replicas": 1}})
    first = made.reconcile()

    assert {made.pods[mark.pod].role for mark in first.marks} == {"prefill"}
    made.settle()
    assert (made.serving(), made.serving(prefill=True)) == (3, 1)


CHANGES: list[dict[str, Any]] = [
    {"engine": {"image": "vllm/vllm-openai:v0.33.0"}},
    {"disaggregation": {"prefill": {"replicas": 1}}},
    {"disaggregation": None},
    {"disaggregation": {"prefill": {"replicas": 3}}},
    {"replicas": 2},
    {"engine": {"image": "vllm/vllm-openai:v0.34.0"}},
]


@pytest.mark.traffic  # whole rollouts, many times
@given(
    changes=st.lists(st.tuples(st.sampled_from(CHANGES), st.integers(0, 12)), max_size=5),
    accelerators=st.sampled_from([5, 6, 8, 16]),
    sees=st.booleans(),
)
@examples(4)
def test_no_role_serves_with_fewer_than_it_may_whatever_changes_in_the_middle(
    changes: list[tuple[dict[str, Any], int]], accelerators: int, sees: bool
) -> None:
    made = World(accelerators=accelerators, spec={"replicas": 3, **APART}, sees=sees)
    made.settle()
    wanted = 3
    for change, rounds in [*changes, ({}, 40)]:
        made.change(**change)
        wanted = min(wanted, made.spec["replicas"])
        for _ in range(rounds):
            made.now += 1.0
            made.reconcile()
            assert made.serving() >= wanted - 1, made.replicas()
            for step in (made.sync_replicas, made.schedule, made.start_one, made.finish_one):
                step()
        wanted = min(wanted, made.spec["replicas"])
    made.settle(200)
    apart = made.spec.get("disaggregation")
    prefills = apart["prefill"]["replicas"] if apart else 0
    if made.spec["replicas"] + prefills <= accelerators:
        assert (made.serving(), made.serving(prefill=True)) == (made.spec["replicas"], prefills)


@pytest.mark.parametrize("apart_first", [True, False])
def test_on_the_way_from_one_shape_to_the_other_the_service_leads_to_all_that_serve(apart_first: bool) -> None:
    made = World(accelerators=16, spec={"replicas": 3} | (APART if apart_first else {}))
    made.settle()
    made.change(disaggregation=None if apart_first else APART["disaggregation"])
    roles = set()
    for _ in range(40):
        made.now += 1.0
        made.reconcile()
        selected = made.objects["Service", "llama"]["spec"]["selector"].get(contract.ROLE_LABEL)
        serving = {found.role for found in made.pods.values() if found.ready and not found.deleting}
        roles.add(selected)
        assert selected is None or serving - {"prefill"} <= {selected}
        for step in (made.sync_replicas, made.schedule, made.start_one, made.finish_one):
            step()

    assert made.objects["Service", "llama"]["spec"]["selector"][contract.ROLE_LABEL] == (
        "mixed" if apart_first else "decode"
    )
    assert None in roles
    assert ("prefill" in made.status) is not apart_first


def test_a_new_revision_of_prefill_pods_that_never_comes_up_leaves_the_old_ones_serving() -> None:
    made = world(rollout={"progressDeadline": "60s"})
    before = made.status["prefill"]["currentRevision"]
    made.change(engine={"image": "vllm/vllm-openai:v0.33.0"})
    made.broken.add(render_prefill(observe(raw_pool(**made.spec)).pool, SETTINGS).revision)  # type: ignore[union-attr]
    made.settle()
    made.now += 120.0
    made.settle()

    assert made.serving(prefill=True) == 2
    assert made.status["prefill"]["currentRevision"] == before
    assert condition(made.status["prefill"], "Progressing")["reason"] == "ProgressDeadlineExceeded"
    assert condition(made.status, "Degraded")["reason"] == "ProgressDeadlineExceeded"
    assert condition(made.status, "Ready")["reason"] == "Serving"
    made.change(engine={})
    made.settle()
    assert condition(made.status, "Degraded")["reason"] == "Healthy"


def test_a_prefill_pod_in_trouble_is_told_and_the_pool_is_ready_all_the_same() -> None:
    made = world()
    ends = {"state": {"waiting": {"reason": "ImagePullBackOff", "message": "manifest unknown"}}, "started": False}
    observed = observe(
        raw_pool(status=made.status, **made.spec),
        objects=tuple(made.objects.values()),
        pods=tuple(
            _with_role(pod(found.name, found.revision, ready=found.role == "decode", engine=None), found.role)
            if found.role == "decode"
            else _with_role(pod(found.name, found.revision, engine=ends), found.role)
            for found in made.pods.values()
        ),
    )
    status = plan(observed, NOW).status

    assert status is not None
    assert condition(status, "Ready")["reason"] == "Serving"
    assert condition(status, "Degraded")["reason"].startswith("Image")
    assert status["prefill"]["readyReplicas"] == 0


def _with_role(made: Object, role: str) -> Object:
    made["metadata"]["labels"][contract.ROLE_LABEL] = role
    return made


def test_a_refused_prefill_template_touches_nothing_and_keeps_what_the_status_says_of_it() -> None:
    made = world()
    pool = observe(raw_pool(status=made.status, **made.spec))
    apart = render_prefill(pool.pool, SETTINGS)
    assert apart is not None
    objects = tuple(stored(item) for item in made.objects.values())
    refused = plan(replace(pool, objects=objects, refused={apart.revision: "no"}), NOW)

    assert refused.status is not None
    assert condition(refused.status, "Ready")["reason"] == "PodTemplateRejected"
    assert refused.status["prefill"] == made.status["prefill"]
    assert (refused.applies, refused.scales) == ((), ())
