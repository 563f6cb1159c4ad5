"""LoRA adapters at a gateway: names that lead to their pool, pods that serve them, slots that are taken."""

from collections import Counter
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from pools.gateway import READY, chat, endpoints, first, must_pick
from tidepool_api.routing import Fleet, FleetPool
from tidepool_router.facts import RequestFacts
from tidepool_router.fleet.adapters import LoadedAdapters
from tidepool_router.fleet.gateway import GatewayFleet
from tidepool_router.fleet.gateway_metrics import GatewayMetrics
from tidepool_router.fleet.pool import PoolState
from tidepool_router.ledger import Outcome


def for_adapter(name: str, **changes: Any) -> RequestFacts:
    return msgspec.structs.replace(chat(), model=name, adapter=name, **changes)


def make(clock: Any, pods: int = 2, **told: Any) -> PoolState:
    config = FleetPool(name="ns/p", models=("base",), adapters=("sql", "law", "med"))
    pool = PoolState(config, GatewayMetrics(), clock)
    pool.set_pods(endpoints(pods))
    for pod in pool.pods.values():
        pool.pod_heard(pod, replace(READY, **told))
    return pool


@pytest.mark.parametrize(
    ("told", "slots", "loaded", "why"),
    [
        ([("a",), ("b",)], 2, {"a", "b"}, "an adapter that nobody uses now keeps its slot"),
        ([("a",), ("b",), ("c",)], 2, {"b", "c"}, "the one used longest ago makes room"),
        ([("a",), ("b",), ("a",), ("c",)], 2, {"a", "c"}, "used again is used lately"),
        ([("a",), ()], None, {"a"}, "an engine that does not tell its slots"),
    ],
)
def test_loaded_are_those_used_last(
    told: list[tuple[str, ...]], slots: int | None, loaded: set[str], why: str
) -> None:
    adapters = LoadedAdapters()
    for names in told:
        adapters.told(names, slots)

    assert adapters.names == loaded, why


def test_names_of_an_engine_without_slots_are_bounded() -> None:
    adapters = LoadedAdapters()
    adapters.told([str(number) for number in range(1000)], None)

    assert len(adapters.names) == 16


def test_a_burst_for_one_adapter_loads_it_once_and_one_for_another_goes_where_there_is_room(clock: Any) -> None:
    pool = make(clock, pods=2, adapter_slots=1)

    homes = {}
    for name in ("sql", "law"):
        picked = Counter(must_pick(pool, for_adapter(name)).endpoint.key for _ in range(5))
        assert len(picked) == 1, "loading costs more than a few requests ahead"
        homes[name] = picked.popitem()[0]
    assert homes["sql"] != homes["law"]


def test_old_news_of_a_page_do_not_undo_what_was_sent_since(clock: Any) -> None:
    pool = make(clock, pods=1, adapters=("law",), adapter_slots=1)
    must_pick(pool, for_adapter("sql"))
    pod = first(pool)
    pool.pod_heard(pod, replace(READY, seq=2, adapters=("law",), adapter_slots=1))
    assert pod.adapters == {"sql"}

    pool.pod_heard(pod, replace(READY, seq=1, boot="another"))
    assert pod.adapters == set()


def test_an_adapter_goes_to_the_pods_that_serve_it(clock: Any) -> None:
    pool = make(clock, pods=3)
    only = first(pool)
    pool.pod_heard(only, replace(READY, seq=2, served_adapters=("tax",)))

    assert "tax" in pool.adapters
    assert {must_pick(pool, for_adapter("tax")).endpoint.key for _ in range(9)} == {only.key}
    assert len({must_pick(pool).endpoint.key for _ in range(9)}) > 1
    # One that the fleet names and no pod tells of may be anywhere: bare engines tell none.
    assert len({must_pick(pool, for_adapter("sql")).endpoint.key for _ in range(90)}) == 3


def test_the_same_text_under_another_adapter_is_not_cached(clock: Any) -> None:
    pool = make(clock, pods=1)
    prefix = tuple(range(1, 9))
    reasons = []
    for adapter in ("sql", "sql", "law", None):
        reservation = must_pick(pool, msgspec.structs.replace(chat(4000), adapter=adapter, prefix=prefix))
        reasons.append(reservation.reason)
        reservation.close(Outcome.OK, clock.pass_(1.0))

    assert reasons == ["predicted", "predicted-cached", "predicted", "predicted"]


async def test_names_lead_to_their_pool_and_those_of_the_document_go_first(clock: Any) -> None:
    fleet = GatewayFleet(name="g", boot="b", now=clock)
    one = FleetPool(name="ns/one", models=("base",), adapters=("sql",), endpoints=("http://127.0.0.1:9",))
    two = FleetPool(name="ns/two", models=("other", "base-2"), endpoints=("http://127.0.0.1:10",))
    fleet.apply(Fleet(pools=(one, two)))
    told = fleet.pools["ns/two"]
    pod = first(told)
    told.pod_heard(pod, replace(READY, served_adapters=("sql", "tax", "base", "base-2")))
    try:
        homes = {name: pool.name for name in ("base", "sql", "tax", "base-2") if (pool := fleet.route(name))}
        assert homes == {"base": "ns/one", "sql": "ns/one", "tax": "ns/two", "base-2": "ns/two"}
        parents = {card.id: card.parent for card in fleet.models()}
        assert parents == {"base": None, "other": None, "base-2": None, "sql": "base", "tax": "other"}

        told.pod_heard(pod, replace(READY, seq=2))
        assert fleet.route("tax") is None
        fleet.apply(Fleet(pools=(one.model_copy(update={"adapters": ("law",)}), two)))
        assert fleet.route("sql") is None
        assert fleet.route("law") is fleet.pools["ns/one"]
    finally:
        await fleet.close()
