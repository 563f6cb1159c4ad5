"""What a reading says when Prometheus answers badly, slowly or not at all, and how many queries it is asked."""

import json
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Event, Thread
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from tidepool_api import rules
from tidepool_operator.scaling.model import (
    Known,
    LivePod,
    Missing,
    PodState,
    PoolReading,
    ScaledPool,
    ScalingSpec,
    Stale,
)
from tidepool_operator.telemetry.prometheus import Prometheus, PrometheusSettings

NOW = 1_800_000_000.0
SPEC = ScalingSpec(0, 8)


def pool(name: str = "llama") -> ScaledPool:
    return ScaledPool("team", name, 1, SPEC, (LivePod(f"{name}-0", PodState.READY),))


class Server:
    """Speaks just enough of Prometheus' API; `answer` makes (status, body) from a query."""

    def __init__(self) -> None:
        self.queries: list[str] = []
        self.answer: Callable[[str], tuple[int, bytes]] = lambda _: (200, result())
        self.release = Event()
        server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                query = parse_qs(urlsplit(self.path).query)["query"][0]
                server.queries.append(query)
                status, body = server.answer(query)
                self.send_response(status)
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: Any) -> None:
                """Keep quiet."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.handle_error = lambda *_: None  # clients that gave up are part of the tests
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self.release.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@pytest.fixture
def server() -> Iterator[Server]:
    started = Server()
    yield started
    started.close()


def series(record: str, value: str, pod: str = "llama-0", name: str = "llama") -> dict[str, Any]:
    return {
        "metric": {"__name__": record, "namespace": "team", "pool": name, "pod": pod},
        "value": [NOW, value],
    }


def result(*found: Any) -> bytes:
    return json.dumps({"status": "success", "data": {"resultType": "vector", "result": found}}).encode()


async def read(server: Server, *pools: ScaledPool, url: str = "", **settings: Any) -> dict[str, PoolReading]:
    client = Prometheus(PrometheusSettings(url or server.url, **settings))
    try:
        return await client.read(NOW, pools or [pool()])
    finally:
        await client.close()


async def test_with_rules_one_query_serves_any_number_of_pools(server: Server) -> None:
    pools = [pool(f"p{index}") for index in range(500)]
    everything = result(
        *(
            series(rule.record, "0.5", f"{each.name}-0", each.name)
            for each in pools
            for rule in rules.asked_rules()
        )
    )
    server.answer = lambda _: (200, everything)

    found = await read(server, *pools)

    assert len(server.queries) == 1
    assert len(found) == 500
    # The clock that the scrapes are dated by is one of the records: 0.5 s after 1970 is too long ago.
    assert all(isinstance(reading.pods[0].waiting, Stale) for reading in found.values())


async def test_without_rules_each_absent_record_is_one_more_query(server: Server) -> None:
    server.answer = lambda query: (
        200,
        result(series(rules.POD_WAITING, "3")) if "__name__=~" in query else result(),
    )

    await read(server, *(pool(f"p{index}") for index in range(500)))

    raw = {rule.expression for rule in rules.asked_rules() if rule.record != rules.POD_WAITING}
    assert set(server.queries[1:]) == raw
    assert len(server.queries) == 1 + len(raw)


async def test_pools_without_pods_cost_no_query(server: Server) -> None:
    await read(server, ScaledPool("team", "empty", 0, SPEC))

    assert server.queries == []


@pytest.mark.parametrize(
    ("status", "body", "words"),
    [
        (503, b"overloaded", "refused a query: HTTP Status Code 503"),
        (422, b'{"status":"error","error":"too many samples"}', "too many samples"),
        (200, b"<html>please log in</html>", "none of Prometheus' API"),
        (200, b'{"status":"success"}', "none of Prometheus' API"),
        (200, b'{"data":{"result":{"not":"a list"}}}', "none of Prometheus' API"),
    ],
)
async def test_bad_answers_leave_figures_missing_with_the_reason(
    server: Server, status: int, body: bytes, words: str
) -> None:
    server.answer = lambda _: (status, body)

    found = (await read(server))["team/llama"]

    assert found.trouble is not None
    assert words in found.trouble
    assert found.pods[0].kv_usage == Missing(found.trouble)


async def test_a_slow_prometheus_is_given_up(server: Server) -> None:
    def hang(_: str) -> tuple[int, bytes]:
        server.release.wait(20)
        return 200, result()

    server.answer = hang

    found = (await read(server, timeout_seconds=0.1))["team/llama"]

    assert found.trouble is not None
    assert "did not answer within 0.1 s" in found.trouble


async def test_the_password_of_the_url_is_told_to_nobody(server: Server) -> None:
    port = server.url.rpartition(":")[2]
    server.close()

    found = (await read(server, url=f"http://user:secret@127.0.0.1:{port}"))["team/llama"]

    assert found.trouble == f"Prometheus at 127.0.0.1:{port} cannot be reached"


async def test_one_failing_expression_does_not_spoil_the_others(server: Server) -> None:
    kv = next(rule for rule in rules.asked_rules() if rule.record == rules.POD_KV_USAGE)

    def answer(query: str) -> tuple[int, bytes]:
        if query == kv.expression:
            return 500, b"boom"
        return 200, result(series(rules.POD_WAITING, "3")) if "__name__=~" in query else result()

    server.answer = answer

    pod = (await read(server))["team/llama"].pods[0]

    assert pod.waiting == Known(3.0)
    assert isinstance(pod.kv_usage, Missing)
    assert "boom" in pod.kv_usage.reason


@pytest.mark.parametrize("value", ["NaN", "+Inf", "-Inf"])
async def test_what_is_no_number_is_missing(server: Server, value: str) -> None:
    server.answer = lambda _: (200, result(series(rules.POD_KV_USAGE, value)))

    pod = (await read(server))["team/llama"].pods[0]

    assert pod.kv_usage == Missing("not a number")


async def test_what_lacks_is_told_apart_from_a_pod_that_is_not_scraped(server: Server) -> None:
    server.answer = lambda _: (200, result(series(rules.POD_SCRAPED_AT, str(NOW))))
    scraped = (await read(server))["team/llama"].pods[0]
    server.answer = lambda _: (200, result())
    unknown = (await read(server))["team/llama"].pods[0]

    assert scraped.kv_usage == Missing("pod llama-0 is scraped and has no such metric")
    assert unknown.kv_usage == Missing(
        "pod llama-0 is not in Prometheus; is it scraped with the labels namespace, pool and pod?"
    )


async def test_series_that_are_none_are_passed_over(server: Server) -> None:
    broken = [None, {}, {"metric": {}, "value": [NOW, "1"]}, {"metric": {"namespace": "team", "pool": "llama"}}]
    server.answer = lambda _: (
        200,
        result(*broken, series(rules.POD_WAITING, "no number"), series(rules.POD_KV_USAGE, "1")),
    )

    pod = (await read(server))["team/llama"].pods[0]

    assert pod.kv_usage == Known(1.0)
    assert isinstance(pod.waiting, Missing)
