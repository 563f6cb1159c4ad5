"""A gateway, a sidecar and an engine in a row."""

from dataclasses import dataclass

from fakes.engine import EngineDouble
from scripted.routers import RunningRouter


@dataclass(frozen=True)
class Stack:
    """What runs: `url` is the gateway's."""

    engine: EngineDouble
    sidecar: RunningRouter
    gateway: RunningRouter

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.gateway.port}"
