"""A kopf operator of the usual shape, to compare with: a handler a field, the official client, kopf's own state.

It makes the same objects for a ModelPool as Tidepool's operator, rendered by the same functions, keeps them to the
spec field by field, and writes the counts of its Deployments into the status. It plans no rollouts, diagnoses
nothing, talks to no sidecar and scales nothing.
"""

import argparse
import asyncio
import logging
import os
from typing import Any

import kopf
from kubernetes import client, config
from kubernetes.client.exceptions import ApiException

from tidepool_operator.pool.model import RenderSettings
from tidepool_operator.pool.read import read
from tidepool_operator.pool.render import deployment, render

GROUP, VERSION, PLURAL = "tidepool.dev", "v1alpha1", "modelpools"
SETTINGS = RenderSettings("tidepool-router:test", "tidepool-system")
OURS = {"app.kubernetes.io/managed-by": "tidepool"}


def _objects(body: Any) -> list[dict[str, Any]]:
    pool, _ = read({**body, "metadata": dict(body["metadata"]), "spec": dict(body["spec"])})
    rendered = render(pool, SETTINGS)
    return [*rendered.objects, deployment(pool, rendered, pool.spec.replicas)]


def _calls(kind: str) -> tuple[Any, Any]:
    core, apps = client.CoreV1Api(), client.AppsV1Api()
    policy, networking = client.PolicyV1Api(), client.NetworkingV1Api()
    calls: dict[str, tuple[Any, Any]] = {
        "ServiceAccount": (core.create_namespaced_service_account, core.patch_namespaced_service_account),
        "ConfigMap": (core.create_namespaced_config_map, core.patch_namespaced_config_map),
        "Service": (core.create_namespaced_service, core.patch_namespaced_service),
        "Deployment": (apps.create_namespaced_deployment, apps.patch_namespaced_deployment),
        "PodDisruptionBudget": (
            policy.create_namespaced_pod_disruption_budget,
            policy.patch_namespaced_pod_disruption_budget,
        ),
        "NetworkPolicy": (networking.create_namespaced_network_policy, networking.patch_namespaced_network_policy),
    }
    return calls[kind]


def _ensure(item: dict[str, Any]) -> None:
    create, patch = _calls(item["kind"])
    namespace, name = item["metadata"]["namespace"], item["metadata"]["name"]
    try:
        create(namespace, item)
    except ApiException as error:
        if error.status != 409:
            raise
        patch(name, namespace, item)


def create(body: Any, patch: Any, **_: Any) -> None:
    """A pool is new, or this process is."""
    for item in _objects(body):
        _ensure(item)
    patch.status["observedGeneration"] = body["metadata"]["generation"]


def settings_changed(body: Any, patch: Any, **_: Any) -> None:
    """What its sidecars read."""
    for item in _objects(body):
        if item["kind"] in ("ConfigMap", "NetworkPolicy"):
            _ensure(item)
    patch.status["observedGeneration"] = body["metadata"]["generation"]


def pods_changed(body: Any, patch: Any, **_: Any) -> None:
    """What its pods are made of, or how many there are."""
    _ensure(_objects(body)[-1])
    patch.status["observedGeneration"] = body["metadata"]["generation"]


def counted(body: Any, namespace: str, **_: Any) -> None:
    """A Deployment's counts into its pool's status."""
    status = body.get("status") or {}
    counts = {"replicas": status.get("replicas", 0), "readyReplicas": status.get("readyReplicas", 0)}
    pool = body["metadata"]["labels"]["tidepool.dev/pool"]
    try:
        client.CustomObjectsApi().patch_namespaced_custom_object_status(
            GROUP, VERSION, namespace, PLURAL, pool, {"status": counts}
        )
    except ApiException as error:
        if error.status != 404:
            raise


def main() -> None:
    """Run until stopped."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--kubeconfig", required=True)
    given = parser.parse_args()
    logging.basicConfig(level=logging.WARNING)
    os.environ["KUBECONFIG"] = given.kubeconfig
    config.load_kube_config(given.kubeconfig)
    made = kopf.OperatorRegistry()
    kopf.on.login(registry=made)(kopf.login_with_kubeconfig)
    kopf.on.create(GROUP, VERSION, PLURAL, registry=made)(create)
    kopf.on.resume(GROUP, VERSION, PLURAL, registry=made)(create)
    kopf.on.field(GROUP, VERSION, PLURAL, field="spec.routing", registry=made)(settings_changed)
    kopf.on.field(GROUP, VERSION, PLURAL, field="spec.access", registry=made)(settings_changed)
    kopf.on.field(GROUP, VERSION, PLURAL, field="spec.engine", registry=made)(pods_changed)
    kopf.on.field(GROUP, VERSION, PLURAL, field="spec.replicas", registry=made)(pods_changed)
    kopf.on.event("apps", "v1", "deployments", labels=OURS, registry=made)(counted)
    settings = kopf.OperatorSettings()
    settings.posting.level = logging.WARNING
    asyncio.run(kopf.operator(registry=made, settings=settings, standalone=True, clusterwide=True))


if __name__ == "__main__":
    main()
