"""The life of a request as a collector hears of it, over real sockets and the official encoding."""

import asyncio
import json
from typing import Any

import pytest

from fakes.collector import Collector
from scripted.clients import RawClient, chat, post
from scripted.routers import until
from scripted.upstreams import ScriptedEngine, Seen
from tidepool_api.routing import Fleet

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
PARENT = f"traceparent: 00-{TRACE}-{SPAN}-01\r\ntracestate: vendor=1,other=2\r\n".encode()
ROOT = "POST /v1/chat/completions"


def event(content: str | None, usage: dict[str, Any] | None = None) -> bytes:
    choices = [] if content is None else [{"index": 0, "delta": {"content": content}}]
    return b"data: " + json.dumps({"choices": choices, "usage": usage}).encode() + b"\n\n"


async def stream(seen: Seen) -> None:
    await asyncio.sleep(0.02)
    await seen.begin_stream()
    for token in ("a", "b", "c"):
        await seen.chunk(event(token))
        await asyncio.sleep(0.01)
    usage = {"prompt_tokens": 50, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 32}}
    await seen.chunk(event(None, usage) + b"data: [DONE]\n\n")
    await seen.chunk(b"")


def parent_sent(seen: Seen) -> tuple[str, str, str]:
    _, trace, span, flags = seen.headers[b"traceparent"].decode().split("-")
    return trace, span, flags


def check_tree(collector: Collector, root_name: str) -> None:
    """Each part lies within its parent; the request's own span is the only one whose parent is not here."""
    spans = {span.span_id: span for span in collector.spans}
    assert len(spans) == len(collector.spans)
    assert [span.name for span in spans.values() if span.parent_id not in spans] == [root_name]
    for span in spans.values():
        assert span.began_at <= span.ended_at, span
        parent = spans.get(span.parent_id)
        if parent is not None:
            assert parent.began_at <= span.began_at, (parent, span)
            assert span.ended_at <= parent.ended_at, (parent, span)


async def test_a_streamed_chat_that_was_held_is_told_from_its_first_byte_to_its_last(watched: Any) -> None:
    router = await watched.gateway(wakes=True)
    pool = router.state.pools["default/pool"]
    request = post(chat(stream=True, max_tokens=16), extra=PARENT + b"x-request-id: r-1\r\n")
    async with ScriptedEngine(stream) as engine, RawClient(router.port) as client:
        await client.send(request[:-10])
        await asyncio.sleep(0.05)
        await client.send(request[-10:])
        await until(lambda: pool.queue.held == 1)
        router.state.apply(Fleet(pools=(pool.config.model_copy(update={"endpoints": (engine.url,)}),)))
        await client.until(b"[DONE]")
        seen = await engine.arrived.get()
        collector = await watched.told()

    root, engine_span = collector.named(ROOT), collector.named("chat tiny")
    check_tree(collector, ROOT)
    names = [span.name for span in sorted(collector.spans, key=lambda span: (span.began_at, -span.ended_at))]
    assert names == [
        ROOT, "receive", "queue", "pick", "chat tiny", "connect", "prefill", "decode", "respond",
    ]  # fmt: skip
    assert {span.trace_id for span in collector.spans} == {TRACE}
    assert (root.kind, root.parent_id, engine_span.kind) == ("server", SPAN, "client")
    # What the engine makes of it hangs below the span that says what the engine was asked.
    assert parent_sent(seen) == (TRACE, engine_span.span_id, "01")
    assert seen.headers[b"tracestate"] == b"vendor=1,other=2"
    receive, prefill, decode = (collector.named(name) for name in ("receive", "prefill", "decode"))
    assert receive.ended_at - receive.began_at >= 40_000_000
    assert decode.parent_id == engine_span.span_id
    assert decode.ended_at - decode.began_at >= 20_000_000
    assert prefill.ended_at - prefill.began_at >= 15_000_000
    assert collector.named("pick").attributes == {
        "tidepool.pod": f"127.0.0.1:{engine.port}",
        "tidepool.reason": root.attributes["tidepool.pick_reason"],
    }
    of_request = {
        "http.request.method": "POST",
        "http.route": "/v1/chat/completions",
        "http.response.status_code": 200,
        "client.address": "127.0.0.1",
        "gen_ai.request.model": "tiny",
        "tidepool.request_id": "r-1",
        "tidepool.pool": "default/pool",
        "tidepool.outcome": "ok",
    }
    assert of_request.items() <= root.attributes.items()
    of_engine = {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "vllm",
        "gen_ai.request.model": "tiny",
        "gen_ai.request.max_tokens": 16,
        "gen_ai.request.stream": True,
        "gen_ai.usage.input_tokens": 50,
        "gen_ai.usage.output_tokens": 3,
        "gen_ai.usage.cache_read.input_tokens": 32,
        "server.address": "127.0.0.1",
        "server.port": engine.port,
    }
    assert of_engine.items() <= engine_span.attributes.items()
    assert root.resource["service.name"] == "tidepool-gateway"
    assert not any(span.failed for span in collector.spans)


async def test_gateway_sidecar_and_engine_are_one_trace(watched: Any) -> None:
    async with ScriptedEngine(stream) as engine:
        sidecar = await watched.sidecar(engine.url)
        gateway = await watched.gateway(f"http://127.0.0.1:{sidecar.port}")
        async with RawClient(gateway.port) as client:
            await client.send(post(chat(stream=True)))
            await client.until(b"[DONE]")
        seen = await engine.arrived.get()
        collector = await watched.told()

    by_service: dict[str, dict[str, Any]] = {}
    for span in collector.spans:
        by_service.setdefault(span.resource["service.name"], {})[span.name] = span
    front, side = by_service["tidepool-gateway"], by_service["tidepool-sidecar"]
    assert len({span.trace_id for span in collector.spans}) == 1
    assert front[ROOT].parent_id == ""
    assert side[ROOT].parent_id == front["chat tiny"].span_id
    assert parent_sent(seen)[1] == side["chat tiny"].span_id
    assert side[ROOT].attributes["tidepool.pod"] == "pod-1"
    assert "pick" not in side


async def test_an_answer_in_one_piece_does_not_pretend_to_know_its_prefill(watched: Any) -> None:
    async with ScriptedEngine() as engine:
        router = await watched.gateway(engine.url)
        async with RawClient(router.port) as client:
            await client.ask(post(chat()))
        collector = await watched.told()

    assert {"generate"} == {span.name for span in collector.spans} & {"generate", "prefill", "decode"}


async def test_a_pod_that_was_asked_in_vain_has_a_span_of_its_own(watched: Any) -> None:
    async def fail(seen: Seen) -> None:
        await seen.answer(b"{}", b"503 Service Unavailable")

    async with ScriptedEngine(fail) as bad, ScriptedEngine() as good:
        router = await watched.gateway(bad.url, good.url)
        async with RawClient(router.port) as client:
            while not bad.requests:
                assert (await client.ask(post(chat()))).status == 200
        seen = await bad.arrived.get()
        collector = await watched.told()

    (failed,) = [span for span in collector.spans if span.failed]
    assert failed.attributes["tidepool.pod"] == f"127.0.0.1:{bad.port}"
    assert failed.attributes["error.type"] == "http_5xx"
    assert parent_sent(seen)[1] == failed.span_id
    (root,) = [span for span in collector.spans if span.kind == "server" and span.trace_id == failed.trace_id]
    assert root.attributes["tidepool.failed_attempts"] == 1
    assert root.attributes["tidepool.outcome"] == "ok"  # the client got its answer


async def test_an_answer_that_is_cut_is_an_error(watched: Any) -> None:
    async def cut(seen: Seen) -> None:
        await seen.begin_stream()
        await seen.chunk(event("a"))
        seen.reset()

    async with ScriptedEngine(cut) as engine:
        router = await watched.gateway(engine.url)
        async with RawClient(router.port) as client:
            await client.send(post(chat(stream=True)))
            await client.until(b"0\r\n\r\n")
        collector = await watched.told()

    assert {span.name for span in collector.spans if span.failed} == {ROOT, "chat tiny"}
    assert collector.named("chat tiny").attributes["error.type"] == "reset"
    assert "respond" not in [span.name for span in collector.spans]


async def test_what_is_turned_away_is_told_too(watched: Any) -> None:
    router = await watched.gateway()
    async with RawClient(router.port) as client:
        await client.ask(post(chat("gpt-9")))
        await client.ask(b"GET /nowhere?token=secret HTTP/1.1\r\n\r\n")
    collector = await watched.told()

    roots = {span.attributes["url.path"]: span for span in collector.spans if span.kind == "server"}
    assert roots["/v1/chat/completions"].attributes["http.response.status_code"] == 404
    assert roots["/nowhere"].name == "GET"  # names made of what anybody may ask for would have no bound
    assert b"secret" not in b"".join(collector.bodies)


@pytest.mark.parametrize(
    ("headers", "ratio", "sent", "spans", "why"),
    [
        (PARENT, 0.0, "01", True, "the caller sampled, whatever is chosen here"),
        (PARENT.replace(b"-01", b"-00"), 1.0, f"00-{TRACE}-{SPAN}-00", False, "the caller did not: untouched"),
        (b"", 0.0, "00", False, "chosen against here: the engine must not begin a trace of its own"),
        (b"traceparent: nonsense\r\ntracestate: a=1\r\n", 1.0, "01", True, "no parent: a new trace, no state"),
    ],
)
async def test_who_decides(watched: Any, headers: bytes, ratio: float, sent: str, spans: bool, why: str) -> None:
    async with ScriptedEngine() as engine:
        router = await watched.gateway(engine.url, ratio=ratio)
        async with RawClient(router.port) as client:
            await client.ask(post(chat(), extra=headers))
        seen = await engine.arrived.get()
        collector = await watched.told()

    assert seen.headers[b"traceparent"].decode().endswith(sent), why
    assert seen.head.lower().count(b"traceparent") == 1
    assert bool(collector.spans) is spans, why
    assert (b"tracestate" in seen.headers) is headers.startswith(PARENT[:20]), why


async def test_without_anybody_watching_the_context_goes_on_as_it_came(watched: Any) -> None:
    async with ScriptedEngine() as engine:
        router = await watched.gateway(engine.url, watching=False)
        async with RawClient(router.port) as client:
            await client.ask(post(chat(), extra=PARENT))
            await client.ask(post(chat()))
        first, second = await engine.arrived.get(), await engine.arrived.get()

    assert PARENT.strip() in first.head
    assert b"traceparent" not in second.head


async def test_prompts_are_told_only_where_that_is_switched_on(watched: Any) -> None:
    silent, told = "nobody may read this", "this may be read"
    async with ScriptedEngine() as engine:
        for prompts, text in ((False, silent), (True, told)):
            router = await watched.gateway(engine.url, prompts=prompts)
            async with RawClient(router.port) as client:
                messages = [{"role": "user", "content": text}]
                await client.ask(post(json.dumps({"model": "tiny", "messages": messages}).encode()))
        collector = await watched.told()

    assert silent.encode() not in b"".join(collector.bodies + watched.lines)
    assert told.encode() not in b"".join(watched.lines)
    (span,) = [span for span in collector.spans if "gen_ai.input.messages" in span.attributes]
    parts = [{"type": "text", "content": told}]
    assert json.loads(span.attributes["gen_ai.input.messages"]) == [{"role": "user", "parts": parts}]


async def test_a_collector_that_refuses_costs_no_request_and_is_counted(watched: Any) -> None:
    watched.collector.status = 400
    async with ScriptedEngine() as engine:
        router = await watched.gateway(engine.url)
        exporter = router.services.sight.exporter
        async with RawClient(router.port) as client:
            assert (await client.ask(post(chat()))).status == 200
        collector = await watched.told()

    assert collector.asked == 1
    assert exporter.exported == 0
    assert exporter.failed >= 4
