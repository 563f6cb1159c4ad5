"""The sidecars of one pool: where they stand, and what a test may read of one.

All have one port, each on a loopback address of its own. Connections among them come from 127.0.0.1, so that
address stands for a peer's wherever a mark is to be believed.
"""

from typing import Any

from scripted.routers import RunningRouter
from tidepool_api.routing import Queue, Routing, SidecarSettings

ONE, TWO, THREE = "127.0.1.1", "127.0.1.2", "127.0.1.3"
POOL = (ONE, TWO, THREE, "127.0.0.1")
NOBODY = "http://127.0.0.1:1"


def routing(**queue: Any) -> SidecarSettings:
    return SidecarSettings(pool="pool", routing=Routing(queue=Queue(**queue)))


def counted(router: RunningRouter, name: str) -> dict[str, float]:
    """Series of one family by their labels."""
    lines = router.state.metrics.registry.render().decode().splitlines()
    series = (line.removeprefix(name).rpartition(" ") for line in lines if line.startswith(name))
    return {labels.strip("{}"): float(value) for labels, _, value in series}
