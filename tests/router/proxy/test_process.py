"""The program itself: flags, files, ports, signals, and the clients that people use."""

import asyncio
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from fakes.engine import EngineDouble
from fakes.settings import EngineSettings
from scripted.clients import RawClient, chat, post
from scripted.later import openai
from scripted.programs import Program, run_program
from scripted.upstreams import ScriptedEngine
from tidepool_api.load import Health, LoadReport
from tidepool_router.errors import SettingsError
from tidepool_router.settings import parse, read_sidecar_settings

pytestmark = pytest.mark.traffic


async def _refused(port: int) -> None:
    """Wait until nobody listens there any more."""
    async with asyncio.timeout(60):
        while True:
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", port)
            except ConnectionRefusedError:
                return
            except ConnectionResetError:  # it was in the listener's queue when that closed
                continue
            writer.close()


@pytest.fixture
async def engine() -> AsyncIterator[EngineDouble]:
    async with EngineDouble(EngineSettings(output_tokens_per_second=200.0)) as engine:
        yield engine


async def test_a_sidecar_that_is_told_to_end_says_so_to_whoever_follows_its_load(engine: EngineDouble) -> None:
    """A gateway then picks others at once, and does not learn of it by requests that fail."""
    async with run_program("sidecar", "--engine", engine.url, ready="/engine/ready") as sidecar:
        async with RawClient(sidecar.port) as follower, RawClient(sidecar.port) as client:
            await follower.send(b"GET /tidepool/load/stream HTTP/1.1\r\nHost: t\r\n\r\n")
            await follower.head()
            assert LoadReport.decode(await follower.chunk()).health is Health.READY
            await client.send(post(chat(stream=True, max_tokens=40)))
            await client.until(b"data: ")

            sidecar.process.send_signal(signal.SIGTERM)

            async with asyncio.timeout(60):
                while LoadReport.decode(await follower.chunk()).health is not Health.DRAINING:
                    pass
            assert (await client.until(b"data: [DONE]")).endswith(b"[DONE]")
        status, _ = await sidecar.ended()

    assert status == 0


@pytest.fixture
async def stack(engine: EngineDouble, tmp_path: Path) -> AsyncIterator[tuple[Program, Program]]:
    """A gateway before a sidecar before an engine, each a process of its own but for the engine."""
    settings = tmp_path / "settings.json"
    settings.write_text('{"pool": "tiny", "namespace": "default", "model": "tiny", "aliases": ["small"]}')
    fleet = tmp_path / "fleet.yaml"
    async with run_program(
        "sidecar", "--engine", engine.url, "--settings", str(settings), ready="/engine/ready"
    ) as sidecar:
        fleet.write_text(
            f"pools:\n- name: default/tiny\n  models: [tiny, small]\n  endpoints: ['{sidecar.url()}']\n"
        )
        async with run_program("gateway", "--fleet", str(fleet), ready="/readyz") as gateway:
            yield gateway, sidecar


async def test_people_s_clients_get_whole_streams_through_both(
    stack: tuple[Program, Program], engine: EngineDouble
) -> None:
    gateway, sidecar = stack
    async with openai.AsyncOpenAI(base_url=gateway.url() + "/v1", api_key="none") as client:

        async def stream(number: int) -> int:
            events = await client.chat.completions.create(
                model="small" if number % 2 else "tiny",
                messages=[{"role": "user", "content": f"{number}"}],
                max_tokens=20 + number,
                stream=True,
                extra_body={"ignore_eos": True},
            )
            return sum([bool(event.choices[0].delta.content) async for event in events])

        counts = await asyncio.gather(*(stream(number) for number in range(16)))
        assert counts == [20 + number for number in range(16)]

        answer = await client.chat.completions.create(model="small", messages=[{"role": "user", "content": "x"}])
        assert answer.usage is not None
        with pytest.raises(openai.NotFoundError, match="known models: tiny, small"):
            await client.chat.completions.create(model="gone", messages=[])
        assert [card.id async for card in await client.models.list()] == ["tiny", "small"]

    async with httpx.AsyncClient(timeout=60) as client:
        page = (await client.get(sidecar.url(1) + "/metrics")).text
        assert 'tidepool_requests_total{code="200",outcome="ok"} 17' in page
        assert "tidepool_requests_running 0" in page
        assert "vllm:num_requests_running" in page
        page = (await client.get(gateway.url(1) + "/metrics")).text
        assert 'tidepool_gateway_requests_total{pool="default/tiny",code="200",outcome="ok"} 17' in page
    for program in stack:
        status, records = await program.stop()
        assert status == 0
        assert not [record for record in records if record["level"] in ("error", "warning")]


async def test_the_first_signal_lets_streams_end_and_the_second_does_not(stack: tuple[Program, Program]) -> None:
    gateway, sidecar = stack
    body = post(chat(stream=True, max_tokens=100, ignore_eos=True))
    async with RawClient(gateway.port) as through, RawClient(sidecar.port) as direct:
        for client in (through, direct):
            await client.send(body)
            await client.until(b"data: ")
        gateway.process.send_signal(signal.SIGTERM)
        assert (await through.rest()).endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")
        assert (await gateway.stop())[0] == 0

    async with RawClient(sidecar.port) as client:
        await client.send(post(chat(stream=True, max_tokens=2000, ignore_eos=True)))
        await client.until(b"data: ")
        sidecar.process.send_signal(signal.SIGTERM)
        await _refused(sidecar.port)  # two signals of a kind that wait at once are one
        status, records = await sidecar.stop()
        assert status == 0
        assert records[-1]["requests"] == 1
        assert b"[DONE]" not in await client.rest()


async def test_a_drain_makes_each_answer_the_last_of_its_connection_and_still_serves(
    stack: tuple[Program, Program],
) -> None:
    for program, ready in zip(stack, ("/readyz", "/engine/ready"), strict=True):
        async with RawClient(program.port) as client, RawClient(program.port + 2) as control:
            assert b"connection" not in (await client.ask(post(chat(max_tokens=2)))).headers
            await control.send(b"GET /drain HTTP/1.1\r\n\r\n")
            assert await client.rest() == b""
        async with RawClient(program.port) as client, RawClient(program.port + 2) as control:
            answer = await client.ask(post(chat(max_tokens=2)))
            assert (answer.status, answer.headers[b"connection"]) == (200, b"close")
            assert (await control.ask(b"GET %b HTTP/1.1\r\n\r\n" % ready.encode())).status == 503


async def test_a_sidecar_without_its_engine_uses_the_peers_that_it_was_told_of() -> None:
    load = LoadReport(health=Health.READY, boot="peer").encode()
    async with ScriptedEngine(address=("127.0.1.9", 0), load=load) as peer:
        peers = f"http://{peer.host}:{peer.port}"
        arguments = ("sidecar", "--engine", "http://127.0.0.1:1", "--peers", peers)
        async with run_program(*arguments, ready="/healthz") as program, RawClient(program.port) as client:
            answer = await client.ask(post(chat()))
            async with httpx.AsyncClient(timeout=60) as scraper:
                page = (await scraper.get(program.url(1) + "/metrics")).text

        assert answer.status == 200
        assert 'tidepool_requests_handed_on_total{outcome="ok"} 1' in page


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["gateway", "--fleet", "missing.yaml"], "missing.yaml"),
        (["gateway", "--fleet", "bad.yaml"], "pools"),
        (["sidecar", "--engine", "ftp://x"], "http://127.0.0.1:8000"),
        (
            ["sidecar", "--engine", "http://127.0.0.1:1", "--peers", "dns+http://10.0.0.1:1"],
            "dns+http://10.0.0.1:1",
        ),
        (["sidecar", "--engine", "http://127.0.0.1:1", "--settings", "missing.json"], "missing.json"),
        (["gateway", "--tls-cert", "tls.crt"], "--tls-cert and --tls-key belong together"),
        (["gateway", "--tls-cert", "tls.crt", "--tls-key", "tls.key"], "tls.crt cannot be read"),
        (["gateway", "--pod-ca", "bad.yaml"], "the certificates of authorities in PEM"),
    ],
)
async def test_settings_that_cannot_be_used_are_named_in_one_line(
    tmp_path: Path, arguments: list[str], message: str
) -> None:
    (tmp_path / "bad.yaml").write_text("pools: 3\n")
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tidepool_router", *arguments, "--port", "0", "--host", "127.0.0.1",
        stderr=asyncio.subprocess.PIPE, cwd=tmp_path,
    )  # fmt: skip
    _, err = await process.communicate()

    assert process.returncode == 2
    assert message in err.decode()
    assert b"Traceback" not in err


def test_ports_stand_beside_each_other() -> None:
    environment = {"POD_NAME": "p", "POD_IP": "10.0.0.7", "POD_VARIANT": "l4"}
    options = parse(["sidecar", "--engine", "http://127.0.0.1:8000", "--port", "9000"], environment)

    assert (options.port, options.metrics_port, options.control_port, options.pod) == (9000, 9001, 9002, "p")
    assert (options.pod_address, options.variant) == ("10.0.0.7", "l4")
    assert parse(["gateway", "--max-body-bytes", "5"], {}).limits.max_body_bytes == 5


def test_a_router_that_is_older_than_its_operator_passes_over_flags_that_it_does_not_know() -> None:
    """Else a router's image that a podTemplate keeps would not start after the operator's upgrade."""
    known = ["sidecar", "--engine", "http://127.0.0.1:8000"]
    later = [*known, "--flag-of-next-year", "5", "--peers", "dns+http://p:8080", "--another=x"]
    options = parse(later, {"TIDEPOOL_STARTED_BY": "operator"})

    assert (options.passed_over, options.peers) == (
        ("--flag-of-next-year", "5", "--another=x"),
        "dns+http://p:8080",
    )
    assert parse(known, {"TIDEPOOL_STARTED_BY": "operator"}).passed_over == ()
    with pytest.raises(SystemExit):  # a person's mistake is told
        parse(later, {})


def test_a_wrong_settings_file_is_refused_by_file_and_field(tmp_path: Path) -> None:
    path = tmp_path / "settings.json"
    path.write_text('{"pool": "p", "routing": {"retries": 99}}')
    options = parse(["sidecar", "--engine", "http://e:1", "--settings", str(path)], {})

    with pytest.raises(SettingsError, match=r"settings\.json cannot be used: routing\.retries"):
        read_sidecar_settings(options)


def test_a_missing_settings_file_is_waited_for_when_asked(tmp_path: Path) -> None:
    options = parse(
        [
            "sidecar",
            "--engine",
            "http://e:1",
            "--settings",
            str(tmp_path / "no"),
            "--wait-for-file",
            "--model",
            "m",
        ],
        {},
    )

    assert read_sidecar_settings(options).model == "m"
