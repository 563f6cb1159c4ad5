"""How watching is switched on: flags, OpenTelemetry's own variables, and the whole program with both."""

import asyncio
import io
import json
import logging
import time
from pathlib import Path
from typing import Any

import pytest

from fakes.collector import Collector
from scripted.clients import RawClient, chat, post
from scripted.routers import until
from scripted.upstreams import ScriptedEngine
from tidepool_router import logs
from tidepool_router.app import serving
from tidepool_router.errors import SettingsError
from tidepool_router.settings import parse
from tidepool_router.tracing.otlp import traces_address
from tidepool_router.tracing.settings import Watching

FLAG = ("--otlp-endpoint", "http://c:4318")


@pytest.mark.parametrize(
    ("flags", "environment", "expected", "why"),
    [
        ((), {}, Watching(), "nobody watches by default"),
        (FLAG, {}, Watching(spans=True, endpoint="http://c:4318"), "the flag"),
        ((), {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://e"}, Watching(spans=True), "the SDK reads its own variable"),
        ((), {"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://e"}, Watching(spans=True), "the one for traces too"),
        (FLAG, {"OTEL_EXPORTER_OTLP_ENDPOINT": "x"}, Watching(spans=True, endpoint="http://c:4318"), "flag first"),
        ((), {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://e", "OTEL_SDK_DISABLED": "true"}, Watching(), "disabled"),
        ((), {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://e", "OTEL_TRACES_EXPORTER": "none"}, Watching(), "no traces"),
        (("--trace-ratio", "0.1"), {}, Watching(ratio=0.1), "a ratio"),
        ((), {"OTEL_TRACES_SAMPLER_ARG": "0.2"}, Watching(ratio=0.2), "the SDK's ratio"),
        (("--access-log", "--trace-prompts"), {}, Watching(access_log=True, prompts=True), "switches"),
    ],
)
def test_who_watches(flags: tuple[str, ...], environment: dict[str, str], expected: Watching, why: str) -> None:
    assert parse(["gateway", *flags], environment).watching == expected, why


@pytest.mark.parametrize(
    ("flags", "environment", "words"),
    [
        (("--otlp-endpoint", "collector:4318"), {}, ("--otlp-endpoint", "http://collector:4318")),
        (("--otlp-endpoint", "grpc://c:4317"), {}, ("--otlp-endpoint", "grpc://c:4317")),
        (("--otlp-endpoint", "http://c:what"), {}, ("--otlp-endpoint", "cannot be read")),
        ((), {"OTEL_EXPORTER_OTLP_ENDPOINT": "c"}, ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://collector:4318")),
        (("--trace-ratio", "2"), {}, ("--trace-ratio", "0 (none) to 1 (all)")),
        (("--trace-ratio", "nan"), {}, ("--trace-ratio", "from 0")),
        ((), {"OTEL_TRACES_SAMPLER_ARG": "often"}, ("OTEL_TRACES_SAMPLER_ARG", "often")),
    ],
)
def test_what_cannot_be_used_is_named(
    flags: tuple[str, ...], environment: dict[str, str], words: tuple[str, ...]
) -> None:
    with pytest.raises(SettingsError) as refused:
        parse(["gateway", *flags], environment)

    assert all(word in str(refused.value) for word in words)


def test_spans_without_opentelemetry_are_refused_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    from tidepool_router.tracing.otlp import OtlpExporter

    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)

    with pytest.raises(SettingsError, match=r"install tidepool\[otel\]"):
        OtlpExporter("http://c:4318", {})


@pytest.mark.parametrize(
    ("given", "address"),
    [
        ("http://c:4318", "http://c:4318/v1/traces"),
        ("http://c:4318/", "http://c:4318/v1/traces"),
        ("https://c/otlp", "https://c/otlp/v1/traces"),
        ("http://c:4318/v1/traces", "http://c:4318/v1/traces"),
    ],
)
def test_a_base_address_is_enough(given: str, address: str) -> None:
    assert traces_address(given) == address


async def test_the_whole_program_tells_and_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment.name=test")
    text = io.StringIO()
    handler = logging.StreamHandler(text)
    handler.setFormatter(logs.JsonLines())
    logging.getLogger().addHandler(handler)
    fleet = tmp_path / "fleet.json"
    flags: list[Any] = ["--host", "127.0.0.1", "--port", "0", "--metrics-port", "0", "--control-port", "0"]
    try:
        async with ScriptedEngine() as engine, Collector() as collector:
            pool = {"name": "default/pool", "models": ["tiny"], "endpoints": [engine.url]}
            fleet.write_text(json.dumps({"pools": [pool]}))
            flags += [
                "--fleet",
                str(fleet),
                "--otlp-endpoint",
                collector.url,
                "--trace-ratio",
                "1",
                "--access-log",
            ]
            async with serving(parse(["gateway", *flags], {"POD_NAME": "gw-1"})) as running:
                async with RawClient(running.port) as client:
                    assert (await client.ask(post(chat()))).status == 200
                sight = running.services.sight
                assert sight is not None
                assert sight.exporter is not None
                await until(lambda: sight.exporter.exported)  # counted after the collector's answer
                async with RawClient(running.metrics_port) as client:
                    page = await client.ask(b"GET /metrics HTTP/1.1\r\n\r\n")
    finally:
        logging.getLogger().removeHandler(handler)

    exported = len(collector.spans)
    assert b'tidepool_spans_total{outcome="exported"} %d' % exported in page.body
    assert b'tidepool_watch_dropped_total{of="traces"} 0' in page.body
    resource = collector.spans[0].resource
    assert (resource["service.name"], resource["service.instance.id"]) == ("tidepool-gateway", "gw-1")
    assert resource["deployment.environment.name"] == "test"
    lines = [json.loads(line) for line in text.getvalue().splitlines()]
    assert [line["status"] for line in lines if line["logger"] == "tidepool.access"] == [200]


class InPieces(io.StringIO):
    """A stream that others get a turn in the middle of each write of."""

    def write(self, text: str) -> int:
        middle = len(text) // 2
        super().write(text[:middle])
        time.sleep(0.0001)
        super().write(text[middle:])
        return len(text)


async def test_a_log_line_and_access_lines_do_not_mix() -> None:
    text = InPieces()
    handler = logging.StreamHandler(text)
    logging.getLogger().addHandler(handler)
    try:
        loop = asyncio.get_running_loop()
        writes = [loop.run_in_executor(None, logs.write_lines, b'{"a":1}\n' * 50) for _ in range(20)]
        for _ in range(200):
            logging.getLogger("test").warning("between")
        await asyncio.gather(*writes)
    finally:
        logging.getLogger().removeHandler(handler)

    assert set(text.getvalue().splitlines()) == {'{"a":1}', "between"}
