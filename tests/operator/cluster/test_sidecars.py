"""Settings out to sidecars and gateways, load reports in; real sockets."""

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from scripted.plain import plain
from tidepool_api.load import GatewayReport, LoadReport
from tidepool_api.routing import Fleet, FleetPool, SidecarSettings
from tidepool_operator.cluster.gateways import Control, Gateways, Publisher
from tidepool_operator.cluster.kinds import Kind, Object
from tidepool_operator.cluster.proof import OwnProof
from tidepool_operator.cluster.sidecars import Sidecars
from tidepool_operator.errors import NotFound

SETTINGS = SidecarSettings(pool="llama")


class Router:
    """The control and traffic side of a sidecar or a gateway, with scripted answers."""

    def __init__(self) -> None:
        self.taken: list[str] = []
        self.proofs: list[str | None] = []
        self.status = 204
        self.port = 0

    async def put(self, request: web.Request) -> web.Response:
        self.taken.append((await request.read()).decode())
        self.proofs.append(request.headers.get("x-tidepool-proof"))
        return web.Response(status=self.status)

    async def load(self, _: web.Request) -> web.Response:
        return web.Response(body=LoadReport(running=7).encode())


@asynccontextmanager
async def router() -> AsyncIterator[Router]:
    made = Router()
    app = web.Application()
    app.router.add_put("/settings", made.put)
    app.router.add_put("/fleet", made.put)
    app.router.add_get("/tidepool/load", made.load)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    made.port = runner.addresses[0][1]
    try:
        yield made
    finally:
        await runner.cleanup()


def pod(name: str = "p", container: str = "c1", *, running: bool = True, address: str = "127.0.0.1") -> Object:
    return {
        "metadata": {"name": name, "uid": f"uid-{name}"},
        "status": {
            "podIP": address,
            "phase": "Running",
            "initContainerStatuses": [{"name": "router", "containerID": container, "started": running}],
        },
    }


async def test_settings_are_pushed_once_and_again_when_they_change() -> None:
    async with router() as there:
        sidecars = Sidecars(there.port, there.port)
        assert await sidecars.push(SETTINGS, [pod()]) == []
        assert await sidecars.push(SETTINGS, [pod()]) == []
        changed = SETTINGS.model_copy(update={"drain_timeout": "10s"})
        assert await sidecars.push(changed, [pod()]) == []
        await sidecars.close()

    assert [SidecarSettings.model_validate_json(text).drain_timeout for text in there.taken] == ["300s", "10s"]


async def test_a_restarted_router_gets_them_again() -> None:
    async with router() as there:
        sidecars = Sidecars(there.port, there.port)
        await sidecars.push(SETTINGS, [pod(container="c1")])
        await sidecars.push(SETTINGS, [pod(container="c2")])
        await sidecars.close()

    assert len(there.taken) == 2


@pytest.mark.parametrize("status", [400, 500])
async def test_a_pod_that_does_not_take_them_is_named_and_asked_again(status: int) -> None:
    async with router() as there:
        there.status = status
        sidecars = Sidecars(there.port, there.port)
        assert await sidecars.push(SETTINGS, [pod()]) == ["p"]
        there.status = 204
        assert await sidecars.push(SETTINGS, [pod()]) == []
        await sidecars.close()


async def test_a_pod_without_a_running_router_is_left_alone() -> None:
    async with router() as there:
        sidecars = Sidecars(there.port, there.port)
        assert await sidecars.push(SETTINGS, [pod(running=False)]) == []
        await sidecars.close()

    assert there.taken == []


async def test_loads_are_those_of_the_pods_that_answer() -> None:
    async with router() as there:
        sidecars = Sidecars(there.port, there.port)
        found = await sidecars.loads([pod("a"), pod("b", address="127.0.0.2"), pod("c", running=False)])
        await sidecars.close()

    assert found["a"].running == 7
    assert "c" not in found


class Stored:
    """The little of the API server that a publisher and the look-up of gateways need."""

    def __init__(self) -> None:
        self.items: list[Object] = []
        self.pods: list[Object] = []

    async def get(self, _kind: Kind, _namespace: str | None, _name: str) -> Object:
        if not self.items:
            raise NotFound("no")
        return self.items[-1]

    async def apply(self, item: Object) -> Object:
        self.items.append(item)
        return item

    async def list(self, *_: Any, **__: Any) -> list[Object]:
        return self.pods


def publisher(
    stored: Stored, pools: list[FleetPool], port: int = 0, proof: Path | None = None, **reports: float
) -> Publisher:
    told = {name: GatewayReport(fleet_issued_at=at) for name, at in reports.items()}
    return Publisher(
        stored,  # type: ignore[arg-type]
        "tidepool",
        lambda: tuple(pools),
        lambda: {"g": "127.0.0.1"},
        lambda: told,
        Control(port, OwnProof(proof)),
    )


A, B = (FleetPool(name=f"default/{name}", models=(name,)) for name in "ab")


async def test_the_fleets_time_moves_with_the_pools_alone_also_over_a_restart() -> None:
    stored, pools = Stored(), [A]
    first = await publisher(stored, pools).publish()
    again = await publisher(stored, pools).publish()
    pools.append(B)
    third = await publisher(stored, pools).publish()

    assert first.issued_at == again.issued_at
    assert len(stored.items) == 2
    assert first.issued_at is not None
    assert third.issued_at is not None
    assert third.issued_at > first.issued_at


async def test_a_clock_that_was_put_back_does_not_keep_a_fleet_from_the_gateways() -> None:
    """A gateway refuses what is older than what it has: it would keep its fleet until the clock has caught up."""
    tomorrow = time.time() + 86_400.0
    pools = [A]
    late = publisher(Stored(), pools, g=tomorrow)  # the ConfigMap that knew of it is gone

    first = (await late.publish()).issued_at or 0.0
    same = (await publisher(Stored(), pools, g=first).publish()).issued_at or 0.0

    assert first > tomorrow
    assert same > first  # another operator, whose gateways have the fleet of the one before


async def test_only_a_gateway_that_is_behind_gets_the_fleet_with_our_proof(tmp_path: Path) -> None:

    token = tmp_path / "token"
    token.write_text("a.b.c\n")
    async with router() as there, plain() as client:
        stored = Stored()
        behind = publisher(stored, [A], there.port, token, g=1.0)
        issued = (await behind.publish()).issued_at
        await behind._push(client)
        level = publisher(stored, [A], there.port, g=issued or 0.0)
        await level.publish()
        await level._push(client)

    assert [Fleet.model_validate_json(text).issued_at for text in there.taken] == [issued]
    assert there.proofs == ["a.b.c"]


async def test_gateways_are_told_apart_by_whether_they_take_requests() -> None:
    def gateway(name: str, address: str, ready: str, going: bool = False) -> Object:
        metadata = {"name": name} | ({"deletionTimestamp": "x"} if going else {})
        conditions = [{"type": "Ready", "status": ready}]
        return {"metadata": metadata, "status": {"podIP": address, "conditions": conditions}}

    stored, changes = Stored(), []
    stored.pods = [
        gateway("a", "10.0.0.1", "True"),
        gateway("b", "10.0.0.2", "False", going=True),
        gateway("c", "10.0.0.3", "False"),
    ]
    found = Gateways(stored, "tidepool", lambda: changes.append(1))  # type: ignore[arg-type]
    await found.look()
    await found.look()

    assert found.serving() == ("10.0.0.1",)
    assert set(found.addresses()) == {"a", "b"}, "what a gateway on its way out holds is still demand"
    assert set(found.reachable()) == {"a", "c"}, "one without a fleet cannot get ready before it has been told"
    assert changes == [1]


async def test_settings_come_with_the_operators_newest_proof(tmp_path: Path) -> None:
    file = tmp_path / "token"
    async with router() as there:
        sidecars = Sidecars(there.port, there.port, file)
        for number, proof in enumerate((None, "a.b.c\n", "d.e.f\n")):
            if proof is not None:
                file.write_text(proof)
            assert await sidecars.push(SETTINGS.model_copy(update={"drain_timeout": f"{number}s"}), [pod()]) == []
        await sidecars.close()

    assert there.proofs == [None, "a.b.c", "d.e.f"]
