"""Control, metrics and load endpoints of both roles, as plain handlers."""

import json
from typing import Any

import pytest

from tidepool_api.load import GatewayReport, LoadReport
from tidepool_api.routing import Fleet, FleetPool, SidecarSettings
from tidepool_router.control import (
    Handler,
    Response,
    StreamResponse,
    gateway_control,
    gateway_metrics,
    load_endpoints,
    sidecar_control,
    sidecar_metrics,
)
from tidepool_router.door import Door, Writer
from tidepool_router.fleet.gateway import GatewayFleet
from tidepool_router.fleet.sidecar import SidecarState


async def ask(handler: Handler, method: str, path: str, body: bytes = b"") -> tuple[int, str]:
    answer = await handler.handle(method, path, {}, body)
    assert isinstance(answer, Response)
    return answer.status, answer.body.decode()


@pytest.fixture
def state(engine: Any, clock: Any) -> SidecarState:
    return SidecarState(engine.endpoint, SidecarSettings(pool="p"), pod="pod-0", boot="b", now=clock)


@pytest.fixture
async def gateway(clock: Any) -> Any:
    fleet = GatewayFleet(name="gw", boot="b", now=clock)
    yield fleet
    await fleet.close()


def engine_up(engine: Any) -> None:
    engine.pages |= {"/health": (200, b""), "/v1/models": (200, b'{"data": [{"id": "m"}]}')}


async def test_probes_of_a_sidecar(state: SidecarState, engine: Any) -> None:
    control = sidecar_control(state)
    assert (await ask(control, "GET", "/healthz"))[0] == 200  # needs no engine
    status, reason = await ask(control, "GET", "/engine/started")
    assert (status, reason) == (503, "the engine has not been asked yet\n")
    assert (await ask(control, "GET", "/engine/ready"))[0] == 503

    engine_up(engine)
    await state.look_at_engine()
    assert (await ask(control, "GET", "/engine/started"))[0] == 200
    assert (await ask(control, "GET", "/engine/ready"))[0] == 200


async def test_settings_are_put_and_bad_ones_name_the_field(state: SidecarState) -> None:
    control = sidecar_control(state)
    good = SidecarSettings(pool="other", model="m", drain_timeout="9s")

    assert await ask(control, "PUT", "/settings", good.model_dump_json(by_alias=True).encode()) == (204, "")
    assert state.settings == good

    status, reason = await ask(control, "PUT", "/settings", b'{"pool": "p", "drainTimeout": "soon"}')
    assert (status, "drainTimeout" in reason) == (400, True)
    assert (await ask(control, "PUT", "/settings", b"{"))[0] == 400
    assert (await ask(control, "PUT", "/settings", b"\xff"))[0] == 400
    assert state.settings == good


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [("GET", "/", 404), ("GET", "/drained", 404), ("POST", "/settings", 405), ("DELETE", "/drain", 405)],
)
async def test_what_is_not_there(state: SidecarState, method: str, path: str, status: int) -> None:
    assert (await ask(sidecar_control(state), method, path))[0] == status


async def test_the_metrics_port_has_both_pages_or_its_own(state: SidecarState, engine: Any) -> None:
    engine.pages["/metrics"] = (200, b"# TYPE vllm:x gauge\nvllm:x 1\n")
    _, both = await ask(sidecar_metrics(state), "GET", "/metrics")
    await engine.stop()
    _, own = await ask(sidecar_metrics(state), "GET", "/metrics")

    assert both.endswith("vllm:x 1\n")
    assert "tidepool_engine_ready 0\n" in own
    assert "vllm:x" not in own


async def test_the_load_paths_of_a_sidecar(state: SidecarState) -> None:
    loads = load_endpoints(state.feed, state.report)
    _, body = await ask(loads, "GET", "/tidepool/load")
    assert LoadReport.decode(body).seq == 1

    stream = await loads.handle("GET", "/tidepool/load/stream", {}, b"")
    assert isinstance(stream, StreamResponse)
    assert LoadReport.decode(await anext(stream.chunks)).seq == 2
    await stream.chunks.aclose()  # type: ignore[attr-defined]


def document(name: str, issued_at: float | None = None) -> bytes:
    fleet = Fleet(issued_at=issued_at, pools=(FleetPool(name=name, models=(name,)),))
    return fleet.model_dump_json(by_alias=True).encode()


async def test_a_gateway_is_ready_with_a_fleet_and_until_it_drains(gateway: GatewayFleet) -> None:
    control = gateway_control(gateway, 30.0, Door(Writer.EVERYBODY))
    assert (await ask(control, "GET", "/healthz"))[0] == 200
    assert (await ask(control, "GET", "/readyz"))[0] == 503
    assert (await ask(control, "PUT", "/fleet", document("a")))[0] == 204
    assert (await ask(control, "GET", "/readyz"))[0] == 200

    gateway.begin_drain(30.0)
    assert await ask(control, "GET", "/readyz") == (503, "the gateway is draining\n")


async def test_fleets_are_put_in_order(gateway: GatewayFleet) -> None:
    control = gateway_control(gateway, 30.0, Door(Writer.EVERYBODY))
    assert (await ask(control, "PUT", "/fleet", document("new", 20.0)))[0] == 204
    assert (await ask(control, "PUT", "/fleet", document("new", 20.0)))[0] == 204  # sent again: nothing to mend
    assert (await ask(control, "PUT", "/fleet", document("old", 10.0)))[0] == 409
    assert gateway.route("old") is None
    assert gateway.route("new") is not None


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"", "mapping"),
        (b"\xff\xfe", "decode"),
        (b'{"pools": [{"name": "a", "models": []}]}', "pools[0].models"),
        (b'{"pools": [{"name": "a", "models": ["m"], "endpoints": ["ftp://x"]}]}', "pools[0].endpoints[0]"),
    ],
)
async def test_a_bad_fleet_is_refused_whole(gateway: GatewayFleet, body: bytes, reason: str) -> None:
    control = gateway_control(gateway, 30.0, Door(Writer.EVERYBODY))
    await ask(control, "PUT", "/fleet", document("a"))

    status, text = await ask(control, "PUT", "/fleet", body)

    assert (status, reason in text) == (400, True), text
    assert gateway.route("a") is not None


async def test_a_gateways_report_and_page(gateway: GatewayFleet) -> None:
    control = gateway_control(gateway, 30.0, Door(Writer.EVERYBODY))
    await ask(control, "PUT", "/fleet", document("ns/a", 5.0))

    report = GatewayReport.decode((await ask(control, "GET", "/tidepool/load"))[1])
    _, page = await ask(gateway_metrics(gateway), "GET", "/metrics")

    assert (report.gateway, report.fleet_issued_at, list(report.pools)) == ("gw", 5.0, ["ns/a"])
    assert 'tidepool_gateway_requests_held{pool="ns/a"} 0' in page
    assert json.loads(json.dumps(report.pools["ns/a"].held)) == 0
