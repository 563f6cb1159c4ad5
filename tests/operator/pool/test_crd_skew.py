"""A CRD that an upgrade has left behind drops fields in silence; the operator says which."""

from copy import deepcopy
from typing import Any

from pools.objects import NOW, condition, observe, raw_pool
from tidepool_api.crd import MODELPOOL
from tidepool_operator.pool.crd_skew import dropped
from tidepool_operator.pool.model import RenderSettings
from tidepool_operator.pool.plan import plan


def schema() -> dict[str, Any]:
    (version,) = MODELPOOL.crd()["spec"]["versions"]
    found: dict[str, Any] = deepcopy(version["schema"]["openAPIV3Schema"])
    return found


def test_the_schema_of_this_release_drops_nothing() -> None:
    assert dropped(schema()) == ()


def test_a_schema_of_before_is_told_by_the_fields_that_it_lacks() -> None:
    old = schema()
    del old["properties"]["spec"]["properties"]["traffic"]
    del old["properties"]["spec"]["properties"]["engine"]["properties"]["env"]["items"]["properties"]["valueFrom"]
    del old["properties"]["status"]["properties"]["figures"]

    assert dropped(old) == ("spec.engine.env[].valueFrom", "spec.traffic", "status.figures")


def test_a_newer_schema_is_none_of_our_business() -> None:
    new = schema()
    new["properties"]["spec"]["properties"]["later"] = {"type": "string"}

    assert dropped(new) == ()


def test_what_the_cluster_drops_makes_a_pool_degraded_and_not_unready() -> None:
    settings = RenderSettings("r", "tidepool", stale_fields=("spec.traffic",))
    observed = observe(raw_pool(replicas=0, accelerator={"count": 0}))
    from dataclasses import replace

    status = plan(replace(observed, settings=settings), NOW).status
    assert status is not None
    degraded = condition(status, "Degraded")

    assert (degraded["status"], degraded["reason"]) == ("True", "StaleCrd")
    assert "spec.traffic" in degraded["message"]
    assert condition(status, "Ready")["status"] == "True"
