"""A gateway, its sidecars and their engines, and what they count of the same requests."""

from dataclasses import dataclass
from typing import Any

from fakes.engine import EngineDouble
from scripted.routers import RunningRouter, until


@dataclass
class System:
    """`sidecars` and `engines` are in the same order."""

    gateway: RunningRouter
    sidecars: list[RunningRouter]
    engines: list[EngineDouble]

    @property
    def port(self) -> int:
        """The gateway's."""
        return self.gateway.port

    @property
    def pool(self) -> Any:
        """The gateway's PoolState."""
        return self.gateway.state.pools["default/pool"]

    def pod(self, number: int) -> Any:
        """A pod as the gateway knows it."""
        return self.pool.pods[f"127.0.0.1:{self.sidecars[number].port}"]

    def parts(self) -> list[int]:
        """How many live requests each pod has of the gateway, wherever they wait there."""
        return [self.pod(number).ledger.running for number in range(len(self.sidecars))]

    def live(self) -> dict[str, int]:
        """Requests that some part counts as live."""
        return {
            "gateway": self.gateway.live(),
            "sidecars": sum(sidecar.live() for sidecar in self.sidecars),
            "engines": sum(engine.running + engine.waiting for engine in self.engines),
        }

    async def empty(self) -> None:
        """Wait until nobody counts anything."""
        await until(lambda: not any(self.live().values()), lambda: f"still live: {self.live()}")
