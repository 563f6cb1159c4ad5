"""A real HPA drives a pool without `scaling` by figures of a metrics API that the API server forwards to."""

import ssl
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import trustme
from aiohttp import web

from pools.live import Live, eventually
from scripted.certificates import Secret
from tidepool_operator.cluster.kinds import MODEL_POOL, POD, Kind

# The autoscaler learns of a new metrics API by the API server's own pace.
pytestmark = [pytest.mark.apiserver, pytest.mark.soak]

GROUP = "external.metrics.k8s.io"
METRIC = "requests-waiting"
HPA = Kind("autoscaling", "v2", "horizontalpodautoscalers", "HorizontalPodAutoscaler")
API_SERVICE = Kind("apiregistration.k8s.io", "v1", "apiservices", "APIService")
SERVICE = Kind("", "v1", "services", "Service")


@dataclass
class Metrics:
    """What the API answers: `waiting` requests, of all pods together."""

    waiting: int = 0
    asked: int = 0

    async def resources(self, _: web.Request) -> web.Response:
        resource = {
            "name": METRIC,
            "singularName": "",
            "namespaced": True,
            "kind": "ExternalMetricValueList",
            "verbs": ["get"],
        }
        return web.json_response(
            {
                "kind": "APIResourceList",
                "apiVersion": "v1",
                "groupVersion": f"{GROUP}/v1beta1",
                "resources": [resource],
            }
        )

    async def value(self, _: web.Request) -> web.Response:
        self.asked += 1
        item = {"metricName": METRIC, "metricLabels": {}, "timestamp": "2026-01-01T00:00:00Z"}
        return web.json_response(
            {
                "kind": "ExternalMetricValueList",
                "apiVersion": f"{GROUP}/v1beta1",
                "metadata": {},
                "items": [item | {"value": str(self.waiting)}],
            }
        )


@pytest.fixture
async def metrics(live: Live, tmp_path: Path) -> AsyncIterator[Metrics]:
    """Served over TLS on loopback and made known to the API server."""
    secret, made, app = Secret(tmp_path / "tls", trustme.CA()), Metrics(), web.Application()
    secret.issue("localhost")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(secret.certificate, secret.key)
    root = f"/apis/{GROUP}/v1beta1"
    app.router.add_get(root, made.resources)
    app.router.add_get(f"{root}/namespaces/{live.namespace}/{METRIC}", made.value)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context)
        await site.start()
        port = runner.addresses[0][1]
        name = {"name": "metrics", "namespace": live.namespace}
        spec: dict[str, Any] = {"type": "ExternalName", "externalName": "localhost", "ports": [{"port": port}]}
        await live.api.create(SERVICE, live.namespace, {"metadata": name, "spec": spec})
        spec = {
            "group": GROUP,
            "version": "v1beta1",
            "groupPriorityMinimum": 100,
            "versionPriority": 100,
            "insecureSkipTLSVerify": True,
            "service": {**name, "port": port},
        }
        await live.api.create(API_SERVICE, "", {"metadata": {"name": f"v1beta1.{GROUP}"}, "spec": spec})
        try:
            yield made
        finally:
            await live.client.request("DELETE", API_SERVICE.path(None, f"v1beta1.{GROUP}"))
    finally:
        await runner.cleanup()


def four_each(live: Live) -> dict[str, Any]:
    """An HPA that wants a pod for each four requests that wait, without hesitation."""
    target = {"apiVersion": MODEL_POOL.api_version, "kind": "ModelPool", "name": "llama"}
    metric = {"metric": {"name": METRIC}, "target": {"type": "AverageValue", "averageValue": "4"}}
    return {
        "apiVersion": HPA.api_version,
        "kind": HPA.kind,
        "metadata": {"name": "llama", "namespace": live.namespace},
        "spec": {
            "scaleTargetRef": target,
            "minReplicas": 1,
            "maxReplicas": 5,
            "metrics": [{"type": "External", "external": metric}],
            "behavior": {"scaleDown": {"stabilizationWindowSeconds": 0}},
        },
    }


async def test_an_hpa_scales_a_pool_by_what_a_metrics_api_says(live: Live, metrics: Metrics) -> None:
    async def pods(count: int) -> None:
        async def look() -> bool:
            pool = await live.get(MODEL_POOL, "llama") or {}
            staying = [pod for pod in await live.list(POD) if not pod["metadata"].get("deletionTimestamp")]
            return pool["spec"]["replicas"] == len(staying) == count

        await eventually(look, f"{count} pods for {metrics.waiting} requests that wait", 180)

    async with live.operator():
        await live.create(replicas=1)
        await live.api.create(HPA, live.namespace, four_each(live))
        metrics.waiting = 11
        await pods(3)
        metrics.waiting = 40
        await pods(5)
        metrics.waiting = 5
        await pods(2)

    assert metrics.asked
    hpa = await live.get(HPA, "llama") or {}
    conditions = {one["type"]: one["status"] for one in hpa["status"]["conditions"]}
    assert conditions["AbleToScale"] == conditions["ScalingActive"] == "True"
