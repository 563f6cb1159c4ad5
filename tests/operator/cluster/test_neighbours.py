"""What others do beside a pool, on a real API server: they edit what is its own, take its name, bound its pods, or
their nodes fall silent."""

from collections.abc import Callable
from typing import Any, Final

import pytest

from pools.live import Live, eventually, restricted
from pools.nodes import paper_nodes
from tidepool_operator.cluster.kinds import (
    CONFIG_MAP,
    DEPLOYMENT,
    DISRUPTION_BUDGET,
    EVENT,
    MODEL_POOL,
    NETWORK_POLICY,
    POD,
    SERVICE,
    SERVICE_ACCOUNT,
    Kind,
    Object,
)

pytestmark = pytest.mark.apiserver

QUOTA = Kind("", "v1", "resourcequotas", "ResourceQuota")
Looks = Callable[[Object], Any]


def _engine(item: Object) -> Any:
    (container,) = item["spec"]["template"]["spec"]["containers"]
    # What a merge patch has put in the place of the whole list has no more than what it says.
    return container["image"], container.get("args"), container.get("securityContext")


TOKEN: Final = "automountServiceAccountToken"
# Kind, name (empty: the only one), what somebody does to it, and what it is then to be again.
EDITS: Final[tuple[tuple[Kind, str, Object, Looks], ...]] = (
    (SERVICE_ACCOUNT, "llama", {TOKEN: True}, lambda it: it[TOKEN]),
    (CONFIG_MAP, "llama-settings", {"data": {"settings.json": "{}"}}, lambda it: it["data"]["settings.json"]),
    (NETWORK_POLICY, "llama", {"spec": {"ingress": [{}]}}, lambda it: it["spec"]["ingress"]),
    (SERVICE, "llama", {"spec": {"selector": {"app": "mine"}}}, lambda it: it["spec"]["selector"]),
    (DISRUPTION_BUDGET, "llama", {"spec": {"maxUnavailable": "100%"}}, lambda it: it["spec"]["maxUnavailable"]),
    (
        DEPLOYMENT,
        "",
        {"spec": {"template": {"spec": {"containers": [{"name": "engine", "image": "mine"}]}}}},
        _engine,
    ),
)  # fmt: skip


async def _of(live: Live, kind: Kind, name: str) -> Object:
    found = [item for item in await live.list(kind) if name in ("", item["metadata"]["name"])]
    assert len(found) == 1
    return found[0]


async def test_whatever_kind_somebody_edits_our_fields_are_put_back_and_theirs_stay(live: Live) -> None:
    async with live.operator():
        await live.create()
        await live.reason("Starting")
        before = [look(await _of(live, kind, name)) for kind, name, _, look in EDITS]
        for kind, name, change, _ in EDITS:
            theirs = {**change, "metadata": {"labels": {"mine": "1"}, "annotations": {"mine": "2"}}}
            item = await _of(live, kind, name)
            await live.edit(kind, item["metadata"]["name"], theirs)

        for (kind, name, _, look), was in zip(EDITS, before, strict=True):

            async def put_back(
                kind: Kind = kind, name: str = name, look: Looks = look, was: Any = was
            ) -> Object | None:
                item = await _of(live, kind, name)
                return item if look(item) == was else None

            item = await eventually(put_back, f"the {kind} is put back")
            assert item["metadata"]["labels"]["mine"] == "1", kind
            assert item["metadata"]["annotations"]["mine"] == "2", kind


async def test_two_pools_of_one_served_name_are_both_told_until_one_of_them_goes(live: Live) -> None:
    async with live.operator():
        await live.create("first", replicas=0, model={"uri": "hf://acme/a", "name": "chat"})
        await live.create("second", replicas=0, model={"uri": "hf://acme/b", "aliases": ["chat"]})
        first = await live.reason("ModelNameShared", "Degraded", "first")
        second = await live.reason("ModelNameShared", "Degraded", "second")

        async def told() -> set[str] | None:
            events = [one for one in await live.list(EVENT) if one["reason"] == "ModelNameShared"]
            names = {one["regarding"]["name"] for one in events}
            return names if len(names) == 2 else None

        await eventually(told, "an event about each")
        await live.api.delete(MODEL_POOL, live.namespace, "second")
        await live.reason("Healthy", "Degraded", "first")

    assert f"chat is served by {live.namespace}/second too, and gateways lead it to this pool" in first["message"]
    assert f"gateways lead it to {live.namespace}/first" in second["message"]


async def test_what_bounds_a_namespace_is_told_in_its_own_words(live: Live) -> None:
    """A ResourceQuota and the Pod Security admission, as the API server has them, by the Deployment's status."""
    quota = {"metadata": {"name": "few"}, "spec": {"hard": {"pods": "0"}}}
    await live.api.create(QUOTA, live.namespace, quota)

    async def counts() -> bool:
        found = await live.get(QUOTA, "few") or {}
        return "used" in (found.get("status") or {})

    await eventually(counts, "the quota counts")
    async with live.operator():
        await live.create("many")
        many = await live.reason("QuotaExceeded", name="many")
        await live.api.delete(QUOTA, live.namespace, "few")
        await restricted(live)
        privileged = {"name": "engine", "securityContext": {"privileged": True, "allowPrivilegeEscalation": True}}
        await live.create("free", podTemplate={"spec": {"containers": [privileged]}})
        free = await live.reason("PodsRefused", name="free")

    assert "exceeded quota: few" in many["message"]
    assert "ResourceQuota" in many["message"]
    assert 'violates PodSecurity "restricted' in free["message"]


@pytest.mark.soak
async def test_a_node_that_falls_silent_is_named_and_not_its_engine(live: Live) -> None:
    """Its controller waits for its kubelet for twenty seconds and more."""
    device = f"test.tidepool.dev/{live.namespace}"
    async with paper_nodes(live, device) as nodes, live.operator(reads_nodes=True):
        node = await nodes.add(1)
        await live.create(accelerator={"resource": device})
        (pod,) = await eventually(lambda: live.list(POD), "a pod")
        name = pod["metadata"]["name"]
        target = {"apiVersion": "v1", "kind": "Node", "name": node}
        body = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": name}, "target": target}
        await live.client.request("POST", POD.path(live.namespace, name, "binding"), body=body)
        await live.bring_up(name)
        await live.reason("Serving")
        nodes.silence(node)
        lost = await live.reason("NodeLost", seconds=240)

    assert f"node {node} does not answer" in lost["message"]
