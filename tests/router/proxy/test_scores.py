"""The scores that a client may ask for are those of the pick that sent its request, held or not."""

from typing import Any

from scripted.clients import RawClient, chat, post
from scripted.routers import until
from scripted.upstreams import ScriptedEngine
from tidepool_api.routing import Fleet
from tidepool_router.picking.decision import Decision

_ASK = b"x-tidepool-debug: scores\r\n"


async def test_a_request_that_was_held_is_explained_and_recorded_by_the_pick_that_ended_its_wait(
    gateway: Any,
) -> None:
    router = await gateway(wakes=True)
    pool = router.state.pools["default/pool"]
    pool.explains = True
    decisions: list[Decision] = []
    pool.record = decisions.append
    async with ScriptedEngine() as engine, RawClient(router.port) as client, RawClient(router.port) as other:
        await client.send(post(chat(), extra=_ASK))
        await until(lambda: pool.queue.held == 1)
        await other.send(post(chat()))
        await until(lambda: pool.queue.held == 2)
        config = pool.config.model_copy(update={"endpoints": (engine.url,)})
        router.state.apply(Fleet(pools=(config,)))
        asked, silent = await client.answer(), await other.answer()

    pod = engine.url.removeprefix("http://").encode()
    assert asked.headers[b"x-tidepool-scores"].startswith(pod + b" harm=")
    assert b"requests=0" in asked.headers[b"x-tidepool-scores"]  # before its own reservation
    assert b"x-tidepool-scores" not in silent.headers
    assert [decision.pods[decision.picked].key for decision in decisions] == [pod.decode()] * 2


async def test_a_retry_is_explained_by_its_own_pick(gateway: Any) -> None:
    async with ScriptedEngine() as engine:
        async with ScriptedEngine() as gone:
            router = await gateway(gone.url, engine.url)
        pool = router.state.pools["default/pool"]
        pool.explains = True
        async with RawClient(router.port) as client:
            answers = [await client.ask(post(chat(), extra=_ASK)) for _ in range(2)]

    assert [answer.status for answer in answers] == [200, 200]
    # Once both were candidates; for the retry, and after it, the pod that had failed was none.
    assert min(answer.headers[b"x-tidepool-scores"].count(b"harm=") for answer in answers) == 1
