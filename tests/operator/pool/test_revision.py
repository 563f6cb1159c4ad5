"""What makes a revision: all that an engine must be restarted for, and nothing that a release makes around it."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pools.objects import SETTINGS, observe, raw_pool
from pools.releases import AROUND_THE_ENGINE, OF_THE_ENGINE, made_by
from tidepool_operator.pool.groups import worker_of
from tidepool_operator.pool.model import Object, RenderSettings, SidecarTLS
from tidepool_operator.pool.render import Rendered, render


def revision(spec: Mapping[str, Any], settings: RenderSettings = SETTINGS) -> str:
    return render(observe(raw_pool(**spec)).pool, settings).revision


# A changed hash here means that an upgrade of the operator restarts every engine there is. No change of the router
# or the loader, or of volumes that only they mount, may do that, nor one more thing that can be asked of them: if
# it does, revision.py is wrong. What may is a change of what engines themselves are started with: their container,
# volumes that they mount, what belongs to the whole pod. If that is truly wanted, say so in CHANGELOG.md and take
# the new hash.
GOLDEN: dict[str, tuple[dict[str, Any], str]] = {
    "plain": ({}, "49934c2d24"),
    "gpu": (
        {
            "accelerator": {"count": 2, "nodeSelector": {"gpu": "h100"}, "tolerations": [{"operator": "Exists"}]},
            "parallelism": {"tensor": 2},
            "model": {"uri": "pvc://models/llama"},
            "engine": {"env": [{"name": "A", "value": "b"}], "maxModelLen": 4096},
            "scheduling": {"priorityClassName": "high"},
            "podTemplate": {"spec": {"containers": [{"name": "engine", "command": ["serve"]}]}},
        },
        "326d2c47df",
    ),
    "token": (
        {"model": {"uri": "hf://acme/llama", "revision": "v1", "authSecretRef": {"name": "hf"}}},
        "e84d9dcbb3",
    ),
    "file": ({"model": {"uri": "file:///opt/m"}}, "fff4efa9bd"),
    "preloaded": ({"cache": {"persistentVolumeClaim": "models"}}, "08d263ad8f"),
    "store": ({"model": {"uri": "s3://models/llama", "authSecretRef": {"name": "s"}}}, "307692bfd7"),
    "image": ({"model": {"uri": "oci://registry/acme/llama:v1"}}, "6f68cec159"),
    "adapters": (
        {"model": {"uri": "hf://acme/llama", "adapters": [{"name": "sql", "uri": "hf://acme/sql"}]}},
        "9dce965eaa",
    ),
    "routers": (
        {"podTemplate": {"spec": {"containers": [{"name": "router", "resources": {"limits": {"cpu": "1"}}}]}}},
        "6e8c0ab2df",
    ),
    "groups": (
        {"parallelism": {"tensor": 4, "hosts": 2, "pipeline": 2}, "accelerator": {"count": 4}},
        "baa69fa3e6",
    ),
    "apart": ({"disaggregation": {"prefill": {"replicas": 1}}}, "809eced76b"),
}


@pytest.mark.parametrize("case", GOLDEN)
def test_revisions_are_those_of_the_releases_before(case: str) -> None:
    spec, expected = GOLDEN[case]

    assert observe(raw_pool(**spec)).problems == ()
    assert revision(spec) == expected


@pytest.mark.parametrize("change", AROUND_THE_ENGINE)
def test_what_a_release_changes_around_the_engine_is_no_new_revision(change: str) -> None:
    with made_by(AROUND_THE_ENGINE[change]):
        upgraded = {case: revision(spec) for case, (spec, _) in GOLDEN.items()}

    assert upgraded == {case: expected for case, (_, expected) in GOLDEN.items()}


@pytest.mark.parametrize("change", OF_THE_ENGINE)
def test_what_a_release_changes_of_the_engine_is_a_new_revision(change: str) -> None:
    with made_by(OF_THE_ENGINE[change]):
        upgraded = revision({})

    assert upgraded != revision({})


def test_how_workers_are_made_of_their_leader_is_part_of_the_revision(monkeypatch: pytest.MonkeyPatch) -> None:
    spec, before = GOLDEN["groups"]

    def otherwise(template: Object) -> Object:
        made = worker_of(template)
        return {**made, "spec": {**made["spec"], "hostname": "worker"}}

    monkeypatch.setattr("tidepool_operator.pool.groups.worker_of", otherwise)

    assert revision(spec) != before
    assert revision({}) == GOLDEN["plain"][1]


def test_a_new_router_image_is_no_new_revision() -> None:
    assert revision({}, RenderSettings("tidepool-router:next", "tidepool")) == revision({})


def of_router(entry: Object, under: str = "containers") -> Object:
    return {"podTemplate": {"spec": {under: [{"name": "router", **entry}]}}}


RESTARTS: list[dict[str, Any]] = [
    {"engine": {"image": "vllm/vllm-openai:v0.33.0"}},
    {"engine": {"args": ["--max-num-seqs=8"]}},
    {"engine": {"env": [{"name": "A", "value": "b"}]}},
    {"engine": {"maxModelLen": 99}},
    {"model": {"uri": "hf://acme/other"}},
    {"model": {"uri": "hf://acme/llama", "revision": "main"}},
    {"model": {"uri": "hf://acme/llama", "name": "other"}},
    {"accelerator": {"count": 2}, "parallelism": {"tensor": 2}},
    {"accelerator": {"nodeSelector": {"gpu": "h100"}}},
    {"scheduling": {"priorityClassName": "high"}},
    {"podTemplate": {"metadata": {"annotations": {"a": "b"}}}},
    {"rollout": {"restart": "2026-01-01"}},
    # Of the router, which cannot load it anew.
    of_router({"env": [{"name": "A", "value": "b"}]}),
    of_router({"resources": {"limits": {"memory": "2Gi"}}}),
    of_router({"resources": {"limits": {"memory": None}}}),
    of_router({"livenessProbe": None}),
    of_router({"$patch": "delete"}),
    of_router({"volumeMounts": [{"mountPath": "/var/spool/tidepool", "$patch": "delete"}]}),
    {"podTemplate": {"spec": {"initContainers": None}}},
    {"podTemplate": {"spec": {"volumes": [{"name": "bodies", "emptyDir": {"sizeLimit": "9Gi"}}]}}},
    {"podTemplate": {"spec": {"volumes": [{"name": "bodies", "$patch": "delete"}]}}},
    {"podTemplate": {"spec": {"volumes": [{"name": "own", "emptyDir": {}}]}}},
    {"podTemplate": {"spec": {"volumes": None}}},
    {"podTemplate": {"metadata": {"annotations": {"prometheus.io/scrape": "false"}}}},
    {"podTemplate": {"metadata": {"annotations": None}}},
]
KEEPS: list[dict[str, Any]] = [
    {"replicas": 5},
    {"scaling": {"maxReplicas": 5}},
    {"routing": {"policy": "RoundRobin", "queue": {"maxWaiting": 3}}},
    {"rollout": {"drainTimeout": "10s", "progressDeadline": "60s", "maxSurge": 1}},
    {"disruption": {"maxUnavailable": 2}},
    {"rollout": {"restart": ""}},
    {"access": {"from": [{"podSelector": {}}]}},
    {"model": {"uri": "hf://acme/llama", "aliases": ["chat"]}},
    {"podTemplate": {"spec": {"containers": [], "volumes": []}}},
]


@pytest.mark.parametrize("spec", RESTARTS, ids=str)
def test_what_an_engine_must_restart_for_is_a_new_revision(spec: dict[str, Any]) -> None:
    assert revision(spec) != revision({})


@pytest.mark.parametrize("spec", KEEPS, ids=str)
def test_what_needs_no_restart_is_the_same_revision(spec: dict[str, Any]) -> None:
    assert revision(spec) == revision({})


def test_where_the_router_is_named_in_a_podtemplate_makes_no_difference() -> None:
    more = {"env": [{"name": "A", "value": "b"}]}

    assert revision(of_router(more)) == revision(of_router(more, "initContainers"))


# All that is asked of a router or a loader, and something that is asked of the engine beside them.
CHOICES: dict[str, list[Any]] = {
    "router": [
        {},
        {"env": [{"name": "A", "value": "b"}]},
        {"livenessProbe": None},
        {"resources": {"limits": {"memory": None}}},
        {"volumeMounts": [{"mountPath": "/own", "name": "own"}]},
        {"$patch": "delete"},
        {"$patch": "replace", "image": "mine"},
    ],
    "loader": [{}, {"args": ["load", "mine"]}, {"env": None}],
    "engine": [{}, {"args": ["--mine"]}, {"volumeMounts": [{"mountPath": "/own", "name": "own"}]}],
    "volumes": [
        [],
        [{"name": "own", "emptyDir": {}}],
        [{"name": "bodies", "emptyDir": {}}, {"name": "own", "hostPath": {"path": "/own"}}],
        [{"name": "bodies", "$patch": "delete"}],
        [{"name": "tmp", "hostPath": {"path": "/tmp"}}],
        None,
    ],
    "annotations": [{}, {"a": "b"}, {"prometheus.io/scrape": "false"}, None],
    "model": [
        {"uri": "hf://acme/llama"},
        {"uri": "hf://acme/llama", "revision": "v1"},
        {"uri": "s3://models/llama"},
        {"uri": "s3://models/other"},
    ],
    "secret": [None, {"name": "s"}, {"name": "s", "key": "other"}],
    "cache": [None, {"hostPath": "/var/cache/models"}],
    "tls": [None, SidecarTLS("pod-tls", "tidepool-sidecar"), SidecarTLS("other-tls", "tidepool-sidecar")],
}


@st.composite
def asked(draw: st.DrawFn) -> dict[str, Any]:
    return {name: draw(st.sampled_from(choices)) for name, choices in CHOICES.items()}


def made_of(asked: Mapping[str, Any]) -> Rendered:
    before = [{"name": name, **asked[name]} for name in ("router", "loader") if asked[name]]
    containers = [{"name": "engine", **asked["engine"]}] if asked["engine"] else []
    template = {
        "metadata": {"annotations": asked["annotations"]},
        "spec": {"initContainers": before, "containers": containers, "volumes": asked["volumes"]},
    }
    model = asked["model"] | ({"authSecretRef": asked["secret"]} if asked["secret"] else {})
    seen = observe(raw_pool(model=model, cache=asked["cache"], podTemplate=template))
    assert seen.problems == ()
    return render(seen.pool, replace(SETTINGS, tls=asked["tls"]))


@given(first=asked(), name=st.sampled_from(sorted(CHOICES)), data=st.data())
def test_pods_of_one_release_that_differ_are_two_revisions(
    first: dict[str, Any], name: str, data: st.DataObject
) -> None:
    one = made_of(first)
    other = made_of(first | {name: data.draw(st.sampled_from(CHOICES[name]))})

    assert one.revision != other.revision or one.template == other.template


@given(spec=asked(), change=st.sampled_from(sorted(AROUND_THE_ENGINE)))
def test_whatever_is_asked_for_no_release_restarts_an_engine_for_its_router(
    spec: dict[str, Any], change: str
) -> None:
    with made_by(AROUND_THE_ENGINE[change]):
        upgraded = made_of(spec)

    assert upgraded.revision == made_of(spec).revision
