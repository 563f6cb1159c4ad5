"""Doubles for what an operator talks to beside the API server: every pod's sidecar, and Prometheus."""

import json
import math
import random
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final

from aiohttp import web

from tidepool_api import contract, rules
from tidepool_api.load import Health, LoadReport

PROMETHEUS_PORT: Final = 9090
_REPORT: Final = LoadReport(boot="paper", seq=1, health=Health.READY).encode()


class Sidecars:
    """All sidecars at once, on whatever address a pod has: takes settings, tells load. `taken` is called with the
    pod's address for each settings that arrive."""

    def __init__(self) -> None:
        self.taken: Callable[[str], None] = lambda _: None
        self.settings = 0
        self.loads = 0

    async def put_settings(self, request: web.Request) -> web.Response:
        """As a sidecar's control port."""
        await request.read()
        self.settings += 1
        assert request.transport is not None
        self.taken(request.transport.get_extra_info("sockname")[0])
        return web.Response(status=204)

    async def get_load(self, _: web.Request) -> web.Response:
        """As its traffic port."""
        self.loads += 1
        return web.Response(body=_REPORT, content_type="application/json")


class Prometheus:
    """Answers for the recorded series of some pools; their figures move all the time where `moving`."""

    def __init__(self) -> None:
        self.pods: Sequence[tuple[str, str, str]] = ()  # namespace, pool, pod
        self.moving = True
        self.queries = 0
        self._random = random.Random(1)

    async def query(self, request: web.Request) -> web.Response:
        """An instant query: for the records by name; anything else is empty."""
        self.queries += 1
        form = {**request.query, **(dict(await request.post()) if request.method == "POST" else {})}
        asked, now = str(form.get("query", "")), float(str(form.get("time", time.time())))
        found = [
            {"metric": labels, "value": [now, f"{value:.4f}"]}
            for labels, value in (self._series(now) if rules.POD_KV_USAGE in asked else ())
        ]
        text = json.dumps({"status": "success", "data": {"resultType": "vector", "result": found}})
        return web.Response(text=text, content_type="application/json")

    async def query_range(self, _: web.Request) -> web.Response:
        """No past."""
        self.queries += 1
        return web.json_response({"status": "success", "data": {"resultType": "matrix", "result": []}})

    def _series(self, now: float) -> list[tuple[dict[str, str], float]]:
        swing = 0.5 + 0.3 * math.sin(now / 120.0) + self._random.uniform(-0.05, 0.05) if self.moving else 0.5
        figures = {
            rules.POD_KV_USAGE: 0.6 * swing,
            rules.POD_WAITING: 0.0,
            rules.POD_RUNNING: 8 * swing,
            rules.POD_PROMPT_TOKENS: 4000 * swing,
            rules.POD_CACHED_TOKENS: 1000 * swing,
            rules.POD_OUTPUT_TOKENS: 900 * swing,
            rules.POD_REQUESTS: 4 * swing,
            rules.POD_REQUESTS_ENDED: 2 * (now % 1e6),
            rules.POD_SCRAPED_AT: now - 5,
        }
        of_pools = {rules.POOL_TTFT_P90: 0.4 * swing, rules.POOL_TPOT_P90: 0.03 * swing}
        found = [
            ({"__name__": record, "namespace": namespace, "pool": pool, "pod": pod}, value)
            for namespace, pool, pod in self.pods
            for record, value in figures.items()
        ]
        found += [
            ({"__name__": record, "namespace": namespace, "pool": pool}, value)
            for namespace, pool in sorted({place[:2] for place in self.pods})
            for record, value in of_pools.items()
        ]
        return found


@asynccontextmanager
async def doubles() -> AsyncIterator[tuple[Sidecars, Prometheus]]:
    """Both, listening on every address of this network."""
    sidecars, prometheus = Sidecars(), Prometheus()
    app = web.Application(client_max_size=16 * 1024 * 1024)
    app.router.add_put(contract.PATH_SETTINGS, sidecars.put_settings)
    app.router.add_get(contract.PATH_LOAD, sidecars.get_load)
    for method in ("GET", "POST"):
        app.router.add_route(method, "/api/v1/query", prometheus.query)
        app.router.add_route(method, "/api/v1/query_range", prometheus.query_range)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    for port in (contract.TRAFFIC_PORT, contract.CONTROL_PORT, PROMETHEUS_PORT):
        await web.TCPSite(runner, "0.0.0.0", port, backlog=1024).start()
    try:
        yield sidecars, prometheus
    finally:
        await runner.cleanup()


def places(items: Sequence[dict[str, Any]]) -> list[tuple[str, str, str]]:
    """Pods of pools as their series are labelled."""
    return [
        (item["metadata"]["namespace"], item["metadata"]["labels"][contract.POOL_LABEL], item["metadata"]["name"])
        for item in items
    ]
