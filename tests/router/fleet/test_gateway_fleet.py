"""All pools of a gateway: documents applied level by level, reports, DNS, drain."""

import asyncio
import json
import socket
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidepool_api.load import GatewayReport, Health, LoadReport
from tidepool_api.routing import Fleet, FleetPool
from tidepool_router.errors import NoPods
from tidepool_router.facts import Api, RequestFacts
from tidepool_router.fleet import drain, resolve
from tidepool_router.fleet.gateway import GatewayFleet
from tidepool_router.fleet.reservation import Reservation
from tidepool_router.ledger import Outcome

FACTS = RequestFacts(api=Api.CHAT, path="/v1/chat/completions", model="m", body_bytes=100)
READY = LoadReport(boot="b", seq=1, health=Health.READY)


def fleet_of(*pools: FleetPool, issued_at: float | None = None) -> Fleet:
    return Fleet(issued_at=issued_at, pools=pools)


def pool_of(name: str, *models: str, endpoints: Sequence[str] = (), wakes: bool = True) -> FleetPool:
    return FleetPool(name=name, models=models or (name,), endpoints=tuple(endpoints), wakes=wakes)


@pytest.fixture
async def gateway(clock: Any) -> Any:
    fleet = GatewayFleet(name="gw-0", boot="boot", now=clock)
    await fleet.start()
    yield fleet
    await fleet.close()


def listeners() -> set[str]:
    return {task.get_name() for task in asyncio.all_tasks() if task.get_name().startswith("listen-")}


async def test_names_and_aliases_lead_to_their_pool(gateway: GatewayFleet) -> None:
    gateway.apply(fleet_of(pool_of("ns/a", "llama", "chat"), pool_of("ns/b", "qwen", "chat")))

    routed = {model: pool.name for model in ("llama", "chat", "qwen") if (pool := gateway.route(model))}

    assert routed == {"llama": "ns/a", "chat": "ns/a", "qwen": "ns/b"}  # who had the name first keeps it
    assert gateway.route("gpt") is None
    assert [(card.id, card.pool) for card in gateway.models()] == [
        ("llama", "ns/a"),
        ("chat", "ns/a"),
        ("qwen", "ns/b"),
    ]


async def test_an_older_document_is_ignored(gateway: GatewayFleet) -> None:
    assert gateway.apply(fleet_of(pool_of("new"), issued_at=20.0)) is True

    assert gateway.apply(fleet_of(pool_of("old"), issued_at=10.0)) is False
    assert (gateway.route("new") is not None, gateway.route("old")) == (True, None)
    assert gateway.report().fleet_issued_at == 20.0

    assert gateway.apply(fleet_of(pool_of("by-hand"))) is True  # a person's has no date and always applies


async def test_what_stays_keeps_its_state(gateway: GatewayFleet) -> None:
    one, two = "http://127.0.0.1:9", "http://127.0.0.2:9"
    gateway.apply(fleet_of(pool_of("a", endpoints=[one])))
    before = gateway.pools["a"]
    before.pod_heard(before.pods["127.0.0.1:9"], READY)
    reservation = before.pick(FACTS, 0.0)
    assert reservation is not None
    created = gateway.models()[0].created

    gateway.apply(fleet_of(pool_of("a", "a", "alias", endpoints=[two])))

    assert gateway.pools["a"] is before
    assert set(before.pods) == {"127.0.0.1:9", "127.0.0.2:9"}  # the first still runs a request
    assert gateway.models()[0].created == created
    reservation.close(Outcome.OK, 0.0)
    gateway.apply(fleet_of(pool_of("a", endpoints=[two])))
    assert set(before.pods) == {"127.0.0.2:9"}


async def test_a_pool_that_comes_back_leaves_no_task_behind(gateway: GatewayFleet, eventually: Any) -> None:
    document = fleet_of(pool_of("a", endpoints=["http://127.0.0.1:9"]))
    gateway.apply(document)
    old = gateway.pools["a"]
    old.pod_heard(old.pods["127.0.0.1:9"], READY)
    reservation = old.pick(FACTS, 0.0)
    assert reservation is not None

    gateway.apply(fleet_of())
    gateway.apply(document)
    assert gateway.pools["a"] is not old
    assert reservation.close(Outcome.OK, 0.0) is True

    tasks = [task for task in asyncio.all_tasks() if task.get_name() == "listen-127.0.0.1:9"]
    assert len(tasks) == 2
    await eventually(lambda: sum(not task.done() for task in tasks) == 1)


async def test_held_requests_of_a_pool_that_goes_are_told(gateway: GatewayFleet, clock: Any) -> None:
    gateway.apply(fleet_of(pool_of("a")))
    held = asyncio.create_task(gateway.pools["a"].wait_for_pod(FACTS, clock))
    await asyncio.sleep(0)

    gateway.apply(fleet_of())

    with pytest.raises(NoPods):
        await held


async def test_the_operator_hears_of_a_held_request_at_once(gateway: GatewayFleet, clock: Any) -> None:
    gateway.apply(fleet_of(pool_of("ns/a", "m"), issued_at=7.0))
    lines = gateway.feed.lines()
    first = GatewayReport.decode(await anext(lines))
    assert (first.gateway, first.fleet_issued_at, first.pools["ns/a"].held) == ("gw-0", 7.0, 0)

    pool = gateway.pools["ns/a"]
    assert pool.pick(FACTS, clock()) is None
    held = asyncio.create_task(pool.wait_for_pod(FACTS, clock))
    loop = asyncio.get_running_loop()
    asked_at = loop.time()
    second = GatewayReport.decode(await anext(lines))

    assert loop.time() - asked_at < 0.9  # not by the heartbeat
    demand = second.pools["ns/a"]
    assert (demand.held, demand.held_bytes, demand.arrived_total) == (1, 100, 1)
    assert second.seq > first.seq
    held.cancel()
    await asyncio.gather(held, return_exceptions=True)
    await lines.aclose()


async def test_held_requests_time_out_by_themselves(gateway: GatewayFleet, clock: Any) -> None:
    gateway.apply(fleet_of(pool_of("a")))
    held = asyncio.create_task(gateway.pools["a"].wait_for_pod(FACTS, clock))
    await asyncio.sleep(0)
    clock.pass_(601.0)

    with pytest.raises(Exception, match="within 601 s"):
        await asyncio.wait_for(held, 5)


async def test_a_drain_waits_for_what_runs_and_what_is_held(gateway: GatewayFleet, clock: Any) -> None:
    gateway.apply(fleet_of(pool_of("a", endpoints=["http://127.0.0.1:9"])))
    held = asyncio.create_task(gateway.pools["a"].wait_for_pod(FACTS, clock))
    await asyncio.sleep(0)
    draining = asyncio.create_task(gateway.drain(300.0))
    await asyncio.sleep(0)
    assert gateway.draining
    clock.pass_(100.0)
    await asyncio.sleep(drain._LOOK_SECONDS * 1.5)
    assert not draining.done()

    pool = gateway.pools["a"]
    pool.pod_heard(pool.pods["127.0.0.1:9"], READY)
    (await held).close(Outcome.OK, clock())
    clock.pass_(drain.QUIET_SECONDS + 0.1)

    await asyncio.wait_for(draining, 5)


urls = st.lists(st.sampled_from([f"http://127.0.0.1:{port}" for port in (1, 2, 3, 4)]), max_size=4)
pools = st.lists(
    st.builds(
        pool_of,
        st.sampled_from(["a", "b", "c"]),
        st.sampled_from(["m1", "m2"]),
        st.sampled_from(["m2", "m3"]),
        endpoints=urls,
    ),
    max_size=3,
    unique_by=lambda pool: pool.name,
)


@given(st.lists(st.tuples(pools, st.integers(0, 5) | st.none(), st.booleans()), max_size=8))
def test_any_sequence_of_documents_ends_at_the_last_that_counts(
    steps: list[tuple[list[FleetPool], int | None, bool]],
) -> None:
    """Whatever came before, pools, names, pods and listeners are the document's, plus busy pods."""

    async def run() -> None:
        gateway = GatewayFleet(name="g", boot="b", now=lambda: 0.0)
        in_force: Fleet = Fleet()
        live: list[tuple[str, Reservation]] = []
        for wanted, issued_at, send in steps:
            fleet = Fleet(pools=tuple(wanted), issued_at=issued_at)
            old = issued_at is not None and in_force.issued_at is not None and issued_at < in_force.issued_at
            assert gateway.apply(fleet) is not old
            in_force = in_force if old else fleet
            check(gateway, in_force)
            for pool in gateway.pools.values():
                for pod in pool.pods.values():
                    pool.pod_heard(pod, replace(READY, seq=len(live) + 2))
                if send and (reservation := pool.pick(FACTS, 0.0)) is not None:
                    live.append((pool.name, reservation))
        assert gateway.live == sum(r._pool is gateway.pools.get(name) for name, r in live)
        for _, reservation in live:
            assert reservation.close(Outcome.OK, 0.0)
        await gateway._sweep()
        check(gateway, in_force, idle=True)
        await gateway.close()
        await asyncio.sleep(0)
        assert listeners() == set()

    asyncio.run(run())


def check(gateway: GatewayFleet, fleet: Fleet, *, idle: bool = False) -> None:
    assert list(gateway.pools) == [pool.name for pool in fleet.pools] or set(gateway.pools) == {
        pool.name for pool in fleet.pools
    }
    owners: dict[str, str] = {}
    for pool in fleet.pools:
        for model in pool.models:
            owners.setdefault(model, pool.name)
    assert {card.id: card.pool for card in gateway.models()} == owners
    for config in fleet.pools:
        pods = gateway.pools[config.name].pods
        wanted = {url.removeprefix("http://") for url in config.endpoints}
        assert {key for key, pod in pods.items() if not pod.leaving} == wanted
        assert all(pod.ledger.running for pod in pods.values() if pod.leaving)
        assert not idle or set(pods) == wanted


class Names:
    """A DNS server in name only: answers what it is told, or fails."""

    def __init__(self) -> None:
        self.answer: Sequence[str] | OSError = ()
        self.asked = 0

    def __call__(self, host: str) -> Sequence[str]:
        assert host == "llama-peers.ns.svc"
        self.asked += 1
        if isinstance(self.answer, OSError):
            raise self.answer
        return self.answer


@pytest.fixture
async def named(clock: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(resolve, "_INTERVAL_SECONDS", 0.005)
    names = Names()
    fleet = GatewayFleet(name="g", boot="b", now=clock, lookup=names)
    await fleet.start()
    fleet.apply(fleet_of(pool_of("a", endpoints=["dns+http://llama-peers.ns.svc:9"])))
    yield fleet.pools["a"], names
    await fleet.close()


async def test_every_address_of_a_name_is_a_pod(named: Any, eventually: Any) -> None:
    pool, names = named
    names.answer = ["127.0.0.1", "127.0.0.2"]
    await eventually(lambda: set(pool.pods) == {"127.0.0.1:9", "127.0.0.2:9"})

    names.answer = ["127.0.0.2", "127.0.0.3"]
    await eventually(lambda: set(pool.pods) == {"127.0.0.2:9", "127.0.0.3:9"})

    names.answer = []
    await eventually(lambda: pool.pods == {})


async def test_a_dns_that_fails_changes_nothing(named: Any, eventually: Any) -> None:
    pool, names = named
    names.answer = ["127.0.0.1"]
    await eventually(lambda: len(pool.pods) == 1)

    names.answer = socket.gaierror(socket.EAI_AGAIN, "try again")
    asked = names.asked
    await eventually(lambda: names.asked > asked + 8)

    assert set(pool.pods) == {"127.0.0.1:9"}
    assert not next(iter(pool.pods.values())).leaving


@pytest.mark.parametrize(
    ("code", "empty"), [("EAI_NONAME", True), ("EAI_NODATA", True), ("EAI_AGAIN", False), ("EAI_FAIL", False)]
)
def test_no_such_name_means_no_pods_and_other_failures_mean_nothing(
    monkeypatch: pytest.MonkeyPatch, code: str, empty: bool
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise socket.gaierror(getattr(socket, code), code)

    monkeypatch.setattr(socket, "getaddrinfo", fail)
    if empty:
        assert resolve.look_up("x") == ()
    else:
        with pytest.raises(socket.gaierror):
            resolve.look_up("x")


@pytest.mark.parametrize(
    ("found", "addresses"),
    [
        (["10.0.0.1", "fd00::1"], ["10.0.0.1"]),  # one pod, two families
        (["fd00::2", "fd00::1"], ["fd00::1", "fd00::2"]),
    ],
)
def test_a_pod_of_two_families_is_one(
    monkeypatch: pytest.MonkeyPatch, found: list[str], addresses: list[str]
) -> None:
    def answer(*_: object, **__: object) -> list[object]:
        families = [socket.AF_INET6 if ":" in text else socket.AF_INET for text in found]
        return [(family, 1, 6, "", (text, 0)) for family, text in zip(families, found, strict=True)]

    monkeypatch.setattr(socket, "getaddrinfo", answer)

    assert list(resolve.look_up("x")) == addresses


def test_real_names_resolve() -> None:
    assert "127.0.0.1" in resolve.look_up("localhost")


async def test_the_fleets_page_counts_endpoints_by_state(gateway: GatewayFleet) -> None:
    gateway.apply(fleet_of(pool_of("ns/a", "m", endpoints=["http://127.0.0.1:9", "http://127.0.0.1:10"])))
    pool = gateway.pools["ns/a"]
    pool.pod_heard(pool.pods["127.0.0.1:9"], READY)

    page = gateway.metrics.registry.render().decode()

    assert 'tidepool_gateway_endpoints{pool="ns/a",state="ready"} 1\n' in page
    assert 'tidepool_gateway_endpoints{pool="ns/a",state="down"} 1\n' in page
    assert 'tidepool_gateway_requests_held{pool="ns/a"} 0\n' in page
    assert json.dumps(sorted(gateway.report().pools)) == '["ns/a"]'
