"""Pools as a gateway knows them, and the requests that ask them for a pod."""

from typing import Any

from tidepool_api.load import Health, LoadReport
from tidepool_api.routing import FleetPool
from tidepool_router.facts import Api, RequestFacts
from tidepool_router.fleet.endpoint import Endpoint
from tidepool_router.fleet.gateway_metrics import GatewayMetrics
from tidepool_router.fleet.pod import Pod
from tidepool_router.fleet.pool import PoolState
from tidepool_router.fleet.reservation import Reservation

READY = LoadReport(boot="b", seq=1, health=Health.READY)


def chat(size: int = 400, priority: int = 0) -> RequestFacts:
    return RequestFacts(
        api=Api.CHAT, path="/v1/chat/completions", model="m", max_tokens=100, prompt_bytes=size, body_bytes=size,
        priority=priority,
    )  # fmt: skip


def endpoints(count: int) -> list[Endpoint]:
    return [Endpoint.at("10.0.0.1", 8000 + number) for number in range(count)]


def make_pool(clock: Any, pods: int = 0, *, ready: bool = True, wakes: bool = True, **queue: Any) -> PoolState:
    config = FleetPool.model_validate(
        {"name": "ns/p", "models": ["m"], "wakes": wakes, "routing": {"policy": "LeastLoad", "queue": queue}}
    )
    pool = PoolState(config, GatewayMetrics(), clock)
    pool.set_pods(endpoints(pods))
    if ready:
        for pod in pool.pods.values():
            pool.pod_heard(pod, READY)
    return pool


def first(pool: PoolState) -> Pod:
    return next(iter(pool.pods.values()))


def must_pick(pool: PoolState, facts: RequestFacts | None = None, exclude: tuple[str, ...] = ()) -> Reservation:
    reservation = pool.pick(facts or chat(), pool.now(), exclude)
    assert reservation is not None
    return reservation
