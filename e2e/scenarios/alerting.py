"""What scenarios of alerts share: alerts with shortened times, which of them fire, and what was seen when."""

import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

from scenarios import fast_alerts, stage
from scenarios.evidence import BUILD, prometheus_sample
from scenarios.kube import Object, is_ready, wait_for
from scenarios.pools import NAMESPACE
from scenarios.world import POOL_LABEL, World

OPERATOR = "tidepool.dev/component=operator"


@contextlib.contextmanager
def shortened() -> Iterator[None]:
    """Prometheus has the alerts with shortened times."""
    rules = fast_alerts.write(BUILD / "fast-alerts.yaml")
    stage.cluster("prometheus", "reload", "--rules", str(rules))
    try:
        yield
    finally:
        stage.cluster("prometheus", "reload", "--rules", str(stage.rules()))


@dataclass(slots=True)
class Told:
    """What was seen, with the seconds since the beginning."""

    world: World
    rows: list[tuple[str, str]] = field(default_factory=list)
    began: float = field(default_factory=time.monotonic)

    def __call__(self, what: str, seen: str) -> None:
        """Keep it, and tell it to the person who waits."""
        self.rows.append((what, f"{time.monotonic() - self.began:.0f} s: {seen}"))
        self.world.evidence.say(f"{what}: {seen}")


@contextlib.contextmanager
def telling(world: World, name: str) -> Iterator[Told]:
    """All of it is printed at the end, whatever happened, and is among the evidence's facts under that name."""
    told = Told(world)
    try:
        yield told
    finally:
        world.evidence.facts[name] = told.rows
        world.evidence.write()
        print("\n" + "\n".join(f"  {what:<30} {seen}" for what, seen in told.rows), flush=True)


def firing(world: World) -> dict[str, set[str]]:
    """Alerts that fire, each with the pools that it names."""
    found: dict[str, set[str]] = {}
    for one in prometheus_sample(world.prometheus_url, 'ALERTS{alertstate="firing"}')["result"]:
        labels = one["metric"]
        name = str(labels.get("pool", ""))
        found.setdefault(labels["alertname"], set()).add(name.rpartition("/")[2])
    return found


def wait_fires(world: World, alert: str, pool: str = "", *, timeout_seconds: float) -> float:
    """Until it fires, for that pool where it names pools. Returns seconds."""
    began = time.monotonic()
    wait_for(
        f"{alert} to fire", lambda: pool in firing(world).get(alert, ()) or None, timeout_seconds=timeout_seconds
    )
    return time.monotonic() - began


def wait_ends(world: World, alert: str, *, timeout_seconds: float) -> float:
    """Until it fires for nobody. Returns seconds."""
    began = time.monotonic()
    wait_for(f"{alert} to end", lambda: alert not in firing(world) or None, timeout_seconds=timeout_seconds)
    return time.monotonic() - began


def ready(world: World, name: str) -> list[Object]:
    """Pods of a pool that are Ready and stay."""
    return [pod for pod in world.kube.items("pods", NAMESPACE, f"{POOL_LABEL}={name}") if is_ready(pod)]
