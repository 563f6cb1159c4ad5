"""What holds for every pod that a pool may have: how far it is locked up, and who is asked whether it serves."""

from collections.abc import Iterator
from typing import Any

import pytest

from pools.objects import SETTINGS, observe, raw_pool
from tidepool_api import contract
from tidepool_operator.pool import groups
from tidepool_operator.pool.model import Object
from tidepool_operator.pool.preload import preload
from tidepool_operator.pool.render import deployment, render, render_prefill

CLAIM = {"persistentVolumeClaim": "models"}
SHAPES: dict[str, dict[str, Any]] = {
    "plain": {},
    "token": {"model": {"uri": "hf://acme/llama", "authSecretRef": {"name": "hf"}}},
    "claim": {"model": {"uri": "pvc://models/llama"}},
    "image": {"model": {"uri": "oci://registry/acme/llama:v1", "authSecretRef": {"name": "r"}}},
    "store": {"model": {"uri": "s3://models/llama", "authSecretRef": {"name": "s3"}}},
    "cached": {"cache": CLAIM},
    "adapters": {"model": {"uri": "hf://acme/llama", "adapters": [{"name": "sql", "uri": "hf://acme/sql"}]}},
    "apart": {"disaggregation": {"prefill": {"replicas": 1}}},
    "groups": {"parallelism": {"tensor": 2, "hosts": 2}, "accelerator": {"count": 1}},
}
# pod-security-admission's policy/check_*.go, level restricted.
VOLUMES = {
    "configMap",
    "downwardAPI",
    "emptyDir",
    "projected",
    "secret",
    "persistentVolumeClaim",
    "ephemeral",
    "csi",
}
VOLUMES |= {"image"}


def templates(spec: dict[str, Any]) -> Iterator[Object]:
    """Every kind of pod of a pool."""
    observed = observe(raw_pool(**spec))
    assert observed.problems == ()
    pool = observed.pool
    for made in (render(pool, SETTINGS), render_prefill(pool, SETTINGS)):
        if made is None:
            continue
        item = deployment(pool, made, 1)
        if item["kind"] == groups.KIND:
            yield from (
                item["spec"]["leaderWorkerTemplate"][name] for name in ("leaderTemplate", "workerTemplate")
            )
        else:
            yield item["spec"]["template"]
    yield from (job["spec"]["template"] for job in preload(observed).makes if job["kind"] == "Job")


def containers(template: Object) -> list[Object]:
    return [*(template["spec"].get("initContainers") or []), *template["spec"]["containers"]]


@pytest.mark.parametrize("shape", SHAPES)
def test_every_pod_keeps_to_the_restricted_pod_security_standard(shape: str) -> None:
    for template in templates(SHAPES[shape]):
        spec = template["spec"]
        shared = spec["securityContext"]
        assert not {"hostNetwork", "hostPID", "hostIPC"} & {name for name, value in spec.items() if value}
        assert {next(iter(volume.keys() - {"name"})) for volume in spec["volumes"]} <= VOLUMES
        for one in containers(template):
            own = shared | one["securityContext"]
            assert own["runAsNonRoot"] is True
            assert own.get("runAsUser", 1) != 0
            assert own["seccompProfile"] == {"type": "RuntimeDefault"}
            assert own["allowPrivilegeEscalation"] is False
            assert own["capabilities"] == {"drop": ["ALL"]}
            assert own["readOnlyRootFilesystem"] is True
            assert "privileged" not in own
            assert not [port for port in one.get("ports") or [] if "hostPort" in port]


@pytest.mark.parametrize("shape", SHAPES)
def test_whether_an_engine_serves_is_asked_of_its_sidecar_and_nobody_restarts_it(shape: str) -> None:
    asked = 0
    for template in templates(SHAPES[shape]):
        engine = next((one for one in containers(template) if one["name"] == contract.ENGINE_CONTAINER), {})
        if "readinessProbe" not in engine:
            continue  # loads models, or works for the engine of another pod
        asked += 1
        probes = {name: engine[name]["httpGet"] for name in ("startupProbe", "readinessProbe")}
        assert probes["startupProbe"] == {"path": contract.PATH_ENGINE_STARTED, "port": contract.CONTROL_PORT}
        assert probes["readinessProbe"] == {"path": contract.PATH_ENGINE_READY, "port": contract.CONTROL_PORT}
        assert "livenessProbe" not in engine
        (router,) = [one for one in containers(template) if one["name"] == contract.ROUTER_CONTAINER]
        assert contract.CONTROL_PORT in {port["containerPort"] for port in router["ports"]}
        # It is there before the engine, and waits for none.
        assert router["restartPolicy"] == "Always"
        assert router["startupProbe"]["httpGet"]["path"] == contract.PATH_HEALTH

    assert asked == (2 if shape == "apart" else 1)
