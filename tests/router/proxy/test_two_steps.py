"""Prompts computed on one pod and decoded on another, over engine doubles that hand their blocks over."""

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fakes.engine import EngineDouble
from fakes.faults import Fault, Wrong
from fakes.settings import EngineSettings, Pace
from scripted.clients import Answer, RawClient, post
from scripted.examples import examples
from scripted.issuer import GATEWAY, line, token, trust
from scripted.peers import ONE, TWO, counted
from scripted.routers import RunningRouter, StartRouter, start_gateway, start_sidecar, until
from scripted.upstreams import ScriptedEngine, Seen
from tidepool_api import contract
from tidepool_api.routing import Fleet, FleetPool, FleetPrefill, Routing, SidecarSettings
from tidepool_api.traffic import Traffic

LONG = "the tide comes in and the tide goes out " * 60  # 600 tokens of the double's
SHORT = "hello"


def ask(content: str = LONG, *, stream: bool = False, **more: Any) -> bytes:
    messages = [{"role": "user", "content": content}]
    return json.dumps({"model": "tiny", "messages": messages, "stream": stream, "max_tokens": 8} | more).encode()


@dataclass
class Apart:
    """A pool with a prefill and a decode engine, each behind a sidecar of its own, and a gateway before them."""

    prefill: EngineDouble
    decode: EngineDouble
    routers: list[RunningRouter]
    gateway: RunningRouter

    async def settled(self) -> None:
        """Wait until nothing of any request is left; gateways hold on to their sidecars' load streams."""
        await self.gateway.settled()
        await until(lambda: not any(router.live() for router in self.routers))

    def outcomes(self) -> dict[str, float]:
        """First steps by what came of them."""
        found = counted(self.gateway, contract.METRIC_GATEWAY_PREFILLS)
        return {labels.split('outcome="')[1].strip('"'): count for labels, count in found.items()}

    @property
    def brought(self) -> int:
        """Prompt tokens that the decode engine got from the other one."""
        return self.decode.core.scheduler.brought_tokens

    async def asks(self, body: bytes, path: bytes = b"/v1/chat/completions") -> Answer:
        async with RawClient(self.gateway.port) as client:
            return await client.ask(post(body, path))


async def pool(stack: AsyncExitStack, *, settings: EngineSettings | None = None, **more: Any) -> Apart:
    settings = settings or EngineSettings(prompt_tokens_details=True)
    prefill, decode = [await stack.enter_async_context(EngineDouble(settings)) for _ in range(2)]
    sidecars = []
    for name, engine in (("prefill", prefill), ("decode", decode)):
        sidecar = await start_sidecar(engine.url, pod=name, hands_over=True)
        stack.push_async_callback(sidecar.stop)
        stack.push_async_callback(sidecar.settled)
        sidecars.append(sidecar)
    urls = [f"http://127.0.0.1:{sidecar.port}" for sidecar in sidecars]
    gateway = await start_gateway(urls[1], prefill=FleetPrefill(endpoints=(urls[0],)), **more)
    stack.push_async_callback(gateway.stop)
    stack.push_async_callback(gateway.settled)
    return Apart(prefill, decode, [*sidecars, gateway], gateway)


@pytest.fixture
async def stack() -> AsyncIterator[AsyncExitStack]:
    async with AsyncExitStack() as stack:
        yield stack


@pytest.fixture
async def apart(stack: AsyncExitStack) -> Apart:
    return await pool(stack)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", [b"/v1/chat/completions", b"/v1/completions", b"/v1/messages"])
async def test_a_long_prompt_is_computed_by_the_one_and_decoded_by_the_other(
    apart: Apart, stream: bool, path: bytes
) -> None:
    more = {"prompt": LONG} if path == b"/v1/completions" else {}
    body = ask(stream=stream, **more)
    answer = await apart.asks(body, path)

    assert answer.status == 200
    assert answer.headers[b"x-tidepool-pod"] == b"decode"
    assert b"kelp" in answer.body  # the fifth word: not the one token of the first step
    assert apart.brought >= 590
    assert apart.outcomes() == {"ok": 1}
    assert apart.prefill.core.counts.generation_tokens == 1
    assert apart.prefill.kv_blocks_used == 0  # fetched, and so given back


async def test_the_answer_and_its_counts_are_those_of_a_plain_run(apart: Apart) -> None:
    async with EngineDouble(EngineSettings(prompt_tokens_details=True)) as alone:
        plain = await start_gateway(alone.url)
        async with RawClient(plain.port) as client:
            expected = (await client.ask(post(ask()))).json()
        await plain.settled()
        await plain.stop()
    answer = (await apart.asks(ask())).json()

    assert answer["choices"] == expected["choices"]
    for count in ("prompt_tokens", "completion_tokens", "total_tokens"):
        assert answer["usage"][count] == expected["usage"][count]


async def test_what_is_short_or_cached_is_computed_where_it_is_decoded(apart: Apart) -> None:
    await apart.asks(ask(SHORT))
    assert apart.outcomes() == {"short": 1}
    await apart.asks(ask())
    await apart.asks(ask())  # now the decode engine has it

    assert apart.outcomes() == {"short": 1, "ok": 1, "cached": 1}
    assert apart.prefill.core.counts.generation_tokens == 1


async def test_what_needs_one_engine_gets_one(apart: Apart) -> None:
    answer = await apart.asks(ask(n=2))

    assert len(answer.json()["choices"]) == 2
    assert apart.outcomes() == {"unfit": 1}


@pytest.mark.parametrize("wrong", [Wrong.RESET, Wrong.CLOSE, Wrong.STATUS, Wrong.NOT_HTTP, Wrong.HANG])
async def test_a_prefill_pod_that_fails_costs_a_retry_and_no_request(stack: AsyncExitStack, wrong: Wrong) -> None:
    apart = await pool(stack, first_byte_seconds=0.3)
    apart.prefill.order(Fault(wrong, times=None))
    budget = apart.gateway.services.retries.left
    answer = await apart.asks(ask())

    assert answer.status == 200
    assert apart.outcomes() == {"failed": 1}
    assert apart.brought == 0
    assert apart.gateway.services.retries.left == budget - 1
    assert sum(counted(apart.gateway, contract.METRIC_GATEWAY_RETRIES).values()) == 1


async def test_without_a_retry_left_the_error_is_the_apis_own(stack: AsyncExitStack) -> None:
    apart = await pool(stack, retries=0)
    for path in ("/v1/chat", "/v1/messages"):
        apart.prefill.order(Fault(Wrong.STATUS, times=None, path=path))
    answer = await apart.asks(ask(), b"/v1/chat/completions")
    told = await apart.asks(ask("m" + LONG), b"/v1/messages")

    assert (answer.status, answer.json()["error"]["code"]) == (502, "upstream_error")
    assert told.json()["type"] == "error"  # Anthropic's shape
    assert apart.decode.core.counts.generation_tokens == 0


@pytest.mark.parametrize("wrong", [Wrong.NOT_JSON])
async def test_an_answer_that_tells_nothing_of_blocks_leaves_the_prompt_to_the_decode_pod(
    apart: Apart, wrong: Wrong
) -> None:
    apart.prefill.order(Fault(wrong))
    answer = await apart.asks(ask())

    assert answer.status == 200
    assert apart.outcomes() == {"unanswered": 1}


async def test_what_the_prefill_pod_refuses_is_for_the_decode_pod_to_say(apart: Apart) -> None:
    answer = await apart.asks(ask(LONG * 10))  # longer than the model takes

    assert answer.status == 400
    assert "maximum context length" in answer.json()["error"]["message"]
    assert apart.outcomes() == {"refused": 1}


async def test_while_all_prefill_pods_are_gone_decode_pods_do_it_all(apart: Apart) -> None:
    await apart.prefill.refuse(drop=True)
    assert (await apart.asks(ask())).status == 200  # perhaps by a failed first step
    side = apart.gateway.state.pools["default/pool"].prefill
    await until(lambda: not side.has_other((), side.now()))
    assert (await apart.asks(ask("!" + LONG))).status == 200
    assert apart.outcomes()["no_pod"] >= 1


async def test_while_all_decode_pods_are_gone_prefill_pods_do_it_all(apart: Apart) -> None:
    await apart.decode.refuse(drop=True)
    state = apart.gateway.state.pools["default/pool"]
    await until(lambda: not state.has_other((), state.now()))
    answer = await apart.asks(ask(stream=True))

    assert answer.status == 200
    assert answer.headers[b"x-tidepool-pod"] == b"prefill"
    assert apart.outcomes() == {"mixed": 1}
    assert not state.is_down(state.now())


async def test_a_decode_pod_that_dies_with_the_request_leaves_it_to_a_prefill_pod(apart: Apart) -> None:
    apart.decode.order(Fault(Wrong.RESET, times=None))
    answer = await apart.asks(ask())

    assert answer.status == 200
    assert answer.headers[b"x-tidepool-pod"] == b"prefill"
    # The blocks may have been fetched before it died: nobody is sent for them again.
    last = apart.prefill.journal.records[-1]
    assert json.loads(last.body).get("kv_transfer_params") is None


async def test_whoever_leaves_frees_both_pods(stack: AsyncExitStack) -> None:
    apart = await pool(stack, settings=EngineSettings(pace=Pace.MANUAL))
    for engine in (apart.prefill, apart.decode):
        async with RawClient(apart.gateway.port) as client:
            await client.send(post(ask(engine.url + LONG)))
            await apart.prefill.until(lambda: apart.prefill.waiting == 1)
            state = apart.gateway.state.pools["default/pool"]
            assert (state.in_flight, state.prefill.in_flight, state.live) == (1, 1, 1)
            if engine is apart.decode:
                await apart.prefill.step()
                await apart.decode.until(lambda: apart.decode.waiting == 1)
                assert (state.in_flight, state.prefill.in_flight, state.live) == (1, 0, 1)
        await engine.until(lambda engine=engine: engine.waiting == engine.running == 0)
        await apart.settled()
    assert (apart.prefill.aborted, apart.decode.aborted) == (1, 1)
    assert apart.outcomes() == {"cancelled": 1, "ok": 1}


async def test_a_pod_that_is_handed_blocks_has_less_work_and_all_of_the_room(stack: AsyncExitStack) -> None:
    apart = await pool(stack, settings=EngineSettings(pace=Pace.MANUAL))
    async with RawClient(apart.gateway.port) as client:
        await client.send(post(ask()))
        await apart.prefill.until(lambda: apart.prefill.waiting == 1)
        await apart.prefill.step()
        await apart.decode.until(lambda: apart.decode.waiting == 1)
        (pod,) = apart.gateway.state.pools["default/pool"].pods.values()
        for ledger in (pod.ledger, apart.routers[1].state.ledger):
            assert ledger.queued_tokens <= 1
            assert ledger.kv_tokens > 500
        while apart.decode.running or apart.decode.waiting:
            await apart.decode.step()
        assert (await client.answer()).status == 200


async def test_no_client_says_where_blocks_are(apart: Apart) -> None:
    body = ask(SHORT, kv_transfer_params={"do_remote_prefill": True, "remote_host": "10.0.0.1"})
    async with RawClient(apart.gateway.port) as client:
        answer = await client.ask(post(body))
        again = await client.ask(post(ask(SHORT)))  # the connection is of use as before

    assert (answer.status, again.status) == (400, 200)
    assert answer.json()["error"]["code"] == "reserved_field"
    assert "kv_transfer_params" in answer.json()["error"]["message"]


async def test_a_pool_that_is_fallen_back_to_gets_the_request_as_the_client_wrote_it(
    stack: AsyncExitStack,
) -> None:
    seen: asyncio.Queue[Seen] = asyncio.Queue()

    async def note(request: Seen) -> None:
        seen.put_nowait(request)
        await request.answer()

    other = await stack.enter_async_context(ScriptedEngine(note))
    fallback = FleetPool(name="default/other", models=("other",), endpoints=(other.url,))
    apart = await pool(
        stack, traffic=Traffic(fallback=("default/other",)), others=(fallback,), routing=Routing(retries=1)
    )
    apart.decode.order(Fault(Wrong.STATUS, times=None, path="/v1/chat", status=503))
    answer = await apart.asks(ask())

    assert answer.status == 200
    body = json.loads((await seen.get()).body)
    assert body.get("kv_transfer_params") is None
    assert body["model"] == "other"


async def test_a_pool_that_does_both_again_asks_its_pods_for_all(apart: Apart) -> None:
    pool = apart.gateway.state.pools["default/pool"]
    apart.gateway.state.apply(Fleet(pools=(pool.config.model_copy(update={"prefill": None}),)))
    answer = await apart.asks(ask())

    assert answer.headers[b"x-tidepool-pod"] == b"decode"
    assert apart.brought == 0
    assert pool.prefill is None


async def test_a_pool_at_zero_hears_of_requests_although_prefill_pods_are_there(
    gateway: StartRouter, stack: AsyncExitStack
) -> None:
    engine = await stack.enter_async_context(EngineDouble())
    router = await gateway(prefill=FleetPrefill(endpoints=(engine.url,)), wakes=True)
    pool = router.state.pools["default/pool"]
    async with RawClient(router.port) as client:
        await client.send(post(ask()))
        await until(lambda: pool.queue.held == 1)


def trusting() -> SidecarSettings:
    return SidecarSettings(pool="pool", trust=trust())


@pytest.mark.parametrize(("proof", "status"), [(GATEWAY, 200), (None, 400)])
async def test_a_sidecar_believes_a_gateway_alone_about_blocks(
    sidecar: StartRouter, proof: str | None, status: int
) -> None:
    body = ask(SHORT, kv_transfer_params={"do_remote_decode": True})
    shown = b"" if proof is None else line(token(proof, now=time.time()))
    async with ScriptedEngine() as engine:
        pod = await sidecar(engine.url, settings=trusting(), hands_over=True)
        async with RawClient(pod.port) as client:
            answer = await client.ask(post(body, extra=shown + b"x-tidepool-transferred: 500\r\n"))
            assert (await client.ask(post(ask(SHORT)))).status == 200

        assert answer.status == status
        assert not any(b"x-tidepool-transferred" in seen.head for seen in engine.requests)


async def test_a_sidecar_that_hands_nothing_over_leaves_bodies_alone(sidecar: StartRouter) -> None:
    body = ask(SHORT, kv_transfer_params={"do_remote_decode": True})
    async with ScriptedEngine() as engine:
        pod = await sidecar(engine.url, settings=trusting())
        async with RawClient(pod.port) as client:
            assert (await client.ask(post(body))).status == 200

        assert json.loads(engine.requests[0].body)["kv_transfer_params"] == {"do_remote_decode": True}


async def test_a_peer_is_not_sent_for_blocks_that_may_have_been_fetched(
    member: StartRouter, pool_port: int
) -> None:
    async def dies(seen: Seen) -> None:
        seen.reset()

    body = ask(SHORT, kv_transfer_params={"do_remote_prefill": True, "remote_engine_id": "e"})
    async with ScriptedEngine(dies) as first, ScriptedEngine() as second:
        await member(ONE, first.url, hands_over=True)
        await member(TWO, second.url, hands_over=True)
        async with RawClient(pool_port, ONE) as client:
            assert (await client.ask(post(body))).status == 200

        assert json.loads(first.requests[0].body)["kv_transfer_params"]["remote_engine_id"] == "e"
        assert json.loads(second.requests[0].body)["kv_transfer_params"] is None


@given(
    st.lists(
        st.tuples(
            st.sampled_from([SHORT, LONG, LONG + "more", LONG * 2]),
            st.booleans(),
            st.sampled_from(["stays", "leaves"]),
            st.sampled_from([None, None, *Wrong]),
            st.booleans(),
        ),
        min_size=1,
        max_size=6,
    )
)
@examples(4, deadline=None)
def test_whatever_fails_and_whoever_leaves_counts_and_ledgers_end_at_zero(
    plan: list[tuple[str, bool, str, Wrong | None, bool]],
) -> None:
    async def run() -> None:
        async with AsyncExitStack() as stack:
            settings = EngineSettings(prefill_tokens_per_second=20_000, output_tokens_per_second=2_000)
            apart = await pool(stack, settings=settings, first_byte_seconds=0.2, chunk_seconds=0.2)
            await asyncio.gather(*(one(apart, *each) for each in plan))
            await apart.settled()
            state = apart.gateway.state.pools["default/pool"]
            for side in (state, state.prefill):
                assert (side.in_flight, side.queue.held, side.first_steps) == (0, 0, 0)
                for pod in side.pods.values():
                    assert not any((pod.ledger.queued_tokens, pod.ledger.kv_tokens, pod.ledger.expected_tokens)), (
                        repr(pod)
                    )
            for router in apart.routers[:2]:
                sums = router.state.ledger.sums()
                assert (sums.running, sums.queued_tokens, sums.held_tokens, sums.shared_tokens) == (0, 0, 0, 0)
            ended = sum(counted(apart.gateway, contract.METRIC_GATEWAY_REQUESTS).values())
            # Whoever leaves at once may never have been heard.
            assert sum(how == "stays" for _, _, how, _, _ in plan) <= ended <= len(plan)

    async def one(
        apart: Apart, content: str, stream: bool, how: str, wrong: Wrong | None, on_prefill: bool
    ) -> None:
        if wrong is not None:
            (apart.prefill if on_prefill else apart.decode).order(Fault(wrong))
        async with RawClient(apart.gateway.port) as client:
            await client.send(post(ask(content, stream=stream)))
            if how == "leaves":
                await asyncio.sleep(0.005)
            else:
                with_status = await client.reader.readline()
                assert with_status.startswith(b"HTTP/1.1 ")

    asyncio.run(run())
