"""The console's port: what it answers, to whom, and with which headers."""

import asyncio
import gzip
import hashlib
import json
import re
from collections.abc import AsyncIterator
from importlib.resources import files
from pathlib import Path
from typing import Any

import httpx
import pytest

from fakes.console import busy_world
from scripted.plain import plain
from tidepool_operator.console.hub import MOST_SUBSCRIBERS, Hub, Topic, What
from tidepool_operator.console.server import ConsoleServer, page_files
from tidepool_operator.console.views.delta import Document

STATIC = Path(str(files("tidepool_operator.console") / "static"))
PAGE_BYTES = 300_000


@pytest.fixture
async def client() -> AsyncIterator[httpx.AsyncClient]:
    server = ConsoleServer(busy_world(40).hub())
    await server.start("127.0.0.1", 0)
    async with plain(f"http://127.0.0.1:{server.port}", timeout=30, trust_env=False) as made:
        yield made
    await server.close()


async def first_event(client: httpx.AsyncClient, path: str) -> dict[str, Any]:
    async with client.stream("GET", path) as answer:
        assert answer.status_code == 200
        assert answer.headers["content-type"].startswith("text/event-stream")
        text = ""
        async for part in answer.aiter_text():
            text += part
            if found := re.search(r"(?m)^data: (\{.*\})\n\n", text):
                return dict(json.loads(found[1]))
    raise AssertionError(text)


async def test_everything_that_the_page_names_is_there_and_is_small(client: httpx.AsyncClient) -> None:
    index = await client.get("/")
    names = sorted(set(re.findall(r'(?:href|src)="(static/[^"]+)"', index.text)))
    answers = await asyncio.gather(*(client.get(f"/{name}") for name in names))

    assert [answer.status_code for answer in answers] == [200] * len(names)
    assert len(names) > 8
    assert sum(len(file.body) for file in page_files().values()) < PAGE_BYTES / 2


async def test_nothing_is_loaded_from_elsewhere_and_nothing_runs_inline(client: httpx.AsyncClient) -> None:
    index = await client.get("/")
    policy = index.headers["content-security-policy"]

    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert "frame-ancestors 'none'" in policy
    assert re.findall(r"<(?:script|style)[^>]*>[^<]", index.text) == []
    assert re.findall(r" (?:style|on\w+)=", index.text) == []
    assert re.findall(r"https?://(?!www\.w3\.org)", "".join(_own_sources())) == []


def test_no_text_becomes_markup() -> None:
    # The browser refuses it too, by its policy; this says where.
    found = re.findall(
        r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|DOMParser|eval\(", "".join(_own_sources())
    )

    assert found == []


def _own_sources() -> list[str]:
    return [path.read_text() for path in sorted(STATIC.glob("*.*"))]


def test_the_chart_library_is_what_its_package_has() -> None:
    folder = STATIC / "vendor" / "uplot"
    told = json.loads((folder / "package.json").read_text())
    sums = {path: hashlib.sha256((folder / path).read_bytes()).hexdigest() for path in told["files"]}

    assert sums == told["files"]
    assert f"v{told['version']}" in (folder / "uPlot.iife.min.js").read_text()[:200]
    assert told["license"] in (folder / "LICENSE").read_text()


async def test_files_come_packed_and_once(client: httpx.AsyncClient) -> None:
    async with client.stream("GET", "/static/pools.js", headers={"accept-encoding": "gzip"}) as packed:
        raw = b"".join([part async for part in packed.aiter_raw()])
    plain = await client.get("/static/pools.js", headers={"accept-encoding": "identity"})
    again = await client.get("/static/pools.js", headers={"if-none-match": plain.headers["etag"]})

    assert gzip.decompress(raw) == plain.content
    assert again.status_code == 304


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/static/../server.py", 404),
        ("GET", "/static/%2e%2e/server.py", 404),
        ("GET", "/static/nothing.js", 404),
        ("GET", "/live/secrets", 404),
        ("GET", "/live/pool", 404),  # whose?
        ("GET", "/live/pools?key=a", 404),
        ("GET", "/live/pool?key=" + "a" * 500, 404),
        ("POST", "/", 405),
        ("DELETE", "/live/pools", 405),
    ],
)
async def test_what_is_not_served(client: httpx.AsyncClient, method: str, path: str, status: int) -> None:
    answer = await client.request(method, path)

    assert answer.status_code == status
    assert "content-security-policy" in answer.headers


@pytest.mark.parametrize(
    ("host", "status"),
    [("localhost:8083", 200), ("127.0.0.1", 200), ("[::1]:8083", 200), ("evil.example:8083", 421), ("", 421)],
)
async def test_on_loopback_it_answers_by_no_other_name(client: httpx.AsyncClient, host: str, status: int) -> None:
    answer = await client.get("/", headers={"host": host})

    assert answer.status_code == status


async def test_live_events_come_packed_as_they_happen(client: httpx.AsyncClient) -> None:
    event = await first_event(client, "/live/pools")
    one = await first_event(client, "/live/pool?key=team/pool-000")
    run = await first_event(client, "/live/run?key=run-1")

    assert len(event["all"]["pools"]) == 40
    assert one["all"]["pool"]["key"] == "team/pool-000"
    assert run["all"]["run"]["phase"] == "Succeeded"


async def test_a_page_too_many_is_told_to_wait() -> None:
    async def nothing(_: Topic) -> Document:
        return {}

    server = ConsoleServer(Hub(nothing, dict.fromkeys(What, 60.0), lambda: 0.0))
    await server.start("127.0.0.1", 0)
    limits, url = httpx.Limits(max_connections=None), f"http://127.0.0.1:{server.port}"
    async with plain(url, limits=limits, timeout=30, trust_env=False) as many:
        asked = [many.build_request("GET", "/live/pools") for _ in range(MOST_SUBSCRIBERS)]
        answers = await asyncio.gather(*(many.send(one, stream=True) for one in asked))
        refused = await many.get("/live/pools")
        for answer in answers:
            await answer.aclose()
    await server.close()

    assert {answer.status_code for answer in answers} == {200}
    assert (refused.status_code, refused.headers["retry-after"]) == (503, "10")
