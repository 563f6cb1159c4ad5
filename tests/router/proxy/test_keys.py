"""A gateway with API keys, over sockets: who gets in, what the engines see, what is charged."""

import json
from typing import Any

import pytest

from scripted.clients import Answer, RawClient, chat, post
from scripted.routers import until
from scripted.upstreams import ScriptedEngine, Seen
from tidepool_api.routing import Routing
from tidepool_router.facts import Api, RequestFacts
from tidepool_router.keys import ApiKey, KeyRing, mint
from tidepool_router.proxy.keyed import within_grant
from tidepool_router.wire.headers import PRIORITY
from tidepool_router.wire.messages import Request

KEY = mint(bytes(range(35)))
BEARER = b"Authorization: Bearer %b\r\n" % KEY.text.encode()
USAGE = {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10}


def ring(**terms: Any) -> KeyRing:
    made = KeyRing()
    made.apply([ApiKey.model_validate({"id": KEY.id, "sha256": KEY.digest, "tenant": "search", **terms})], 0.0)
    return made


async def ask(router: Any, request: bytes) -> Answer:
    async with RawClient(router.port) as client:
        return await client.ask(request)


async def test_without_a_key_nothing_but_the_health_answers(gateway: Any) -> None:
    async with ScriptedEngine() as engine:
        router = await gateway(engine.url, keys=ring())
        refused = await ask(router, post(chat()))
        messages = await ask(router, post(chat(), b"/v1/messages"))
        models = await ask(router, b"GET /v1/models HTTP/1.1\r\n\r\n")
        version = await ask(router, b"GET /version HTTP/1.1\r\n\r\n")
        health = await ask(router, b"GET /health HTTP/1.1\r\n\r\n")
        closed = await ask(router, b"POST /sleep HTTP/1.1\r\nContent-Length: 0\r\n%b\r\n" % BEARER)

    assert (refused.status, refused.json()["error"]["code"]) == (401, "missing_api_key")
    assert refused.headers[b"www-authenticate"] == b"Bearer"
    assert messages.json()["error"]["type"] == "authentication_error"
    assert (models.status, version.status, health.status, closed.status) == (401, 401, 200, 403)
    assert not engine.requests


@pytest.mark.parametrize("header", [b"Authorization: Bearer %b\r\n", b"X-API-Key: %b\r\n"])
async def test_a_key_opens_and_goes_no_further(gateway: Any, header: bytes) -> None:
    async with ScriptedEngine() as engine:
        router = await gateway(engine.url, keys=ring())
        extra = b"X-Before: 1\r\n" + header % KEY.text.encode() + b"X-After: authorization\r\n"
        answer = await ask(router, post(chat(), extra=extra))

    (seen,) = engine.requests
    assert answer.status == 200
    assert KEY.text.encode() not in seen.head
    assert seen.headers[b"x-before"] == b"1"
    assert seen.headers[b"x-after"] == b"authorization"


async def test_without_keys_the_engines_get_the_clients_authorization(gateway: Any) -> None:
    async with ScriptedEngine() as engine:
        router = await gateway(engine.url)
        await ask(router, post(chat(), extra=BEARER))

    assert engine.requests[0].headers[b"authorization"] == b"Bearer " + KEY.text.encode()


async def test_a_key_sees_and_asks_its_own_models_only(gateway: Any) -> None:
    async with ScriptedEngine() as engine:
        router = await gateway(engine.url, keys=ring(models=["alias"]))
        listed = await ask(router, b"GET /v1/models HTTP/1.1\r\n%b\r\n" % BEARER)
        allowed = await ask(router, post(chat("alias"), extra=BEARER))
        refused = await ask(router, post(chat("tiny"), extra=BEARER))
        unknown = await ask(router, post(chat("none-such"), extra=BEARER))
        nameless = await ask(router, post(b"{}", extra=BEARER))

    assert [card["id"] for card in listed.json()["data"]] == ["alias"]
    assert allowed.status == 200
    assert (refused.status, refused.json()["error"]["code"]) == (403, "model_not_allowed")
    assert unknown.status == 403  # whether there is such a model is not for this key to know
    assert nameless.status == 400
    assert "tiny" not in nameless.json()["error"]["message"]


async def test_the_limit_of_requests_is_kept_and_the_client_is_told_when_to_come_again(gateway: Any) -> None:
    async with ScriptedEngine() as engine:
        router = await gateway(engine.url, keys=ring(requestsPerMinute=2))
        answers = [await ask(router, post(chat(), extra=BEARER)) for _ in range(3)]

    assert [answer.status for answer in answers] == [200, 200, 429]
    assert 25 <= int(answers[2].headers[b"retry-after"]) <= 30
    assert KEY.id in answers[2].json()["error"]["message"]
    assert len(engine.requests) == 2


async def test_tokens_are_charged_as_the_engine_counts_them(gateway: Any) -> None:
    async def script(seen: Seen) -> None:
        await seen.answer(json.dumps({"choices": [], "usage": USAGE}).encode())

    keys = ring(tokensPerMinute=10_000)
    (grant,) = keys
    async with ScriptedEngine(script) as engine:
        router = await gateway(engine.url, keys=keys)
        await ask(router, post(chat(), extra=BEARER))

    assert (grant.requests, grant.used) == (1, 10)
    assert grant.admit(9_990, 0.0) is None
    assert grant.admit(1_000, 0.0) is not None


async def test_what_no_engine_worked_on_costs_no_tokens(gateway: Any) -> None:
    async def script(seen: Seen) -> None:
        await seen.answer(b'{"error": {"message": "no"}}', status=b"400 Bad Request")

    keys = ring(tokensPerMinute=1_000)
    (grant,) = keys
    async with ScriptedEngine(script) as engine:
        router = await gateway(engine.url, keys=keys)
        await ask(router, post(chat(), extra=BEARER))
        await ask(router, post(chat("tiny", filler="x"), extra=BEARER))

    assert grant.used == 0


async def test_a_client_that_leaves_pays_for_what_it_saw(gateway: Any) -> None:
    keys = ring(tokensPerMinute=100_000)
    (grant,) = keys
    router = await gateway(wakes=True, keys=keys)
    pool = router.state.pools["default/pool"]
    async with RawClient(router.port) as client:
        await client.send(post(chat(), extra=BEARER))
        await until(lambda: pool.queue.held == 1)
    await router.settled()

    assert (grant.requests, grant.used) == (1, 0)
    assert grant.admit(100_000, 0.0) is None  # all of the estimate was given back


@pytest.mark.parametrize(("asked", "priority"), [(b"interactive", 0), (b"batch", 0), (b"low", -5), (None, 0)])
async def test_a_header_cannot_raise_the_priority_of_a_key(
    gateway: Any, asked: bytes | None, priority: int
) -> None:
    routing = Routing(priorities={"interactive": 100, "batch": 0, "low": -5})
    router = await gateway(routing=routing)
    request = Request(b"POST", b"/v1/chat/completions")
    if asked is not None:
        request.special[PRIORITY] = asked
    (grant,) = ring()
    facts = within_grant(RequestFacts(Api.CHAT, "", "tiny"), request, router.state.pools["default/pool"], grant)

    assert facts.priority == priority


async def test_a_connection_that_repeats_its_head_is_covered_each_time(gateway: Any) -> None:
    keys = ring(priority=50)
    (grant,) = keys
    async with ScriptedEngine() as engine:
        router = await gateway(engine.url, keys=keys)
        async with RawClient(router.port) as client:
            for number in range(8):
                if number == 6:
                    keys.apply([grant.key.model_copy(update={"tenant": "moved"})], 0.0)
                await client.ask(post(chat(), extra=BEARER + b"X-Tidepool-Priority: interactive\r\n"))

    assert [seen.headers[b"x-tidepool-tenant"] for seen in engine.requests] == [b"search"] * 6 + [b"moved"] * 2
    for seen in engine.requests:
        assert KEY.text.encode() not in seen.head
        assert seen.headers[b"x-tidepool-priority"] == b"batch"


async def test_sidecars_hear_the_keys_tenant_and_priority_and_not_the_clients(gateway: Any) -> None:
    async with ScriptedEngine() as engine:
        router = await gateway(engine.url, keys=ring(priority=50))
        extra = BEARER + b"X-Tidepool-Tenant: other\r\nX-Tidepool-Priority: interactive\r\n"
        await ask(router, post(chat(), extra=extra))

    headers = engine.requests[0].headers
    assert headers[b"x-tidepool-tenant"] == b"search"
    assert headers[b"x-tidepool-priority"] == b"batch"  # the highest of the pool's that is not above 50
    assert engine.requests[0].head.lower().count(b"x-tidepool-tenant") == 1
