"""Requests to an API server that misbehaves, and to a real one."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
from aiohttp import web
from kubernetes.aio.client import Configuration

from pools.live import Live
from tidepool_operator.cluster.api import Api
from tidepool_operator.cluster.client import Client, configuration
from tidepool_operator.cluster.kinds import CONFIG_MAP, MODEL_POOL, POD
from tidepool_operator.errors import (
    ApiError,
    ConfigurationError,
    Conflict,
    Forbidden,
    Invalid,
    NotFound,
    TooManyRequests,
    Unavailable,
)

pytestmark = [pytest.mark.traffic]  # waits for what does not come

Answer = Callable[[int], Awaitable[web.Response]]


@asynccontextmanager
async def server(answer: Answer, timeout_seconds: float = 5.0) -> AsyncIterator[tuple[Client, list[web.Request]]]:
    """A client of a server that answers the n-th request by `answer(n)`."""
    seen: list[web.Request] = []

    async def handle(request: web.Request) -> web.Response:
        seen.append(request)
        return await answer(len(seen))

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", handle)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    made = Configuration()
    made.host = f"http://127.0.0.1:{runner.addresses[0][1]}"
    client = Client(made, timeout_seconds=timeout_seconds)
    try:
        yield client, seen
    finally:
        await client.close()
        await runner.cleanup()


def says(status: int, message: str = "no", headers: dict[str, str] | None = None) -> Answer:
    async def answer(_: int) -> web.Response:
        return web.json_response({"kind": "Status", "message": message}, status=status, headers=headers)

    return answer


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        (400, Invalid),
        (401, Forbidden),
        (403, Forbidden),
        (404, NotFound),
        (409, Conflict),
        (422, Invalid),
    ],
)
async def test_refusals_carry_the_servers_words_and_are_not_repeated(
    status: int, expected: type[ApiError]
) -> None:
    async with server(says(status, "the very words")) as (client, seen):
        with pytest.raises(expected, match="the very words"):
            await client.request("GET", "/x")

    assert len(seen) == 1


async def test_a_server_error_is_tried_again() -> None:
    async def answer(number: int) -> web.Response:
        return web.json_response({"ok": number}, status=200 if number == 3 else 503)

    async with server(answer) as (client, seen):
        assert await client.request("GET", "/x") == {"ok": 3}

    assert len(seen) == 3


async def test_the_budget_of_tries_ends() -> None:
    async with server(says(500)) as (client, seen):
        with pytest.raises(Unavailable):
            await client.request("GET", "/x")

    assert len(seen) == 4


async def test_a_long_retry_after_is_handed_to_the_queue() -> None:
    async with server(says(429, headers={"Retry-After": "30"})) as (client, seen):
        with pytest.raises(TooManyRequests) as caught:
            await client.request("GET", "/x")

    assert caught.value.retry_after_seconds == 30
    assert len(seen) == 1


async def test_an_unknown_field_of_an_apply_is_a_refusal_although_the_status_is_500() -> None:
    words = "failed to create typed patch object (a; v1, Kind=X): .foo: field not declared in schema"
    async with server(says(500, words)) as (client, seen):
        with pytest.raises(Invalid, match="foo"):
            await client.request("PATCH", "/x", body={})

    assert len(seen) == 1


async def test_a_server_that_does_not_answer_is_given_up() -> None:
    held = asyncio.Event()

    async def answer(_: int) -> web.Response:
        await held.wait()
        return web.Response()

    async with server(answer, timeout_seconds=0.4) as (client, seen):
        with pytest.raises(Unavailable, match="did not answer"):
            await client.request("GET", "/x")
        held.set()

    assert len(seen) == 4


async def test_an_answer_that_is_no_status_is_told_as_it_is() -> None:
    async def answer(_: int) -> web.Response:
        return web.Response(status=403, text="<html>proxy says no</html>")

    async with server(answer) as (client, _):
        with pytest.raises(Forbidden, match="proxy says no"):
            await client.request("GET", "/x")


async def test_a_list_is_read_page_by_page() -> None:
    async def answer(number: int) -> web.Response:
        items = [{"metadata": {"name": f"p{number}"}}]
        return web.json_response({"items": items, "metadata": {"continue": "more"} if number < 3 else {}})

    async with server(answer) as (client, seen):
        found = await Api(client).list(POD, "default")

    assert [item["metadata"]["name"] for item in found] == ["p1", "p2", "p3"]
    assert seen[2].query["continue"] == "more"


async def test_without_access_the_message_says_what_to_do(tmp_path: object) -> None:
    with pytest.raises(ConfigurationError, match="KUBECONFIG"):
        await configuration(f"{tmp_path}/none")


@pytest.mark.apiserver
async def test_a_second_apply_of_the_same_writes_nothing(live: Live) -> None:
    item = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "x", "namespace": live.namespace},
        "data": {"a": "1"},
    }
    first = await live.api.apply(item)
    second = await live.api.apply(item)

    assert first["metadata"]["resourceVersion"] == second["metadata"]["resourceVersion"]


@pytest.mark.apiserver
async def test_apply_owns_its_fields_and_leaves_foreign_ones(live: Live) -> None:
    item = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "x", "namespace": live.namespace},
        "data": {"a": "1", "b": "2"},
    }
    await live.api.apply(item)
    await live.edit(CONFIG_MAP, "x", {"data": {"foreign": "3", "a": "edited"}})
    applied = await live.api.apply({**item, "data": {"a": "1"}})

    assert applied["data"] == {"a": "1", "foreign": "3"}


@pytest.mark.apiserver
async def test_deleting_is_of_that_very_object(live: Live) -> None:
    item = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "x", "namespace": live.namespace}}
    made = await live.api.apply(item)
    with pytest.raises(Conflict):
        await live.api.delete(CONFIG_MAP, live.namespace, "x", uid="another")

    assert await live.api.delete(CONFIG_MAP, live.namespace, "x", uid=made["metadata"]["uid"])
    assert not await live.api.delete(CONFIG_MAP, live.namespace, "x")


@pytest.mark.apiserver
async def test_a_spec_that_can_never_work_is_refused_at_apply_with_the_field(live: Live) -> None:
    with pytest.raises(Invalid, match=r"spec\.scaling"):
        await live.create(scaling={"minReplicas": 3, "maxReplicas": 1})

    assert await live.list(MODEL_POOL) == []
