"""A request for a LoRA adapter: to its pool, its name left in place, known as an adapter's at both ends."""

import json
from typing import Any

from fakes.engine import EngineDouble
from scripted.clients import RawClient, chat, post
from scripted.upstreams import ScriptedEngine
from tidepool_api.routing import Fleet, FleetPool
from tidepool_api.traffic import Traffic

_LONG = "a prompt of some length. " * 60


def model_of(body: bytes) -> str:
    name: str = json.loads(body)["model"]
    return name


async def test_an_adapter_that_an_engine_serves_is_listed_and_served(sidecar: Any, gateway: Any) -> None:
    async with EngineDouble() as engine:
        engine.api.adapters["sql"] = "/adapters/sql"
        behind = await sidecar(engine.url)
        front = await gateway(f"http://127.0.0.1:{behind.port}", models=(engine.settings.served_names[0], "alias"))
        async with RawClient(front.port) as client:
            listed = await client.ask(b"GET /v1/models HTTP/1.1\r\nHost: test\r\n\r\n")
            card = await client.ask(b"GET /v1/models/sql HTTP/1.1\r\nHost: test\r\n\r\n")
            body = json.dumps({"model": "sql", "prompt": _LONG, "max_tokens": 2}).encode()
            answers = [await client.ask(post(body, b"/v1/completions")) for _ in range(2)]
            unknown = await client.ask(post(chat("law")))

    assert [card["id"] for card in listed.json()["data"]] == [engine.settings.served_names[0], "alias", "sql"]
    assert card.json()["parent"] == engine.settings.served_names[0]
    assert [(answer.status, answer.json()["model"]) for answer in answers] == [(200, "sql")] * 2
    assert (unknown.status, unknown.json()["error"]["code"]) == (404, "model_not_found")
    assert "sql" in unknown.json()["error"]["message"]
    (pod,) = front.state.pools["default/pool"].pods.values()
    assert pod.adapters == {"sql"}


async def test_the_sidecar_keeps_an_adapters_prompts_apart_from_the_models(sidecar: Any) -> None:
    async with EngineDouble() as engine:
        engine.api.adapters["sql"] = "/adapters/sql"
        router = await sidecar(engine.url)
        entered = []
        async with RawClient(router.port) as client:
            for model in ("sql", "sql", engine.settings.served_names[0]):
                body = json.dumps({"model": model, "prompt": _LONG, "max_tokens": 1}).encode()
                before = router.state.cache.log.total
                assert (await client.ask(post(body, b"/v1/completions"))).status == 200
                entered.append(router.state.cache.log.total - before)

    assert entered[0] == entered[2] > entered[1]  # what was new in the cache


async def test_an_adapter_is_not_renamed_and_stays_with_pools_that_serve_it(gateway: Any) -> None:
    """Another pool's model would answer in its name; a pool that serves it too may take it."""
    async with ScriptedEngine() as own, ScriptedEngine() as other, ScriptedEngine() as third:
        traffic = Traffic.model_validate(
            {"split": [{"pool": "other", "percent": 100}], "fallback": ["unfit", "third"]}
        )
        others = (
            FleetPool(name="other", models=("other-model",), endpoints=(other.url,)),
            FleetPool(name="unfit", models=("unfit-model",), endpoints=(other.url,)),
            FleetPool(name="third", models=("third-model",), adapters=("sql",), endpoints=(third.url,)),
        )
        router = await gateway(own.url, traffic=traffic, others=others)
        config = router.state.pools["default/pool"].config.model_copy(update={"adapters": ("sql",)})
        router.state.apply(Fleet(pools=(config, *others)))
        async with RawClient(router.port) as client:
            at_home = await client.ask(post(chat("sql")))
            for pod in router.state.pools["default/pool"].pods.values():
                pod.reachable = False
            router.state.pools["default/pool"].pod_changed()
            fallen_back = await client.ask(post(chat("sql")))

    assert [answer.headers[b"x-tidepool-pool"] for answer in (at_home, fallen_back)] == [b"default/pool", b"third"]
    assert [model_of(seen.body) for seen in own.requests + third.requests] == ["sql", "sql"]
    assert other.requests == []
