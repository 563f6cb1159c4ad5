"""Routers that are watched, and the collector that hears of it."""

from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from fakes.collector import Collector
from scripted.fixtures import pytest_asyncio_loop_factories
from scripted.routers import RunningRouter, start_gateway, start_sidecar, until
from tidepool_router.tracing.otlp import OtlpExporter
from tidepool_router.tracing.sight import Sight

__all__ = ["pytest_asyncio_loop_factories"]


@dataclass
class Watched:
    """Starts routers that are watched; `told` ends the watching, so that all has been written.

    With `watching` false they are started alike and nobody watches.
    """

    collector: Collector
    lines: list[bytes] = field(default_factory=list)
    routers: list[RunningRouter] = field(default_factory=list)

    async def gateway(self, *endpoints: str, watching: bool = True, **more: Any) -> RunningRouter:
        options = {name: more.pop(name) for name in ("ratio", "prompts") if name in more}
        return self._watch(await start_gateway(*endpoints, **more), "gateway", options if watching else None)

    async def sidecar(self, engine: str, **more: Any) -> RunningRouter:
        return self._watch(await start_sidecar(engine, **more), "sidecar", {})

    async def told(self) -> Collector:
        """All requests have ended and everything is written."""
        for router in self.routers:
            await until(lambda router=router: not router.live())
            sight, router.services.sight = router.services.sight, None
            if sight is not None:
                await sight.close()
        return self.collector

    def _watch(self, router: RunningRouter, role: str, options: dict[str, Any] | None) -> RunningRouter:
        self.routers.append(router)
        if options is not None:
            exporter = OtlpExporter(self.collector.url, {"service.name": f"tidepool-{role}"})
            sight = Sight(exporter=exporter, write_lines=self.lines.append, **options)
            sight.start()
            router.services.sight = sight
        return router


@pytest.fixture
async def watched() -> AsyncIterator[Watched]:
    async with Collector() as collector:
        watched = Watched(collector)
        yield watched
        try:
            await watched.told()
        finally:
            for router in reversed(watched.routers):
                await router.stop()
